"""What a folder of a log holds when it is opened: its segments, its topics, its state.

A crash leaves records and blobs that were not synced in any condition, and nobody was told that they were
kept: the last segment ends before the first of them that is not whole. A record that is not whole though a
later one calls it synced is damage: one wrong bit is put right, a message is told when it is read, and where
it is not known what was lost nothing is opened. What sealed segments hold, their index files say; one that is
missing or damaged is made again. State is read in the last segment, which begins with all of it.
"""

from __future__ import annotations

import gc
import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from transfer.log.contents import Contents, follow, is_of, load, read_headers, store
from transfer.log.damage import Damage, Gap, Known, claim, mended, walk
from transfer.log.holes import Due, Hole, give_back
from transfer.log.index import Lost, Run, Topic
from transfer.log.quarantine import quarantine, quarantine_segment, save_tail, without_segment
from transfer.log.record import BLOB, MAGIC_BYTES, Flag, Kind, Record, decode, scan
from transfer.log.segment import (
    BLOBS,
    INDEX,
    SUFFIX,
    Segment,
    finish_removals,
    full_disk_told,
    path_of,
    segments_in,
    sync_folder,
)
from transfer.log.state import discard_of, take_discarded, take_state
from transports.core import crc32c
from transports.errors import LogDamaged

_log = logging.getLogger("transfer.log")

_RESTORE = "restore the file; opening with repair=True cuts it off with all that follows, into quarantine"
_SERVE = 'restore the file; damaged="serve" serves the rest, repair=True cuts off all that follows'
_LAST = (
    "restore the file: it has the state, and what was kept last; to begin anew use an empty folder, and "
    "leave this one as it is"
)
_HAS_BLOB = int(Flag.HAS_BLOB)
#: bytes that are written again at a time
_PIECE = 16 << 20


@dataclass
class Recovered:
    """dropped: topics that were, as far as their messages are still in the segments. sequence: of the next
    record. cut: bytes of a torn tail that were thrown away. single: messages that are damaged, and the file
    of each. damage: what else is. lost: records of the last segment of which it is not known what they were.
    """

    segments: list[Segment] = field(default_factory=list)
    topics: dict[int, Topic] = field(default_factory=dict)
    dropped: list[Topic] = field(default_factory=list)
    state: dict[bytes, bytes] = field(default_factory=dict)
    sequence: int = 0
    cut: int = 0
    single: list[tuple[Gap, str]] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    lost: int = 0

    @property
    def told(self) -> list[Damage]:
        """All that is damaged."""
        return [*self.damage, *(self._of_message(gap, name) for gap, name in self.single)]

    def _of_message(self, gap: Gap, name: str) -> Damage:
        header = gap.header
        topic = self.topics.get(header.topic) if header is not None else None
        if header is None or topic is None:
            return Damage(f"record {gap.sequence} of {name} is damaged")
        text = f"message {header.offset} of topic {topic.name!r} is damaged: record {gap.sequence} of {name}"
        return Damage(text, topic.name, header.offset, header.offset + 1)


def recover(folder: Path, *, begun: bool = False, repair: bool = False, serve: bool = False) -> Recovered:
    """Opens all segments of a folder. begun: the folder has had segments. repair: damage is cut off, with all
    that follows it. serve: what is whole is opened although messages are missing.

    Raises LogDamaged; then nothing is open, and nothing was changed but single bits that were wrong.
    """
    finish_removals(folder)
    there = segments_in(folder)
    firsts = _begun(folder, there, repair)
    if repair:
        firsts = _begun(folder, _without_damage(folder, firsts), repair)
    else:
        _check_there(folder, firsts, there, begun)
    found = Recovered()
    try:
        with undisturbed():
            _open(found, folder, firsts, repair)
            if found.damage and not (serve or repair):
                raise LogDamaged(found.damage[0].text, hint=_SERVE)
    except BaseException:
        for segment in found.segments:
            segment.close()
        raise
    for first in there[len(firsts) :]:
        path_of(folder, first).unlink(missing_ok=True)  # it was not begun
    _set_apart(folder, firsts, found.damage)
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
    with full_disk_told():  # before a file is cut to its records, which says that another one follows it
        sync_folder(folder)
    for first, following in zip(firsts, [*firsts[1:], None], strict=False):
        segment = Segment.open(folder, first)
        found.segments.append(segment)
        if following is not None:
            contents.append(_take_sealed(found, segment, following))
    if firsts:
        contents.append(_take_last(found, found.segments[-1], repair))
        _take_messages(found, contents, repair)
    if repair:
        for topic in found.topics.values():
            topic.groups = {group: min(offset, topic.end) for group, offset in topic.groups.items()}
    take_discarded(found.state, found.topics)


def _check_there(folder: Path, firsts: list[int], there: list[int], begun: bool) -> None:
    """Raises LogDamaged if the segment that was written last is missing, and with it the state and what was
    kept last. there: with those that were not begun."""
    orphans = without_segment(folder, there)
    names = ", ".join(path.name for path in orphans)
    if not firsts and (begun or orphans):
        raise LogDamaged(
            f"the log in {folder} has lost all segments"
            + (f", of which there are still {names}" * bool(names)),
            hint=_LAST,
        )
    if any(int(path.name.partition(".")[0]) > firsts[-1] for path in orphans if firsts):
        raise LogDamaged(
            f"the log in {folder} has lost the segment behind {firsts[-1]:020d}{SUFFIX}, of which there is "
            f"still {names}",
            hint=_LAST,
        )


def _set_apart(folder: Path, firsts: list[int], damage: list[Damage]) -> None:
    """Files of segments that are not known are kept elsewhere; a new index that was not finished is not."""
    for path in without_segment(folder, firsts):
        why = f"the file of its records, {path.with_suffix(SUFFIX).name}, is missing"
        quarantine(folder, path, why)
        damage.append(Damage(f"{path.name} is in quarantine: {why}"))
    for first in firsts:
        path_of(folder, first, INDEX + ".new").unlink(missing_ok=True)


# -- segments that are not the last one ----------------------------------------------------------------------


def _take_sealed(found: Recovered, segment: Segment, following: int) -> Contents:
    """All of it was synced before the next one was begun. following: where that begins."""
    contents = load(segment.folder, segment.first)
    if contents is None or not _is_index_of(contents, segment, following):
        contents = _read_sealed(found, segment, following)
        # Without it the next start takes longer, which is all.
        with suppress(OSError):
            store(segment.folder, contents)
    with suppress(FileNotFoundError):
        segment.index_bytes = path_of(segment.folder, segment.first, INDEX).stat().st_size
    segment.end = contents.end
    segment.seal()
    return contents


def _is_index_of(contents: Contents, segment: Segment, following: int) -> bool:
    """True if the segment is the one of the index, though its last record may be damaged, or later segments
    missing. Not if it says less: then it is that of a clean end at which this segment was the last one."""
    if contents.following != following and bytes(segment.memory[contents.end :]).rstrip(b"\0"):
        return False
    ends_here = contents.following == following and contents.end == segment.capacity
    return ends_here or is_of(contents, segment.memory)


def _read_sealed(found: Recovered, segment: Segment, following: int) -> Contents:
    contents = read_headers(segment.memory, segment.first)
    if not bytes(segment.memory[contents.end :]).rstrip(b"\0") and contents.following == following:
        return contents
    end = len(bytes(segment.memory).rstrip(b"\0"))
    gaps = [one for one in _walk(segment, Known(following, end)) if isinstance(one, Gap)]
    contents = read_headers(segment.memory, segment.first, gaps=gaps)
    found.single += [(gap, segment.path.name) for gap in gaps if gap.header is not None]
    found.damage += [Damage(_text(gap, segment)) for gap in gaps if gap.header is None]
    return contents


def _take_messages(found: Recovered, contents: list[Contents], repair: bool) -> None:
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
    following, missing = follow(contents)
    found.damage += missing
    # Of carried messages those before the newest ones may be gone without being missed.
    strict = bool(found.damage) or not any(one.carried for one in contents)
    lost = 0
    for number, runs in following.items():
        topic = found.topics.get(number)
        if topic is None:
            dropped = Topic("", number)
            dropped.place(runs)
            found.dropped.append(dropped)
            continue
        for run in topic.place(runs, last=last.first if strict else None):
            lost += len(run.positions) if run.segment == last.first else 0
            found.damage.append(_lost_messages(topic, run))
        topic.grow_on(last, its)
        for run in topic.runs:
            if run.segment != last.first or isinstance(run.positions, Lost):
                by_first[run.segment].runs.append(run)
    if found.lost and not repair and (missing or lost != found.lost):
        raise LogDamaged(found.damage[0].text + ", and it is not known what it was", hint=_RESTORE)


def _lost_messages(topic: Topic, run: Run) -> Damage:
    text = f"messages {run.first} to {run.end - 1} of topic {topic.name!r} are lost"
    return Damage(text, topic.name, run.first, run.end)


# -- the last segment ----------------------------------------------------------------------------------------


def _begun(folder: Path, firsts: list[int], repair: bool) -> list[int]:
    """Without segments at the end that were not begun when the crash came; those hold state only."""
    while firsts and _unbegun(folder, firsts[-1], repair):
        firsts = firsts[:-1]
    return firsts


def _unbegun(folder: Path, first: int, repair: bool) -> bool:
    """True if the last segment was not begun when the crash came. Raises LogDamaged: it was."""
    segment = Segment.open(folder, first)
    try:
        for found in walk(segment.memory, segment.find, first, _known(segment)):
            if isinstance(found, Gap) or found.kind == Kind.OPENED:
                return False
    finally:
        segment.close()
    if repair:
        quarantine_segment(folder, first, "it does not begin with all state")
    elif path_of(folder, first, BLOBS).exists() or path_of(folder, first, INDEX).exists():
        raise LogDamaged(f"{path_of(folder, first)} holds no record, but it did", hint=_LAST)
    return True


def _known(segment: Segment) -> Known:
    """What was there when the log was closed the last time, or the segment sealed."""
    said = load(segment.folder, segment.first)
    return Known(said.following, said.end) if said is not None else Known()


def _take_last(found: Recovered, segment: Segment, repair: bool) -> Contents:
    """The last segment, byte by byte, up to the first record that is not whole."""
    known = _known(segment) if not repair else Known()
    read = _Read(segment, known, repair)
    until = _whole_until(found, read)
    gaps = [gap for gap in read.gaps if gap.following <= until]
    _take_gaps(found, read, gaps)
    contents = read_headers(
        segment.memory,
        segment.first,
        until=until,
        on_state=lambda record: take_state(record, found.state, found.topics),
        gaps=gaps,
    )
    segment.end, found.sequence = contents.end, contents.following
    if not repair:
        _look_for_damage(segment, found.sequence, known.following)
        if segment.is_sealed:
            text = f"the log in {segment.folder} has lost the segment behind {segment.path.name}"
            raise LogDamaged(text, hint=_LAST)
    tail = bytes(segment.memory[segment.end :]).rstrip(b"\0")
    if tail:
        found.cut = len(tail)
        if repair:
            save_tail(segment.folder, segment.path, segment.end, tail)
        path_of(segment.folder, segment.first, INDEX).unlink(missing_ok=True)
        segment.cut(segment.end)
    if not repair and not read.gaps:  # a damaged record may name a blob
        _clear(segment, [one for one in read.blobs if one.sequence < found.sequence])
    with full_disk_told():  # from now on all of it counts as synced
        _write_again(found, read, until)
        segment.sync()
        for other in found.segments:
            other.sync_blobs()
    return contents


def _write_again(found: Recovered, read: _Read, until: int) -> None:
    """Writes what is whole but not known to be synced once more, with its blobs. A sync that failed leaves
    pages in memory that the system takes for written: no later sync would bring them to the disk. Raises
    OSError."""
    segment = read.segment
    begin = read.unproven[0][1] if read.unproven else segment.end
    for position in range(begin, segment.end, _PIECE):
        segment.write(position, bytes(segment.memory[position : min(position + _PIECE, segment.end)]))
    by_first = {one.first: one for one in found.segments}
    for record in read.blobs:
        if read.proven <= record.sequence < until:
            first, position, nbytes, _ = BLOB.unpack_from(record.body)
            if first in by_first:
                _write_blob_again(by_first[first], position, nbytes)


def _write_blob_again(segment: Segment, begin: int, nbytes: int) -> None:
    for at in range(0, nbytes, _PIECE):
        piece = segment.blob(begin + at, min(_PIECE, nbytes - at), of=begin)
        if piece is None:
            return
        segment.write_blob(begin + at, [memoryview(bytes(piece))])


def _walk(segment: Segment, known: Known) -> Iterator[Record | Gap]:
    """As `walk`; one wrong bit of a short record is put right, in the file too."""
    for found in walk(segment.memory, segment.find, segment.first, known):
        if isinstance(found, Gap) and found.following == found.sequence + 1:
            whole = mended(bytes(segment.memory[found.position : found.end]), found.sequence)
            if whole is not None:
                with full_disk_told():
                    segment.write(found.position, whole)
                _log.error("record %d of %s had a wrong bit: put right", found.sequence, segment.path)
                record = decode(segment.memory, found.position)
                if record is not None:
                    yield record
                    continue
        if isinstance(found, Gap):
            _log.error("%s", _text(found, segment))
        yield found


class _Read:
    """What the last segment holds, each record looked at once. gaps: where it is damaged. blobs: the records
    that have some. synced: the record before which all was, as any says; proven: as one says behind the
    beginning. unproven: sequence and position of those that are whole and not proven. opened: the one behind
    all state. end: the one behind the last."""

    def __init__(self, segment: Segment, known: Known, repair: bool) -> None:
        self.segment = segment
        self.gaps: list[Gap] = []
        self.blobs: list[Record] = []
        self.synced = self.proven = max(segment.first, known.following)
        self.unproven: deque[tuple[int, int]] = deque()
        self.opened = self.end = segment.first
        read = scan(segment.memory, segment.first) if repair else _walk(segment, known)
        for one in read:
            if isinstance(one, Gap):
                self.gaps.append(one)
                self.end = one.following
                continue
            self.end = one.sequence + 1
            self.synced = max(self.synced, one.sequence - one.lag)
            self.proven = max(self.proven, claim(one))
            self.unproven.append((one.sequence, one.position))
            while self.unproven and self.unproven[0][0] < self.proven:
                self.unproven.popleft()
            if one.flags & _HAS_BLOB:
                self.blobs.append(one)
            if one.kind == Kind.OPENED:
                self.opened = one.sequence


def _text(gap: Gap, segment: Segment) -> str:
    many = f"records {gap.sequence} to {gap.following - 1}"
    one = f"record {gap.sequence}"
    return (
        f"{one if gap.following == gap.sequence + 1 else many} of {segment.path.name} damaged at byte "
        f"{gap.position}, though synced" + (": that message is lost" if gap.header is not None else "")
    )


def _take_gaps(found: Recovered, read: _Read, gaps: list[Gap]) -> None:
    """What is known of the gaps. State that they may have held, of that with which the segment begins, is in
    the one before too: it is taken from there. Of later state nothing tells."""
    name = read.segment.path.name
    found.single += [(gap, name) for gap in gaps if gap.header is not None]
    unknown = [gap for gap in gaps if gap.header is None]
    if any(gap.following <= read.opened for gap in unknown) and _take_older_state(found):
        unknown = [gap for gap in unknown if gap.following > read.opened]
    found.lost = sum(gap.following - gap.sequence for gap in unknown)
    found.damage += [Damage(_text(gap, read.segment)) for gap in unknown]


def _take_older_state(found: Recovered) -> bool:
    """Takes all state from the segment before the last one, if all of that is whole."""
    if len(found.segments) < 2:
        return False
    before, last = found.segments[-2:]
    records, sequence = [], before.first
    for record in scan(before.memory, before.first):
        sequence = record.sequence + 1
        if record.kind == Kind.STATE:
            records.append(record)
    if sequence != last.first:
        return False
    for record in records:
        take_state(record, found.state, found.topics)
    _log.error("the state that %s begins with is read from %s", last.path.name, before.path.name)
    return True


def _clear(segment: Segment, records: list[Record]) -> None:
    """What none of the records names, a crash left of blobs that were arriving: it is given back."""
    places = (BLOB.unpack_from(record.body)[:3] for record in records)
    gaps, end = [], 0
    for position, nbytes in sorted(place[1:] for place in places if place[0] == segment.first):
        gaps.append(Hole(segment, end, max(0, position - end)))
        end = max(end, position + nbytes)
    segment.cut_blobs(end)
    give_back(Due([], {}, gaps))


def _whole_until(found: Recovered, read: _Read) -> int:
    """The first record of the last segment that is not whole, nor its blob, though it is wanted.

    Of blobs those are not read that were synced, as later records say, or a clean end. One that is discarded
    by a later record that counts need not be whole: it may be a hole.
    """
    torn = [one for one in read.blobs if one.sequence >= read.synced and not _blob_is_whole(found, one)]
    discards = _discards(read) if torn else []
    end, before = read.end, -1
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


def _discards(read: _Read) -> list[tuple[int, int, int, int]]:
    """(sequence, topic, begin, end) of each record that discards blobs."""
    segment = read.segment
    known = Known(read.synced, 0)
    return [
        (record.sequence, *discard)
        for record in walk(segment.memory, segment.find, segment.first, known)
        if isinstance(record, Record)
        and record.kind == Kind.STATE
        and (discard := discard_of(record)) is not None
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
        if record is not None and claim(record) > sequence:
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
    """Sets apart all behind the first segment that is damaged, or that others are missing behind."""
    for number, first in enumerate(firsts[:-1]):
        segment = Segment.open(folder, first)
        try:
            said = load(folder, first)
            whole = said is not None and said.following == firsts[number + 1] and is_of(said, segment.memory)
            contents = said if said is not None and whole else read_headers(segment.memory, first)
        finally:
            segment.close()
        if contents.following != firsts[number + 1]:
            for later in firsts[number + 1 :]:
                quarantine_segment(folder, later, f"it lies behind damage in {path_of(folder, first).name}")
            path_of(folder, first, INDEX).unlink(missing_ok=True)
            sync_folder(folder)
            return firsts[: number + 1]
    return firsts
