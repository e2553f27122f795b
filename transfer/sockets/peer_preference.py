"""Chooses the peer that gets a message first, for a PUSH, DEALER or REQ with `balance`, not by turns."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from transfer.sockets.options import BalanceOption
from transfer.sockets.peer import Peer
from transfer.transports.address import parse
from transfer.transports.arguments import number
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import AddressError

#: the least loaded first
_LOAD: Final = "load"
_MOST = 1000


def checked(value: Any) -> BalanceOption:
    """Checks the option (None, "load", or weights by endpoint); returns the value. Raises ValueError."""
    if value is None:
        return None
    if isinstance(value, str) and value == _LOAD:
        return _LOAD
    if not isinstance(value, Mapping) or not value:
        raise ValueError('None, "load", or weights by endpoint: {"tcp://node7:5555": 3}')
    weights = {}
    for endpoint, weight in value.items():
        try:
            address = str(parse(endpoint))
        except AddressError as error:
            raise ValueError(str(error)) from None
        found = number(weight)
        if found is None or isinstance(weight, bool) or not 1 <= found <= _MOST:
            raise ValueError(f"a weight is a whole number, 1 to {_MOST}")
        weights[address] = found
    return MappingProxyType(weights)


class Balance(ABC):
    """Orders peers before each message. Thread-safe."""

    def __init__(self) -> None:
        self._due: dict[Peer, float] = {}
        self._lock = threading.Lock()

    @abstractmethod
    def order(self, peers: Iterable[Peer]) -> list[Peer]:
        """Returns the peers in the order in which they are offered the next message."""

    @abstractmethod
    def took(self, peer: Peer, passed: Iterable[Peer]) -> None:
        """Records that `peer` took the message; the `passed` peers had no room."""


class Weights(Balance):
    """Weighted turns, spread evenly: with weights 3 and 1 the messages go to a, a, b, a and so on.

    A peer without room is skipped and gets no more messages for it later.
    """

    def __init__(self, weights: Mapping[str, int]) -> None:
        super().__init__()
        self._weights = weights

    def order(self, peers: Iterable[Peer]) -> list[Peer]:
        with self._lock:
            known = {peer: self._due.get(peer, 0.0) + self._weight(peer) for peer in peers}
            self._due = {peer: self._due.get(peer, 0.0) for peer in known}
            return sorted(known, key=known.__getitem__, reverse=True)

    def took(self, peer: Peer, passed: Iterable[Peer]) -> None:
        with self._lock:
            out = set(passed)
            of_turn = [one for one in self._due if one not in out]
            total = sum(map(self._weight, of_turn))
            for one in of_turn:
                self._due[one] += self._weight(one)
            if peer in self._due:
                self._due[peer] -= total

    def _weight(self, peer: Peer) -> int:
        return self._weights.get(peer.endpoint, 1)


class _PeerLoad(Balance):
    """Prefers the peers with the fewest unfinished messages; of several, the one that has waited longest.

    A PULL confirms what it has consumed. For other peers, only messages that are still queued here count.
    """

    def order(self, peers: Iterable[Peer]) -> list[Peer]:
        with self._lock:
            self._due = {peer: self._due.get(peer, 0.0) for peer in peers}
            return sorted(self._due, key=lambda peer: (_unconsumed(peer), self._due[peer]))

    def took(self, peer: Peer, passed: Iterable[Peer]) -> None:
        with self._lock:
            if peer in self._due:
                self._due[peer] = max(self._due.values()) + 1


def made(chosen: BalanceOption) -> Balance | None:
    """Makes the Balance that the option's value names."""
    if chosen is None:
        return None
    return _PeerLoad() if isinstance(chosen, str) else Weights(chosen)


def _unconsumed(peer: Peer) -> int:
    stream = peer.stream
    if peer.socket_type is SocketType.PULL:
        return int(stream.sent - stream.confirmed)
    return int(stream.queued)
