"""Messages that nobody can process become dead letters."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from transfer.broker.engine.groups import Delivery
from transfer.broker.group_contract import Bury, Dead, Served
from transfer.broker.group_reading import UNREADABLE, GroupReading
from transports.errors import TransferError

if TYPE_CHECKING:
    from transfer.broker.durability import Told
    from transfer.broker.message import Message

_log = logging.getLogger("transfer.broker")
#: seconds until a dead letter that could not be kept is tried again
_AGAIN = 1.0


class GivingUp:
    """For all groups. On the broker's loop.

    bury: keeps dead letters. note: has it written what groups have done. waiting: messages that are to become
    dead letters, and are none yet.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        reading: GroupReading,
        counts: Counter[str],
        bury: Bury,
        note: Callable[[Served, Told | None], None],
    ) -> None:
        self.waiting = 0
        self._loop = loop
        self._reading = reading
        self._counts = counts
        self._bury = bury
        self._note = note

    def give_up(self, served: Served, delivery: Delivery, reason: str) -> None:
        """Nobody can process it: it becomes a dead letter, and then is done with."""
        first = served.group.failed_first(delivery.offset)
        dead = Dead(
            served.named.topic,
            served.named.name,
            delivery.offset,
            delivery.attempt,
            reason or "its consumer refused it and gave no reason",
            str(delivery.consumer),
            self._loop.time() - first if first is not None else 0.0,
        )
        try:
            message = self._reading.message(served, delivery)
        except OSError:
            self._loop.call_later(UNREADABLE, self.give_up, served, delivery, reason)
            return
        self.waiting += 1
        # First it has to be known behind a crash that it was sent: a restart asks for letters of those.
        self._note(served, partial(self._sent, served, dead, message))

    def _sent(self, served: Served, dead: Dead, message: Message | None, error: TransferError | None) -> None:
        if error is None:
            self._bury(dead, message, partial(self._buried, served, dead, message))
        else:
            self.waiting -= 1

    def _buried(
        self, served: Served, dead: Dead, message: Message | None, error: TransferError | None
    ) -> None:
        told = partial(self._buried, served, dead, message)
        if error is not None:
            _log.error("a dead letter could not be kept, and is tried again: %s", error)
            self._loop.call_later(_AGAIN, self._bury, dead, message, told)
            return
        self.waiting -= 1
        self._counts["dead_lettered"] += 1
        served.group.bury(dead.offset)
        self._note(served, None)
