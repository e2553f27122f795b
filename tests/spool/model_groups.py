"""What a spool may say of a group's position, and what it has to. No spool in here.

Two bounds, from the rows that readers were sent: no row before the group's position is one that its shard was
not sent, and what is known to be done with does not come again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .model import BATCH


@dataclass(repr=False)
class Shard:
    """done: (epoch, position) of rows that an acknowledgement was of. used: those that its last reader had
    used when it closed, up to closed_at. least: the spool knows that all before it is done with."""

    least: tuple[int, int]
    done: set = field(default_factory=set)
    used: set = field(default_factory=set)
    closed_at: tuple[int, int] | None = None

    def forget_reader(self):
        self.used, self.closed_at = set(), None


@dataclass(repr=False)
class Group:
    """Readers of a run. origin: where it was when its rows were divided into these shards, or where it went
    back to."""

    world: int
    origin: tuple[int, int]
    shards: dict = field(default_factory=dict)  # those that had a reader
    begun: tuple[int, int] = (0, 0)  # of shards that had none
    states: list = field(default_factory=list)  # (position, state), of any rank

    def open(self, rank, world, now, *, alone):
        """A reader comes, where the group is now."""
        if world != self.world:
            self.world, self.origin, self.begun, self.shards = world, now, now, {}
        for shard in self.shards.values() if alone else ():
            shard.forget_reader()
        if alone and now[0] == self.origin[0] and (now[1] - self.origin[1]) % (world * BATCH):
            self.origin = now  # within a step, where a stream's rows were gone: steps begin here now
        self.shards.setdefault(rank, Shard(self.begun)).forget_reader()

    def leave(self, reader, *, closed):
        """What a lost reader had is given again."""
        shard = self.shards[reader.rank]
        shard.forget_reader()
        if closed and reader.took:
            shard.used = {row for row in self._given(reader) if row < reader.at}
            reached = self._reached(reader)
            shard.closed_at = min(reader.at, reached) if reached is not None else None

    def crash(self):
        """That readers closed may be forgotten."""
        for shard in self.shards.values():
            shard.closed_at = None

    def acknowledge(self, own, position, readers):
        """own: ranks that say so. readers: of the group, by rank."""
        run = next(iter(readers.values())).run
        if position < self.origin:
            self.origin = position
        self.begun = min(self.begun, position)
        for rank in own:
            self.shards.setdefault(rank, Shard(self.begun))
        for rank, shard in self.shards.items():
            reader = readers.get(rank)
            if rank in own:
                given, least = run.share(self.origin, position, rank, self.world), position
                if reader is not None:
                    reader.back |= reader.confirmed is not None and position < reader.confirmed
                    reader.confirmed = position
            elif reader is not None:
                given, least = self._given(reader), None if reader.back else self._reached(reader)
            else:
                given, least = shard.used, shard.closed_at
            if reader is None and position < shard.least:  # what it had is given again
                shard.forget_reader()
            shard.done = {row for row in shard.done | given if row < position}
            shard.least = min(position, max(shard.least, least or shard.least))

    def check(self, run, now):
        for rank in range(self.world):
            done = self.shards[rank].done if rank in self.shards else set()
            # A stream that went back as far as it could stands where a frame begins, within a step.
            left_out = {row for row in run.share(self.origin, now, rank, self.world) if row < now} - done
            assert not left_out, f"{now}: rank {rank} never had {sorted(left_out)}"
        known = [shard.least for shard in self.shards.values()]
        if len(known) < self.world:
            known.append(self.begun)
        assert now >= min(known), f"{now}: all before {min(known)} is done with"

    def _given(self, reader):
        """All that its shard has: before it began too, by what the state says that it began with. Nothing of
        that is known of a reader that was sent nothing and has said nothing."""
        sent, confirmed = reader.link.delivered, set()
        before = reader.run.share(self.origin, reader.began, reader.rank, self.world)
        if reader.confirmed is not None and not reader.back:
            confirmed = reader.run.share(self.origin, reader.confirmed, reader.rank, self.world)
        return confirmed | (sent | before if sent else set())

    def _reached(self, reader):
        """The position behind the last row that it was sent. None: nothing."""
        place, sent = reader.began, reader.link.delivered
        while (step := reader.run.step(place, reader.rank, self.world)) is not None:
            epoch = step[0][0]
            if not {(epoch, row) for row in range(*step[1])} <= sent:
                break
            place = step[2]
        return reader.run.settle(place, self.world) if place != reader.began else None
