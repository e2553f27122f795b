"""Results as tables and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.cases import case_named
from bench.peers import OURS
from bench.run import LineUp
from bench.stats import Spread
from bench.work import Metric, Work

if TYPE_CHECKING:
    from rich.table import Table

    from bench.numbers import Row

FORMAT = 1


def number(value: float) -> str:
    """Formats three significant digits, without an exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def times(spread: Spread | None) -> str:
    """Formats a ratio with the spread of its rounds: `6.1 × (5.8–6.4)`."""
    if spread is None:
        return ""
    return f"{number(spread.median)} × ({number(spread.low)}–{number(spread.high)})"


def table(line_ups: Sequence[LineUp]) -> Table:
    """Makes one row for each peer of each line-up; the last column is ours divided by that peer's."""
    from rich.table import Table

    shown = Table(header_style="bold")
    for column in ("case", "size", "messages", "peer"):
        shown.add_column(column, no_wrap=column != "case")
    for column in ("median", "spread", "CPU", "lost", f"{OURS} ÷ peer"):
        shown.add_column(column, justify="right", no_wrap=True)
    shown.add_column("also")
    for line_up in line_ups:
        rows = peer_cells(line_up)
        for row in rows:
            shown.add_row(*row, end_section=row is rows[-1])
    return shown


def peer_cells(line_up: LineUp) -> list[tuple[str, ...]]:
    """Returns the cells of each peer's row; only the first one has the case."""
    work = line_up.work
    leads = [(work.case, work.label, f"{work.count:,}")] + [("", "", "")] * (len(work.peers) - 1)
    return [(*lead, peer, *_cells(line_up, peer)) for lead, peer in zip(leads, work.peers, strict=True)]


def number_cells(row: Row) -> tuple[str, ...]:
    """Returns the target and the result."""
    target, measured = row.target, row.measured
    found = "–"
    if measured:
        low, high = number(measured.low), number(measured.high)
        found = f"{number(measured.median)} {target.unit} ({low}–{high})"
    return (
        target.text if target.ours == OURS else f"{target.text} ({target.ours})",
        target.theirs or "itself",
        f"{'≥' if target.at_least else '≤'} {target.bound:g} {target.unit}",
        found,
        number(row.cpu) if row.cpu is not None else "",
        row.verdict,
    )


def _cells(line_up: LineUp, peer: str) -> tuple[str, ...]:
    spread = line_up.spread(peer, line_up.metric.key)
    if spread is None:
        return ("–", "", "", "", "", line_up.absent.get(peer, "not run"))
    lost = line_up.lost(peer)
    ratio = "" if peer == OURS else times(line_up.ratio(peer))
    return (
        f"{number(spread.median * line_up.metric.scale)} {line_up.metric.unit}",
        f"{spread.percent:.0f} %",
        _cpu(line_up, peer),
        f"{lost:,}" if lost else "0",
        ratio,
        "; ".join(
            _also(line_up, peer, line_up.case.also)
            + ([line_up.absent[peer]] if peer in line_up.absent else [])
        ),
    )


def _cpu(line_up: LineUp, peer: str) -> str:
    """Formats the CPU seconds of all processes: per GB for large payloads, else per million messages."""
    key, unit = ("cpu_s_per_m", "s/M") if line_up.work.copies else ("cpu_s_per_gb", "s/GB")
    spread = line_up.spread(peer, key)
    return f"{number(spread.median)} {unit}" if spread else ""


def _also(line_up: LineUp, peer: str, metrics: Sequence[Metric]) -> list[str]:
    found = [(metric, line_up.spread(peer, metric.key)) for metric in metrics]
    return [f"{number(spread.median * metric.scale)} {metric.unit}" for metric, spread in found if spread]


def as_json(
    line_ups: Sequence[LineUp], machine: dict[str, Any], numbers: Sequence[Any] = ()
) -> dict[str, Any]:
    """Returns all results: samples, medians, ratios, skipped peers with the reason."""
    return {
        "format": FORMAT,
        "machine": machine,
        "line_ups": [_line_up(line_up) for line_up in line_ups],
        "numbers": [dataclasses.asdict(row) for row in numbers],
    }


def _line_up(line_up: LineUp) -> dict[str, Any]:
    ratios = {peer: line_up.ratio(peer) for peer in line_up.work.peers if peer != OURS}
    return {
        "work": dataclasses.asdict(line_up.work),
        "metric": dataclasses.asdict(line_up.metric),
        "samples": line_up.samples,
        "ratios": {peer: dataclasses.asdict(spread) for peer, spread in ratios.items() if spread},
        "absent": line_up.absent,
    }


def write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Reads a document of `write_json`. Raises ValueError if it is not one."""
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if document.get("format") != FORMAT:
        raise ValueError(f"{path} is no result of this bench (format {document.get('format')!r})")
    return document


def line_ups_of(document: dict[str, Any]) -> list[LineUp]:
    """Restores the line-ups."""
    found = []
    for saved in document["line_ups"]:
        work = Work(**{**saved["work"], "peers": tuple(saved["work"]["peers"])})
        found.append(LineUp(case_named(work.case), work, saved["samples"], saved["absent"]))
    return found
