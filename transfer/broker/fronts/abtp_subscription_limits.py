"""Limits for the subscriptions of abtp's SUBs. libzmq has none, and keeps a node for each letter."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from patterns.subscriptions import Subscriptions
from transfer.protocols.zmtp import SubscriptionReader
from transports.errors import ProtocolError

if TYPE_CHECKING:
    from transfer.broker.fronts.abtp_relay import Outer

#: subscriptions of one SUB, and their bytes; bytes of all SUBs. libzmq takes some 45 times as much memory
MAX_SUBSCRIPTIONS, MAX_BYTES, MAX_TOTAL_BYTES = 10_000, 1 << 20, 8 << 20


class SubscriptionLimits:
    """For all SUBs. Used on the broker's loop. disconnect: ends a connection, with the reason."""

    def __init__(self, disconnect: Callable[[Outer, str], object]) -> None:
        self._disconnect = disconnect
        self._by_connection: dict[Outer, SubscriberUsage] = {}
        self.nbytes = 0

    def feed(self, connection: Outer, data: memoryview) -> None:
        """Reads what a SUB sent behind READY. If all SUBs together exceed their limit, the largest one is
        disconnected. Raises ProtocolError: this SUB exceeds its own."""
        usage = self._by_connection.get(connection)
        if usage is None:
            usage = self._by_connection[connection] = SubscriberUsage()
        before = usage.nbytes
        try:
            usage.feed(data)
        finally:
            self.nbytes += usage.nbytes - before
        if self.nbytes > MAX_TOTAL_BYTES:
            largest = max(self._by_connection, key=lambda one: self._by_connection[one].nbytes)
            reason = f"it has most of the subscriptions, and all have more than {MAX_TOTAL_BYTES:,} bytes"
            self._disconnect(largest, reason)

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

    def feed(self, data: memoryview) -> None:
        """Raises ProtocolError."""
        for subscribes, prefix in self._reader.feed(data):
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
