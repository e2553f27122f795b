"""What a spool's readers should see: runs and attempts in a few plain words. No spool in here."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from transfer.spool.format.order import Order

BATCH = 4


@dataclass(repr=False)
class Try:
    """An attempt of a partition. sent: messages of it that were pushed; gone: no spool knows it any more."""

    run: Run
    job: str
    partition: int
    task: object
    sizes: tuple[int, ...]
    sent: int = 0
    ended: bool = False

    def __repr__(self):
        return f"{self.job}, partition {self.partition}, attempt {self.task.key[3]}"

    @property
    def frames(self):
        """The ids of each frame."""
        ends = np.cumsum((0, *self.sizes)).tolist()
        return [tuple(self.task.ids[begin:end]) for begin, end in pairwise(ends)]

    def agrees(self, other):
        """Whether it has the same rows, cut alike."""
        return (self.frames == other.frames) or not (sum(self.sizes) or sum(other.sizes))


@dataclass(repr=False)
class Run:
    """One incarnation of a name. frames: the ids of each visible one. open: jobs that may send."""

    name: str
    kind: str
    delivery: str
    run_id: str
    frames: list = field(default_factory=list)
    state: str = "open"
    tries: dict = field(default_factory=dict)  # open job -> its attempts
    done: set = field(default_factory=set)
    taken: dict = field(default_factory=dict)  # of delivery "partition": the attempt that is visible
    first: str = ""  # the job of a batch whose partitions are visible at their ends
    groups: dict = field(default_factory=dict)
    failed: bool = False  # once, though it may go on

    def __repr__(self):
        return f"{self.name} ({self.kind}, {self.delivery}, {self.run_id[:4]})"

    @property
    def ids(self):
        return [one for frame in self.frames for one in frame]

    @property
    def rows(self):
        return sum(map(len, self.frames))

    def key(self, job, partition):
        return (job if self.kind == "stream" else ""), partition

    def ends(self, one):
        """An attempt has ended. False: it is refused, as another cut of a partition that is visible."""
        if one.job not in self.tries:
            return True
        key = self.key(one.job, one.partition)
        if self.delivery == "partition":
            if key in self.taken and not self.taken[key].agrees(one):
                return False
            if key not in self.taken and (self.kind == "stream" or self.first in ("", one.job)):
                self.taken[key] = one
                self._shows(one)
        one.ended = True
        return True

    def _shows(self, one):
        self.frames += [frame for frame in one.frames if frame]
        if sum(one.sizes):
            self.first = self.first or one.job

    def may_commit(self, job, winners):
        """Whether its rows fit those that are visible."""
        if self.delivery != "partition":
            return True
        named = {self.key(job, one.partition): one for one in winners}
        mine = {key: one for key, one in self.taken.items() if self.kind == "batch" or key[0] == job}
        return all(mine[key].agrees(one) for key, one in named.items() if key in mine) and all(
            key in named for key, one in mine.items() if sum(one.sizes)
        )

    def commits(self, job, winners):
        for one in sorted(winners, key=lambda one: one.partition):
            if self.key(job, one.partition) not in self.taken:
                self._shows(one)
        self.tries.pop(job, None)
        self.done.add(job)
        if self.kind == "batch":
            self.state, self.tries, self.taken = "sealed", {}, {}
        else:
            self.taken = {key: one for key, one in self.taken.items() if key[0] != job}

    def aborts(self, job):
        if self.tries.pop(job, None) is not None and not self.tries and self.kind == "batch":
            self.state, self.failed = "failed", True

    def order(self, seed, epoch):
        """The ids of an epoch, by position."""
        if seed is None:
            return self.ids
        lengths = [len(frame) for frame in self.frames]
        frames, rows = Order(lengths, seed, epoch, row_bytes=8).gather(0, self.rows)
        return [self.frames[frame][row] for frame, row in zip(frames.tolist(), rows.tolist(), strict=True)]

    def step(self, position, rank, world):
        """(the position of the next step, this rank's rows of it as [begin, end), the position behind).

        None: there is no whole step yet, or no more.
        """
        epoch, row = position
        size = world * BATCH
        if self.rows - row >= size:
            begin = row + rank * BATCH
            return position, (begin, begin + BATCH), (epoch, row + size)
        if self.state != "sealed":
            return None
        rest = self.rows - row
        if rest >= world:
            return position, (row + rank * rest // world, row + (rank + 1) * rest // world), (epoch + 1, 0)
        if self.rows < world:
            return None
        return self.step((epoch + 1, 0), rank, world)

    def settle(self, position, world):
        """Rows at an epoch's end that are too few for a step are left out."""
        epoch, row = position
        return (epoch + 1, 0) if self.state == "sealed" and self.rows - row < world else position

    def share(self, begin, end, rank, world):
        """All positions of a rank's rows from one position on, before another."""
        found = set()
        while (step := self.step(begin, rank, world)) is not None and step[0] < end:
            found |= {(step[0][0], row) for row in range(*step[1])}
            begin = step[2]
        return found
