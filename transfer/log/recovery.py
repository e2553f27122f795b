"""Opens a log's folder: recovers its segments, topics and state.

A crash may leave unsynced records and blobs in any condition; none of them was acknowledged. So the last
segment ends before the first incomplete one. An incomplete record that a later one shows as synced is damage:
one wrong bit is repaired, a damaged message is reported when it is read, and if it is unknown what is lost
the log is not opened. Index files hold the content of sealed segments; a missing or damaged index is made
again. State is read from the last segment, which begins with all of it.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from transfer.log.contents import Contents, follow, is_of, load, read_headers, store
from transfer.log.damage import Damage, Gap, Known, walk
from transfer.log.disk import disk_errors, sync_folder
from transfer.log.index import LogTopic, LostPositions, OffsetRun
from transfer.log.lost_blobs import lost_blobs
from transfer.log.quarantine import quarantine, quarantine_segment, save_tail, without_segment
from transfer.log.record import RecordKind, scan
from transfer.log.segment import Segment
from transfer.log.segment_files import BLOBS, INDEX, REMOVED, SUFFIX, finish_removals, path_of, segments_in
from transfer.log.segment_walk import describe, walk_repaired
from transfer.log.state import take_discarded, take_state
from transfer.log.tail import RESTORE, TailScan, check_unsynced, clear, whole_until, write_again
from transfer.transports.errors import LogDamaged

_log = logging.getLogger("transfer.log")

_SERVE = 'restore the file; damaged="serve" serves the rest, repair=True cuts off all that follows'
_LAST = (
    "restore the file: it has the state and the latest messages; to begin anew use an empty folder, and "
    "leave this one unchanged"
)


@dataclass
class Recovery:
    """The result of a recovery.

    dropped: removed topics whose messages are still in segments. sequence: of the next record. cut: bytes of
    a removed torn tail. single: damaged messages, each with its file. blobs: messages with lost blobs.
    damage: all other damage. lost: number of unknown damaged records in the last segment.
    """

    segments: list[Segment] = field(default_factory=list)
    topics: dict[int, LogTopic] = field(default_factory=dict)
    dropped: list[LogTopic] = field(default_factory=list)
    state: dict[bytes, bytes] = field(default_factory=dict)
    sequence: int = 0
    cut: int = 0
    single: list[tuple[Gap, str]] = field(default_factory=list)
    blobs: list[Damage] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    lost: int = 0

    @property
    def all_damage(self) -> list[Damage]:
        """All damage: of messages, blobs and other records."""
        messages = (self._of_message(gap, name) for gap, name in self.single)
        return [*self.damage, *messages, *self.blobs]

    def _of_message(self, gap: Gap, name: str) -> Damage:
        header = gap.header
        topic = self.topics.get(header.topic) if header is not None else None
        if header is None or topic is None:
            return Damage(f"record {gap.sequence} of {name} is damaged")
        text = f"message {header.offset} of topic {topic.name!r} is damaged: record {gap.sequence} of {name}"
        return Damage(text, topic.name, header.offset, header.offset + 1)


def recover(
    folder: Path,
    *,
    begun: bool = False,
    repair: bool = False,
    serve: bool = False,
    kind: type[Segment] = Segment,
) -> Recovery:
    """Opens all segments of a folder.

    begun: the folder had segments before. repair: cuts damage off, with all records after it. serve: opens
    the log although messages are missing. kind: the class of the segments; a read-only one changes no file.

    Raises LogDamaged; then no segment is open, and only single wrong bits were changed.
    """
    if not kind.read_only:
        finish_removals(folder)
    existing = segments_in(folder)
    firsts = _begun(folder, existing, kind, repair=repair)
    if repair:
        firsts = _begun(folder, _without_damage(folder, firsts), kind, repair=repair)
    else:
        _check_last(folder, firsts, existing, begun)
    found = Recovery()
    try:
        with gc_paused():
            _open(found, folder, firsts, kind, repair=repair)
            if found.damage and not (serve or repair):
                raise LogDamaged(found.damage[0].text, hint=_SERVE)
    except BaseException:
        for segment in found.segments:
            segment.close()
        raise
    if not kind.read_only:
        for first in existing[len(firsts) :]:
            path_of(folder, first).unlink(missing_ok=True)  # a crash came before its first records
    _quarantine_unknown(folder, firsts, found.damage, read_only=kind.read_only)
    return found


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pauses the garbage collector while millions of permanent objects are made: it would find no garbage."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _open(found: Recovery, folder: Path, firsts: list[int], kind: type[Segment], *, repair: bool) -> None:
    contents: list[Contents] = []
    if not kind.read_only:
        with disk_errors():  # before a file is cut to its records, which means that another one follows it
            sync_folder(folder)
    for first, following in zip(firsts, [*firsts[1:], None], strict=False):
        segment = kind.open(folder, first)
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
    found.blobs = lost_blobs(found.segments, found.topics)


def _check_last(folder: Path, firsts: list[int], existing: list[int], begun: bool) -> None:
    """Raises LogDamaged if the last segment, which has the state and the latest messages, is missing.
    existing: all segments, including those that were not begun."""
    orphans = without_segment(folder, [*existing, *segments_in(folder, REMOVED)])
    names = ", ".join(path.name for path in orphans)
    if not firsts and (begun or orphans):
        raise LogDamaged(
            f"the log in {folder} has lost all segments" + (f"; of them remain {names}" * bool(names)),
            hint=_LAST,
        )
    if any(int(path.name.partition(".")[0]) > firsts[-1] for path in orphans if firsts):
        raise LogDamaged(
            f"the log in {folder} has lost the segment after {firsts[-1]:020d}{SUFFIX}; of it remain {names}",
            hint=_LAST,
        )


def _quarantine_unknown(folder: Path, firsts: list[int], damage: list[Damage], *, read_only: bool) -> None:
    """Moves files of unknown segments into quarantine, and deletes unfinished index files."""
    for path in without_segment(folder, [*firsts, *segments_in(folder, REMOVED)]):
        why = f"the file of its records, {path.with_suffix(SUFFIX).name}, is missing"
        if not read_only:
            quarantine(folder, path, why)
        damage.append(Damage(f"{path.name} {'goes into' if read_only else 'is in'} quarantine: {why}"))
    for first in firsts if not read_only else ():
        path_of(folder, first, INDEX + ".new").unlink(missing_ok=True)


# -- segments that are not the last one ----------------------------------------------------------------------


def _take_sealed(found: Recovery, segment: Segment, following: int) -> Contents:
    """Returns the content of a sealed segment; all of it is synced. following: where the next one begins."""
    contents = load(segment.folder, segment.first)
    if contents is None or not _is_index_of(contents, segment, following):
        contents = _read_sealed(found, segment, following)
        if not segment.read_only:
            with suppress(OSError):  # without the index the next start only takes longer
                store(segment.folder, contents)
    with suppress(FileNotFoundError):
        segment.index_bytes = path_of(segment.folder, segment.first, INDEX).stat().st_size
    segment.end = contents.end
    segment.seal()
    return contents


def _is_index_of(contents: Contents, segment: Segment, following: int) -> bool:
    """Whether the index is that of the segment, whose last record may be damaged.
    False if it covers fewer records: then it is from a clean end at which this segment was the last one."""
    if contents.following != following and bytes(segment.memory[contents.end :]).rstrip(b"\0"):
        return False
    ends_here = contents.following == following and contents.end == segment.capacity
    return ends_here or is_of(contents, segment.memory)


def _read_sealed(found: Recovery, segment: Segment, following: int) -> Contents:
    contents = read_headers(segment.memory, segment.first)
    if not bytes(segment.memory[contents.end :]).rstrip(b"\0") and contents.following == following:
        return contents
    end = len(bytes(segment.memory).rstrip(b"\0"))
    gaps = [one for one in walk_repaired(segment, Known(following, end)) if isinstance(one, Gap)]
    contents = read_headers(segment.memory, segment.first, gaps=gaps)
    found.single += [(gap, segment.path.name) for gap in gaps if gap.header is not None]
    found.damage += [Damage(describe(gap, segment)) for gap in gaps if gap.header is None]
    return contents


def _take_messages(found: Recovery, contents: list[Contents], repair: bool) -> None:
    by_first = {segment.first: segment for segment in found.segments}
    for one in contents:
        segment = by_first[one.first]
        segment.newest = max(segment.newest, one.newest)
        segment.carried, segment.last, segment.uses = one.carried, one.last, one.uses
        for (first, number), use in one.uses.items():
            if (other := by_first.get(first)) is not None:
                other.blob_end = max(other.blob_end, use.nbytes)
                other.blob_ends[number] = max(other.blob_ends.get(number, 0), use.offsets)
                other.newest = max(other.newest, use.newest)
    # The last segment's index is written later: it needs all runs.
    last = found.segments[-1]
    last.runs = contents[-1].runs
    last_runs = set(last.runs)
    following, missing = follow(contents)
    found.damage += missing
    # Compaction may have removed messages before copied ones: these gaps are no damage.
    strict = bool(found.damage) or not any(one.carried for one in contents)
    lost = 0
    for number, runs in following.items():
        topic = found.topics.get(number)
        if topic is None:
            dropped = LogTopic("", number)
            dropped.place(runs)
            found.dropped.append(dropped)
            continue
        for run in topic.place(runs, last=last.first if strict else None):
            lost += len(run.positions) if run.segment == last.first else 0
            found.damage.append(_lost_messages(topic, run))
        topic.grow_on(last, last_runs)
        for run in topic.runs:
            if run.segment != last.first or isinstance(run.positions, LostPositions):
                by_first[run.segment].runs.append(run)
    if found.lost and not repair and (missing or lost != found.lost):
        raise LogDamaged(found.damage[0].text + ", and its content is unknown", hint=RESTORE)


def _lost_messages(topic: LogTopic, run: OffsetRun) -> Damage:
    text = f"messages {run.first} to {run.end - 1} of topic {topic.name!r} are lost"
    return Damage(text, topic.name, run.first, run.end)


# -- the last segment ----------------------------------------------------------------------------------------


def _begun(folder: Path, firsts: list[int], kind: type[Segment], *, repair: bool) -> list[int]:
    """Leaves out segments at the end that a crash left before their first records were complete."""
    while firsts and _unbegun(folder, firsts[-1], kind, repair=repair):
        firsts = firsts[:-1]
    return firsts


def _unbegun(folder: Path, first: int, kind: type[Segment], *, repair: bool) -> bool:
    """Whether the last segment's first records are incomplete.
    Raises LogDamaged if it had further records."""
    segment = kind.open(folder, first)
    try:
        for found in walk(segment.memory, segment.find, first, _known(segment)):
            if isinstance(found, Gap) or found.kind == RecordKind.OPENED:
                return False
    finally:
        segment.close()
    if repair:
        quarantine_segment(folder, first, "it does not begin with the whole state")
    elif path_of(folder, first, BLOBS).exists() or path_of(folder, first, INDEX).exists():
        raise LogDamaged(f"{path_of(folder, first)} has lost all its records", hint=_LAST)
    return True


def _known(segment: Segment) -> Known:
    """Returns what the index shows as synced, from the last close of the log or the seal of the segment."""
    index = load(segment.folder, segment.first)
    return Known(index.following, index.end) if index is not None else Known()


def _take_last(found: Recovery, segment: Segment, repair: bool) -> Contents:
    """Reads all of the last segment, up to the first incomplete record."""
    known = _known(segment) if not repair else Known()
    read = TailScan(segment, known, repair)
    until = whole_until(read, found.segments)
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
        check_unsynced(segment, found.sequence, known.following)
        if segment.is_sealed:
            text = f"the log in {segment.folder} has lost the segment after {segment.path.name}"
            raise LogDamaged(text, hint=_LAST)
    tail = bytes(segment.memory[segment.end :]).rstrip(b"\0")
    if tail:
        found.cut = len(tail)
        if repair:
            save_tail(segment.folder, segment.path, segment.end, tail)
        if not segment.read_only:
            path_of(segment.folder, segment.first, INDEX).unlink(missing_ok=True)
        segment.cut(segment.end)
    if not repair and not read.gaps:  # a damaged record may name a blob
        clear(segment, [one for one in read.blobs if one.sequence < found.sequence])
    with disk_errors():  # from now on all records count as synced
        write_again(read, found.segments, until)
        segment.sync()
        for other in found.segments:
            other.sync_blobs()
    return contents


def _take_gaps(found: Recovery, read: TailScan, gaps: list[Gap]) -> None:
    """Takes damaged records into account.

    If they may have held state of the segment's beginning, reads that from the segment before. Later state
    has no second copy.
    """
    name = read.segment.path.name
    found.single += [(gap, name) for gap in gaps if gap.header is not None]
    unknown = [gap for gap in gaps if gap.header is None]
    if any(gap.following <= read.opened for gap in unknown) and _take_older_state(found):
        unknown = [gap for gap in unknown if gap.following > read.opened]
    found.lost = sum(gap.following - gap.sequence for gap in unknown)
    found.damage += [Damage(describe(gap, read.segment)) for gap in unknown]


def _take_older_state(found: Recovery) -> bool:
    """Takes all state from the segment before the last one; returns False if that is not undamaged."""
    if len(found.segments) < 2:
        return False
    before, last = found.segments[-2:]
    records, sequence = [], before.first
    for record in scan(before.memory, before.first):
        sequence = record.sequence + 1
        if record.kind == RecordKind.STATE:
            records.append(record)
    if sequence != last.first:
        return False
    for record in records:
        take_state(record, found.state, found.topics)
    _log.error("the state that %s begins with is read from %s", last.path.name, before.path.name)
    return True


# -- repair --------------------------------------------------------------------------------------------------


def _without_damage(folder: Path, firsts: list[int]) -> list[int]:
    """Moves all segments after the first damaged or missing one into quarantine; returns the others."""
    for number, first in enumerate(firsts[:-1]):
        segment = Segment.open(folder, first)
        try:
            index = load(folder, first)
            whole = (
                index is not None and index.following == firsts[number + 1] and is_of(index, segment.memory)
            )
            contents = index if index is not None and whole else read_headers(segment.memory, first)
        finally:
            segment.close()
        if contents.following != firsts[number + 1]:
            for later in firsts[number + 1 :]:
                quarantine_segment(folder, later, f"it follows damage in {path_of(folder, first).name}")
            path_of(folder, first, INDEX).unlink(missing_ok=True)
            sync_folder(folder)
            return firsts[: number + 1]
    return firsts
