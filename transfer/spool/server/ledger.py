"""The books of one run: who sent what, what is staged, what readers may see. Pure: events in, decisions out.

A job is one try of the run; each of its tasks may be tried several times (attempts). What an attempt sends
is staged. It becomes visible, whole, at the job's commit ("committed"), or when the first attempt of a
partition has ended and is on the disk ("partition"). Where rows of an earlier job are visible, partitions of
a later one wait for its commit: its plan may be another one, whose partitions hold the same rows again. What
nobody will see any more is named, so that its room can be given back.

The same events in the same order give the same books: that is how a spool finds its state again after a
crash.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from transfer.spool.format.protocol import Delivery, IfComplete, Kind
from transfer.spool.format.row_source import FAILED, OPEN, SEALED
from transfer.spool.format.rows import Layout
from transfer.spool.format.run_messages import Begin, End, Rows, Winner, chain
from transfer.transports.errors import NotATensor, ProtocolError, UsageError

#: committed jobs of a stream that are known by name: Spark repeats only its last batch
REMEMBERED_JOBS = 1000
RECUT_HINT = (
    "With delivery=partition each try has to give the same partitions, with the same rows in the same order, "
    "in frames of the same sizes (frame_rows). Delete the run (transfer runs delete), then write it by a "
    "deterministic plan, or with delivery=committed."
)


class Place(NamedTuple):
    """A frame of rows: its offset in the run's topic, and its rows."""

    offset: int
    rows: int


@dataclass(slots=True)
class Attempt:
    """What one try of a task has sent so far. kept: all of it is on the disk."""

    partition: int
    number: int
    layouts: tuple[Layout, ...] = ()
    places: list[Place] = field(default_factory=list)
    rows: int = 0
    nbytes: int = 0
    crc: int = 0
    ended: End | None = None
    kept: bool = False


class Taken(NamedTuple):
    """The attempt whose rows of a partition became visible at its end, and what it sent."""

    job: str
    attempt: int
    rows: int
    crc: int

    def agrees(self, sent: End | Winner) -> bool:
        """Whether another attempt sent the same rows in the same frames."""
        return self.rows == sent.rows and (not self.rows or self.crc == sent.crc)


class Visible:
    """The frames that readers may see, in order, as columns of integers. Frame i ends before row
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

    def add(self, job: int, partition: int, attempt: int, places: Iterable[Place]) -> None:
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
    """A job that is neither committed nor aborted. layouts: of the rows that its ended attempts have. told:
    those of the attempt that began last."""

    attempts: dict[tuple[int, int], Attempt] = field(default_factory=dict)
    layouts: tuple[Layout, ...] | None = None
    told: tuple[Layout, ...] = ()

    @property
    def offsets(self) -> list[int]:
        return [place.offset for attempt in self.attempts.values() for place in attempt.places]

    @property
    def nbytes(self) -> int:
        """Of what its attempts have staged."""
        return sum(attempt.nbytes for attempt in self.attempts.values())


class Run:
    """One run. Not thread-safe. All methods raise UsageError, ProtocolError or NotATensor for what may not
    be.

    done: jobs that were committed, in order; of a stream the last of them. names: of all jobs with rows that
    are visible, for lineage. strays: frames that came for nobody, dropped. visible_bytes: of all rows that
    became visible.
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
        #: in mode "partition": whose rows of a partition are visible. A stream has each partition once a job
        self._taken: dict[tuple[str, int], Taken] = {}

    @property
    def staged_bytes(self) -> int:
        """Of rows that are not visible."""
        return sum(job.nbytes for job in self.jobs.values())

    # -- what a job does ---------------------------------------------------------------------------------

    def declare(self, job: str, delivery: Delivery, kind: Kind, if_complete: IfComplete = "refuse") -> bool:
        """True: send. False: what this job would send is committed already, or another job has completed the
        run and `if_complete` says to skip it."""
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

    def check_begin(self, message: Begin, layouts: tuple[Layout, ...]) -> bool:
        """Whether this beginning may be. False: its job is over, or unknown; what follows will be dropped."""
        job = self.jobs.get(message.job)
        if job is None:
            return False
        key = message.partition, message.attempt
        if key in job.attempts:
            raise ProtocolError("run", f"partition {key[0]}, attempt {key[1]} began twice")
        self._check_layouts(message.job, message.partition, layouts)
        return True

    def begin(self, message: Begin, layouts: tuple[Layout, ...]) -> bool:
        """An attempt begins. False: as in `check_begin`."""
        if not self.check_begin(message, layouts):
            return False
        key = message.partition, message.attempt
        job = self.jobs[message.job]
        # One object for all attempts: there may be very many, of very many columns.
        job.told = layouts = job.told if job.told == layouts else layouts
        job.attempts[key] = Attempt(*key, layouts)
        return True

    def layouts_of(self, message: Rows) -> tuple[Layout, ...]:
        """What this frame's columns have to be."""
        attempt = self._attempt(message)
        return attempt.layouts if attempt is not None else ()

    def wants(self, message: Rows) -> bool:
        """Whether this frame is to be kept. False: it came for nobody any more."""
        attempt = self._attempt(message)
        if attempt is None:
            self.strays += 1
            return False
        if attempt.ended is not None or message.sequence != len(attempt.places):
            raise ProtocolError(
                "lost_rows",
                f"run {self.name}, partition {message.partition}: frame {message.sequence} came where "
                f"{len(attempt.places)} was due",
            )
        return True

    def rows(self, message: Rows, offset: int, nbytes: int = 0) -> bool:
        """A frame was kept there. False: its job ended meanwhile, and it is not needed."""
        attempt = self._attempt(message)
        if attempt is None:
            return False
        attempt.crc = chain(attempt.crc, message.sequence, message.rows, message.crc)
        attempt.places.append(Place(offset, message.rows))
        attempt.rows += message.rows
        attempt.nbytes += nbytes
        return True

    def check_end(self, message: End) -> bool:
        """Whether this end fits what came. False: its job is over, or unknown."""
        attempt = self._attempt(message)
        if attempt is None:
            return False
        if (len(attempt.places), attempt.rows, attempt.crc) != (message.frames, message.rows, message.crc):
            raise ProtocolError(
                "lost_rows" if attempt.rows < message.rows else "checksum",
                f"run {self.name}, partition {message.partition}: {message.rows:,} rows in {message.frames} "
                f"frames were announced, {attempt.rows:,} in {len(attempt.places)} came",
            )
        self._check_layouts(message.job, message.partition, attempt.layouts)
        self._check_cut(message.job, message)
        return True

    def end(self, message: End) -> list[int]:
        """An attempt has ended, and is on the disk. The offsets of frames that nobody needs any more."""
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
            return []  # the commit shows it
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
                    hint="was its folder deleted or changed? Nothing was delivered; write the run again",
                )
        self._check_named(job, winners)
        return True

    def commit(self, job: str, winners: Sequence[Winner]) -> list[int]:
        """The job is complete: its winners are visible now, and a batch is sealed. The offsets of all frames
        that nobody needs any more."""
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
        """The job has failed. The offsets of its frames that nobody needs any more."""
        found = self.jobs.pop(job, None)
        if found is None:
            return []
        if self.state == OPEN and not self.jobs and self.kind == "batch":
            self.state = FAILED
        return self._losers(found, job, set())

    # -- within ------------------------------------------------------------------------------------------

    def _is_done(self, job: str, if_complete: IfComplete) -> bool:
        """Raises UsageError: another job has completed the run."""
        if job in self.done:
            return True
        if self.state == SEALED and if_complete == "refuse":
            raise UsageError(
                f"run {self.name} is complete, with {self.visible.rows:,} rows of another job; nothing was "
                "written to it",
                hint="write to another name, or delete the run: transfer runs delete. To end well without "
                "writing where the run is complete, as after a commit of unknown outcome: if_complete=skip",
            )
        return self.state == SEALED

    def _check_layouts(self, job: str, partition: int, layouts: tuple[Layout, ...]) -> None:
        """An attempt without rows has none. Of rows that take no bytes a small message holds any number: an
        order of them would cost what it likes."""
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

    def _check_cut(self, job: str, sent: End | Winner) -> None:
        """Raises ProtocolError: rows of this partition are visible already, and they are others."""
        taken = self._taken.get(self._key(job, sent.partition))
        if taken is not None and not taken.agrees(sent):
            raise ProtocolError(
                "recut",
                f"run {self.name}, partition {sent.partition}: attempt {sent.attempt} sent {sent.rows:,} "
                f"rows, and attempt {taken.attempt}, whose {taken.rows:,} rows readers may see already, "
                "sent others",
                hint=RECUT_HINT,
            )

    def _check_named(self, job: str, winners: Sequence[Winner]) -> None:
        """Raises ProtocolError: rows are visible of a partition that the job's commit does not name."""
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
        """In mode "partition": these attempts' rows are those of their partitions."""
        for attempt in attempts:
            assert attempt.ended is not None
            key = self._key(name, attempt.partition)
            self._taken[key] = Taken(name, attempt.number, attempt.rows, attempt.ended.crc)
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
            attempt.nbytes = 0  # not staged any more

    def _key(self, job: str, partition: int) -> tuple[str, int]:
        return (job if self.kind == "stream" else ""), partition

    def _attempt(self, message: Rows | End) -> Attempt | None:
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
