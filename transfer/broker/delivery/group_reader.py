"""Reads the messages that consumers of groups receive, from memory or from the log."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transfer.broker.delivery.group_contract import LARGE
from transfer.transports.errors import LogDamaged

if TYPE_CHECKING:
    from transfer.broker.core.groups import Delivery
    from transfer.broker.core.message import Message
    from transfer.broker.delivery.group_contract import Served
    from transfer.broker.storage.store import Store

_log = logging.getLogger("transfer.broker")

#: bytes that are read at once
_BYTES = 4 << 20
#: seconds after which reading a message is retried
UNREADABLE = 1.0
#: bytes that are sent at once; the message that exceeds them is sent too
MOST_BYTES = 32 << 20


class GroupReader:
    """Reads and sends messages, on the broker's loop. counts: of the hub."""

    def __init__(self, store: Store, counts: Counter[str]) -> None:
        self._store = store
        self._counts = counts

    def send(self, served: Served, taken: list[Delivery], now: float) -> tuple[int, bool]:
        """Sends the taken messages, or as many as are sent at once. Returns their number, and whether others
        among them were passed over. The rest goes back into the group. Messages that cannot be read go back
        until a retry."""
        try:
            messages, count = self._messages(served, taken)
        except OSError:
            served.group.untake(taken, now + UNREADABLE)
            return 0, False
        if count < len(taken):
            served.group.untake(taken[count:], 0.0)  # due at once, in their order
            taken = taken[:count]
        if passed_over := _for_other_groups(served, messages, taken):
            taken = [one for one in taken if one not in passed_over]
        mine: dict[Any, list[tuple[Delivery, Message | None]]] = {}
        if served.group.consumers == 1 and taken:
            mine[taken[0].consumer] = [(delivery, messages.get(delivery.offset)) for delivery in taken]
        else:
            for delivery in taken:
                mine.setdefault(delivery.consumer, []).append((delivery, messages.get(delivery.offset)))
        self._counts["dispatched"] += len(taken)
        self._counts["redelivered"] += sum(delivery.attempt > 1 for delivery in taken)
        for consumer, theirs in mine.items():
            consumer.deliver(theirs)
        return count, bool(passed_over)

    def message(self, served: Served, delivery: Delivery) -> Message | None:
        """Returns one message. None: retention or damage removed it. Raises OSError."""
        return self._messages(served, [delivery])[0].get(delivery.offset)

    def _messages(self, served: Served, taken: Sequence[Delivery]) -> tuple[dict[int, Message], int]:
        """Reads messages, as many as fit MOST_BYTES: those found, by offset, and how many of `taken` they
        cover. Messages that retention or damage removed are missing. Raises OSError, for example when
        memory is exhausted."""
        found: dict[int, Message] = {}
        nbytes = 0
        for count, delivery in enumerate(taken):
            if nbytes >= MOST_BYTES:
                return found, count
            if delivery.offset not in found:
                try:
                    found |= self._from(served, delivery, taken)
                except OSError as error:  # for example, no memory for another mapping
                    _log.error("topic %r cannot be read; the broker retries: %s", served.topic.name, error)
                    raise
            message = found.get(delivery.offset)
            if message is not None and not (message.nbytes >= LARGE and _in_pieces(delivery)):
                nbytes += message.nbytes
        return found, len(taken)

    def _from(self, served: Served, delivery: Delivery, taken: Sequence[Delivery]) -> dict[int, Message]:
        """Reads the message, and others behind it in the same read."""
        recent = served.topic.recent
        message = recent.get(served.topic.name, delivery.offset) if recent is not None else None
        if message is not None:
            return {delivery.offset: message}
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
            return {}
        return {message.offset: message for message in behind if message.offset is not None}

    def _check(self, served: Served, message: Message, taken: Sequence[Delivery]) -> None:
        """Checks a large message, unless all its consumers fetch it in pieces and check it. Raises
        LogDamaged."""
        if not all(_in_pieces(one) for one in taken if one.offset == message.offset):
            self._store.check(served.topic, message.offset or 0)


def _for_other_groups(
    served: Served, messages: dict[int, Message], taken: Sequence[Delivery]
) -> list[Delivery]:
    """Finishes deliveries of messages that are only for other groups, and returns them: this group was made,
    or moved back, after they were kept."""
    readers = (None, served.named.name)
    offsets = {offset for offset, message in messages.items() if message.only_for not in readers}
    found = [one for one in taken if one.offset in offsets] if offsets else []
    for one in found:
        served.group.ack(one.consumer, one.offset, one.attempt)
    return found


def _in_pieces(delivery: Delivery) -> bool:
    """Returns whether the consumer fetches large messages by itself."""
    return bool(getattr(delivery.consumer, "in_pieces", False))
