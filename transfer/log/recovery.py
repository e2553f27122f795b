"""What a folder of a log holds when it is opened: its segments, its topics, its state.

A crash leaves records and blobs that were not synced in any condition, and nobody was told that they were
kept: the last segment ends before the first of them that is not whole. A record that is not whole though a
later one calls it synced is damage, and is told: of a plain message when it is read, of all else at once.
What sealed segments hold, their index files say; one that is missing or damaged is made again. State is read
in the last segment, which begins with all of it.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from transfer.log.contents import Contents, follow, is_of, load, read_headers, store
from transfer.log.index import Topic
from transfer.log.record import BLOB, MAGIC_BYTES, Flag, Kind, Record, decode, scan
from transfer.log.segment import (
    INDEX,
    Segment,
    full_disk_told,
    path_of,
    remove_orphans,
    segments_in,
    sync_folder,
)
from transfer.log.state import discard_of, take_discarded, take_state
from transports.core import crc32c
from transports.errors import LogDamaged

_log = logging.getLogger("transfer.log")

_RESTORE = "restore the file; opening with repair=True drops it and all that follows"
_HAS_BLOB = int(Flag.HAS_BLOB)


@dataclass
class Recovered:
    """dropped: topics that were, as far as their messages are still in the segments. sequence: of the next
    record. cut: bytes of a torn tail that were thrown away.
    """

    segments: list[Segment] = field(default_factory=list)
    topics: dict[int, Topic] = field(default_factory=dict)
    dropped: list[Topic] = field(default_factory=list)
    state: dict[bytes, bytes] = field(default_factory=dict)
    sequence: int = 0
    cut: int = 0


def recover(folder: Path, *, repair: bool = False) -> Recovered:
    """Opens all segments of a folder. repair: damage is cut off, with all that follows it.

    Raises LogDamaged; then nothing is open, and nothing was changed.
    """
    firsts = _begun(folder, segments_in(folder), repair)
    if repair:
        firsts = _begun(folder, _without_damage(folder, firsts), repair)
    found = Recovered()
    try:
        with undisturbed():
            _open(found, folder, firsts, repair)
    except BaseException:
        for segment in found.segments:
            segment.close()
        raise
    remove_orphans(folder, firsts)
    return found


@contextmanager
def undisturbed() -> Iterator[None]:
    """No garbage is looked for: there is none, while millions of objects are made that stay."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _open(found: Recovered, folder: Path, firsts: list[int], repair: bool) -> None:
    contents: list[Contents] = []
    for first in firsts:
        segment = Segment.open(folder, first)
        found.segments.append(segment)
        if first != firsts[-1]:
            contents.append(_take_sealed(segment))
    if firsts:
        follow([*contents, Contents(firsts[-1])])
        contents.append(_take_last(found, found.segments[-1], repair))
        _take_messages(found, contents)
    if repair:
        for topic in found.topics.values():
            topic.groups = {group: min(offset, topic.end) for group, offset in topic.groups.items()}
    take_discarded(found.state, found.topics)


# -- segments that are not the last one ----------------------------------------------------------------------


def _take_sealed(segment: Segment) -> Contents:
    """All of it was synced before the next one was begun."""
    contents = load(segment.folder, segment.first)
    if contents is None or not is_of(contents, segment.memory):
        contents = _read_sealed(segment)
        # Without it the next start takes longer, which is all.
        with suppress(OSError):
            store(segment.folder, contents)
    with suppress(FileNotFoundError):
        segment.index_bytes = path_of(segment.folder, segment.first, INDEX).stat().st_size
    segment.end = contents.end
    segment.seal()
    return contents


def _read_sealed(segment: Segment) -> Contents:
    contents = read_headers(segment.memory, segment.first)
    if bytes(segment.memory[contents.end :]).rstrip(b"\0"):
        raise LogDamaged(
            f"record {contents.following} of {segment.path.name} is damaged",
            hint=_RESTORE,
        )
    return contents


def _take_messages(found: Recovered, contents: list[Contents]) -> None:
    by_first = {segment.first: segment for segment in found.segments}
    for one in contents:
        segment = by_first[one.first]
        segment.newest = max(segment.newest, one.newest)
        segment.carried, segment.last, segment.uses = one.carried, one.last, one.uses
        for (first, number), said in one.uses.items():
            if (other := by_first.get(first)) is not None:
                other.blob_end = max(other.blob_end, said.nbytes)
                other.blob_ends[number] = max(other.blob_ends.get(number, 0), said.offsets)
                other.newest = max(other.newest, said.newest)
    # The last one's index is still to be made: all that it holds has to stand there.
    last = found.segments[-1]
    last.runs = contents[-1].runs
    its = set(last.runs)
    carried = any(one.carried for one in contents)
    for number, runs in follow(contents).items():
        topic = found.topics.get(number)
        if topic is None:
            dropped = Topic("", number)
            dropped.place(runs)
            found.dropped.append(dropped)
            continue
        if not topic.place(runs) and not carried:
            raise LogDamaged(f"messages of topic {topic.name!r} are missing before {topic.begin}")
        topic.grow_on(last, its)
        for run in topic.runs:
            if run.segment != last.first:
                by_first[run.segment].runs.append(run)


# -- the last segment ----------------------------------------------------------------------------------------


def _begun(folder: Path, firsts: list[int], repair: bool) -> list[int]:
    """Without segments at the end that were not begun when the crash came; those hold state only."""
    while firsts and _unbegun(folder, firsts[-1], repair):
        firsts = firsts[:-1]
    return firsts


def _unbegun(folder: Path, first: int, repair: bool) -> bool:
    """True if the last segment was not begun when the crash came; it is removed."""
    segment = Segment.open(folder, first)
    sequence = first
    try:
        for record in scan(segment.memory, first):
            if record.kind == Kind.OPENED:
                segment.close()
                return False
            segment.end, sequence = record.end, record.sequence + 1
        if not repair:
            _look_for_damage(segment, sequence)
    except LogDamaged:
        segment.close()
        raise
    segment.remove()
    sync_folder(folder)
    return True


def _take_last(found: Recovered, segment: Segment, repair: bool) -> Contents:
    """The last segment, byte by byte, up to the first record that is not whole."""
    said = load(segment.folder, segment.first)  # what was there when the log was closed the last time
    if repair:
        said = None
    known = said.following if said is not None else 0
    until = _whole_until(found, segment, said)
    contents = read_headers(
        segment.memory,
        segment.first,
        until=until,
        on_state=lambda record: take_state(record, found.state, found.topics),
    )
    segment.end, found.sequence = contents.end, contents.following
    if not repair:
        _look_for_damage(segment, found.sequence, known)
    tail = bytes(segment.memory[segment.end :]).rstrip(b"\0")
    if tail:
        found.cut = len(tail)
        path_of(segment.folder, segment.first, INDEX).unlink(missing_ok=True)
        segment.cut(segment.end)
    with full_disk_told():  # from now on all of it counts as synced
        segment.sync()
        for other in found.segments:
            other.sync_blobs()
    return contents


def _whole_until(found: Recovered, segment: Segment, said: Contents | None) -> int:
    """The first record of the last segment that is not whole, nor its blob, though it is wanted.

    said: what it held when the log was closed, which was synced, as is what later records call so: those
    blobs are not read. A blob that is discarded by a later record that counts need not be whole: it may be a
    hole.
    """
    synced, end = max(segment.first, said.following if said is not None else 0), segment.first
    blobs: list[Record] = []
    for record in _scan_last(segment, said):
        if record.flags & _HAS_BLOB:
            blobs.append(record)
        synced = max(synced, record.sequence - record.lag)
        end = record.sequence + 1
    torn = [one for one in blobs if one.sequence >= synced and not _blob_is_whole(found, one)]
    discards = _discards(segment) if torn else []
    before = -1
    while end != before:
        before = end
        for record in torn:
            wanted = not any(
                sequence < end and topic == record.topic and low <= record.offset < high
                for sequence, topic, low, high in discards
            )
            if record.sequence < end and wanted:
                end = record.sequence
                break
    return end


def _scan_last(segment: Segment, said: Contents | None) -> Iterator[Record]:
    """The records of the last segment, up to the first one that is not whole. A plain message that is damaged
    though it was synced is passed over: whoever reads it is told, and the rest is served."""
    position, sequence = 0, segment.first
    while True:
        record = decode(segment.memory, position)
        if record is None or record.sequence != sequence:
            record = _damaged_message(segment, position, sequence, said)
            if record is None:
                return
            _log.error("record %d of %s is damaged: that message is lost", sequence, segment.path)
        yield record
        position, sequence = record.end, sequence + 1


def _damaged_message(segment: Segment, position: int, sequence: int, said: Contents | None) -> Record | None:
    """The header of a plain message whose bytes are not what was written. None: it was not synced, for what
    anybody says, or its header cannot be trusted: what is whole has to follow where it says that it ends."""
    record = decode(segment.memory, position, verify=False)
    if record is None or record.sequence != sequence or record.kind != Kind.MESSAGE or record.flags:
        return None
    known = said.following if said is not None else 0
    if said is not None and (sequence + 1, record.end) == (known, said.end):
        return record  # the last one
    for after in _records_from(segment, record.end, sequence + 1):
        if sequence < known or after.sequence - after.lag > sequence:
            return record
    return None


def _records_from(segment: Segment, position: int, sequence: int) -> Iterator[Record]:
    """Whole records that follow each other."""
    while (record := decode(segment.memory, position)) is not None and record.sequence == sequence:
        yield record
        position, sequence = record.end, sequence + 1


def _discards(segment: Segment) -> list[tuple[int, int, int, int]]:
    """(sequence, topic, begin, end) of each record that discards blobs."""
    return [
        (record.sequence, *discard)
        for record in scan(segment.memory, segment.first)
        if record.kind == Kind.STATE and (discard := discard_of(record)) is not None
    ]


def _look_for_damage(segment: Segment, sequence: int, known: int = 0) -> None:
    """Raises LogDamaged if record `sequence`, the first one that is not good, was synced: a record behind it
    says so, or all before `known` were.
    """
    if sequence < known:
        raise LogDamaged(
            f"record {sequence} of {segment.path.name} is damaged at byte {segment.end}: it was synced "
            "when the log was closed",
            hint=_RESTORE,
        )
    position = segment.find(MAGIC_BYTES, segment.end + 1)
    while position >= 0:
        record = decode(segment.memory, position)
        if record is not None and record.sequence - record.lag > sequence:
            raise LogDamaged(
                f"record {sequence} of {segment.path.name} is damaged at byte {segment.end}: record "
                f"{record.sequence} says that it was synced",
                hint=_RESTORE,
            )
        position = segment.find(MAGIC_BYTES, position + 1)


def _blob_is_whole(found: Recovered, record: Record) -> bool:
    first, position, nbytes, crc = BLOB.unpack_from(record.body)
    for segment in found.segments:
        if segment.first == first:
            blob = segment.blob(position, nbytes)
            return blob is not None and crc32c(blob) == crc
    return int(first) < found.segments[0].first  # retention let it go


# -- repair --------------------------------------------------------------------------------------------------


def _without_damage(folder: Path, firsts: list[int]) -> list[int]:
    """Removes all behind the first segment that is damaged, or that others are missing behind."""
    for number, first in enumerate(firsts[:-1]):
        segment = Segment.open(folder, first)
        try:
            said = load(folder, first)
            whole = said is not None and is_of(said, segment.memory)
            contents = said if said is not None and whole else read_headers(segment.memory, first)
        finally:
            segment.close()
        if contents.following != firsts[number + 1]:
            for later in firsts[number + 1 :]:
                Segment.open(folder, later).remove()
            path_of(folder, first, INDEX).unlink(missing_ok=True)
            sync_folder(folder)
            return firsts[: number + 1]
    return firsts
