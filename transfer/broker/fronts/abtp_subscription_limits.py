"""Limits on the subscriptions of abtp's SUBs. libzmq has none, and keeps a node for each letter."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from transfer.broker.protocols.zmtp import SubscriptionReader
from transfer.patterns.subscriptions import Subscriptions
from transfer.transports.errors import ProtocolError

if TYPE_CHECKING:
    from transfer.broker.fronts.abtp_relay import Outer

#: changes of subscriptions a second, of all SUBs, and at once; libzmq itself forwards any number
MAX_CHANGES, MAX_BURST = 20_000, 5_000
#: subscriptions of one SUB, and their bytes; bytes of all SUBs. libzmq needs about 45 times as much memory
MAX_SUBSCRIPTIONS, MAX_BYTES, MAX_TOTAL_BYTES = 10_000, 1 << 20, 8 << 20


class SubscriptionLimits:
    """Checks the subscriptions of all SUBs, on the broker's loop. disconnect: ends a connection, with the
    reason."""

    def __init__(self, disconnect: Callable[[Outer, str], object]) -> None:
        self._disconnect = disconnect
        self._by_connection: dict[Outer, SubscriberUsage] = {}
        self.nbytes = 0
        self._paid_until = 0.0  # a time on the loop's clock

    def feed(self, connection: Outer, data: memoryview, now: float) -> float:
        """Reads what a SUB sent after READY. Returns the seconds for which to read nothing more from it. If
        all SUBs together exceed their limit, it disconnects the largest. Raises ProtocolError: this SUB
        exceeds its own limit."""
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
            reason = f"it has the most bytes of subscriptions, and all SUBs exceed {MAX_TOTAL_BYTES:,} bytes"
            self._disconnect(largest, reason)
        self._paid_until = max(now, self._paid_until) + changes / MAX_CHANGES
        return self._paid_until - now - MAX_BURST / MAX_CHANGES

    def remove(self, connection: Outer) -> None:
        """Forgets a connection that has ended. Idempotent."""
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
        """Bytes of its prefixes, and one more for each, so that empty ones count."""
        return self._prefixes.nbytes + len(self._prefixes)

    def feed(self, data: memoryview) -> int:
        """Reads changes of subscriptions and returns their number. Raises ProtocolError."""
        changes = self._reader.feed(data)
        for subscribes, prefix in changes:
            if not subscribes:
                self._prefixes.remove(prefix)
                continue
            self._prefixes.add(prefix)
            if len(self._prefixes) > MAX_SUBSCRIPTIONS or self._prefixes.nbytes > MAX_BYTES:
                raise ProtocolError(
                    "subscriptions",
                    f"one SUB has more than {MAX_SUBSCRIPTIONS:,} subscriptions, or {MAX_BYTES:,} bytes",
                    hint="subscribe to a common prefix",
                )
        return len(changes)
