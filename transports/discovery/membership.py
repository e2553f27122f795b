"""The members of a name, from the answers of a name service; and the time of the next query. Pure.

A name service alone drops no member. A member that is no longer listed gets no new work. Its connection stays
until its work is done or until it is dead: a pod that ends in order leaves the name service first, and then
completes its work. So an answer that omits a member by mistake costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum
from random import Random
from typing import NamedTuple

from transfer.transports.address import Address
from transfer.transports.discovery.directory import Listing

#: the most endpoints that are followed, however many an answer holds
MOST = 4096
#: a generator of this module: a program that seeds the global one is not affected
_RANDOM = Random()


class MemberState(Enum):
    """The state of a member. LISTED: is there. HELD: was there, and the last answer leaves open whether it
    still is: it keeps its connection, and is not retried. RETIRED: has gone: it gets no new work, and keeps
    its connection until its work is done."""

    LISTED = "listed"
    HELD = "held"
    RETIRED = "retired"


class Changes(NamedTuple):
    """What an answer changed, sorted by text. restored: from RETIRED. kept: from HELD."""

    added: list[Address]
    kept: list[Address]
    restored: list[Address]
    held: list[Address]
    retired: list[Address]


class Membership:
    """The known members and their states. Not thread-safe."""

    def __init__(self) -> None:
        self._states: dict[Address, MemberState] = {}

    def __len__(self) -> int:
        return len(self._states)

    def state(self, member: Address) -> MemberState | None:
        """None: unknown."""
        return self._states.get(member)

    @property
    def listed(self) -> int:
        """The number of members that are there, as far as is known. Any thread."""
        return sum(state is MemberState.LISTED for state in list(self._states.values()))

    def update(self, listing: Listing, most: int = MOST) -> Changes:
        """Applies an answer. most: how many members can be followed; those already followed stay."""
        changes = Changes([], [], [], [], [])
        there = set(self._first(listing.members, most))
        for member in sorted(there, key=str):
            before = self._states.get(member)
            self._states[member] = MemberState.LISTED
            if before is None:
                changes.added.append(member)
            elif before is MemberState.HELD:
                changes.kept.append(member)
            elif before is MemberState.RETIRED:
                changes.restored.append(member)
        for member in sorted(self._states.keys() - there, key=str):
            before = self._states[member]
            gone = listing.complete or member in listing.gone
            if gone and before is not MemberState.RETIRED:
                self._states[member] = MemberState.RETIRED
                changes.retired.append(member)
            elif not gone and before is MemberState.LISTED:
                self._states[member] = MemberState.HELD
                changes.held.append(member)
        return changes

    def forget(self, member: Address) -> None:
        """The member could not be followed: the next answer that lists it adds it again."""
        self._states.pop(member, None)

    def ended(self, member: Address) -> bool:
        """Its connection has ended, or could not be made. True: it has to be retried; else it is removed."""
        if self._states.get(member) is MemberState.LISTED:
            return True
        self._states.pop(member, None)
        return False

    def _first(self, members: Collection[Address], most: int) -> Collection[Address]:
        """As many as can be followed, and the same ones each time."""
        if len(members) <= most:
            return members
        return sorted(members, key=lambda one: (self._states.get(one) is not MemberState.LISTED, str(one)))[
            :most
        ]


class Polling:
    """The pause before the next lookup, in seconds.

    shortest, longest: bounds of a TTL. idle: instead of a TTL of 0, which means "do not cache". draw: returns
    a number from 0 to 1. All pauses are partly random: a thousand clients of one cache get the same TTL, and
    must not query at the same moment.
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
        """The pause after an answer. None: the directory waits by itself."""
        self._failures = 0
        if ttl is None:
            return 0.0
        if ttl <= 0:
            return self._idle * (0.75 + 0.5 * self._draw())
        # Never before the TTL is over, so that no cache repeats its answer; and at most a second later.
        spread = min(1.0, 0.25 + ttl / 20)
        return min(max(ttl, self._shortest), self._longest) + spread * self._draw()

    def failed(self) -> float:
        """The pause after a failed lookup: longer each time, up to 4 s."""
        self._failures = min(self._failures + 1, 4)
        return float(self._shortest * 2 ** (self._failures - 1) * (0.5 + 0.5 * self._draw()))
