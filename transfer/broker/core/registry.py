"""The books of a broker's registry: who has which name, for how long, and who wants to know. Pure.

Events in, decisions out, each told the time. They live in memory: programs register again after a restart of
the broker, and whoever looks up is told whether it has just begun (`settled`).
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from transfer.broker.protocols.native_registry import Listed, LookUp, Member, Registering
from transfer.transports.errors import UsageError

#: seconds behind a start in which those who were there before come back
SETTLING = 10.0
#: whose it is: a program, and the number that it gave
Key = tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be in the books at once. members, of one name; each: registrations and watches of one program;
    all: registrations; watchers: watches."""

    names: int = 10_000
    members: int = 10_000
    each: int = 1000
    all: int = 100_000
    watchers: int = 20_000


class Told(NamedTuple):
    """To be said to programs that watch: (program, number) of each."""

    to: list[Key]
    listed: Listed


@dataclass(slots=True)
class _Entry:
    key: Key
    name: str
    lease: float
    member: Member
    until: float
    due: float  # its place in the heap, where it is looked at next


@dataclass(slots=True)
class _Name:
    entries: dict[str, _Entry] = field(default_factory=dict)  # by endpoint
    watchers: dict[Key, None] = field(default_factory=dict)  # in the order in which they came
    #: endpoints of which watchers have not been told yet that they came, changed or went
    news: dict[str, None] = field(default_factory=dict)
    revision: int = 0


class Registry:
    """begun: the time of the start; registry: another text with each start. The time never goes back."""

    def __init__(self, registry: str, begun: float, limits: Limits | None = None) -> None:
        self.registry = registry
        self._begun = begun
        self._limits = limits or Limits()
        self._names: dict[str, _Name] = {}
        self._entries: dict[Key, _Entry] = {}
        self._watched: dict[Key, str] = {}
        self._of_program: defaultdict[bytes, set[Key]] = defaultdict(set)
        self._due: list[tuple[float, Key]] = []
        self._changed: dict[str, None] = {}  # names with news
        self._revision = 0

    def __len__(self) -> int:
        """Registrations."""
        return len(self._entries)

    @property
    def watchers(self) -> int:
        return len(self._watched)

    @property
    def names(self) -> int:
        """Names that somebody has or watches."""
        return len(self._names)

    @property
    def programs(self) -> set[bytes]:
        """Those that have registered or watch something."""
        return set(self._of_program)

    # -- those who have a name ---------------------------------------------------------------------------

    def register(self, key: Key, wish: Registering, now: float) -> None:
        """A program has this name for its lease; with a key that it used before, instead of what it had.

        Raises UsageError: somebody who began later has announced the endpoint, or there is no more room.
        """
        endpoint = wish.member.endpoint
        earlier = self._entries.get(key)
        known = self._names.get(wish.name)
        holder = known.entries.get(endpoint) if known is not None else None
        if holder is not None and holder.key != key and holder.member.epoch > wish.member.epoch:
            raise UsageError(
                f"{endpoint} was announced as {wish.name} by somebody who began later",
                hint="does an earlier process still run?",
            )
        if holder is None and (earlier is None or earlier.name != wish.name):
            self._check_room(wish.name)
        if earlier is None:
            self._check_each(key)
        for old in {id(one): one for one in (earlier, holder) if one is not None}.values():
            self._remove(old, told=old is not holder)
        name = self._names.setdefault(wish.name, _Name())
        if holder is None or holder.member != wish.member:
            self._note(wish.name, endpoint)
        until = now + wish.lease
        entry = _Entry(key, wish.name, wish.lease, wish.member, until, until)
        name.entries[endpoint] = self._entries[key] = entry
        self._of_program[key[0]].add(key)
        heapq.heappush(self._due, (until, key))

    def renew(self, key: Key, now: float) -> float:
        """Its lease begins anew: its seconds. Raises UsageError if it has none any more."""
        entry = self._entries.get(key)
        if entry is None:
            raise UsageError("this registration has ended", hint="register again")
        entry.until = now + entry.lease
        return entry.lease

    def unregister(self, key: Key) -> bool:
        """It gives the name back. False: it had none any more."""
        entry = self._entries.get(key)
        if entry is not None:
            self._remove(entry)
        return entry is not None

    def leave(self, program: bytes) -> int:
        """The program's connection has ended, and all that it had: how many registrations."""
        keys = sorted(self._of_program.get(program, ()))
        for key in keys:
            self.unwatch(key)
        return sum(self.unregister(key) for key in keys)

    def expire(self, now: float) -> int:
        """Ends those that were not renewed in time: how many."""
        count = 0
        while self._due and self._due[0][0] <= now:
            when, key = heapq.heappop(self._due)
            entry = self._entries.get(key)
            if entry is None or when != entry.due:  # of an earlier registration
                continue
            if entry.until > now:
                entry.due = entry.until
                heapq.heappush(self._due, (entry.due, key))
            else:
                self._remove(entry)
                count += 1
        return count

    # -- those who want to know --------------------------------------------------------------------------

    def look_up(self, key: Key, asked: LookUp, now: float) -> Listed:
        """All who have a name now; with `watch`, `news` tells what changes behind that. Raises UsageError."""
        if asked.watch and key not in self._watched:
            if len(self._watched) >= self._limits.watchers:
                raise UsageError("more watchers than the registry has room for")
            self._check_each(key)
            if asked.name not in self._names and len(self._names) >= self._limits.names:
                raise UsageError("more names than the registry has room for")
        self.unwatch(key)
        if asked.watch:
            self._names.setdefault(asked.name, _Name()).watchers[key] = None
            self._watched[key] = asked.name
            self._of_program[key[0]].add(key)
        name = self._names.get(asked.name)
        settled = self._is_settled(now)
        if name is None:
            return Listed(self.registry, settled, 0, same=asked.revision == 0)
        if name.revision == asked.revision:
            return Listed(self.registry, settled, name.revision, same=True)
        members = tuple(entry.member for entry in name.entries.values())
        return Listed(self.registry, settled, name.revision, members)

    def unwatch(self, key: Key) -> None:
        """No more news for this one."""
        name = self._watched.pop(key, None)
        if name is not None:
            self._names[name].watchers.pop(key, None)
            self._let_go(key, name)

    def news(self, now: float) -> list[Told]:
        """What is to be told to those who watch since this was asked last. Who looked up in between may hear
        again of what he knows."""
        told = []
        changed, self._changed = self._changed, {}
        for text in changed:
            name = self._names.get(text)
            if name is None:
                continue
            found = [(endpoint, name.entries.get(endpoint)) for endpoint in name.news]
            name.news.clear()
            if name.watchers:
                members = tuple(entry.member for _, entry in found if entry is not None)
                gone = tuple(endpoint for endpoint, entry in found if entry is None)
                listed = Listed(self.registry, self._is_settled(now), name.revision, members, gone)
                told.append(Told(list(name.watchers), listed))
        return told

    # -- inside ------------------------------------------------------------------------------------------

    def _is_settled(self, now: float) -> bool:
        return now - self._begun >= SETTLING

    def _remove(self, entry: _Entry, told: bool = True) -> None:
        name = self._names[entry.name]
        del self._entries[entry.key], name.entries[entry.member.endpoint]
        if told:
            self._note(entry.name, entry.member.endpoint)
        self._let_go(entry.key, entry.name)

    def _note(self, text: str, endpoint: str) -> None:
        self._revision += 1
        self._names[text].revision = self._revision
        self._names[text].news[endpoint] = None
        self._changed[text] = None

    def _let_go(self, key: Key, name: str) -> None:
        """Forgets what nobody needs of this program and of this name."""
        if key not in self._entries and key not in self._watched:
            keys = self._of_program[key[0]]
            keys.discard(key)
            if not keys:
                del self._of_program[key[0]]
        self._sweep(name)

    def _sweep(self, text: str) -> None:
        name = self._names.get(text)
        if name is not None and not (name.entries or name.watchers):
            del self._names[text]  # with its news, which nobody waits for

    def _check_room(self, name: str) -> None:
        limits, known = self._limits, self._names.get(name)
        if known is None and len(self._names) >= limits.names:
            raise UsageError("more names than the registry has room for")
        if known is not None and len(known.entries) >= limits.members:
            raise UsageError(f"more members of {name} than the registry has room for")
        if len(self._entries) >= limits.all:
            raise UsageError("more registrations than the registry has room for")

    def _check_each(self, key: Key) -> None:
        keys = self._of_program.get(key[0], ())
        if key not in keys and len(keys) >= self._limits.each:
            raise UsageError("more registrations and watches than one program may have")
