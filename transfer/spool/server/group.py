"""A group of readers: what each of its shards was given of a run, and what the group has done with. Pure.

A position is (epoch, row): all before it. Whoever acknowledges one speaks for all shards, since it is one of
the whole run; but what a shard was never given it cannot have done with. So each shard has a position of its
own, and the group's is the least of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from transfer.spool.format.protocol import Fetch
from transfer.transports.errors import LogDamaged

Position = tuple[int, int]
#: of what the log keeps of a group. 1 had neither a number nor shards, 2 did not say which of them were read
GROUP_VERSION = 3
#: shards of a group at most: each of them is remembered
MAX_SHARDS = 1 << 16


@dataclass(slots=True)
class Shard:
    """What a shard has done with, and what it was given since. None: nothing.

    read: a reader has it now. confirmed: what that one has acknowledged.
    """

    acknowledged: Position | None = None
    delivered: Position | None = None
    read: bool = False
    confirmed: Position | None = None

    def acknowledge(self, position: Position, kept: Position) -> None:
        """Its own reader, or who speaks for that one, has done with all before this position."""
        before = self.confirmed if self.read else self.acknowledged
        self.acknowledged = _most(position, _least(self.acknowledged, kept))
        self.confirmed = position
        # What it was sent behind that is on its way to a training loop, unless it goes back.
        back = before is not None and position < before
        self.delivered = self.acknowledged if back else _most(position, self.delivered)

    def acknowledge_of_all(self, position: Position, kept: Position) -> None:
        """Another one's reader says so: what this one was given before the position is done with."""
        back = self.acknowledged is not None and position < self.acknowledged
        reached = _least(position, _most(self.acknowledged, self.delivered))
        self.acknowledged = _most(reached, _least(self.acknowledged, kept))
        if back and not self.read:  # what its reader had is given again, to the next one
            self.delivered = self.acknowledged


@dataclass(slots=True)
class Group:
    """Readers of a run that share its rows, in so many shards; 0: no reader has come yet.

    begun: what the group had done with when its rows were divided into these shards; a shard that never came
    is there still. positions: of the shards that came.

    delivered: up to which rows were sent to any of them, see `RunInfo`. before: what it was when the first of
    the readers came that read now, one after the other or together; settled: whether it tells of them. It is
    not when a reader has gone since. noted: the record that keeps that this group and its shards are there.

    used: when it last read or acknowledged; used_noted: what of that is in the log. given_up: that is
    so long ago that no rows are kept for it.
    """

    begun: Position | None = None
    delivered: Position | None = None
    shards: int = 0
    positions: dict[int, Shard] = field(default_factory=dict)
    before: Position | None = None
    settled: bool = False
    noted: int = 0
    used: float = 0.0
    used_noted: float = 0.0
    given_up: bool = False

    @property
    def acknowledged(self) -> Position | None:
        """What all shards have done with."""
        found = [shard.acknowledged for shard in self.positions.values()]
        if len(found) < self.shards or not found:
            found.append(self.begun)
        return _least(*found)

    @property
    def absent(self) -> int:
        """Shards that never came."""
        return self.shards - len(self.positions)

    def join(self, shard: int, shards: int, *, alone: bool) -> bool:
        """A reader begins, where the group is. alone: no other reads. Whether that has to be kept.

        Other shards than before begin where the group is. What a shard was given and had not done with when
        the readers went is given to their successors again, so it does not count as delivered.
        """
        changed = shards != self.shards
        if changed:
            self.begun, self.shards, self.positions = self.acknowledged, shards, {}
        elif alone:
            for one in self.positions.values():
                changed |= one.delivered != one.acknowledged
                one.delivered = one.acknowledged
        position = self.acknowledged
        one = self.positions.setdefault(shard, Shard(self.begun))
        one.delivered, one.read, one.confirmed = position, True, None
        return changed

    def rejoin(self, shard: int, shards: int, delivered: Position | None) -> bool:
        """A reader is here again after its connection broke, or the spool was away, and had been given so
        much. Whether that has to be kept."""
        changed = shards != self.shards
        if changed:
            self.begun, self.shards, self.positions = self.acknowledged, shards, {}
        one = self.positions.setdefault(shard, Shard(self.begun))
        one.delivered, one.read, one.confirmed = _most(one.delivered, delivered), True, None
        return changed

    def deliver(self, shard: int, fetch: Fetch, visible: int, *, over: bool) -> bool:
        """A shard is given the rows of a fetch, of so many that were visible. over: no more come. Whether it
        has gone into another epoch."""
        position, known = reached(fetch, visible, over=over), self.positions.get(shard)
        if position is None or known is None:
            return False
        before, known.delivered = known.delivered, position
        return (before or (0, 0))[0] != position[0]

    def leave(self, shard: int, used: Position | None) -> None:
        """A reader goes, and has used so much of what it was given. None: it was lost, or does not say, and
        what it had not done with is given again."""
        known = self.positions.get(shard)
        if known is not None:
            known.delivered = _least(known.delivered, used) if used is not None else known.acknowledged
            known.read = False

    def acknowledge(
        self, position: Position, shard: int, count: int, shards: int, kept: Position = (0, 0)
    ) -> None:
        """Said by a reader, or by the process that has `count` of them from `shard` on.

        It knows of its own shards; of the others what they were given before this position is done with.
        kept: rows before it are gone, and who had done with them does not go back there.
        """
        if not self.shards:
            self.begun = position
            return
        # Where the group goes back, the shards that never came begin there too.
        self.begun = _most(_least(self.begun, position), _least(self.begun, kept))
        own = range(shard, shard + count) if shards == self.shards else range(0)
        for number in own:
            self.positions.setdefault(number, Shard()).acknowledge(position, kept)
        for number, one in self.positions.items():
            if number not in own:
                one.acknowledge_of_all(position, kept)


def reached(fetch: Fetch, visible: int, *, over: bool) -> Position | None:
    """Where the rows begin that a shard needs next, when it has those of a fetch. None: the fetch does not
    tell.

    Steps that are not whole are given once more, shorter, when the run is over.
    """
    if fetch.next is None:
        return None
    epoch, row = fetch.next
    if fetch.need > visible:  # it was over before so many came
        missing = -(-(fetch.need - visible) // max(1, fetch.stride))
        epoch, row = fetch.epoch, max(0, row - min(missing, fetch.times) * fetch.stride)
    if over and visible - row < fetch.least:
        return epoch + 1, 0
    return epoch, row


def group_to_json(group: Group) -> bytes:
    """What the log keeps of it."""
    value = {
        "version": GROUP_VERSION,
        "acknowledged": group.acknowledged,
        "delivered": group.delivered,
        "begun": group.begun,
        "shards": group.shards,
        "positions": {
            str(n): [one.acknowledged, one.delivered, one.read] for n, one in group.positions.items()
        },
        "used": group.used,
        "given_up": group.given_up,
    }
    return json.dumps(value).encode()


def group_from_json(value: bytes) -> Group:
    """Raises LogDamaged: a later release wrote it."""
    fields: Mapping[str, Any] = json.loads(value)
    version = fields.get("version", 1)
    if version > GROUP_VERSION:
        raise LogDamaged("a group was kept by a later release", hint="serve this folder with that release")
    if version == 1:
        return Group(_position(fields["acknowledged"]), _position(fields["delivered"]))
    positions = {int(n): _shard(*one) for n, one in fields["positions"].items()}
    return Group(
        _position(fields["begun"]),
        _position(fields["delivered"]),
        fields["shards"],
        positions,
        used=fields.get("used", 0.0),
        given_up=fields.get("given_up", False),
    )


def _shard(acknowledged: list[int] | None, delivered: list[int] | None, read: bool = False) -> Shard:
    """What its reader had is known again when that comes back; one that does not is lost."""
    known = _position(acknowledged)
    return Shard(known, known if read else _position(delivered))


def _position(value: list[int] | None) -> Position | None:
    return None if value is None else (value[0], value[1])


def _least(*positions: Position | None) -> Position | None:
    found = [position for position in positions if position is not None]
    return min(found) if len(found) == len(positions) else None


def _most(*positions: Position | None) -> Position | None:
    return max((position for position in positions if position is not None), default=None)
