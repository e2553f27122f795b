"""Messages on their way into the journal: one, many at once, or with a large payload beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from transfer.log.contents import use
from transfer.log.disk import disk_errors
from transfer.log.holes import Hole
from transfer.log.index import Topic
from transfer.log.journal import Journal
from transfer.log.record import BLOB, HEADER_SIZE, MAX_BODY, Flag, Kind
from transfer.log.segment import Segment
from transfer.log.topics import Topics
from transfer.transports.core import crc32c
from transfer.transports.errors import TransferError, UsageError

_MESSAGE, _HAS_BLOB = int(Kind.MESSAGE), int(Flag.HAS_BLOB)


class Appender:
    """Appends messages. Thread-safe, but for what says that the lock is needed.

    clock: nanoseconds since 1970. newest: time of the newest message that was there. journal: set by the log
    before the first use.
    """

    journal: Journal

    def __init__(self, topics: Topics, clock: Callable[[], int], newest: int) -> None:
        self._topics = topics
        self._clock = clock
        self._time = newest

    def now(self) -> int:
        """The time of the next message, which never goes back. With the lock."""
        now = self._clock()
        if now > self._time:
            self._time = now
        return self._time

    def boundary(self) -> int:
        """The same, of which no message has been yet. With the lock."""
        self._time += 1
        return self.now()

    def append(self, name: str, body: bytes) -> tuple[int, int]:
        """A message without a blob: (sequence, offset)."""
        with self.journal as journal:
            topic = self._topics.named.get(name)
            if topic is None or not journal.fits(len(body)):
                topic = self._topics.with_room(name, len(body))
            return self._place(topic, body, 0)

    def append_all(self, names: Sequence[str], bodies: Sequence[bytes]) -> tuple[int, list[int]]:
        """Messages that follow each other in the log: (the first one's sequence, their offsets)."""
        size = sum(map(len, bodies)) + HEADER_SIZE * (len(bodies) - 1)
        check_size(size)
        with self.journal as journal:
            topics = self._topics.all_with_room(dict.fromkeys(names), size)
            # From here on nobody else is let in.
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
        """The same for one topic: (the first one's sequence, its offset)."""
        size = sum(map(len, bodies)) + HEADER_SIZE * (len(bodies) - 1)
        check_size(size)
        with self.journal as journal:
            topic = self._topics.with_room(name, size)
            first, number, now = topic.end, topic.number, self.now()
            messages = [(number, offset, body) for offset, body in enumerate(bodies, first)]
            sequence, segment, positions = journal.append_all(messages, now)
            topic.extend(segment, positions)
            segment.newest = now
            return sequence, first

    def append_blob(self, name: str, body: bytes, parts: Sequence[memoryview]) -> tuple[int, int]:
        """A message with a blob that is there: (sequence, offset). Others append while it is written."""
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
        """Room for a blob of the topic: where. The segment is pinned."""
        with self.journal as journal:
            self._topics.need(name)
            return journal.reserve_blob(nbytes)

    def place(self, name: str, nbytes: int) -> tuple[Segment, int]:
        """A place for a blob whose room is reserved as it arrives. The segment is pinned."""
        with self.journal as journal:
            self._topics.need(name)
            return journal.place_blob(nbytes)

    def name_blob(
        self, name: str, body: bytes, segment: Segment, blob: tuple[int, int, int]
    ) -> tuple[int, int]:
        """Appends the message whose blob (position, bytes, CRC) was written to a pinned segment."""
        reference = BLOB.pack(segment.first, *blob)
        with self.journal as journal:
            journal.blob_written(segment)
            topic = self._topics.with_room(name, len(reference) + len(body))
            appended, number = self._place(topic, reference + body, _HAS_BLOB), topic.number
            # The record may lie in a later segment: the blob's is needed as long as the message is.
            segment.lend(number, appended[1], self._time)
            use(journal.segments[-1].uses, memoryview(reference), number, appended[1], self._time)
            return appended

    def give_back(self, hole: Hole) -> None:
        """Nothing will name a blob that was reserved: its room is free when nobody views it."""
        journal = self.journal
        with journal.lock:  # whether or not the log can still be used
            self._topics.holes.keep([hole])
            journal.relieve()

    def _place(self, topic: Topic, body: bytes, flags: int) -> tuple[int, int]:
        """Appends a message for which there is room: nobody else is let in."""
        offset, now = topic.end, self.now()
        sequence, segment, position = self.journal.append(_MESSAGE, flags, topic.number, offset, now, body)
        topic.add(segment, position)
        segment.newest = now
        return sequence, offset


def flat(body: Any) -> bytes:
    """A body as bytes of its own. Raises UsageError, and TypeError if it is not a flat buffer."""
    if type(body) is not bytes:
        view = memoryview(body).cast("B")
        check_size(len(view))
        return bytes(view)
    if len(body) > MAX_BODY:
        check_size(len(body))
    return body


def check_size(size: int) -> None:
    """Of a body, or of many that are appended at once. Raises UsageError."""
    if size > MAX_BODY:
        raise UsageError(f"a body of {size} bytes", hint="give what is large as a blob")
