"""The doctor's findings, one for each check."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path


def _no_conflicts() -> tuple[list[str], str]:
    return [], ""


#: other distributions with files of this package, and what mends that; the installed command sets it
name_conflicts: Callable[[], tuple[list[str], str]] = _no_conflicts


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. status: ok; warn (works with limits); fail (does not work); off (absent, optional)."""

    group: str
    name: str
    status: str
    detail: str
    hint: str = ""


def healthy(checks: Iterable[Check]) -> bool:
    """Whether no check failed; absent optional parts do not count."""
    return all(check.status != "fail" for check in checks)


def as_data(checks: Iterable[Check]) -> list[dict[str, str]]:
    """Returns the findings for `--json`."""
    return [asdict(check) for check in checks]


def read(path: str | Path) -> str:
    """Returns the text of a kernel's file; empty if there is none."""
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:  # not every kernel has every file; the check that reads it reports what is missing
        return ""
