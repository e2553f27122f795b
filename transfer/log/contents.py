"""The content of a sealed segment, and its index file, which saves a start from reading the segment.

    magic 8 | CRC-32 4 | runs 4 | uses 4 | carried 4 | first 8 | following 8 | end 8 | last 8 | newest 8
    runs:      topic 4 | messages 4 | first offset 8
    uses:      segment of the blobs 8 | topic 4 | 0 4 | offsets' end 8 | bytes' end 8 | newest 8
    positions: 4 for each message, run by run

In the machine's byte order, since positions are used in place: a file of another byte order counts as
damaged. The CRC (of zlib) covers all bytes after it. Only `load` and `store` do I/O.
"""

from __future__ import annotations

import os
import struct
import zlib
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from transfer.log.damage import Damage, Gap
from transfer.log.index import LostPositions, OffsetRun, Use, Uses
from transfer.log.private import open_file, write_private
from transfer.log.record import BLOB, HEADER_SIZE, MAGIC, Record, RecordFlag, RecordKind, decode
from transfer.log.segment import Segment
from transfer.log.segment_files import INDEX, SUFFIX, path_of
from transfer.transports.core import Mapping

_HEAD = struct.Struct("=QIIIIQQQQQ")
_RUN = struct.Struct("=IIQ")
_USE = struct.Struct("=QIIQQQ")
_MAGIC = 0x315845444E494C54
_CHECKED = 12  # the first byte that the CRC covers
#: a record's header without its CRC and lag; see `record`
_MESSAGE = struct.Struct("<I4xIIQQQ4xBB")
_A_MESSAGE, _STATE = int(RecordKind.MESSAGE), int(RecordKind.STATE)
_HAS_BLOB, _CARRIED = int(RecordFlag.HAS_BLOB), int(RecordFlag.CARRIED)


@dataclass
class Contents:
    """The content of a segment.

    first: sequence of its first record. following: the sequence after its last one. end: bytes of its
    records. last: where the last one begins. newest: time of its newest message. carried: number of messages
    that compaction copied into it. runs: its messages, in order. uses: the blobs that they name.
    """

    first: int
    following: int = 0
    end: int = 0
    last: int = 0
    newest: int = 0
    carried: int = 0
    runs: list[OffsetRun] = field(default_factory=list)
    uses: Uses = field(default_factory=dict)


def contents_of(segment: Segment, following: int) -> Contents:
    """Returns the content of a segment that is complete. following: the sequence after its last record."""
    return Contents(
        segment.first, following, segment.end, segment.last, segment.newest, segment.carried, segment.runs,
        segment.uses,
    )  # fmt: skip


def use(uses: Uses, body: memoryview, topic: int, offset: int, time: int) -> None:
    """Adds a message with a blob; the body begins with the place of the blob."""
    first, position, nbytes, _ = BLOB.unpack_from(body)
    added = Use(offset + 1, position + nbytes, time)
    before = uses.get((first, topic))
    uses[first, topic] = added if before is None else added.joined(before)


class _Reader:
    """Collects the headers of a segment's messages, in order."""

    def __init__(self, first: int) -> None:
        self.found = Contents(first, first)
        #: of each topic: its last run, and the run's positions
        self._open: dict[int, tuple[OffsetRun, array[int]]] = {}

    def take(self, topic: int, offset: int, position: int) -> None:
        run, positions = self._open.get(topic) or self._begin(topic, offset)
        if run.first + len(positions) != offset:
            run, positions = self._begin(topic, offset)
        positions.append(position)

    def _begin(self, topic: int, offset: int) -> tuple[OffsetRun, array[int]]:
        positions = array("I")
        run = OffsetRun(topic, self.found.first, offset, positions)
        self.found.runs.append(run)
        self._open[topic] = run, positions
        return run, positions

    def take_other(
        self, memory: memoryview, position: int, on_state: Callable[[Record], object] | None
    ) -> bool:
        """Takes a record that is not a plain message. Returns False if it is damaged."""
        record = decode(memory, position)
        if record is None:
            return False
        if record.kind == _A_MESSAGE:
            self.take(record.topic, record.offset, position)
            self.found.newest = max(self.found.newest, record.time)
            self.found.carried += bool(record.flags & _CARRIED)
            if record.flags & _HAS_BLOB:
                use(self.found.uses, record.body, record.topic, record.offset, record.time)
        elif record.kind == _STATE and on_state is not None:
            on_state(record)
        return True


def read_headers(
    memory: memoryview,
    first: int,
    *,
    until: int | None = None,
    on_state: Callable[[Record], object] | None = None,
    gaps: Iterable[Gap] = (),
) -> Contents:
    """Returns the content of a segment's records, up to the first non-consecutive one, or sequence `until`.

    Reads only the headers of plain messages; verifies all other records. on_state: called with each record of
    state. gaps: damaged records, which are skipped.
    """
    reader = _Reader(first)
    position, sequence = 0, first
    for gap in gaps:
        position, sequence = _read_on(reader, memory, position, sequence, gap.sequence, on_state)
        if sequence != gap.sequence:
            break
        if gap.header is not None:
            reader.take(gap.header.topic, gap.header.offset, position)
            reader.found.carried += bool(gap.header.flags & _CARRIED)
        reader.found.last, position, sequence = gap.position, gap.end, gap.following
    position, sequence = _read_on(reader, memory, position, sequence, until, on_state)
    reader.found.end, reader.found.following = position, sequence
    return reader.found


def _read_on(
    reader: _Reader,
    memory: memoryview,
    position: int,
    sequence: int,
    until: int | None,
    on_state: Callable[[Record], object] | None,
) -> tuple[int, int]:
    """Reads consecutive headers; returns where the next record begins, and its sequence."""
    found, take, unpack = reader.found, reader.take, _MESSAGE.unpack_from
    size = len(memory)
    while position + HEADER_SIZE <= size and sequence != until:
        magic, length, topic, number, offset, time, kind, flags = unpack(memory, position)
        end = position + HEADER_SIZE + length
        if magic != MAGIC or number != sequence or end > size:
            break
        if kind == _A_MESSAGE and not flags:
            take(topic, offset, position)
            found.newest = max(found.newest, time)
        elif not reader.take_other(memory, position, on_state):
            break
        found.last, position, sequence = position, end, sequence + 1
    return position, sequence


def encode(contents: Contents) -> bytes:
    """Returns the bytes of the index file."""
    runs = [
        run for run in contents.runs if len(run.positions) and not isinstance(run.positions, LostPositions)
    ]
    rows = [_RUN.pack(run.topic, len(run.positions), run.first) for run in runs]
    rows += [_USE.pack(first, topic, 0, *one) for (first, topic), one in contents.uses.items()]
    rows += [bytes(memoryview(run.positions)) for run in runs]  # type: ignore[arg-type]
    head = _HEAD.pack(
        _MAGIC, 0, len(runs), len(contents.uses), contents.carried, contents.first, contents.following,
        contents.end, contents.last, contents.newest,
    )  # fmt: skip
    data = bytearray(b"".join((head, *rows)))
    struct.pack_into("=I", data, 8, zlib.crc32(memoryview(data)[_CHECKED:]))
    return bytes(data)


def decode_index(data: memoryview) -> Contents | None:
    """Decodes an index file, with views of it; None: it is damaged."""
    if len(data) < _HEAD.size:
        return None
    magic, crc, runs, uses, carried, first, following, end, last, newest = _HEAD.unpack_from(data)
    if magic != _MAGIC or zlib.crc32(data[_CHECKED:]) != crc:
        return None
    found = Contents(first, following, end, last, newest, carried)
    at = _HEAD.size + runs * _RUN.size
    for number in range(uses):
        segment, topic, _, *values = _USE.unpack_from(data, at + number * _USE.size)
        found.uses[segment, topic] = Use(*values)
    positions = data[at + uses * _USE.size :].cast("I")
    begin = 0
    for number in range(runs):
        topic, count, offset = _RUN.unpack_from(data, _HEAD.size + number * _RUN.size)
        found.runs.append(OffsetRun(topic, first, offset, positions[begin : begin + count]))
        begin += count
    return found


def load(folder: Path, first: int) -> Contents | None:
    """Loads the index of a segment, and maps the file; None: it is missing or damaged."""
    try:
        fd = open_file(path_of(folder, first, INDEX), os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        size = os.fstat(fd).st_size
        data = memoryview(Mapping(fd, size, private=True) if size else b"").toreadonly()
    finally:
        os.close(fd)
    found = decode_index(data)
    return found if found is not None and found.first == first else None


def is_of(contents: Contents, memory: memoryview) -> bool:
    """Whether the last of these records is the one that the contents name."""
    record = decode(memory, contents.last)
    return record is not None and record.end == contents.end and record.sequence + 1 == contents.following


def store(folder: Path, contents: Contents) -> int:
    """Writes the index of a segment; returns its size. Does not sync it: `load` detects a partial file.
    Raises OSError, and leaves no file then. A mapped index keeps its content."""
    path = path_of(folder, contents.first, INDEX)
    data = encode(contents)
    new = path.with_suffix(INDEX + ".new")
    try:
        write_private(new, data)
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    return len(data)


def follow(segments: Iterable[Contents]) -> tuple[dict[int, list[OffsetRun]], list[Damage]]:
    """Returns all segments' runs by topic, oldest segment first, and the records missing between segments."""
    runs: dict[int, list[OffsetRun]] = {}
    missing: list[Damage] = []
    following = -1
    for contents in segments:
        if following not in (-1, contents.first):
            missing.append(
                Damage(
                    f"records {following} to {contents.first - 1} are missing: {following:020d}{SUFFIX} "
                    "is gone, or the file before it is truncated"
                )
            )
        following = contents.following
        for run in contents.runs:
            runs.setdefault(run.topic, []).append(run)
    return runs, missing
