"""What consumers of groups are sent: of memory, or out of the log."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from transfer.broker.group_contract import LARGE
from transports.errors import LogDamaged

if TYPE_CHECKING:
    from transfer.broker.engine.groups import Delivery
    from transfer.broker.group_contract import Served
    from transfer.broker.message import Message
    from transfer.broker.store import Store

_log = logging.getLogger("transfer.broker")

#: bytes that are read at once
_BYTES = 4 << 20


class GroupReading:
    """On the broker's loop. counts: of the hub."""

    def __init__(self, store: Store, counts: Counter[str]) -> None:
        self._store = store
        self._counts = counts

    def messages(self, served: Served, taken: Sequence[Delivery]) -> dict[int, Message]:
        """What is to be sent, by offset. What retention or damage took is not in it."""
        found: dict[int, Message] = {}
        recent = served.topic.recent
        for delivery in taken:
            if delivery.offset in found:
                continue
            message = recent.get(served.topic.name, delivery.offset) if recent is not None else None
            if message is not None:
                found[delivery.offset] = message
                continue
            try:
                behind = self._store.read(
                    served.topic, delivery.offset, nbytes=_BYTES, limit=len(taken), verify=LARGE
                )
                for message in behind:
                    if message.nbytes >= LARGE:
                        self._check(served, message, taken)
            except LogDamaged as error:
                _log.error("%s", error)
                self._counts["damaged"] += 1
                continue
            for message in behind:
                if message.offset is not None:
                    found[message.offset] = message
        return found

    def _check(self, served: Served, message: Message, taken: Sequence[Delivery]) -> None:
        """Whoever takes a large message in pieces checks it as they go. Raises LogDamaged."""
        takers = [one.consumer for one in taken if one.offset == message.offset]
        if not all(getattr(taker, "in_pieces", False) for taker in takers):
            self._store.check(served.topic, message.offset or 0)
