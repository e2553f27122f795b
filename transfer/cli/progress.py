"""A progress bar for long work, on a terminal only, and the line that closes it."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

from transfer.cli.options import show_size
from transfer.cli.tables import print_json

#: work that ends sooner shows no bar, seconds
PATIENCE = 1.0
#: the bar is redrawn this often at most, seconds
REDRAW = 0.1


class Progress:
    """Counts messages and bytes; draws them on standard error if that is a terminal.

    verb: "sent" or "received". total_bytes, total_messages: how much there will be, None when nobody
    knows. lines: the command prints a line for each message; on a terminal these are progress enough.
    A context manager; not thread-safe.
    """

    def __init__(
        self,
        verb: str,
        *,
        total_bytes: int | None = None,
        total_messages: int | None = None,
        quiet: bool = False,
        lines: bool = False,
        as_json: bool = False,
    ) -> None:
        self.messages = 0
        self.nbytes = 0
        self._verb = verb
        self._totals = (total_messages, total_bytes)
        self._quiet = quiet
        self._lines = lines
        self._json = as_json
        self._began = 0.0
        self._due = 0.0
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._draw()
            self._bar.stop()

    def begin(self) -> None:
        """The clock starts: now the peers are there. Else it starts with the first message."""
        if not self._began:
            self._began = time.monotonic()
            self._due = self._began + PATIENCE

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began if self._began else 0.0

    def add(self, nbytes: int) -> None:
        """One more message of so many bytes."""
        self.begin()
        self.messages += 1
        self.nbytes += nbytes
        if not self._quiet and time.monotonic() >= self._due:
            self._due = time.monotonic() + REDRAW
            self._draw()

    def close(self) -> None:
        """The last line: for a program on standard output (`--json`), else for a person."""
        if self._json:
            summary = {self._verb: self.messages, "bytes": self.nbytes, "seconds": round(self.seconds, 6)}
            print_json(summary)
        elif not self._quiet:
            rate = f" ({show_size(self.nbytes / self.seconds)}/s)" if self.messages > 1 else ""
            plural = "" if self.messages == 1 else "s"
            text = f"{self._verb} {self.messages} message{plural}, {show_size(self.nbytes)}{rate}"
            print(text, file=sys.stderr)

    def _draw(self) -> None:
        if self._bar is None:
            if not sys.stderr.isatty() or (self._lines and sys.stdout.isatty()):
                self._due = float("inf")  # that will not change: never ask again
                return
            self._start_bar()
        messages, nbytes = self._totals
        done = self.messages if messages is not None and nbytes is None else self.nbytes
        self._bar.update(self._task, completed=done, messages=self.messages)

    def _start_bar(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress as Bar,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        messages, nbytes = self._totals
        counts_messages = messages is not None and nbytes is None
        columns: list[Any] = [
            TextColumn(self._verb),
            BarColumn(),
            TextColumn("{task.fields[messages]} messages"),
        ]
        if not counts_messages:
            columns += [DownloadColumn(), TransferSpeedColumn()]
        columns.append(TimeRemainingColumn())
        self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task("", total=messages if counts_messages else nbytes, messages=0)
        self._bar.start()
