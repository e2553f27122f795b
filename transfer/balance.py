"""Which peer is offered a message first, where a PUSH, DEALER or REQ shall not simply take turns."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

from transfer.peer import Peer
from transports.address import parse
from transports.arguments import number
from transports.errors import AddressError

#: the least loaded first
LOAD = "load"
_MOST = 1000


def checked(value: Any) -> Any:
    """A check for the option: None, "load", or weights by endpoint, as they are kept. Raises ValueError."""
    if value in (None, "", LOAD):
        return value or None
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
    return weights


class Weights:
    """Weighted turns, spread evenly: with weights 3 and 1 the messages go to a, a, b, a and so on. A peer
    without room is passed over, and gets no more for it later. Thread-safe.
    """

    def __init__(self, weights: Mapping[str, int]) -> None:
        self._weights = weights
        self._due: dict[Any, float] = {}
        self._lock = threading.Lock()

    def order(self, peers: Iterable[Peer]) -> list[Peer]:
        """Whose turn it is comes first."""
        with self._lock:
            known = {peer: self._due.get(peer, 0.0) + self._weight(peer) for peer in peers}
            self._due = {peer: self._due.get(peer, 0.0) for peer in known}
            return sorted(known, key=known.__getitem__, reverse=True)

    def took(self, peer: Peer, passed: Iterable[Peer]) -> None:
        """This one got the message; those that were passed over had no room."""
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


def by_load(peers: Iterable[Peer]) -> list[Peer]:
    """Those with the fewest messages that they have not confirmed, or that have not left for them yet."""
    return sorted(peers, key=lambda peer: peer.stream.sent - peer.stream.confirmed)
