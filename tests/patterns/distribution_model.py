"""Models of the core's choice of peers, with properties of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

P = TypeVar("P")


class RoundRobin(Generic[P]):
    """One peer after the other. A full peer is skipped and does not lose its turn."""

    def __init__(self, peers: Iterable[P] = ()) -> None:
        self._peers: list[P] = list(peers)
        self._next = 0

    def attach(self, peer: P) -> None:
        self._peers.append(peer)

    def detach(self, peer: P) -> None:
        index = self._peers.index(peer)
        del self._peers[index]
        if index < self._next:
            self._next -= 1
        if self._next >= len(self._peers):
            self._next = 0

    def pick(self, has_room: Callable[[P], bool] = lambda peer: True) -> P | None:
        """Returns the next peer with room, or None if there is none."""
        count = len(self._peers)
        for step in range(count):
            index = (self._next + step) % count
            if has_room(self._peers[index]):
                self._next = (index + 1) % count
                return self._peers[index]
        return None

    def __len__(self) -> int:
        return len(self._peers)


class FanOut(Generic[P]):
    """Every peer whose filter matches. A full peer misses the message, which is counted."""

    def __init__(self) -> None:
        self._peers: dict[P, Callable[[bytes], bool]] = {}
        self.dropped: dict[P, int] = {}
        self.dropped_no_peer = 0

    def attach(self, peer: P, matches: Callable[[bytes], bool]) -> None:
        self._peers[peer] = matches
        self.dropped[peer] = 0

    def detach(self, peer: P) -> None:
        del self._peers[peer]

    def pick(self, topic: bytes, has_room: Callable[[P], bool] = lambda peer: True) -> list[P]:
        """Returns the peers that get a message of this topic."""
        wanted = [peer for peer, matches in self._peers.items() if matches(topic)]
        if not wanted:
            self.dropped_no_peer += 1
        chosen = [peer for peer in wanted if has_room(peer)]
        for peer in wanted:
            if peer not in chosen:
                self.dropped[peer] += 1
        return chosen


class FairQueue(Generic[P]):
    """Takes from each peer that has a message, in turn."""

    def __init__(self) -> None:
        self._turn: RoundRobin[P] = RoundRobin()

    def attach(self, peer: P) -> None:
        self._turn.attach(peer)

    def detach(self, peer: P) -> None:
        self._turn.detach(peer)

    def pick(self, has_message: Callable[[P], bool]) -> P | None:
        """Returns the peer whose message is next."""
        return self._turn.pick(has_message)

    def drain(self, has_message: Callable[[P], bool]) -> Iterator[P]:
        """Yields peers in order until none has a message."""
        while (peer := self.pick(has_message)) is not None:
            yield peer
