"""Who is followed, from what a name service says; and when it is asked again. Pure.

Nobody is dropped by a name service alone. Who is no longer listed gets no new work, and its connection stays
until what it has is done or until it is dead: a pod that ends in order leaves the name service first, and
works on what it has. So an answer that forgets somebody by mistake costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum
from random import Random
from typing import NamedTuple

from transfer.transports.address import Address
from transfer.transports.discovery.directory import Listing

#: endpoints that are followed at most, whatever an answer holds
MOST = 4096
#: of our own: a program that seeds the global one sees nothing of us
_RANDOM = Random()


class State(Enum):
    """Of somebody who is followed. LISTED: is there. HELD: was there, and the last answer does not say
    whether it still is: it keeps its connection, and is not tried again. RETIRED: is not there any more: it
    gets no new work, and keeps its connection until that is done."""

    LISTED = "listed"
    HELD = "held"
    RETIRED = "retired"


class Changes(NamedTuple):
    """What an answer changed, each in the order of their text. restored: from RETIRED. kept: from HELD."""

    added: list[Address]
    kept: list[Address]
    restored: list[Address]
    held: list[Address]
    retired: list[Address]


class Membership:
    """Who is known, and how. Not thread-safe."""

    def __init__(self) -> None:
        self._states: dict[Address, State] = {}

    def __len__(self) -> int:
        return len(self._states)

    def state(self, member: Address) -> State | None:
        """None: not known."""
        return self._states.get(member)

    @property
    def listed(self) -> int:
        """Members that are there, as far as anybody said. Any thread."""
        return sum(state is State.LISTED for state in list(self._states.values()))

    def heard(self, listing: Listing, most: int = MOST) -> Changes:
        """The name service answered. most: how many can be followed; those that are followed already stay."""
        changes = Changes([], [], [], [], [])
        there = set(self._first(listing.members, most))
        for member in sorted(there, key=str):
            before = self._states.get(member)
            self._states[member] = State.LISTED
            if before is None:
                changes.added.append(member)
            elif before is State.HELD:
                changes.kept.append(member)
            elif before is State.RETIRED:
                changes.restored.append(member)
        for member in sorted(self._states.keys() - there, key=str):
            before = self._states[member]
            gone = listing.complete or member in listing.gone
            if gone and before is not State.RETIRED:
                self._states[member] = State.RETIRED
                changes.retired.append(member)
            elif not gone and before is State.LISTED:
                self._states[member] = State.HELD
                changes.held.append(member)
        return changes

    def forget(self, member: Address) -> None:
        """It could not be followed: the next answer adds it once more, if it is in it."""
        self._states.pop(member, None)

    def ended(self, member: Address) -> bool:
        """Its connection has ended, or never came to be. True: it is to be tried again; else it is
        forgotten."""
        if self._states.get(member) is State.LISTED:
            return True
        self._states.pop(member, None)
        return False

    def _first(self, members: Collection[Address], most: int) -> Collection[Address]:
        """Not more than can be followed, and the same ones each time."""
        if len(members) <= most:
            return members
        return sorted(members, key=lambda one: (self._states.get(one) is not State.LISTED, str(one)))[:most]


class Polling:
    """How long to wait before the next look-up, in seconds.

    shortest, longest: bounds of what a TTL says. idle: in the place of a TTL of 0, which means "do not keep
    it". draw: gives a number from 0 to 1. All pauses are random in part: a thousand clients of one cache hear
    the same TTL, and must not come back in one moment.
    """

    def __init__(
        self,
        shortest: float = 0.5,
        longest: float = 300.0,
        idle: float = 1.0,
        draw: Callable[[], float] = _RANDOM.random,
    ) -> None:
        self._shortest = shortest
        self._longest = longest
        self._idle = idle
        self._draw = draw
        self._failures = 0

    def answered(self, ttl: float | None) -> float:
        """Behind an answer. None: the directory waits by itself."""
        self._failures = 0
        if ttl is None:
            return 0.0
        if ttl <= 0:
            return self._idle * (0.75 + 0.5 * self._draw())
        # Never before the TTL is over, so that a cache is not asked for what it has told already; and by at
        # most a second later.
        spread = min(1.0, 0.25 + ttl / 20)
        return min(max(ttl, self._shortest), self._longest) + spread * self._draw()

    def failed(self) -> float:
        """Behind a look-up that failed: longer each time, up to 4 s."""
        self._failures = min(self._failures + 1, 4)
        return float(self._shortest * 2 ** (self._failures - 1) * (0.5 + 0.5 * self._draw()))
