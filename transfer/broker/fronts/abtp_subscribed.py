"""How much the SUBs of abtp subscribe to: libzmq keeps a node for each letter, and knows no limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from patterns.subscriptions import Subscriptions
from transfer.protocols.zmtp import SubscriptionReader
from transports.errors import ProtocolError

if TYPE_CHECKING:
    from transfer.broker.fronts.abtp_relay import Outer

#: subscriptions of one SUB, and their bytes; bytes of all SUBs. libzmq takes some 45 times as much memory
MOST, MOST_BYTES, MOST_IN_ALL = 10_000, 1 << 20, 8 << 20


class AllSubscribed:
    """Of all SUBs. On the broker's loop. close: ends a connection, with the reason."""

    def __init__(self, close: Callable[[Outer, str], object]) -> None:
        self._close = close
        self._by_end: dict[Outer, Subscribed] = {}
        self.nbytes = 0

    def hear(self, end: Outer, data: memoryview) -> None:
        """What a SUB said behind READY. If all SUBs together want too much, the one that wants most is
        disconnected. Raises ProtocolError: this one wants too much."""
        known = self._by_end.get(end)
        if known is None:
            known = self._by_end[end] = Subscribed()
        before = known.nbytes
        try:
            known.hear(data)
        finally:
            self.nbytes += known.nbytes - before
        if self.nbytes > MOST_IN_ALL:
            most = max(self._by_end, key=lambda one: self._by_end[one].nbytes)
            self._close(most, f"it subscribes to most, and all together to more than {MOST_IN_ALL:,} bytes")

    def leave(self, end: Outer) -> None:
        """It has gone. Idempotent."""
        known = self._by_end.pop(end, None)
        if known is not None:
            self.nbytes -= known.nbytes


class Subscribed:
    """Of one SUB."""

    def __init__(self) -> None:
        self._reader = SubscriptionReader()
        self._prefixes = Subscriptions()

    @property
    def nbytes(self) -> int:
        """Of its prefixes, and of an empty one too."""
        return self._prefixes.nbytes + len(self._prefixes)

    def hear(self, data: memoryview) -> None:
        """Raises ProtocolError."""
        for subscribes, prefix in self._reader.feed(data):
            if not subscribes:
                self._prefixes.remove(prefix)
                continue
            self._prefixes.add(prefix)
            if len(self._prefixes) > MOST or self._prefixes.nbytes > MOST_BYTES:
                raise ProtocolError(
                    "subscriptions",
                    f"more than {MOST:,} subscriptions of one SUB, or {MOST_BYTES:,} bytes",
                    hint="subscribe to a prefix that they have in common",
                )
