"""The state of a broker's registry: which programs have which names, for how long, and who watches them.
Pure.

It takes events with their time and returns decisions. It lives in memory: programs register again after a
restart of the broker; a lookup reports whether the broker has just begun (`settled`).
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from transfer.broker.core.registry_types import Listed, LookUp, Member, Registering
from transfer.transports.errors import UsageError

#: seconds after a start in which earlier programs come back
SETTLING = 10.0
#: a program, and the number that it gave to its registration or watch
Key = tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class RegistryLimits:
    """Limits on the registry's size. members: of one name; each: registrations and watches of one program;
    all: registrations; watchers: watches."""

    names: int = 10_000
    members: int = 10_000
    each: int = 1000
    all: int = 100_000
    watchers: int = 20_000


class Notice(NamedTuple):
    """A notice for programs that watch: (program, number) of each."""

    to: list[Key]
    listed: Listed


@dataclass(slots=True)
class _Entry:
    key: Key
    name: str
    lease: float
    member: Member
    until: float
    due: float  # its time in the heap, when it is checked next


@dataclass(slots=True)
class _Name:
    entries: dict[str, _Entry] = field(default_factory=dict)  # by endpoint
    watchers: dict[Key, None] = field(default_factory=dict)  # in the order in which they came
    #: endpoints that came, changed or went since watchers were notified
    news: dict[str, None] = field(default_factory=dict)
    revision: int = 0


class Registry:
    """The registrations and watches of programs. The time never goes back. begun: the time of the start;
    registry: an id that differs with each start."""

    def __init__(self, registry: str, begun: float, limits: RegistryLimits | None = None) -> None:
        self.registry = registry
        self._begun = begun
        self._limits = limits or RegistryLimits()
        self._names: dict[str, _Name] = {}
        self._entries: dict[Key, _Entry] = {}
        self._watched: dict[Key, str] = {}
        self._of_program: defaultdict[bytes, set[Key]] = defaultdict(set)
        self._due: list[tuple[float, Key]] = []
        self._changed: dict[str, None] = {}  # names with news
        self._revision = 0

    def __len__(self) -> int:
        """Returns the number of registrations."""
        return len(self._entries)

    @property
    def watchers(self) -> int:
        return len(self._watched)

    @property
    def names(self) -> int:
        """The number of names that programs have or watch."""
        return len(self._names)

    @property
    def programs(self) -> set[bytes]:
        """The programs that have registered or watch a name."""
        return set(self._of_program)

    # -- registrations -----------------------------------------------------------------------------------

    def register(self, key: Key, wish: Registering, now: float) -> None:
        """Registers a name for the program's lease; a key that was used before replaces its registration.
        Raises UsageError: a program that began later has announced the endpoint, or there is no more room."""
        endpoint = wish.member.endpoint
        earlier = self._entries.get(key)
        known = self._names.get(wish.name)
        holder = known.entries.get(endpoint) if known is not None else None
        if holder is not None and holder.key != key and holder.member.epoch > wish.member.epoch:
            raise UsageError(
                f"{endpoint} was announced as {wish.name} by a program that began later",
                hint="check whether an earlier process still runs",
            )
        if holder is None and (earlier is None or earlier.name != wish.name):
            self._check_room(wish.name)
        if earlier is None:
            self._check_each(key)
        for old in {id(one): one for one in (earlier, holder) if one is not None}.values():
            self._remove(old, notify=old is not holder)
        name = self._names.setdefault(wish.name, _Name())
        if holder is None or holder.member != wish.member:
            self._note(wish.name, endpoint)
        until = now + wish.lease
        entry = _Entry(key, wish.name, wish.lease, wish.member, until, until)
        name.entries[endpoint] = self._entries[key] = entry
        self._of_program[key[0]].add(key)
        heapq.heappush(self._due, (until, key))

    def renew(self, key: Key, now: float) -> float:
        """Renews a lease and returns its seconds. Raises UsageError if the registration has ended."""
        entry = self._entries.get(key)
        if entry is None:
            raise UsageError("this registration has ended", hint="register again")
        entry.until = now + entry.lease
        return entry.lease

    def unregister(self, key: Key) -> bool:
        """Ends a registration. Returns False if it had ended before."""
        entry = self._entries.get(key)
        if entry is not None:
            self._remove(entry)
        return entry is not None

    def leave(self, program: bytes) -> int:
        """Removes everything of a program whose connection has ended, and returns its number of
        registrations."""
        keys = sorted(self._of_program.get(program, ()))
        for key in keys:
            self.unwatch(key)
        return sum(self.unregister(key) for key in keys)

    def expire(self, now: float) -> int:
        """Ends registrations that were not renewed in time, and returns their number."""
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

    # -- watches -----------------------------------------------------------------------------------------

    def look_up(self, key: Key, request: LookUp, now: float) -> Listed:
        """Returns all members of a name; with `watch`, `news` reports later changes. Raises UsageError."""
        if request.watch and key not in self._watched:
            if len(self._watched) >= self._limits.watchers:
                raise UsageError("more watchers than the registry has room for")
            self._check_each(key)
            if request.name not in self._names and len(self._names) >= self._limits.names:
                raise UsageError("more names than the registry has room for")
        self.unwatch(key)
        if request.watch:
            self._names.setdefault(request.name, _Name()).watchers[key] = None
            self._watched[key] = request.name
            self._of_program[key[0]].add(key)
        name = self._names.get(request.name)
        settled = self._is_settled(now)
        if name is None:
            return Listed(self.registry, settled, 0, same=request.revision == 0)
        if name.revision == request.revision:
            return Listed(self.registry, settled, name.revision, same=True)
        members = tuple(entry.member for entry in name.entries.values())
        return Listed(self.registry, settled, name.revision, members)

    def unwatch(self, key: Key) -> None:
        """Ends a watch."""
        name = self._watched.pop(key, None)
        if name is not None:
            self._names[name].watchers.pop(key, None)
            self._forget_if_unused(key, name)

    def news(self, now: float) -> list[Notice]:
        """Returns the notices for watchers since the last call. A program that looked up in between may get
        known news."""
        notices = []
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
                notices.append(Notice(list(name.watchers), listed))
        return notices

    # -- internals ---------------------------------------------------------------------------------------

    def _is_settled(self, now: float) -> bool:
        return now - self._begun >= SETTLING

    def _remove(self, entry: _Entry, notify: bool = True) -> None:
        name = self._names[entry.name]
        del self._entries[entry.key], name.entries[entry.member.endpoint]
        if notify:
            self._note(entry.name, entry.member.endpoint)
        self._forget_if_unused(entry.key, entry.name)

    def _note(self, text: str, endpoint: str) -> None:
        self._revision += 1
        self._names[text].revision = self._revision
        self._names[text].news[endpoint] = None
        self._changed[text] = None

    def _forget_if_unused(self, key: Key, name: str) -> None:
        """Forgets the program and the name if they have nothing left."""
        if key not in self._entries and key not in self._watched:
            keys = self._of_program[key[0]]
            keys.discard(key)
            if not keys:
                del self._of_program[key[0]]
        self._sweep(name)

    def _sweep(self, text: str) -> None:
        name = self._names.get(text)
        if name is not None and not (name.entries or name.watchers):
            del self._names[text]  # with its news, which no program watches

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
