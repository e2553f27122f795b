"""Moves messages that no consumer can process to the dead letters."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from transfer.broker.core.groups import Delivery
from transfer.broker.delivery.group_contract import Dead, Served, StoreDeadLetter
from transfer.broker.delivery.group_reader import UNREADABLE, GroupReader
from transfer.transports.errors import TransferError

if TYPE_CHECKING:
    from transfer.broker.core.message import Message
    from transfer.broker.storage.durability import OnComplete

_log = logging.getLogger("transfer.broker")
#: seconds after which keeping a dead letter is retried
_AGAIN = 1.0


class DeadLetterRouter:
    """Moves messages of all groups to the dead letters. Used on the broker's loop.

    store: keeps a dead letter. write_progress: writes what a group has processed. pending: messages that are
    not kept as dead letters yet.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        reading: GroupReader,
        counts: Counter[str],
        store: StoreDeadLetter,
        write_progress: Callable[[Served, OnComplete | None], None],
    ) -> None:
        self.pending = 0
        self._loop = loop
        self._reading = reading
        self._counts = counts
        self._store = store
        self._write_progress = write_progress

    def route(self, served: Served, delivery: Delivery, reason: str) -> None:
        """Keeps the message as a dead letter, then marks it as processed in its group."""
        first = served.group.failed_first(delivery.offset)
        dead = Dead(
            served.named.topic,
            served.named.name,
            delivery.offset,
            delivery.attempt,
            reason or "the consumer refused the message and gave no reason",
            str(delivery.consumer),
            self._loop.time() - first if first is not None else 0.0,
        )
        try:
            message = self._reading.message(served, delivery)
        except OSError:
            self._loop.call_later(UNREADABLE, self.route, served, delivery, reason)
            return
        self.pending += 1
        # The delivery is written first: after a crash, a restart looks for dead letters of deliveries.
        self._write_progress(served, partial(self._on_progress_written, served, dead, message))

    def _on_progress_written(
        self, served: Served, dead: Dead, message: Message | None, error: TransferError | None
    ) -> None:
        if error is None:
            self._store(dead, message, partial(self._on_stored, served, dead, message))
        else:
            self.pending -= 1

    def _on_stored(
        self, served: Served, dead: Dead, message: Message | None, error: TransferError | None
    ) -> None:
        on_complete = partial(self._on_stored, served, dead, message)
        if error is not None:
            _log.error("a dead letter could not be kept; the broker retries: %s", error)
            self._loop.call_later(_AGAIN, self._store, dead, message, on_complete)
            return
        self.pending -= 1
        self._counts["dead_lettered"] += 1
        served.group.mark_dead_lettered(dead.offset)
        self._write_progress(served, None)
