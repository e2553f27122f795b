"""`transfer bench broker`: measures, shows progress, and prints a table or JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from transfer.broker.bench.figures import HEAD, Result, row
from transfer.broker.bench.measurement import measure
from transfer.broker.bench.processes import Processes
from transfer.broker.bench.target import REQUESTS, TTP, BenchTarget, Running, Started, started, temporary
from transfer.cli.exits import EXIT_INTERRUPTED
from transfer.cli.tables import print_json, show_table
from transfer.transports.errors import OptionError

if TYPE_CHECKING:
    from transfer.broker.bench.plan import Plan


@dataclass(frozen=True, slots=True)
class Measured:
    """The broker to measure: a running one at these addresses; without any, it starts one.

    data: where it makes the folder of a started broker. Raises OptionError.
    """

    requests: str | None
    ttp: str | None
    pid: int | None
    url: str | None
    data: Path | None

    def __post_init__(self) -> None:
        if self.runs and self.data is not None:
            raise OptionError("--data is for a broker that is started here", hint="leave out one of them")

    @property
    def runs(self) -> bool:
        """Whether the broker runs already."""
        return any(option is not None for option in (self.requests, self.ttp, self.pid, self.url))

    @contextmanager
    def target(self) -> Iterator[BenchTarget]:
        """Yields the broker, ready to be measured."""
        if self.runs:
            yield Running(self.requests or REQUESTS, self.ttp or TTP, pid=self.pid, url=self.url)
            return
        with temporary(self.data) as folder, Processes() as crew:
            target: Started = started(crew, folder)
            yield target
            target.end()


def bench(plans: Sequence[Plan], measured: Measured, *, as_json: bool, quiet: bool) -> int:
    """Measures one plan after the other. Returns 1 if messages were lost, 130 after Ctrl-C.

    as_json: prints each result at once, as a line. Else it prints a table at the end, also after Ctrl-C.
    """
    results: list[Result] = []
    try:
        with measured.target() as target:
            for number, plan in enumerate(plans, 1):
                name = f"{plan.name} ({number}/{len(plans)})" if len(plans) > 1 else plan.name
                with _Bar(name, plan.duration, quiet=quiet) as bar:
                    results.append(measure(plan, target, bar.tick))
                if as_json:
                    print_json(results[-1].as_data())
    except KeyboardInterrupt:
        _show(results, as_json=as_json)
        print("transfer: stopped by Ctrl-C", file=sys.stderr)
        return EXIT_INTERRUPTED
    _show(results, as_json=as_json)
    return 1 if any(result.lost for result in results) else 0


def _show(results: Sequence[Result], *, as_json: bool) -> None:
    if not as_json:
        show_table(HEAD, [row(result) for result in results], right=HEAD[1:])


class _Bar:
    """Progress of one measurement on standard error, if that is a terminal."""

    def __init__(self, name: str, seconds: float, *, quiet: bool) -> None:
        self._name = name
        self._seconds = seconds
        self._shown = not quiet and sys.stderr.isatty()
        self._begun: float | None = None
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        if self._shown:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(self._name, total=self._seconds)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def tick(self) -> None:
        """Called while publishers are running."""
        if self._bar is not None:
            now = time.monotonic()
            self._begun = self._begun or now
            self._bar.update(self._task, completed=min(self._seconds, now - self._begun))
