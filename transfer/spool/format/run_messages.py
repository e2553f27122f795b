"""A run: the rows that many producers send to one receiver, each of them accounted for.

A producer is one attempt at one partition (a Spark task attempt). It sends `begin`, then its rows in
frames numbered from 0, then `end` with their number and a checksum. When every partition has a winner, the
process that started the run sends `commit`, which names the partitions; if it fails, `abort`.

With `eager` delivery rows are delivered when they arrive, and the first frame with a given (run, partition,
sequence) wins. A retry of a partition sends all of it again; frames that were taken already are dropped and
counted. That is correct only if the retry cuts the same frames, so every frame carries a checksum, and a
retry that differs is an error.

Everything here is pure: no socket, no clock, no thread, no numpy.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields as dataclass_fields
from typing import Any, ClassVar

from transfer.transports.core import IMPLEMENTATION, crc32c
from transfer.transports.errors import Broken, ProtocolError

PROTOCOL = 1
#: the largest number in a message: int64
MAX_NUMBER = (1 << 63) - 1
MAX_NAME = 255
#: characters of the description of a run's columns
MAX_COLUMNS = 8 << 20
#: bytes that a checksum covers at a time
_SLICE = 16 << 20
_LINK = struct.Struct("<QQQ")
#: set in checksums that are zlib's CRC-32 and not CRC-32C
_ZLIB = 1 << 32


def chain(crc: int, sequence: int, rows: int, frame_crc: int) -> int:
    """Returns the checksum of an attempt after one more frame; it begins with 0."""
    return zlib.crc32(_LINK.pack(sequence, rows, frame_crc), crc)


def checksum(columns: Mapping[str, Any]) -> int:
    """Returns the checksum of the columns' bytes, in the order of their names. Columns are C-contiguous.

    It is the CRC-32C of the compiled core, else zlib's CRC-32; the number shows which.
    """
    return _crc32c(columns) if IMPLEMENTATION == "native" else _crc32(columns)


def checksum_in_slices(columns: Mapping[str, Any]) -> Generator[int, None, int]:
    """As `checksum`, for a thread that serves others, too: yields after each few megabytes."""
    native, crc = IMPLEMENTATION == "native", 0
    for name in sorted(columns):
        data = columns[name].reshape(-1).view("uint8")
        for begin in range(0, len(data), _SLICE):
            part = data[begin : begin + _SLICE]
            crc = crc32c(part, crc) if native else zlib.crc32(part, crc)
            if len(data) > _SLICE:
                yield 0
    return crc if native else crc | _ZLIB


def fits(columns: Mapping[str, Any], crc: int) -> bool:
    """Whether this is the columns' checksum, of either kind."""
    return (_crc32(columns) if crc & _ZLIB else _crc32c(columns)) == crc


def _crc32c(columns: Mapping[str, Any]) -> int:
    crc = 0
    for name in sorted(columns):
        crc = crc32c(columns[name].reshape(-1).view("uint8"), crc)
    return crc


def _crc32(columns: Mapping[str, Any]) -> int:
    crc = 0
    for name in sorted(columns):
        crc = zlib.crc32(columns[name].reshape(-1).view("uint8"), crc)
    return crc | _ZLIB


# --- messages -------------------------------------------------------------------------------
# `run` is the run's name, chosen by the user or generated; `job` is new for each try of the run.


@dataclass(frozen=True, slots=True)
class TaskBegin:
    """An attempt begins a partition. `number` counts the retries from 0. `columns`: the layouts of its rows
    as JSON (see `rows.py`), for receivers that store them; "" without rows."""

    kind: ClassVar[str] = "begin"
    run: str
    job: str
    partition: int
    attempt: int
    number: int = 0
    columns: str = ""


@dataclass(frozen=True, slots=True)
class RowsFrame:
    """One frame of rows; `crc` is the `checksum` of its columns."""

    kind: ClassVar[str] = "rows"
    run: str
    job: str
    partition: int
    attempt: int
    sequence: int
    rows: int
    crc: int


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """An attempt has sent everything; `crc` is the chain over its frames."""

    kind: ClassVar[str] = "end"
    run: str
    job: str
    partition: int
    attempt: int
    frames: int
    rows: int
    crc: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The run is complete. The message has its partitions, as columns (see `Winner`).

    With several receivers, partition p belongs to receiver p % receivers; `receiver` is this message's
    recipient. `transports` names the transports of the rows, with commas.
    """

    kind: ClassVar[str] = "commit"
    run: str
    job: str
    receiver: int = 0
    receivers: int = 1
    transports: str = ""


@dataclass(frozen=True, slots=True)
class Abort:
    """The run has failed. Rows that were delivered cannot be taken back."""

    kind: ClassVar[str] = "abort"
    run: str
    job: str


Message = TaskBegin | RowsFrame | TaskEnd | Commit | Abort
_KINDS: dict[str, type[Message]] = {m.kind: m for m in (TaskBegin, RowsFrame, TaskEnd, Commit, Abort)}


def to_meta(message: Message) -> dict[str, Any]:
    """Returns the metadata of a message."""
    return {"transfer.run": PROTOCOL, "kind": message.kind, **asdict(message)}


def from_meta(meta: Mapping[str, Any] | None) -> Message:
    """Parses a peer's metadata. Raises ProtocolError("run") for anything else."""
    if not isinstance(meta, Mapping) or meta.get("transfer.run") != PROTOCOL:
        raise ProtocolError(
            "run",
            "a message belongs to no run",
            hint="Only the Spark writer of the same release may send to this socket.",
        )
    given = {k: v for k, v in meta.items() if k not in ("transfer.run", "kind")}
    kind = meta.get("kind")
    cls = _KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None or given.keys() != {f.name for f in dataclass_fields(cls)}:
        raise ProtocolError("run", f"unknown or misshapen run message {kind!r:.80}")
    for name, value in given.items():
        if name == "columns":
            if not isinstance(value, str) or len(value) > MAX_COLUMNS:
                raise ProtocolError("run", f"columns is no text of at most {MAX_COLUMNS} characters")
        elif name in ("run", "job", "transports"):
            if not isinstance(value, str) or len(value) > MAX_NAME or (name == "run" and not value):
                raise ProtocolError("run", f"{name} is no name of at most {MAX_NAME} characters")
        elif type(value) is not int or not 0 <= value <= MAX_NUMBER:
            raise ProtocolError("run", f"{name} is not a count: {value!r:.80}")
    return cls(**given)


@dataclass(frozen=True, slots=True)
class Winner:
    """The attempt that produced a partition, as named by the commit."""

    partition: int
    attempt: int
    frames: int
    rows: int
    nbytes: int
    crc: int


WINNER_COLUMNS = tuple(f.name for f in dataclass_fields(Winner))


def to_table(winners: Sequence[Winner]) -> dict[str, list[int]]:
    """Returns the winners as columns of integers: a run may have any number of partitions."""
    return {name: [getattr(winner, name) for winner in winners] for name in WINNER_COLUMNS}


def from_table(table: Mapping[str, Sequence[int]]) -> list[Winner]:
    """Parses the columns of `to_table`. Raises ProtocolError("run")."""
    if table.keys() != set(WINNER_COLUMNS) or len({len(column) for column in table.values()}) != 1:
        raise ProtocolError("run", "a commit arrived without its table of partitions")
    return [Winner(*row) for row in zip(*(table[name] for name in WINNER_COLUMNS), strict=True)]


# --- the receiver's accounting --------------------------------------------------------------


@dataclass(slots=True)
class Counts:
    """The received counts. Rows and frames are those that were delivered; the others were dropped."""

    rows: int = 0
    frames: int = 0
    duplicate_rows: int = 0  # sent again by a retry or a speculative copy
    stray_frames: int = 0  # of an attempt whose `begin` went to another receiver
    attempts: int = 0


@dataclass(slots=True)
class _Attempt:
    frames: int = 0
    rows: int = 0
    crc: int = 0


@dataclass(slots=True)
class _Partition:
    #: (rows, crc) of the delivered frames. Attempts send without gaps, so this has none either.
    taken: list[tuple[int, int]] = field(default_factory=list)
    ended: TaskEnd | None = None


class RunLedger:
    """The accounting of one run. Not thread-safe: one receiver owns it.

    All methods raise ProtocolError with one of these reasons: `lost_rows` (a gap, or fewer rows than
    announced), `doubled_rows` (more than announced), `recut` (a retry cut other frames than the attempt
    before it).
    """

    def __init__(self, run: str, job: str) -> None:
        self.run = run
        self.job = job
        self.counts = Counts()
        self.complete = False
        self.committed_rows = 0  # of this receiver's partitions, as in the commit
        self._attempts: dict[tuple[int, int], _Attempt] = {}
        self._partitions: dict[int, _Partition] = {}

    @property
    def partitions_ended(self) -> int:
        return sum(p.ended is not None for p in self._partitions.values())

    @property
    def ends(self) -> frozenset[tuple[int, int, int]]:
        """Partition, rows and checksum of each partition that has ended."""
        ended = ((number, found.ended) for number, found in self._partitions.items())
        return frozenset((number, end.rows, end.crc) for number, end in ended if end is not None)

    def rows_of(self, partition: int) -> int:
        """Returns the delivered rows of a partition."""
        found = self._partitions.get(partition)
        return sum(rows for rows, _ in found.taken) if found else 0

    def begin(self, message: TaskBegin) -> None:
        self._attempts[message.partition, message.attempt] = _Attempt()
        self._partitions.setdefault(message.partition, _Partition())
        self.counts.attempts += 1

    def rows(self, message: RowsFrame) -> bool:
        """Records a frame. True: deliver its rows. False: they are duplicates or strays."""
        attempt = self._attempts.get((message.partition, message.attempt))
        if attempt is None:
            # The connection was made again in mid-attempt. The task fails, since its earlier messages are not
            # confirmed, and is retried from the start.
            self.counts.stray_frames += 1
            return False
        if message.sequence > attempt.frames:
            raise self._error(
                "lost_rows", message, f"frames {attempt.frames} to {message.sequence - 1} never arrived"
            )
        if message.sequence < attempt.frames:
            return self._duplicate(message)
        attempt.crc = chain(attempt.crc, message.sequence, message.rows, message.crc)
        attempt.frames += 1
        attempt.rows += message.rows
        partition = self._partitions[message.partition]
        if message.sequence < len(partition.taken):
            return self._duplicate(message)
        if partition.ended is not None:
            raise self._error("recut", message, "an attempt sent more frames than the one that ended")
        partition.taken.append((message.rows, message.crc))
        self.counts.frames += 1
        self.counts.rows += message.rows
        return True

    def end(self, message: TaskEnd) -> None:
        attempt = self._attempts.get((message.partition, message.attempt))
        if attempt is None:
            self.counts.stray_frames += 1
            return
        if (attempt.frames, attempt.rows) != (message.frames, message.rows):
            reason = "lost_rows" if attempt.rows < message.rows else "doubled_rows"
            raise self._error(
                reason,
                message,
                f"{message.rows:,} rows in {message.frames} frames were announced, "
                f"{attempt.rows:,} in {attempt.frames} arrived",
            )
        partition = self._partitions[message.partition]
        if attempt.crc != message.crc or len(partition.taken) != message.frames:
            raise self._error("recut", message, "the attempt's frames are not those that were taken")
        partition.ended = message

    def commit(self, message: Commit, winners: list[Winner]) -> None:
        """Compares the rows that the run sent with those that were delivered."""
        ours = {w.partition: w for w in winners if w.partition % message.receivers == message.receiver}
        for number, winner in ours.items():
            found = self._partitions.get(number)
            ended = found.ended if found else None
            if ended is None or ended.rows < winner.rows:
                raise ProtocolError(
                    "lost_rows",
                    f"run {self.run}, partition {number}: {winner.rows:,} rows were sent and "
                    f"{self.rows_of(number):,} arrived",
                )
            if ended.rows > winner.rows:
                raise ProtocolError(
                    "doubled_rows",
                    f"run {self.run}, partition {number}: {winner.rows:,} rows were sent and "
                    f"{ended.rows:,} arrived",
                )
            if (ended.frames, ended.crc) != (winner.frames, winner.crc):
                raise ProtocolError(
                    "recut",
                    f"run {self.run}, partition {number}: the winner's frames differ",
                    hint=RECUT_HINT,
                )
        extra = [n for n, p in self._partitions.items() if p.taken and n not in ours]
        if extra:
            raise ProtocolError("doubled_rows", f"run {self.run}: partition {extra[0]} is not part of it")
        self.committed_rows = sum(winner.rows for winner in ours.values())
        self.complete = True

    def abort(self, message: Abort) -> None:
        raise Broken(
            f"run {message.run} failed in Spark; {self.counts.rows:,} of its rows had been delivered",
            hint="Spark's error has the cause. Start the epoch again from your last checkpoint.",
        )

    def _duplicate(self, message: RowsFrame) -> bool:
        if self._partitions[message.partition].taken[message.sequence] != (message.rows, message.crc):
            raise self._error("recut", message, "a retry cut other frames than the attempt before it")
        self.counts.duplicate_rows += message.rows
        return False

    def _error(self, reason: str, message: RowsFrame | TaskEnd, text: str) -> ProtocolError:
        where = f"run {self.run}, partition {message.partition}, attempt {message.attempt}: "
        return ProtocolError(reason, where + text, hint=RECUT_HINT if reason == "recut" else "")


RECUT_HINT = (
    "Eager delivery needs a plan that gives the same rows in the same order on a retry: "
    "order the rows by something unique, or write them to a table first."
)
