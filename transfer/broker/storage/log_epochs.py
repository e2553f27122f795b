"""The epochs of a log: they show a subscriber whether its position is valid in this copy of the log."""

from __future__ import annotations

import itertools
import secrets
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

from transfer.sockets.connections.topic_positions import LogId, TopicPosition
from transfer.transports.errors import LogDamaged, LogFull

if TYPE_CHECKING:
    from transfer.log import Log

#: the log's keys for its name and its epochs
_NAME, _EPOCHS = b"broker/name", b"broker/epochs"
#: the number of an epoch, and a time that is later than all messages of earlier epochs
_EPOCH = struct.Struct("<QQ")
#: epochs that are kept; a subscriber with an older position begins at the oldest message, or at new ones
_MAX_EPOCHS = 1000


class LogEpochs:
    """Each start of a broker begins a new epoch of its log. Two copies of a log have the same messages up to
    the end of each epoch that both know; a restored backup, or a copy, goes on in epochs of its own. Used on
    the broker's loop.

    log: the name, and the epoch that begins now. A full log cannot keep them: then no position is
    valid after the next start.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        name, kept = log.get(_NAME), log.get(_EPOCHS) or b""
        epochs = [*_EPOCH.iter_unpack(kept[: len(kept) // _EPOCH.size * _EPOCH.size])]
        epochs.append((secrets.randbits(64), log.boundary()))
        self.log = LogId(name.decode() if name is not None else secrets.token_hex(16), epochs[-1][0])
        #: of each earlier epoch: a time that is later than all its messages
        self._ends = {epoch: end for (epoch, _), (_, end) in itertools.pairwise(epochs)}
        with suppress(LogFull):
            log.put(_NAME, self.log.name.encode())
            log.commit(log.put(_EPOCHS, b"".join(_EPOCH.pack(*one) for one in epochs[-_MAX_EPOCHS:])))

    def valid_number(self, log_name: str, position: TopicPosition) -> int | None:
        """The position's number, or an earlier one: the last message of the log's topic that the position's
        log and this copy of it have in common. None: the position is of another log."""
        number, epoch = position
        if epoch == self.log.epoch:
            return number
        end = self._ends.get(epoch)
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
