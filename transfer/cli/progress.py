"""A progress bar for long work, only on a terminal, and its closing line."""

from __future__ import annotations

import sys
import time
from typing import Any, Self

from transfer.cli.tables import print_json
from transfer.units import show_size

#: seconds after which the bar appears
PATIENCE = 1.0
#: seconds between two redraws at least
REDRAW = 0.1


class Progress:
    """Counts messages and bytes, and draws them on standard error if that is a terminal.

    verb: "sent" or "received". total_bytes, total_messages: None if unknown. lines: the command prints a line
    for each message, so that a terminal needs no bar. A context manager; not thread-safe.
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

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._draw()
            self._bar.stop()

    def begin(self) -> None:
        """Starts the clock, when the peers are connected. Else the first message starts it."""
        if not self._began:
            self._began = time.monotonic()
            self._due = self._began + PATIENCE

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began if self._began else 0.0

    def add(self, nbytes: int) -> None:
        """Counts a message of `nbytes` bytes."""
        self.begin()
        self.messages += 1
        self.nbytes += nbytes
        if not self._quiet and time.monotonic() >= self._due:
            self._due = time.monotonic() + REDRAW
            self._draw()

    def close(self) -> None:
        """Prints the closing line: as JSON on standard output (`--json`), or for people on standard error."""
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
                self._due = float("inf")  # this does not change later
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
