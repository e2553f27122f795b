"""Compaction copies the needed messages of the oldest segments into the newest one, and removes the old ones.

A copied message is a new record with the old one's topic, offset, time and body; its blob is copied too if it
is in a removed segment. While both records exist the newer one counts, if it is whole. So after a crash each
message exists once. Readers switch to the new place when it is synced; then the old segment is removed.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from transfer.log.appender import Appender
from transfer.log.contents import use
from transfer.log.disk import disk_errors
from transfer.log.holes import Hole
from transfer.log.index import LogTopic, OffsetRun
from transfer.log.journal import Journal
from transfer.log.record import BLOB, HEADER_SIZE, Record, RecordFlag, RecordKind, decode
from transfer.log.segment import Segment
from transfer.log.topics import DROPPED, Topics
from transfer.transports.core import crc32c
from transfer.transports.errors import LogDamaged

_MESSAGE, _HAS_BLOB, _CARRIED = int(RecordKind.MESSAGE), int(RecordFlag.HAS_BLOB), int(RecordFlag.CARRIED)
#: bytes of a blob in one copy
_PIECE = 16 << 20
#: most runs of messages that are examined with the lock held
_MAX_RUNS = 10_000
#: most of the bytes of overdue segments that may be copied, as a fraction
_HELD_SHARE = 0.5


@dataclass
class _Plan:
    """The plan for one segment that is removed.

    needed_from: returns the first needed offset of a topic. needed: that of each topic, found while the
    segment was pinned. places: the messages to copy, each with its segment's memory. moved: their new places.
    """

    segment: Segment
    needed_from: Callable[[int], int]
    needed: dict[int, int]
    places: list[tuple[LogTopic, memoryview, OffsetRun]]
    moved: list[tuple[LogTopic, OffsetRun]] = field(default_factory=list)
    positions: array[int] = field(default_factory=lambda: array("I"))
    last: int = -1


class Compaction:
    """Compacts a log; one thread at a time, while other threads append and read."""

    def __init__(self, topics: Topics, appender: Appender) -> None:
        self._topics = topics
        self._appender = appender

    @property
    def _journal(self) -> Journal:
        return self._topics.journal

    def run(self, share: float, timeout: float) -> int:
        """See `Log.compact`."""
        self._end_last(share)
        with self._journal as journal:
            sealed, last, limit = (
                journal.segments[:-1],
                journal.segments[-1].first,
                journal.room.retention.bytes,
            )
            excess = journal.disk_bytes + journal.room.lacking - limit if limit is not None else 0
            journal.room.lacking = 0
            now = self._appender.now()
        gone = self._carry_all(self._overdue(sealed, excess, now), last, self._topics.held_from, timeout)
        count = self._worthwhile(sealed[gone:], share)
        return gone + self._carry_all(count, last, self._topics.needed_from, timeout)

    def _end_last(self, share: float) -> None:
        """Ends the last segment, which is never removed, on a full disk if little of it is needed."""
        with self._journal as journal:
            starved, journal.room.starved = journal.room.starved, False
            segments = journal.segments[:]
        if starved and self._worthwhile(segments, share) == len(segments):
            with self._journal as journal:
                journal.next_segment(limited=False)

    def _carry_all(self, count: int, last: int, needed_from: Callable[[int], int], timeout: float) -> int:
        """Compacts up to `count` of the oldest segments; returns the number of removed ones."""
        gone = 0
        while gone < count and self._carry_oldest(last, needed_from, timeout):
            gone += 1
        return gone

    def _overdue(self, sealed: Sequence[Segment], excess: int, now: int) -> int:
        """Returns how many of the oldest segments retention would remove if groups did not hold messages.
        By bytes (as many as free `excess`) or by age. Groups must hold the smaller part of their bytes."""
        retention = self._journal.room.retention
        most = _HELD_SHARE * sum(segment.disk_bytes for segment in sealed)
        count = held = taken = 0
        for number, segment in enumerate(sealed):
            over = excess > 0 and (taken - held < excess or count < number)
            if not over and not retention.too_old(segment.newest, now):
                break
            held += self._held_bytes(segment)
            taken += segment.disk_bytes
            if held > most:
                break
            if held <= _HELD_SHARE * taken:
                count = number + 1
        return count

    def _held_bytes(self, segment: Segment) -> int:
        """Returns the bytes of the segment's messages, with their blobs, that groups hold."""
        with self._journal:
            runs, memory = segment.runs[:], segment.memory
        held = 0
        for at in range(0, len(runs), _MAX_RUNS):
            with self._journal:
                found = [(run, self._topics.held_from(run.topic)) for run in runs[at : at + _MAX_RUNS]]
            for run, begin in found:
                for position in run.positions[max(0, begin - run.first) :] if begin < run.end else ():
                    held += _nbytes(decode(memory, position, verify=False), segment.first)
        return held

    def _worthwhile(self, sealed: Sequence[Segment], share: float) -> int:
        """Returns how many of the oldest segments need, together, at most `share` of their messages."""
        count = needed = messages = 0
        for number, segment in enumerate(sealed):
            with self._journal:
                runs = segment.runs[:]
            for at in range(0, len(runs), _MAX_RUNS):
                with self._journal:  # for a few at a time, since there may be many topics in many segments
                    for run in runs[at : at + _MAX_RUNS]:
                        messages += len(run.positions)
                        needed += max(0, run.end - max(run.first, self._topics.needed_from(run.topic)))
            if needed <= share * messages:
                count = number + 1
        return count

    # -- planning, with the lock -------------------------------------------------------------------------

    def _pin_oldest(self, last: int) -> Segment | None:
        """Pins the oldest segment, if it is older than `last` and not pinned."""
        segment = self._journal.segments[0]
        if segment.first >= last or segment.pins:
            return None
        segment.pins += 1
        return segment

    def _plan(self, segment: Segment, needed_from: Callable[[int], int]) -> _Plan:
        """Plans the copies for a pinned segment. All records that name its blobs must be written."""
        numbers = {run.topic for run in segment.runs} | set(segment.blob_ends)
        plan = _Plan(segment, needed_from, {number: needed_from(number) for number in numbers}, [])
        by_first = {one.first: one for one in self._journal.segments}
        for number, begin in plan.needed.items():
            topic = self._topics.numbered.get(number)
            if begin == DROPPED or topic is None:
                continue
            for run in topic.parts(begin, topic.end):
                home = by_first[run.segment]
                if home is segment:
                    plan.places.append((topic, home.memory, run))
                elif (segment.first, number) in home.uses:
                    plan.places += [(topic, home.memory, one) for one in _with_blob_in(segment, home, run)]
        return plan

    # -- copying -----------------------------------------------------------------------------------------

    def _carry_oldest(self, last: int, needed_from: Callable[[int], int], timeout: float) -> bool:
        """Copies the needed messages of the oldest segment, and removes it. Returns False if it must stay."""
        with self._journal:
            segment = self._pin_oldest(last)
        if segment is None:
            return False
        try:
            # It was not pinned, so all records that name its blobs are appended; the commit writes them.
            self._journal.commit(None, timeout, synced=True)
            with self._journal:
                plan = self._plan(segment, needed_from)
            for topic, memory, run in plan.places:
                for at, position in enumerate(run.positions):
                    self._carry(plan, topic, run.first + at, memory, position)
            if plan.last >= 0:
                self._journal.commit(plan.last, timeout, synced=True)
        except BaseException:
            self._journal.unpin(segment)
            raise
        return self._move(plan)

    def _carry(self, plan: _Plan, topic: LogTopic, offset: int, memory: memoryview, position: int) -> None:
        record = decode(memory, position)
        if record is None or record.offset != offset:
            raise LogDamaged(f"message {offset} at byte {position} is damaged")
        body = bytes(record.body)
        copied = self._copy_blob(plan.segment, topic, record)
        if copied is None:
            self._append(plan, topic, record, body, None)
            return
        hole, reference = copied
        appended = False
        try:
            appended = self._append(plan, topic, record, reference + body[BLOB.size :], hole)
        finally:
            if not appended:
                self._appender.give_back(hole)
            self._journal.unpin(hole.segment)

    def _append(self, plan: _Plan, topic: LogTopic, record: Record, body: bytes, hole: Hole | None) -> bool:
        """Appends the copy of a message. Returns False if the topic was dropped."""
        with self._journal as journal:
            journal.make_room(len(body), limited=False)
            if self._topics.numbered.get(topic.number) is not topic:
                return False
            flags = record.flags | _CARRIED
            plan.last, home, position = journal.append(
                _MESSAGE, flags, topic.number, record.offset, record.time, body
            )
            home.newest = max(home.newest, record.time)
            home.carried += 1
            self._note(plan, topic, home, record.offset, position)
            if record.flags & _HAS_BLOB:
                use(home.uses, memoryview(body), topic.number, record.offset, record.time)
            if hole is not None:
                journal.blob_written(hole.segment)
                hole.segment.note_blob(topic.number, record.offset, record.time)
            return True

    def _note(self, plan: _Plan, topic: LogTopic, home: Segment, offset: int, position: int) -> None:
        """Notes a message's new place, in the same run as the message before it if that is adjacent."""
        last, run = plan.moved[-1] if plan.moved else (None, None)
        if last is not topic or run is None or run.segment != home.first or run.end != offset:
            plan.positions = array("I")
            run = OffsetRun(topic.number, home.first, offset, plan.positions)
            home.runs.append(run)
            plan.moved.append((topic, run))
        plan.positions.append(position)

    def _copy_blob(self, segment: Segment, topic: LogTopic, record: Record) -> tuple[Hole, bytes] | None:
        """Copies the message's blob into the last segment, which it pins; returns the copy and its reference.
        None: the message has no blob, the blob is in another segment, or it is discarded."""
        if not record.flags & _HAS_BLOB or record.offset in topic.discarded:
            return None
        first, begin, nbytes, crc = BLOB.unpack_from(record.body)
        if first != segment.first:
            return None
        with self._journal as journal:
            target, position = journal.reserve_blob(nbytes, limited=False)
        hole, whole = Hole(target, position, nbytes), False
        try:
            whole = _copy(segment, begin, hole) == crc
            if not whole and self._topics.wanted(topic.number, record.offset):
                raise LogDamaged(f"the blob of message {record.offset} is damaged")
        finally:
            if not whole:
                self._appender.give_back(hole)
                self._journal.unpin(target)
        return (hole, BLOB.pack(target.first, position, nbytes, crc)) if whole else None

    def _move(self, plan: _Plan) -> bool:
        """Switches readers to the new places; removes the segment unless a group needs more of it now."""
        segment, topics = plan.segment, self._topics
        with self._journal.lock:
            segment.pins -= 1
            self._journal.lock.notify_all()
        with self._journal as journal:
            for topic, run in plan.moved:
                if topics.numbered.get(topic.number) is topic:
                    topic.move([run])
                    # The blobs of messages discarded in the meantime have two places.
                    again = [at for at in range(run.first, run.end) if at in topic.discarded]
                    topics.free_blobs(topic, [(at, at + 1) for at in again], plan.last)
            wanted = any(plan.needed_from(number) < begin for number, begin in plan.needed.items())
            if wanted or segment.pins or journal.segments[0] is not segment:
                return False
            journal.remove(1)
            return True


def _with_blob_in(segment: Segment, home: Segment, run: OffsetRun) -> Iterator[OffsetRun]:
    """Yields the messages of a run in a later segment whose blobs are in this one."""
    for offset, position in enumerate(run.positions, run.first):
        record = decode(home.memory, position, verify=False)
        if record is None or not record.flags & _HAS_BLOB:
            continue
        if BLOB.unpack_from(record.body)[0] == segment.first:
            yield run.part(offset, offset + 1)


def _nbytes(record: Record | None, segment: int) -> int:
    """Returns the bytes of a message, with its blob if that is in this segment."""
    if record is None:
        return 0
    blob = 0
    if record.flags & _HAS_BLOB:
        first, _, nbytes, _ = BLOB.unpack_from(record.body)
        blob = nbytes if first == segment else 0
    return HEADER_SIZE + len(record.body) + blob


def _copy(segment: Segment, begin: int, hole: Hole) -> int:
    """Copies a blob into reserved room; returns its CRC, or -1 if it is truncated."""
    found = 0
    for at in range(0, hole.nbytes, _PIECE):
        # Each piece is mapped separately, so that little of a large blob is in memory.
        piece = segment.blob(begin + at, min(_PIECE, hole.nbytes - at), of=begin)
        if piece is None:
            return -1
        with disk_errors():
            hole.segment.write_blob(hole.position + at, [piece])
        found = crc32c(piece, found)
    return found
