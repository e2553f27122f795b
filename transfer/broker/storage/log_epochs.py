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
#: an epoch's number, and a time after all messages of earlier epochs
_EPOCH = struct.Struct("<QQ")
#: most stored epochs; a subscriber with an older position begins at the oldest message, or at new ones
_MAX_EPOCHS = 1000


class LogEpochs:
    """The epochs of a log: each start of a broker begins a new one. Used on the broker's loop.

    Two copies of a log have the same messages up to the end of each epoch that both know. A restored backup
    or a copy continues with different epochs.

    log: the name, and the epoch that begins now. A full log cannot store them: then no position is valid
    after the next start.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        name, kept = log.get(_NAME), log.get(_EPOCHS) or b""
        epochs = [*_EPOCH.iter_unpack(kept[: len(kept) // _EPOCH.size * _EPOCH.size])]
        epochs.append((secrets.randbits(64), log.boundary()))
        self.log = LogId(name.decode() if name is not None else secrets.token_hex(16), epochs[-1][0])
        #: of each earlier epoch: a time after all its messages
        self._ends = {epoch: end for (epoch, _), (_, end) in itertools.pairwise(epochs)}
        with suppress(LogFull):
            log.put(_NAME, self.log.name.encode())
            log.commit(log.put(_EPOCHS, b"".join(_EPOCH.pack(*one) for one in epochs[-_MAX_EPOCHS:])))

    def valid_number(self, log_name: str, position: TopicPosition) -> int | None:
        """Returns the position's number, or the last earlier one that the position's log and this copy share.
        None: the position is of another log."""
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
