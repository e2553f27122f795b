"""Deliveries that consumers hold, and the last acknowledgements. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from transfer.broker.core.delivery import DirectDelivery
from transfer.broker.core.sessions import ConsumerKey, Session


class InFlight:
    """Deliveries that wait for their ACK, the oldest first; all have the same timeout. Not thread-safe."""

    def __init__(self) -> None:
        self._all: dict[int, tuple[DirectDelivery, Session]] = {}
        self._by_message: dict[tuple[str, str], list[int]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[DirectDelivery]:
        return (delivery for delivery, _ in self._all.values())

    def get(self, number: int) -> tuple[DirectDelivery, Session] | None:
        """Returns the delivery of this message, and the session that holds it."""
        return self._all.get(number)

    def begin(self, delivery: DirectDelivery, session: Session, nbytes: int) -> None:
        """Adds a delivery that is being sent. nbytes: of its payload."""
        self._all[delivery.number] = delivery, session
        session.inflight[delivery.number] = nbytes
        session.held += nbytes
        self._by_message.setdefault((session.session_id, delivery.message_id), []).append(delivery.number)

    def end(self, delivery: DirectDelivery) -> None:
        """Removes a delivery, whatever its outcome."""
        _, session = self._all.pop(delivery.number)
        session.held -= session.inflight.pop(delivery.number)
        key = session.session_id, delivery.message_id
        numbers = self._by_message[key]
        numbers.remove(delivery.number)
        if not numbers:
            del self._by_message[key]

    def find(self, session: Session, message_id: str, delivery_id: str | None) -> DirectDelivery | None:
        """Returns the delivery that a consumer names; without a delivery id, the oldest of this message."""
        for number in self._by_message.get((session.session_id, message_id), ()):
            delivery, _ = self._all[number]
            if delivery_id is None or delivery_id == delivery.delivery_id:
                return delivery
        return None

    def overdue(self, now: float, most: int) -> list[tuple[DirectDelivery, Session]]:
        """Returns deliveries whose deadline has passed, at most `most`."""
        found: list[tuple[DirectDelivery, Session]] = []
        for entry in self._all.values():
            if entry[0].ack_deadline > now or len(found) == most:
                break
            found.append(entry)
        return found

    def next_deadline(self) -> float | None:
        """Returns the deadline of the oldest delivery."""
        return next((delivery.ack_deadline for delivery, _ in self._all.values()), None)


class Acked:
    """The last acknowledged messages, to distinguish a repeated ACK from a stale one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._ids: OrderedDict[tuple[ConsumerKey, str], str] = OrderedDict()

    def add(self, session: Session, delivery: DirectDelivery) -> None:
        key = session.key, delivery.message_id
        self._ids.pop(key, None)
        self._ids[key] = delivery.delivery_id
        if len(self._ids) > self._most:
            self._ids.popitem(last=False)

    def has(self, session: Session, message_id: str, delivery_id: str | None) -> bool:
        """Returns whether this consumer acknowledged the delivery; without an id, any delivery of the
        message."""
        known = self._ids.get((session.key, message_id))
        return known is not None and delivery_id in (None, known)
