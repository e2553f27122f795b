"""Appends messages to the journal: one, many at once, or one with a blob."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import count, repeat
from typing import Any

from transfer.log.contents import use
from transfer.log.disk import disk_errors
from transfer.log.holes import Hole
from transfer.log.index import LogTopic
from transfer.log.journal import Journal
from transfer.log.record import BLOB, HEADER_SIZE, MAX_BODY, RecordFlag, RecordKind
from transfer.log.segment import Segment
from transfer.log.topics import Topics
from transfer.transports.core import crc32c
from transfer.transports.errors import TransferError, UsageError

_MESSAGE, _HAS_BLOB = int(RecordKind.MESSAGE), int(RecordFlag.HAS_BLOB)


class Appender:
    """Appends messages. Thread-safe, except for the methods that need the lock.

    clock: returns nanoseconds since 1970. newest: time of the newest existing message. journal: the log sets
    it before the first use.
    """

    journal: Journal

    def __init__(self, topics: Topics, clock: Callable[[], int], newest: int) -> None:
        self._topics = topics
        self._clock = clock
        self._time = newest

    def now(self) -> int:
        """Returns the time of the next message, never earlier than before. Needs the lock."""
        now = self._clock()
        if now > self._time:
            self._time = now
        return self._time

    def boundary(self) -> int:
        """Returns a time after all existing messages. Needs the lock."""
        self._time += 1
        return self.now()

    def append(self, name: str, body: bytes) -> tuple[int, int]:
        """Appends a message without a blob; returns (sequence, offset)."""
        if len(body) > MAX_BODY:
            _check_size(len(body))
        with self.journal as journal:
            topic = self._topics.named.get(name)
            if topic is None or not journal.fits(len(body)):
                topic = self._topics.with_room(name, len(body))
            return self._place(topic, body, 0)

    def append_all(self, names: Sequence[str], bodies: Sequence[bytes]) -> tuple[int, list[int]]:
        """Appends messages with consecutive sequences; returns (first sequence, offsets)."""
        size = sum(map(len, bodies)) + HEADER_SIZE * (len(bodies) - 1)
        _check_size(size)
        with self.journal as journal:
            topics = self._topics.all_with_room(dict.fromkeys(names), size)
            # From here on the lock is not released.
            now, offsets, messages = self.now(), [], []
            ends = {name: topic.end for name, topic in topics.items()}
            for name, body in zip(names, bodies, strict=True):
                offsets.append(offset := ends[name])
                ends[name] = offset + 1
                messages.append((topics[name].number, offset, body))
            sequence, segment, positions = journal.append_all(messages, now)
            for name, position in zip(names, positions, strict=True):
                topics[name].add(segment, position)
            segment.newest = now
            return sequence, offsets

    def append_many(self, name: str, bodies: Sequence[bytes]) -> tuple[int, int]:
        """Appends messages of one topic; returns (first sequence, first offset)."""
        size = sum(map(len, bodies)) + HEADER_SIZE * (len(bodies) - 1)
        if size > MAX_BODY:
            _check_size(size)
        with self.journal as journal:
            topic = self._topics.named.get(name)
            if topic is None or not journal.fits(size):
                topic = self._topics.with_room(name, size)
            first, now = topic.end, self.now()
            messages = zip(repeat(topic.number), count(first), bodies)
            sequence, segment, positions = journal.append_all(messages, now)
            topic.extend(segment, positions)
            segment.newest = now
            return sequence, first

    def append_blob(self, name: str, body: bytes, parts: Sequence[memoryview]) -> tuple[int, int]:
        """Appends a message with a complete blob; returns (sequence, offset).
        Other threads can append while the blob is written."""
        nbytes = sum(map(len, parts))
        segment, position = self.reserve(name, nbytes)
        try:
            with disk_errors():
                segment.write_blob(position, parts)
            crc = reduce(lambda crc, part: crc32c(part, crc), parts, 0)
            return self.name_blob(name, body, segment, (position, nbytes, crc))
        except TransferError:  # nothing was appended
            self.give_back(Hole(segment, position, nbytes))
            raise
        finally:
            self.journal.unpin(segment)

    def reserve(self, name: str, nbytes: int) -> tuple[Segment, int]:
        """Reserves room for a blob of the topic; returns its place. Pins the segment."""
        with self.journal as journal:
            self._topics.need(name)
            return journal.reserve_blob(nbytes)

    def place(self, name: str, nbytes: int) -> tuple[Segment, int]:
        """Returns a place for a blob whose room is reserved as it arrives. Pins the segment."""
        with self.journal as journal:
            self._topics.need(name)
            return journal.place_blob(nbytes)

    def name_blob(
        self, name: str, body: bytes, segment: Segment, blob: tuple[int, int, int]
    ) -> tuple[int, int]:
        """Appends the message whose blob (position, bytes, CRC) is in a pinned segment."""
        reference = BLOB.pack(segment.first, *blob)
        with self.journal as journal:
            journal.blob_written(segment)
            topic = self._topics.with_room(name, len(reference) + len(body))
            appended, number = self._place(topic, reference + body, _HAS_BLOB), topic.number
            # The record may be in a later segment: the message keeps the blob's segment too.
            segment.note_blob(number, appended[1], self._time)
            use(journal.segments[-1].uses, memoryview(reference), number, appended[1], self._time)
            return appended

    def give_back(self, hole: Hole) -> None:
        """Frees the room of a reserved blob that has no message, as soon as it has no views."""
        journal = self.journal
        with journal.lock:  # even if the log has failed
            self._topics.holes.keep([hole])
            journal.free_discarded()

    def _place(self, topic: LogTopic, body: bytes, flags: int) -> tuple[int, int]:
        """Appends a message for which there is room. Does not release the lock."""
        offset, now = topic.end, self.now()
        sequence, segment, position = self.journal.append(_MESSAGE, flags, topic.number, offset, now, body)
        topic.add(segment, position)
        segment.newest = now
        return sequence, offset


def flat(body: Any) -> bytes:
    """Returns a body as bytes, copied if needed.
    Raises UsageError, or TypeError if it is not a flat buffer."""
    if type(body) is not bytes:
        view = memoryview(body).cast("B")
        _check_size(len(view))
        return bytes(view)
    if len(body) > MAX_BODY:
        _check_size(len(body))
    return body


def _check_size(size: int) -> None:
    """Raises UsageError if a body, or the bodies of one call, are too large."""
    if size > MAX_BODY:
        raise UsageError(f"a body of {size} bytes", hint="append a large payload as a blob")
