"""Limits log lines that any peer can cause: a few of each kind, and the number of omitted ones."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable

#: lines of one kind that it writes within `_PERIOD` seconds
_MOST = 10
_PERIOD = 60.0


class ThrottledLog:
    """A log for one thread. The caller chooses kinds, never from a peer's bytes: so there are only a few."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._periods: dict[Hashable, tuple[float, int]] = {}  # by kind: its begin, and lines in it

    def log(self, level: int, kind: Hashable, text: str, *arguments: object, most: int = _MOST) -> None:
        """Logs at most `most` lines of the kind in a period.

        The first line of a period reports how many lines of the previous period were left out.
        """
        if not self._log.isEnabledFor(level):
            return
        now = self._clock()
        begin, count = self._periods.get(kind, (now, 0))
        left_out = 0
        if now - begin >= _PERIOD:
            left_out = max(0, count - most)
            begin, count = now, 0
        self._periods[kind] = begin, count + 1
        if count < most:
            more = f" ({left_out} more like it were left out)" if left_out else ""
            self._log.log(level, text + more, *arguments)
