"""What the doctor finds: one line for each thing that it looked at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. status: ok; warn (works, but); fail (does not work); off (absent, and optional)."""

    group: str
    name: str
    status: str
    detail: str
    hint: str = ""


def healthy(checks: Iterable[Check]) -> bool:
    """True when nothing failed; what is absent and optional does not count."""
    return all(check.status != "fail" for check in checks)


def as_data(checks: Iterable[Check]) -> list[dict[str, str]]:
    """For `--json`."""
    return [asdict(check) for check in checks]


def read(path: str | Path) -> str:
    """The text of a file of the kernel's; empty if there is none."""
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:  # not every kernel has every file; the check that reads it says what is missing
        return ""
