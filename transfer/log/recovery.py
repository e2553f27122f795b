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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from transfer.log.contents import Contents, follow, is_of, load, read_headers, store
from transfer.log.damage import Damage, Gap, Known, walk
from transfer.log.disk import disk_errors, sync_folder
from transfer.log.index import Lost, Run, Topic
from transfer.log.lost_blobs import lost_blobs
from transfer.log.quarantine import quarantine, quarantine_segment, save_tail, without_segment
from transfer.log.record import Kind, scan
from transfer.log.segment import Segment
from transfer.log.segment_files import BLOBS, INDEX, REMOVED, SUFFIX, finish_removals, path_of, segments_in
from transfer.log.segment_walk import describe, walk_mended
from transfer.log.state import take_discarded, take_state
from transfer.log.tail import RESTORE, Read, clear, look_for_damage, whole_until, write_again
from transfer.transports.errors import LogDamaged

_log = logging.getLogger("transfer.log")

_SERVE = 'restore the file; damaged="serve" serves the rest, repair=True cuts off all that follows'
_LAST = (
    "restore the file: it has the state, and what was kept last; to begin anew use an empty folder, and "
    "leave this one as it is"
)


@dataclass
class Recovered:
    """dropped: topics that were, as far as their messages are still in the segments. sequence: of the next
    record. cut: bytes of a torn tail that were thrown away. single: messages that are damaged, and the file
    of each. blobs: messages that have lost theirs. damage: what else is. lost: records of the last segment of
    which it is not known what they were.
    """

    segments: list[Segment] = field(default_factory=list)
    topics: dict[int, Topic] = field(default_factory=dict)
    dropped: list[Topic] = field(default_factory=list)
    state: dict[bytes, bytes] = field(default_factory=dict)
    sequence: int = 0
    cut: int = 0
    single: list[tuple[Gap, str]] = field(default_factory=list)
    blobs: list[Damage] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    lost: int = 0

    @property
    def told(self) -> list[Damage]:
        """All that is damaged."""
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
) -> Recovered:
    """Opens all segments of a folder. begun: the folder has had segments. repair: damage is cut off, with all
    that follows it. serve: what is whole is opened although messages are missing. kind: of the segments; with
    one that is read-only nothing in the folder is changed.

    Raises LogDamaged; then nothing is open, and nothing was changed but single bits that were wrong.
    """
    if not kind.read_only:
        finish_removals(folder)
    there = segments_in(folder)
    firsts = _begun(folder, there, kind, repair=repair)
    if repair:
        firsts = _begun(folder, _without_damage(folder, firsts), kind, repair=repair)
    else:
        _check_there(folder, firsts, there, begun)
    found = Recovered()
    try:
        with undisturbed():
            _open(found, folder, firsts, kind, repair=repair)
            if found.damage and not (serve or repair):
                raise LogDamaged(found.damage[0].text, hint=_SERVE)
    except BaseException:
        for segment in found.segments:
            segment.close()
        raise
    if not kind.read_only:
        for first in there[len(firsts) :]:
            path_of(folder, first).unlink(missing_ok=True)  # it was not begun
    _set_apart(folder, firsts, found.damage, read_only=kind.read_only)
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


def _open(found: Recovered, folder: Path, firsts: list[int], kind: type[Segment], *, repair: bool) -> None:
    contents: list[Contents] = []
    if not kind.read_only:
        with disk_errors():  # before a file is cut to its records, which says that another one follows it
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


def _check_there(folder: Path, firsts: list[int], there: list[int], begun: bool) -> None:
    """Raises LogDamaged if the segment that was written last is missing, and with it the state and what was
    kept last. there: with those that were not begun."""
    orphans = without_segment(folder, [*there, *segments_in(folder, REMOVED)])
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


def _set_apart(folder: Path, firsts: list[int], damage: list[Damage], *, read_only: bool) -> None:
    """Files of segments that are not known are kept elsewhere; a new index that was not finished is not."""
    for path in without_segment(folder, [*firsts, *segments_in(folder, REMOVED)]):
        why = f"the file of its records, {path.with_suffix(SUFFIX).name}, is missing"
        if not read_only:
            quarantine(folder, path, why)
        damage.append(Damage(f"{path.name} {'goes into' if read_only else 'is in'} quarantine: {why}"))
    for first in firsts if not read_only else ():
        path_of(folder, first, INDEX + ".new").unlink(missing_ok=True)


# -- segments that are not the last one ----------------------------------------------------------------------


def _take_sealed(found: Recovered, segment: Segment, following: int) -> Contents:
    """All of it was synced before the next one was begun. following: where that begins."""
    contents = load(segment.folder, segment.first)
    if contents is None or not _is_index_of(contents, segment, following):
        contents = _read_sealed(found, segment, following)
        if not segment.read_only:
            with suppress(OSError):  # without it the next start takes longer, which is all
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
    gaps = [one for one in walk_mended(segment, Known(following, end)) if isinstance(one, Gap)]
    contents = read_headers(segment.memory, segment.first, gaps=gaps)
    found.single += [(gap, segment.path.name) for gap in gaps if gap.header is not None]
    found.damage += [Damage(describe(gap, segment)) for gap in gaps if gap.header is None]
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
        raise LogDamaged(found.damage[0].text + ", and it is not known what it was", hint=RESTORE)


def _lost_messages(topic: Topic, run: Run) -> Damage:
    text = f"messages {run.first} to {run.end - 1} of topic {topic.name!r} are lost"
    return Damage(text, topic.name, run.first, run.end)


# -- the last segment ----------------------------------------------------------------------------------------


def _begun(folder: Path, firsts: list[int], kind: type[Segment], *, repair: bool) -> list[int]:
    """Without segments at the end that were not begun when the crash came; those hold state only."""
    while firsts and _unbegun(folder, firsts[-1], kind, repair=repair):
        firsts = firsts[:-1]
    return firsts


def _unbegun(folder: Path, first: int, kind: type[Segment], *, repair: bool) -> bool:
    """True if the last segment was not begun when the crash came. Raises LogDamaged: it was."""
    segment = kind.open(folder, first)
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
    read = Read(segment, known, repair)
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
        look_for_damage(segment, found.sequence, known.following)
        if segment.is_sealed:
            text = f"the log in {segment.folder} has lost the segment behind {segment.path.name}"
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
    with disk_errors():  # from now on all of it counts as synced
        write_again(read, found.segments, until)
        segment.sync()
        for other in found.segments:
            other.sync_blobs()
    return contents


def _take_gaps(found: Recovered, read: Read, gaps: list[Gap]) -> None:
    """What is known of the gaps. State that they may have held, of that with which the segment begins, is in
    the one before too: it is taken from there. Of later state nothing tells."""
    name = read.segment.path.name
    found.single += [(gap, name) for gap in gaps if gap.header is not None]
    unknown = [gap for gap in gaps if gap.header is None]
    if any(gap.following <= read.opened for gap in unknown) and _take_older_state(found):
        unknown = [gap for gap in unknown if gap.following > read.opened]
    found.lost = sum(gap.following - gap.sequence for gap in unknown)
    found.damage += [Damage(describe(gap, read.segment)) for gap in unknown]


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
