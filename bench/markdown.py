"""A run as Markdown, possibly inside a document that has a place for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench import machine, report
from bench.numbers import Row
from bench.peers import OURS
from bench.run import LineUp

#: the run replaces the text between these lines of a document
BEGIN = "<!-- run: written by `python -m bench --markdown` -->"
END = "<!-- end of the run -->"


def render(line_ups: Sequence[LineUp], rows: Sequence[Row], where: dict[str, Any]) -> str:
    """Returns the machine, the targets if they were judged, and a row for each peer."""
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    parts = [f"{where['when'][:10]}, revision {where['revision']}. {machine.one_line(where)}. {versions}."]
    if rows:
        parts.append(_targets(rows))
    parts.append(_peers(line_ups))
    return "\n\n".join(parts) + "\n"


def _targets(rows: Sequence[Row]) -> str:
    """Returns a table of the targets, each with the peer that it is measured against."""
    head = ("case", "target", "measured (lowest–highest round)", "CPU ÷", "verdict")
    lines = []
    for row in rows:
        case, _, bound, *result = report.number_cells(row)
        lines.append((case, f"{bound} {row.target.theirs}".strip(), *result))
    return _table(head, lines)


def _peers(line_ups: Sequence[LineUp]) -> str:
    """Returns a table with a row for each peer, without columns that are empty or 0 in all rows."""
    head = ("case, size, messages", "peer", "median", "spread", "CPU", "lost", f"{OURS} ÷ peer")
    rows = [
        (" ".join((case, size, count)).strip(), peer, "; ".join(filter(None, (median, also))), *others)
        for line_up in line_ups
        for case, size, count, peer, median, *others, also in report.peer_cells(line_up)
    ]
    shown = [place for place in range(len(head)) if any(row[place] not in ("", "0") for row in rows)]
    return _table([head[place] for place in shown], ([row[place] for place in shown] for row in rows))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def write(path: Path, text: str) -> None:
    """Replaces the run in a document that has a place for it, else writes a new file."""
    if path.exists():
        document = path.read_text(encoding="utf-8")
        before, begin, rest = document.partition(BEGIN)
        _, end, after = rest.partition(END)
        if begin and end:
            text = f"{before}{BEGIN}\n\n{text}\n{END}{after}"
    path.write_text(text, encoding="utf-8")
