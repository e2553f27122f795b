"""The commands `transfer` and `tensor-transfer`, outside of the package `transfer`.

PyPI has another distribution that installs a package `transfer`. Where both are installed, or one was removed
again, files of the package are not ours: this module then says so, instead of a traceback.
"""

from __future__ import annotations

import sys
from importlib import metadata
from importlib.util import find_spec

_NAME = "tensor-transfer"
#: how `transfer/__init__.py` begins
_BEGINNING = b'"""transfer moves tensors'


def main() -> None:
    """Runs the command, or ends with exit code 1 and what mends the installation."""
    if not _is_ours():
        others = list_others()
        whose = f"{' and '.join(others)} has installed" if others else "another distribution had installed"
        print(f"transfer: {whose} files of the same names over {_NAME}\n  hint: {remedy()}", file=sys.stderr)
        sys.exit(1)
    from transfer.cli import main as run
    from transfer.doctor import finding

    finding.name_conflicts = lambda: (list_others(), remedy())
    run(name=_NAME if sys.argv[0].endswith(_NAME) else "transfer")


def list_others() -> list[str]:
    """Other installed distributions with files in the package `transfer`: name and version of each."""
    found = set()
    for one in metadata.distributions():
        name = one.name.lower().replace("_", "-")
        if name != _NAME and "\ntransfer/__init__.py," in "\n" + (one.read_text("RECORD") or ""):
            found.add(f"{one.name} {one.version}")
    return sorted(found)


def remedy() -> str:
    """The commands that leave only our distribution."""
    names = [other.partition(" ")[0] for other in list_others()]
    removal = f"pip uninstall -y {' '.join(names)} && " if names else ""
    return f"{removal}pip install --force-reinstall --no-deps {_source()}"


def _source() -> str:
    """Where pip gets our distribution again: what it was installed from, if not from an index."""
    import json
    from shlex import quote
    from urllib.parse import unquote, urlsplit

    try:
        record = json.loads(metadata.distribution(_NAME).read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:
        return _NAME
    editable = "-e " if record.get("dir_info", {}).get("editable") else ""
    url = record.get("url", _NAME)
    return editable + quote(unquote(urlsplit(url).path) if url.startswith("file:") else url)


def _is_ours() -> bool:
    """Whether the package has our files; it is not imported, since the other one then loads all modules."""
    found = find_spec("transfer")
    if found is None or found.loader is None or not found.origin:
        return False
    try:
        begins = found.loader.get_data(found.origin)[: len(_BEGINNING)]  # type: ignore[attr-defined]
    except (AttributeError, OSError):
        return True  # an importer of another kind, which nothing can have overwritten
    return bool(begins == _BEGINNING)
