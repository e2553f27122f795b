"""The accounting of one run: which attempt sent what, what is staged, what is visible. Pure.

A job is one try of the run; each of its tasks may be tried several times (attempts). The rows of an attempt
are staged. They become visible, all together, at the job's commit ("committed"), or when the first attempt of
a partition has ended and is on the disk ("partition"). If rows of an earlier job are visible, partitions of a
later one wait for its commit: its plan may differ, with the same rows in other partitions. Frames that can
never become visible are reported, so that their space can be freed.

The same events in the same order give the same state: so a spool recovers its state after a crash.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from transfer.spool.format.protocol import Delivery, IfComplete, Kind
from transfer.spool.format.row_source import FAILED, OPEN, SEALED
from transfer.spool.format.rows import Layout
from transfer.spool.format.run_messages import RowsFrame, TaskBegin, TaskEnd, Winner, chain
from transfer.transports.errors import NotATensor, ProtocolError, UsageError

#: committed jobs of a stream that are remembered by name: Spark repeats only its last batch
REMEMBERED_JOBS = 1000
RECUT_HINT = (
    "With delivery=partition each try has to give the same partitions, with the same rows in the same order, "
    "in frames of the same sizes (frame_rows). Delete the run (transfer runs delete), then write it by a "
    "deterministic plan, or with delivery=committed."
)


class RowPlace(NamedTuple):
    """A frame of rows: its offset in the run's topic, and its number of rows."""

    offset: int
    rows: int


@dataclass(slots=True)
class Attempt:
    """What one try of a task has sent so far. kept: all of it is on the disk."""

    partition: int
    number: int
    layouts: tuple[Layout, ...] = ()
    places: list[RowPlace] = field(default_factory=list)
    rows: int = 0
    nbytes: int = 0
    crc: int = 0
    ended: TaskEnd | None = None
    kept: bool = False


class VisibleAttempt(NamedTuple):
    """The attempt whose rows of a partition became visible at its end, and their counts."""

    job: str
    attempt: int
    rows: int
    crc: int

    def agrees(self, sent: TaskEnd | Winner) -> bool:
        """Whether another attempt sent the same rows in the same frames."""
        return self.rows == sent.rows and (not self.rows or self.crc == sent.crc)


class Visible:
    """The visible frames, in order, as columns of integers. Frame i ends before row
    `ends[i]`."""

    __slots__ = ("attempts", "ends", "jobs", "offsets", "partitions", "sequences")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.ends = array("q")
        self.jobs = array("q")  # index in the run's `done`, for lineage
        self.partitions = array("q")
        self.attempts = array("q")
        self.sequences = array("q")

    @property
    def rows(self) -> int:
        return self.ends[-1] if self.ends else 0

    def add(self, job: int, partition: int, attempt: int, places: Iterable[RowPlace]) -> None:
        for sequence, place in enumerate(places):
            if not place.rows:
                continue
            self.ends.append(self.rows + place.rows)
            self.offsets.append(place.offset)
            self.jobs.append(job)
            self.partitions.append(partition)
            self.attempts.append(attempt)
            self.sequences.append(sequence)

    def columns(self) -> dict[str, array[int]]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class Job:
    """A job that is neither committed nor aborted. layouts: of the rows of its ended attempts. announced:
    those of the attempt that began last."""

    attempts: dict[tuple[int, int], Attempt] = field(default_factory=dict)
    layouts: tuple[Layout, ...] | None = None
    announced: tuple[Layout, ...] = ()

    @property
    def offsets(self) -> list[int]:
        return [place.offset for attempt in self.attempts.values() for place in attempt.places]

    @property
    def nbytes(self) -> int:
        """Bytes of its staged rows."""
        return sum(attempt.nbytes for attempt in self.attempts.values())


class Run:
    """One run. Not thread-safe. All methods raise UsageError, ProtocolError or NotATensor for invalid events.

    done: committed jobs, in order; of a stream only the last ones. names: of all jobs with visible rows, for
    lineage. strays: dropped frames without a job or attempt. visible_bytes: of all rows that became visible.
    """

    def __init__(self, name: str, delivery: Delivery, kind: Kind) -> None:
        self.name = name
        self.delivery = delivery
        self.kind = kind
        self.state = OPEN
        self.layouts: tuple[Layout, ...] | None = None
        self.visible = Visible()
        self.jobs: dict[str, Job] = {}
        self.done: dict[str, None] = {}
        self.names: list[str] = []
        self.strays = 0
        self.visible_bytes = 0
        #: in mode "partition": the attempt with a partition's visible rows. A stream has each partition once
        #: a job
        self._taken: dict[tuple[str, int], VisibleAttempt] = {}

    @property
    def staged_bytes(self) -> int:
        """Bytes of rows that are not visible."""
        return sum(job.nbytes for job in self.jobs.values())

    # -- events of a job ---------------------------------------------------------------------------------

    def declare(self, job: str, delivery: Delivery, kind: Kind, if_complete: IfComplete = "refuse") -> bool:
        """Declares a job. True: send. False: its rows are committed already, or another job has completed the
        run and `if_complete` is "skip"."""
        if (delivery, kind) != (self.delivery, self.kind):
            raise UsageError(
                f"run {self.name} is a {self.kind} with delivery {self.delivery}, not a {kind}, {delivery}",
                hint="choose another name for the run, or delete it: transfer runs delete",
            )
        if self._is_done(job, if_complete):
            return False
        self.jobs.setdefault(job, Job())
        self.state = OPEN
        return True

    def check_begin(self, message: TaskBegin, layouts: tuple[Layout, ...]) -> bool:
        """Checks a `begin`. False: its job is over, or unknown; its messages will be dropped."""
        job = self.jobs.get(message.job)
        if job is None:
            return False
        key = message.partition, message.attempt
        if key in job.attempts:
            raise ProtocolError("run", f"partition {key[0]}, attempt {key[1]} began twice")
        self._check_layouts(message.job, message.partition, layouts)
        return True

    def begin(self, message: TaskBegin, layouts: tuple[Layout, ...]) -> bool:
        """Begins an attempt. False: as in `check_begin`."""
        if not self.check_begin(message, layouts):
            return False
        key = message.partition, message.attempt
        job = self.jobs[message.job]
        # One object for all attempts: there may be many, with many columns.
        job.announced = layouts = job.announced if job.announced == layouts else layouts
        job.attempts[key] = Attempt(*key, layouts)
        return True

    def layouts_of(self, message: RowsFrame) -> tuple[Layout, ...]:
        """Returns the required columns of this frame."""
        attempt = self._attempt(message)
        return attempt.layouts if attempt is not None else ()

    def wants(self, message: RowsFrame) -> bool:
        """Whether to store this frame. False: its attempt or job is over."""
        attempt = self._attempt(message)
        if attempt is None:
            self.strays += 1
            return False
        if attempt.ended is not None or message.sequence != len(attempt.places):
            raise ProtocolError(
                "lost_rows",
                f"run {self.name}, partition {message.partition}: frame {message.sequence} arrived where "
                f"{len(attempt.places)} was due",
            )
        return True

    def rows(self, message: RowsFrame, offset: int, nbytes: int = 0) -> bool:
        """Records a stored frame. False: its job has ended, and it is not needed."""
        attempt = self._attempt(message)
        if attempt is None:
            return False
        attempt.crc = chain(attempt.crc, message.sequence, message.rows, message.crc)
        attempt.places.append(RowPlace(offset, message.rows))
        attempt.rows += message.rows
        attempt.nbytes += nbytes
        return True

    def check_end(self, message: TaskEnd) -> bool:
        """Checks that an `end` matches the received frames. False: its job is over, or unknown."""
        attempt = self._attempt(message)
        if attempt is None:
            return False
        if (len(attempt.places), attempt.rows, attempt.crc) != (message.frames, message.rows, message.crc):
            raise ProtocolError(
                "lost_rows" if attempt.rows < message.rows else "checksum",
                f"run {self.name}, partition {message.partition}: {message.rows:,} rows in {message.frames} "
                f"frames were announced, {attempt.rows:,} in {len(attempt.places)} arrived",
            )
        self._check_layouts(message.job, message.partition, attempt.layouts)
        self._check_cut(message.job, message)
        return True

    def end(self, message: TaskEnd) -> list[int]:
        """Ends an attempt that is on the disk. Returns the offsets of unneeded frames."""
        attempt = self._attempt(message)
        if attempt is None:
            return []
        job = self.jobs[message.job]
        attempt.ended = message
        if message.rows and job.layouts is None:
            job.layouts = attempt.layouts
        if self.delivery != "partition":
            return []
        key = self._key(message.job, message.partition)
        if key in self._taken:
            unneeded = [place.offset for place in attempt.places]
            attempt.places, attempt.nbytes = [], 0
            return unneeded
        if self.kind == "batch" and self.names and self.names[-1] != message.job:
            return []  # the commit makes it visible
        self._take(message.job, job, [attempt])
        return []

    def check_commit(self, job: str, winners: Sequence[Winner], if_complete: IfComplete = "refuse") -> bool:
        """Whether the job can be committed. False: it is already, or skipped as in `declare`."""
        if self._is_done(job, if_complete):
            return False
        found = self.jobs.get(job)
        if len({winner.partition for winner in winners}) < len(winners):
            raise ProtocolError("doubled_rows", f"run {self.name}: a commit names a partition twice")
        for winner in winners:
            attempt = found.attempts.get((winner.partition, winner.attempt)) if found else None
            ended = attempt.ended if attempt else None
            if self._key(job, winner.partition) in self._taken:
                self._check_cut(job, winner)
                continue
            if ended is None or (ended.rows, ended.crc) != (winner.rows, winner.crc):
                raise ProtocolError(
                    "lost_rows",
                    f"run {self.name}, partition {winner.partition}: {winner.rows:,} rows were acknowledged, "
                    "and the spool does not have them",
                    hint="was its folder deleted or changed? Nothing became visible; write the run again",
                )
        self._check_named(job, winners)
        return True

    def commit(self, job: str, winners: Sequence[Winner]) -> list[int]:
        """Commits a job: its winners are visible now, and a batch is sealed. Returns the offsets of all
        unneeded frames."""
        found = self.jobs.pop(job, None) or Job()
        self.done[job] = None
        if len(self.done) > REMEMBERED_JOBS:
            del self.done[next(iter(self.done))]
        won = {(winner.partition, winner.attempt) for winner in winners}
        if self.delivery == "committed":
            self._show(job, found, [found.attempts[key] for key in sorted(won)])
        else:
            left = sorted(key for key in won if self._key(job, key[0]) not in self._taken)
            self._take(job, found, [found.attempts[key] for key in left])
        unneeded = self._losers(found, job, won)
        if self.kind == "stream":
            self._taken = {key: whose for key, whose in self._taken.items() if whose.job != job}
        else:
            self.state = SEALED
            for name, other in self.jobs.items():
                unneeded += self._losers(other, name, set())
            self.jobs.clear()
            self._taken.clear()
        return unneeded

    def abort(self, job: str) -> list[int]:
        """Aborts a job. Returns the offsets of its frames, which are not needed any more."""
        found = self.jobs.pop(job, None)
        if found is None:
            return []
        if self.state == OPEN and not self.jobs and self.kind == "batch":
            self.state = FAILED
        return self._losers(found, job, set())

    # -- internal ----------------------------------------------------------------------------------------

    def _is_done(self, job: str, if_complete: IfComplete) -> bool:
        """Whether the job is done. Raises UsageError: another job has completed the run."""
        if job in self.done:
            return True
        if self.state == SEALED and if_complete == "refuse":
            raise UsageError(
                f"run {self.name} is complete, with {self.visible.rows:,} rows of another job; nothing was "
                "written to it",
                hint="write to another name, or delete the run: transfer runs delete. To succeed without "
                "writing if the run is complete, as after a commit of unknown outcome: if_complete=skip",
            )
        return self.state == SEALED

    def _check_layouts(self, job: str, partition: int, layouts: tuple[Layout, ...]) -> None:
        """Checks an attempt's columns; one without rows has none. Rows without bytes are refused: a small
        message may hold any number of them, and an order of them would take unlimited memory."""
        if layouts and all(layout.takes_no_bytes for layout in layouts):
            raise NotATensor(
                f"partition {partition} of run {self.name} has rows of no bytes: every array in every column "
                "is empty",
                hint="write a column that has values, such as an id, with them",
            )
        known = self.layouts or self.jobs[job].layouts
        if known is not None and layouts and layouts != known:
            raise NotATensor(
                f"partition {partition} of run {self.name} has {_difference(layouts, known)}",
                hint="all partitions of a run need columns of one type and shape: pad or cut arrays to one "
                "length, or name them in the option 'ragged'",
            )

    def _check_cut(self, job: str, sent: TaskEnd | Winner) -> None:
        """Raises ProtocolError if different rows of this partition are visible already."""
        taken = self._taken.get(self._key(job, sent.partition))
        if taken is not None and not taken.agrees(sent):
            raise ProtocolError(
                "recut",
                f"run {self.name}, partition {sent.partition}: attempt {sent.attempt} sent {sent.rows:,} "
                f"rows, and attempt {taken.attempt}, whose {taken.rows:,} rows readers may see already, "
                "sent different ones",
                hint=RECUT_HINT,
            )

    def _check_named(self, job: str, winners: Sequence[Winner]) -> None:
        """Raises ProtocolError if a visible partition is missing in the job's commit."""
        named = {self._key(job, winner.partition) for winner in winners}
        for key, taken in self._taken.items():
            of_job = self.kind == "batch" or taken.job == job
            if of_job and taken.rows and key not in named:
                raise ProtocolError(
                    "recut",
                    f"run {self.name}: {taken.rows:,} rows of partition {key[1]} are visible already, from "
                    f"an earlier try, and the commit of {len(winners):,} partitions has no such partition",
                    hint=RECUT_HINT,
                )

    def _losers(self, found: Job, job: str, won: set[tuple[int, int]]) -> list[int]:
        if self.delivery == "partition":
            won = {(p, whose.attempt) for (_, p), whose in self._taken.items() if whose.job == job}
        return [
            place.offset
            for key, attempt in found.attempts.items()
            if key not in won
            for place in attempt.places
        ]

    def _take(self, name: str, job: Job, attempts: Sequence[Attempt]) -> None:
        """In mode "partition": records these attempts' rows as those of their partitions."""
        for attempt in attempts:
            assert attempt.ended is not None
            key = self._key(name, attempt.partition)
            self._taken[key] = VisibleAttempt(name, attempt.number, attempt.rows, attempt.ended.crc)
        if attempts:
            self._show(name, job, attempts)

    def _show(self, name: str, job: Job, attempts: Iterable[Attempt]) -> None:
        self.layouts = self.layouts or job.layouts
        attempts = [attempt for attempt in attempts if attempt.rows]
        if attempts and name not in self.names[-1:]:
            self.names.append(name)
        number = len(self.names) - 1
        for attempt in attempts:
            self.visible.add(number, attempt.partition, attempt.number, attempt.places)
            self.visible_bytes += attempt.nbytes
            attempt.nbytes = 0  # no longer staged

    def _key(self, job: str, partition: int) -> tuple[str, int]:
        return (job if self.kind == "stream" else ""), partition

    def _attempt(self, message: RowsFrame | TaskEnd) -> Attempt | None:
        job = self.jobs.get(message.job)
        return job.attempts.get((message.partition, message.attempt)) if job is not None else None


def _difference(ours: Sequence[Layout], known: Sequence[Layout]) -> str:
    for one in ours:
        before = next((layout for layout in known if layout.name == one.name), None)
        if before is None:
            return f"a column {one.name!r} that others do not have"
        if one != before:
            return f"column {one.name!r} as {_words(one)}, and others have {_words(before)}"
    return "fewer columns than others"


def _words(layout: Layout) -> str:
    shape = "×".join(map(str, layout.shape)) or "one number"
    return f"{layout.kind} {layout.dtype}, {shape} a row" if layout.kind == "dense" else layout.kind
