"""By which subscribers know a log again, and see that it is a backup's."""

from __future__ import annotations

import itertools
import secrets
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

from transfer.links.places import KeptLog, Place
from transports.errors import LogDamaged, LogFull

if TYPE_CHECKING:
    from transfer.log import Log

#: where the log says its own name, and when its runs began
_NAME, _RUNS = b"broker/name", b"broker/runs"
#: a run's number, and the time before which all messages of earlier runs are
_RUN = struct.Struct("<QQ")
#: runs that are remembered: somebody who was last there before them begins anew
_MOST = 1000


class LogRuns:
    """A log is written in runs, one for each start of its broker. Whoever was at a message in a run that this
    log knows has the same messages up to the end of that run; a backup that was put back, or a copy, goes on
    in runs of its own. On the broker's loop.

    log: the name, and the run that begins now. A log that is full remembers neither: then all begin anew
    after the next start.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        name, begun = log.get(_NAME), log.get(_RUNS) or b""
        runs = [*_RUN.iter_unpack(begun[: len(begun) // _RUN.size * _RUN.size])]
        runs.append((secrets.randbits(64), log.boundary()))
        self.log = KeptLog(name.decode() if name is not None else secrets.token_hex(16), runs[-1][0])
        #: of runs that are over: the time before which all their messages are
        self._ends = {run: end for (run, _), (_, end) in itertools.pairwise(runs)}
        with suppress(LogFull):
            log.put(_NAME, self.log.name.encode())
            log.commit(log.put(_RUNS, b"".join(_RUN.pack(*one) for one in runs[-_MOST:])))

    def agreed(self, log_name: str, place: Place) -> int | None:
        """Behind which message of the log's topic somebody goes on who was at that place: no later than where
        this log became another one. None: it never was that log."""
        number, run = place
        if run == self.log.run:
            return number
        end = self._ends.get(run)
        if end is None:
            return None
        low, high = self._log.range(log_name)
        if number <= low:
            return number
        try:
            found = self._log.read(log_name, number - 1, limit=1, verify=False) if number <= high else []
            if found and found[0].time < end:
                return number
            return min(number, self._log.offset_at(log_name, end))
        except LogDamaged:
            return number
