"""What other users of the host can do to the files of certificates, keys and tokens."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from transfer.transports.security.settings import Security

_log = logging.getLogger("transfer")
#: warnings that were logged
_logged: set[Exposure] = set()


class Exposure(NamedTuple):
    """A file that others can access, and the remedy. name: of the setting."""

    name: str
    text: str
    hint: str


def exposures(security: Security) -> Iterator[Exposure]:
    """Checks all named files. A file's group may read it: secrets are mounted so."""
    for name, path, secret in (
        ("certificate", security.certificate, False),
        ("key", security.key, True),
        ("authority", security.authority, False),
        ("token", security.token_file, True),
    ):
        if path:
            yield from (Exposure(name, text, hint) for text, hint in _of_file(path, secret))


def warn_of(security: Security) -> None:
    """Logs each warning once in the life of the process."""
    _warn(exposures(security))


def warn_of_secret(name: str, path: str | os.PathLike[str]) -> None:
    """The same for another file with a secret."""
    _warn(Exposure(name, text, hint) for text, hint in _of_file(os.fspath(path), secret=True))


def _warn(all_of_them: Iterable[Exposure]) -> None:
    for found in all_of_them:
        if found not in _logged:
            _logged.add(found)
            _log.warning("%s\n  hint: %s", found.text, found.hint)


def _of_file(path: str, secret: bool) -> Iterator[tuple[str, str]]:
    try:
        mode = os.stat(path).st_mode
        # A link is followed: it can be replaced, and so can its target.
        folders = dict.fromkeys(
            os.path.dirname(one) for one in (os.path.abspath(path), os.path.realpath(path))
        )
        lax = [folder for folder in folders if _is_for_all(os.stat(folder).st_mode)]
    except OSError:  # its reader raises the error
        return
    can = " and ".join(
        word
        for word, bad in (("read", secret and mode & stat.S_IROTH), ("change", mode & stat.S_IWOTH))
        if bad
    )
    if can:
        yield (
            f"every user of this host can {can} {path}",
            f"chmod o-rwx {path}" if secret else f"chmod o-w {path}",
        )
    for folder in lax:
        yield f"every user of this host can put another file in the place of {path}", f"chmod o-w {folder}"


def _is_for_all(mode: int) -> bool:
    """Whether every user may replace files in a folder, unlike in /tmp, where only owners remove."""
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX
