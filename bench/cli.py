"""The command line of `python -m bench`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import baseline, machine, markdown, report
from bench.cases import MODULES, case_named
from bench.numbers import TARGETS, Row, judge, works_for
from bench.peers import PEERS, TRANSPORTS
from bench.run import LineUp, plain, run_line_up, select
from bench.work import Work

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

REPEAT = 5


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench", description="Ratios against other libraries.")
    again: dict[str, Any] = {"action": "append", "default": []}
    made.add_argument(
        "--case",
        **again,
        choices=list(MODULES),
        metavar="CASE",
        help="one of those that `--list` shows; may be repeated, like the next two",
    )
    made.add_argument("--size", **again, help="64B, 1KiB, 64KiB, 1MiB, 64MiB …")
    made.add_argument(
        "--peer", **again, choices=[*PEERS, "iperf3"], metavar="PEER", help="ours is transfer, and transfer-…"
    )
    made.add_argument(
        "--transport",
        **again,
        choices=TRANSPORTS,
        help="measure transfer over this transport, too, in every case over tcp",
    )
    made.add_argument("--repeat", type=int, default=REPEAT, help="rounds for each peer (default %(default)s)")
    made.add_argument("--quick", action="store_true", help="fewer messages and 2 rounds: shows that it runs")
    made.add_argument("--numbers", action="store_true", help="the project's targets: measured, hit or missed")
    made.add_argument("--json", type=Path, metavar="FILE", help="all samples, the machine and the versions")
    made.add_argument("--plot", type=Path, metavar="FILE", help="the ratios, as PNG or SVG")
    made.add_argument(
        "--markdown", type=Path, metavar="FILE", help="the tables; into the place of a document"
    )
    made.add_argument("--baseline", type=Path, metavar="FILE", help="an earlier --json file to compare with")
    made.add_argument(
        "--from", **again, dest="saved", type=Path, metavar="FILE", help="show --json files, run nothing"
    )
    made.add_argument("--list", action="store_true", help="cases, sizes and peers, without running any")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 when everything was measured or skipped with its reason, 1 when a run failed."""
    from rich.console import Console

    chosen = parser().parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 200)
    targets = [target for target in TARGETS if _asked_for(target, chosen)]
    if chosen.numbers:
        works = works_for(targets, chosen.quick)
    else:
        works = select(chosen.case, chosen.size, chosen.peer, chosen.quick, chosen.transport)
    if chosen.list:
        return _list(works, console)
    if not works:
        console.print("no line-up matches; `--list` shows all")
        return 1
    if chosen.saved:
        line_ups, where = _saved(chosen.saved)
    else:
        where = machine.describe()
        line_ups = _measure(works, where, chosen, console)
    _show(line_ups, where, judge(targets, line_ups) if chosen.numbers else [], chosen, console)
    return 1 if any("failed" in reason for line in line_ups for reason in line.absent.values()) else 0


def _measure(
    works: Sequence[Work], where: dict[str, Any], chosen: argparse.Namespace, console: Console
) -> list[LineUp]:
    """Runs the works. With `--json` each line-up is written as soon as it is done."""
    repeat = min(chosen.repeat, 2) if chosen.quick else chosen.repeat
    line_ups: list[LineUp] = []
    with console.status("") as status:
        for work in works:
            line_ups.append(run_line_up(work, repeat, status.update))
            if chosen.json:
                report.write_json(chosen.json, report.as_json(line_ups, where))
    return line_ups


def _saved(paths: Sequence[Path]) -> tuple[list[LineUp], dict[str, Any]]:
    """Returns the line-ups of some files, and the machine of the last. Later files replace earlier ones."""
    found: dict[tuple[str, str, int, tuple[str, ...]], LineUp] = {}
    where: dict[str, Any] = {}
    for path in paths:
        document = report.read_json(path)
        where = document["machine"]
        for line_up in report.line_ups_of(document):
            work = line_up.work
            found[work.case, work.label, work.count, work.peers] = line_up
    return list(found.values()), where


def _show(
    line_ups: list[LineUp],
    where: dict[str, Any],
    rows: list[Row],
    chosen: argparse.Namespace,
    console: Console,
) -> None:
    """Prints the tables, and writes the requested files."""
    console.print(machine.one_line(where), highlight=False)
    console.print(report.table(line_ups))
    if rows:
        console.print(_numbers_table(rows))
    document = report.as_json(line_ups, where, rows)
    if chosen.baseline:
        changes = baseline.compare(report.read_json(chosen.baseline), document)
        console.print(_changes_table(changes))
    if chosen.json:
        report.write_json(chosen.json, document)
    if chosen.markdown:
        markdown.write(chosen.markdown, markdown.render(line_ups, rows, where))
    if chosen.plot:
        from bench.plot import draw

        draw(chosen.plot, line_ups, machine.one_line(where))


def _asked_for(target: Any, chosen: argparse.Namespace) -> bool:
    sizes = {plain(size) for size in chosen.size}
    if chosen.case and target.case not in chosen.case:
        return False
    if sizes and plain(target.label) not in sizes:
        return False
    return not chosen.peer or not target.theirs or target.theirs in chosen.peer


def _list(works: Sequence[Work], console: Console) -> int:
    for work in works:
        about = case_named(work.case).about
        peers = ", ".join(work.peers)
        console.print(f"{work.case} {work.label}: {about}; {work.count:,} messages; {peers}", highlight=False)
    return 0


def _numbers_table(rows: Sequence[Row]) -> Table:
    from rich.table import Table

    shown = Table(title="Numbers", title_justify="left", header_style="bold")
    for column in ("case", "against", "target", "measured", "CPU ÷", "verdict"):
        shown.add_column(column, justify="left" if column in ("case", "against", "verdict") else "right")
    style = {"hit": "green", "missed": "red"}
    for row in rows:
        shown.add_row(*report.number_cells(row), style=style.get(row.verdict))
    return shown


def _changes_table(changes: Sequence[baseline.Change]) -> Table:
    from rich.table import Table

    shown = Table(title="Against the baseline (ratios)", title_justify="left", header_style="bold")
    for column in ("case", "size", "peer", "then", "now", "verdict"):
        shown.add_column(column)
    style = {"slower": "red", "faster": "green"}
    for change in changes:
        then, now = report.number(change.then), report.number(change.now)
        shown.add_row(
            change.case, change.label, change.peer, then, now, change.verdict, style=style.get(change.verdict)
        )
    return shown
