"""Limits for the subscriptions of abtp's SUBs. libzmq has none, and keeps a node for each letter."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from transfer.broker.protocols.zmtp import SubscriptionReader
from transfer.patterns.subscriptions import Subscriptions
from transfer.transports.errors import ProtocolError

if TYPE_CHECKING:
    from transfer.broker.fronts.abtp_relay import Outer

#: changes of subscriptions in a second, of all SUBs, and how many at once: libzmq itself hands on any number
MAX_CHANGES, MAX_BURST = 20_000, 5_000
#: subscriptions of one SUB, and their bytes; bytes of all SUBs. libzmq takes some 45 times as much memory
MAX_SUBSCRIPTIONS, MAX_BYTES, MAX_TOTAL_BYTES = 10_000, 1 << 20, 8 << 20


class SubscriptionLimits:
    """For all SUBs. Used on the broker's loop. disconnect: ends a connection, with the reason."""

    def __init__(self, disconnect: Callable[[Outer, str], object]) -> None:
        self._disconnect = disconnect
        self._by_connection: dict[Outer, SubscriberUsage] = {}
        self.nbytes = 0
        self._paid_until = 0.0  # a time on the loop's clock

    def feed(self, connection: Outer, data: memoryview, now: float) -> float:
        """Reads what a SUB sent behind READY. Returns the seconds for which no more is to be read from it. If
        all SUBs together exceed their limit, the largest one is disconnected. Raises ProtocolError: this SUB
        exceeds its own."""
        usage = self._by_connection.get(connection)
        if usage is None:
            usage = self._by_connection[connection] = SubscriberUsage()
        before = usage.nbytes
        try:
            changes = usage.feed(data)
        finally:
            self.nbytes += usage.nbytes - before
        if self.nbytes > MAX_TOTAL_BYTES:
            largest = max(self._by_connection, key=lambda one: self._by_connection[one].nbytes)
            reason = f"it has most of the subscriptions, and all have more than {MAX_TOTAL_BYTES:,} bytes"
            self._disconnect(largest, reason)
        self._paid_until = max(now, self._paid_until) + changes / MAX_CHANGES
        return self._paid_until - now - MAX_BURST / MAX_CHANGES

    def remove(self, connection: Outer) -> None:
        """The connection has ended. Idempotent."""
        usage = self._by_connection.pop(connection, None)
        if usage is not None:
            self.nbytes -= usage.nbytes


class SubscriberUsage:
    """The subscriptions of one SUB."""

    def __init__(self) -> None:
        self._reader = SubscriptionReader()
        self._prefixes = Subscriptions()

    @property
    def nbytes(self) -> int:
        """Of its prefixes; each counts one byte more, so that an empty one counts too."""
        return self._prefixes.nbytes + len(self._prefixes)

    def feed(self, data: memoryview) -> int:
        """Returns the number of changes. Raises ProtocolError."""
        changes = self._reader.feed(data)
        for subscribes, prefix in changes:
            if not subscribes:
                self._prefixes.remove(prefix)
                continue
            self._prefixes.add(prefix)
            if len(self._prefixes) > MAX_SUBSCRIPTIONS or self._prefixes.nbytes > MAX_BYTES:
                raise ProtocolError(
                    "subscriptions",
                    f"more than {MAX_SUBSCRIPTIONS:,} subscriptions of one SUB, or {MAX_BYTES:,} bytes",
                    hint="subscribe to a prefix that they have in common",
                )
        return len(changes)
