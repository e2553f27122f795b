"""A group of readers: what each of its shards was sent, and what the group has acknowledged. Pure.

A position is (epoch, row): all rows before it. An acknowledgement is for the whole run, so it counts for all
shards; but a shard cannot have processed rows that it was never sent. So each shard has a position, and the
group's is the least of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from transfer.spool.format.protocol import Fetch
from transfer.transports.errors import LogDamaged

Position = tuple[int, int]
#: versions of a group's state in the log. 1 had neither a number nor shards, 2 lacked which shards were read
GROUP_VERSION = 3
#: most shards of a group: each of them takes memory
MAX_SHARDS = 1 << 16


@dataclass(slots=True)
class Shard:
    """What a shard has acknowledged, and what it was sent since. None: nothing.

    read: a reader has it now. confirmed: what that reader has acknowledged.
    """

    acknowledged: Position | None = None
    delivered: Position | None = None
    read: bool = False
    confirmed: Position | None = None

    def acknowledge(self, position: Position, kept: Position) -> None:
        """Records that the shard's reader, or a process for it, acknowledges all rows before this."""
        before = self.confirmed if self.read else self.acknowledged
        self.acknowledged = _most(position, _least(self.acknowledged, kept))
        self.confirmed = position
        # Rows sent after that are in transit to a training loop, unless it goes back.
        back = before is not None and position < before
        self.delivered = self.acknowledged if back else _most(position, self.delivered)

    def acknowledge_of_all(self, position: Position, kept: Position) -> None:
        """Records another reader's acknowledgement: rows sent to this shard before the position are done."""
        back = self.acknowledged is not None and position < self.acknowledged
        reached = _least(position, _most(self.acknowledged, self.delivered))
        self.acknowledged = _most(reached, _least(self.acknowledged, kept))
        if back and not self.read:  # the next reader gets the same rows again
            self.delivered = self.acknowledged


@dataclass(slots=True)
class ReaderGroup:
    """Readers of a run that share its rows, in so many shards; 0: no reader has connected yet.

    begun: what the group had acknowledged when its rows were divided into these shards; a shard without a
    reader is still there. positions: of the shards that had readers.

    delivered: up to which rows were sent to any of them, see `RunInfo`. before: its value when the first of
    the present readers connected, together or one after the other; settled: whether `before` is about them.
    It is not after a reader has disconnected. noted: the record that stores the group and its shards.

    used: when it last read or acknowledged; used_noted: the stored value of that. given_up: that is so long
    ago that no rows are kept for it.
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
        """What all shards have acknowledged."""
        found = [shard.acknowledged for shard in self.positions.values()]
        if len(found) < self.shards or not found:
            found.append(self.begun)
        return _least(*found)

    @property
    def absent(self) -> int:
        """Number of shards that never had a reader."""
        return self.shards - len(self.positions)

    def join(self, shard: int, shards: int, *, alone: bool) -> bool:
        """Adds a reader, which begins at the group's position. Returns whether that must be stored.

        alone: no other reader is connected. If the shards change, all begin at the group's position. Rows
        that a shard was sent and had not acknowledged when the readers disconnected are sent to their
        successors again, so they do not count as delivered.
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
        """Adds a reader after its connection broke, or the spool was restarted, with the position that it had
        reached. Returns whether that must be stored."""
        changed = shards != self.shards
        if changed:
            self.begun, self.shards, self.positions = self.acknowledged, shards, {}
        one = self.positions.setdefault(shard, Shard(self.begun))
        one.delivered, one.read, one.confirmed = _most(one.delivered, delivered), True, None
        return changed

    def deliver(self, shard: int, fetch: Fetch, visible: int, *, over: bool) -> bool:
        """Records that a shard is sent the rows of a fetch, of so many visible ones. over: no more arrive.
        Returns whether it has moved to another epoch."""
        position, known = reached(fetch, visible, over=over), self.positions.get(shard)
        if position is None or known is None:
            return False
        before, known.delivered = known.delivered, position
        return (before or (0, 0))[0] != position[0]

    def leave(self, shard: int, used: Position | None) -> None:
        """Removes a reader, with the position up to which it has used its rows. None: it was lost, or does
        not report that, and its unacknowledged rows are sent again."""
        known = self.positions.get(shard)
        if known is not None:
            known.delivered = _least(known.delivered, used) if used is not None else known.acknowledged
            known.read = False

    def acknowledge(
        self, position: Position, shard: int, count: int, shards: int, kept: Position = (0, 0)
    ) -> None:
        """Records the acknowledgement of a process that has `count` shards from `shard` on.

        It covers its own shards; of the others, the rows that they were sent before this position.
        kept: rows before it are deleted, and a shard that has acknowledged them does not go back there.
        """
        if not self.shards:
            self.begun = position
            return
        # Where the group goes back, the shards without readers begin there, too.
        self.begun = _most(_least(self.begun, position), _least(self.begun, kept))
        own = range(shard, shard + count) if shards == self.shards else range(0)
        for number in own:
            self.positions.setdefault(number, Shard()).acknowledge(position, kept)
        for number, one in self.positions.items():
            if number not in own:
                one.acknowledge_of_all(position, kept)


def reached(fetch: Fetch, visible: int, *, over: bool) -> Position | None:
    """Returns the position of the rows that a shard needs after those of a fetch. None: the fetch has no next
    position.

    Incomplete steps are sent once more, shorter, when the run is over.
    """
    if fetch.next is None:
        return None
    epoch, row = fetch.next
    if fetch.need > visible:  # it was over before so many arrived
        missing = -(-(fetch.need - visible) // max(1, fetch.stride))
        epoch, row = fetch.epoch, max(0, row - min(missing, fetch.times) * fetch.stride)
    if over and visible - row < fetch.least:
        return epoch + 1, 0
    return epoch, row


def group_to_json(group: ReaderGroup) -> bytes:
    """Returns the log's form of a group."""
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


def group_from_json(value: bytes) -> ReaderGroup:
    """Parses the log's form. Raises LogDamaged: a later release wrote it."""
    fields: Mapping[str, Any] = json.loads(value)
    version = fields.get("version", 1)
    if version > GROUP_VERSION:
        raise LogDamaged("a group was kept by a later release", hint="serve this folder with that release")
    if version == 1:
        return ReaderGroup(_position(fields["acknowledged"]), _position(fields["delivered"]))
    positions = {int(n): _shard(*one) for n, one in fields["positions"].items()}
    return ReaderGroup(
        _position(fields["begun"]),
        _position(fields["delivered"]),
        fields["shards"],
        positions,
        used=fields.get("used", 0.0),
        given_up=fields.get("given_up", False),
    )


def _shard(acknowledged: list[int] | None, delivered: list[int] | None, read: bool = False) -> Shard:
    """Makes a shard; if its reader reconnects, the reader's position is known again."""
    known = _position(acknowledged)
    return Shard(known, known if read else _position(delivered))


def _position(value: list[int] | None) -> Position | None:
    return None if value is None else (value[0], value[1])


def _least(*positions: Position | None) -> Position | None:
    found = [position for position in positions if position is not None]
    return min(found) if len(found) == len(positions) else None


def _most(*positions: Position | None) -> Position | None:
    return max((position for position in positions if position is not None), default=None)
