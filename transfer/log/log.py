"""The log: messages by topic and offset, state by key, and how far groups of consumers have come."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from transfer.log.checks import MAX_NAME, check_key, check_name, lock, parts_of
from transfer.log.holes import Holes, give_back
from transfer.log.index import Topic
from transfer.log.journal import Journal
from transfer.log.message import Message, first_since, messages_at
from transfer.log.record import BLOB, HEADER_SIZE, MAX_BODY, Flag, Kind, state_body
from transfer.log.recovery import (
    HIGHEST,
    discarded_key,
    forget_topic,
    group_key,
    recover,
    topic_key,
    topic_value,
)
from transfer.log.retention import Retention
from transfer.log.segment import LARGEST, full_disk_told
from transports.core import crc32c
from transports.errors import OptionError, UsageError

Fsync = Literal["always", "interval", "never"]
_FSYNC = ("always", "interval", "never")
SEGMENT_BYTES = 64 << 20
_SMALLEST_SEGMENT = 4096
_MESSAGE = int(Kind.MESSAGE)
#: of a record of discarded blobs; that of a topic's end is shorter
_RANGE_BODY = len(state_body(discarded_key(0, 0), bytes(8)))


class Log:
    """A durable log of messages of many topics, and of state, in a folder of its own. Thread-safe.

    fsync: what `commit` waits for. "always": a sync that covers it, which all waiting callers share.
    "interval": the next sync, at most `interval` seconds later. "never": the system has it, so that a crash
    of the machine loses it, one of the process does not. segment_bytes: of a file. repair: damage that is
    found at the start is cut off with all behind it, instead of LogDamaged. clock: nanoseconds since 1970.

    Raises LogInUse, LogDamaged, LogFull, InternalError. A write or sync that failed ends the log: what was
    not committed is in doubt until it is opened again. cut: bytes of a torn tail that were thrown away then.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        fsync: Fsync = "always",
        interval: float = 0.05,
        retention: Retention | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        repair: bool = False,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        if fsync not in _FSYNC:
            raise OptionError(f"fsync={fsync!r}", hint="one of " + ", ".join(_FSYNC))
        if not _SMALLEST_SEGMENT <= segment_bytes <= LARGEST:
            raise OptionError(f"segment_bytes={segment_bytes}", hint=f"from {_SMALLEST_SEGMENT} to {LARGEST}")
        self.folder = Path(folder)
        self._clock = clock
        self._lock_fd = lock(self.folder)
        try:
            found = recover(self.folder, repair=repair)
            self.cut = found.cut
            self._state = found.state
            self._highest = max(
                int.from_bytes(found.state.get(HIGHEST, b""), "little"), max(found.topics, default=0)
            )
            self._holes = Holes()
            self._numbers = found.topics
            self._topics = {topic.name: topic for topic in found.topics.values()}
            self._time = max((segment.newest for segment in found.segments), default=0)
            self._journal = Journal(
                self.folder,
                found.segments,
                found.sequence,
                mode=fsync,
                segment_bytes=segment_bytes,
                retention=retention or Retention(),
                clock=self._now,
                snapshot=self._snapshot,
                acknowledged=self._acknowledged,
                removed=self._forget,
                relieve=self._relieve,
            )
            # A crash may have come before they were given back.
            with self._journal:
                for topic in found.topics.values():
                    self._ask(topic, topic.discarded)
                for topic in found.dropped:
                    self._ask(topic, [(0, topic.end)])
                self._relieve()
        except BaseException:
            os.close(self._lock_fd)
            raise
        self._thread: threading.Thread | None = None
        if fsync == "interval":
            self._thread = threading.Thread(
                target=self._journal.sync_every, args=(interval,), name="transfer-log", daemon=True
            )
            self._thread.start()

    # -- appending ---------------------------------------------------------------------------------------

    def append(self, topic: str, body: Any = b"", *, blob: Any = None) -> tuple[int, int]:
        """Appends a message: (sequence, offset in its topic). `commit(sequence)` waits until it is kept.

        body: a flat buffer, copied at once. blob: a large payload, written from where it lies before
        this returns: a flat buffer, or a list or tuple of them, which become one blob. Raises LogFull
        (nothing was appended), UsageError, Closed, InternalError.
        """
        view = body if type(body) is bytes else memoryview(body).cast("B")
        if len(view) > MAX_BODY:
            raise UsageError(f"a body of {len(view)} bytes", hint="give what is large as blob=")
        journal = self._journal
        if blob is None:
            with journal:
                return self._append(topic, view, 0)
        parts = parts_of(blob)
        nbytes = sum(map(len, parts))
        with journal:
            self._topic(topic)
            segment, position = journal.reserve_blob(nbytes)
        try:
            # Without the lock: others append meanwhile, and a new segment may begin.
            with full_disk_told():
                segment.write_blob(position, parts)
            crc = reduce(lambda crc, part: crc32c(part, crc), parts, 0)
            reference = BLOB.pack(segment.first, position, nbytes, crc)
            with journal:
                journal.blob_written(segment)
                appended = self._append(topic, reference + bytes(view), Flag.HAS_BLOB)
                # The record may lie in a later segment: this one is needed as long as the message is.
                number = self._topics[topic].number
                segment.ends[number] = max(segment.ends.get(number, 0), appended[1] + 1)
                segment.newest = max(segment.newest, self._time)
                return appended
        finally:
            journal.unpin(segment)

    def commit(self, sequence: int | None = None, timeout: float = 30.0) -> None:
        """Returns when all up to this record (None: all that was appended) is kept, as `fsync` says.

        The first caller writes and syncs for all who wait. What was discarded before is synced, in each mode,
        and given back. Raises Again after `timeout` seconds, Closed, InternalError if the disk failed.
        """
        journal = self._journal
        journal.commit(sequence, timeout, synced=self._holes.asked)
        if self._holes.asked:
            with journal:
                due = self._holes.due(journal.synced, journal.segments, again=True)
            left = give_back(due)
            if left:
                with journal:
                    self._holes.keep(left)

    def _append(self, name: str, body: bytes | memoryview, flags: int) -> tuple[int, int]:
        journal = self._journal
        topic = self._topics.get(name) or self._topic(name)
        journal.make_room(len(body))
        if self._topics.get(name) is not topic:  # dropped, while others were let in
            topic = self._with_room(name, len(body))
        # From here on nobody else is let in.
        offset, now = topic.end, self._now()
        sequence, segment, position = journal.append(_MESSAGE, flags, topic.number, offset, now, body)
        topic.add(segment.first, position)
        segment.newest = now
        segment.ends[topic.number] = topic.end
        return sequence, offset

    def _topic(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is not None:
            return topic
        check_name(name)
        self._journal.make_room(2 * MAX_NAME)
        topic = self._topics.get(name)  # somebody may have come in between
        if topic is None:
            self._highest += 1
            topic = Topic(name, self._highest)
            body = state_body(topic_key(topic.number), topic_value(topic))
            self._journal.append(Kind.STATE, 0, 0, 0, 0, body)
            self._topics[name] = self._numbers[topic.number] = topic
        return topic

    def _with_room(self, name: str, size: int, *, limited: bool = True) -> Topic:
        """The topic, and room for a record with a body of `size` bytes, when nobody dropped it meanwhile."""
        while True:
            topic = self._topic(name)
            self._journal.make_room(size, limited=limited)
            if self._topics.get(name) is topic:
                return topic

    def _now(self) -> int:
        now = self._clock()
        if now > self._time:  # never back
            self._time = now
        return self._time

    # -- state -------------------------------------------------------------------------------------------

    def put(self, key: bytes, value: bytes) -> int:
        """Appends state: the key's value from now on. Its sequence, for `commit`. Raises as `append`."""
        check_key(key)
        with self._journal:
            return self._put(bytes(key), bytes(value))

    def remove(self, key: bytes) -> int:
        """Appends the end of a key, which need not be there. Its sequence, for `commit`."""
        check_key(key)
        with self._journal:
            return self._put(bytes(key), None)

    def get(self, key: bytes) -> bytes | None:
        """A key's value, which need not be committed yet."""
        return self._state.get(key)

    @property
    def state(self) -> Mapping[bytes, bytes]:
        """All keys and their values, the log's own among them (they begin with a zero). It changes."""
        return MappingProxyType(self._state)

    def _put(self, key: bytes, value: bytes | None) -> int:
        body = state_body(key, value or b"")
        self._journal.make_room(len(body), limited=False)
        flags = Flag.REMOVED if value is None else 0
        sequence, _, _ = self._journal.append(Kind.STATE, flags, 0, 0, 0, body)
        if value is None:
            self._state.pop(key, None)
        else:
            self._state[key] = value
        return sequence

    def _snapshot(self) -> Iterator[tuple[bytes, bytes]]:
        for topic in self._numbers.values():
            yield topic_key(topic.number), topic_value(topic)
        yield from self._state.items()

    # -- reading -----------------------------------------------------------------------------------------

    @property
    def topics(self) -> tuple[str, ...]:
        """The names of all topics, in the order in which they were made."""
        with self._journal:
            return tuple(self._topics)

    def range(self, topic: str) -> tuple[int, int]:
        """(offset of the oldest message that is there, that of the next one); (0, 0): no such topic."""
        with self._journal:
            found = self._topics.get(topic)
            return (found.begin, found.end) if found is not None else (0, 0)

    def read(
        self, topic: str, offset: int, *, limit: int = 1000, nbytes: int = 1 << 20, verify: bool = True
    ) -> list[Message]:
        """Messages that are kept, from `offset` on (or from the oldest that is there): at most `limit`, and
        not more than `nbytes` beside the first. verify: blobs too are checked.

        Raises LogDamaged, UsageError (offset beyond the end), Closed.
        """
        places = []
        with self._journal:
            found = self._topics.get(topic)
            end = found.end if found is not None else 0
            if not 0 <= offset <= end:
                raise UsageError(f"offset {offset} of topic {topic!r}, which ends at {end}")
            if found is None:
                return []
            segments = {segment.first: segment for segment in self._journal.segments}
            for number in range(max(offset, found.begin), min(end, max(offset, found.begin) + limit)):
                first, position = found.find(number)
                if (first, position) >= self._journal.kept_at:
                    break
                places.append((segments[first].memory, position, number))
        return messages_at(found, segments, places, nbytes, verify)

    def offset_at(self, topic: str, time_ns: int) -> int:
        """The offset of the first message that is as young as that, or that of the next one."""
        with self._journal:
            found = self._topics.get(topic)
            if found is None:
                return 0
            return first_since(found, {one.first: one for one in self._journal.segments}, time_ns)

    # -- groups ------------------------------------------------------------------------------------------

    def acknowledge(self, topic: str, group: str, offset: int) -> int:
        """The group has done with all before `offset`; the first time it joins there. The record's sequence.

        Going back is allowed: messages that are still there can be read again. Raises UsageError.
        """
        check_name(group)
        with self._journal:
            size = len(state_body(group_key(0, group), bytes(8)))
            found = self._with_room(topic, size, limited=False)
            if not 0 <= offset <= found.end:
                raise UsageError(f"offset {offset} of topic {topic!r}, which ends at {found.end}")
            sequence = self._put(group_key(found.number, group), offset.to_bytes(8, "little"))
            found.groups[group] = offset
            return sequence

    def leave(self, topic: str, group: str) -> int | None:
        """The group is gone; nothing is kept for its sake. The record's sequence; None: there was none."""
        with self._journal:
            self._journal.make_room(len(state_body(group_key(0, group), b"")), limited=False)
            found = self._topics.get(topic)
            if found is None or found.groups.pop(group, None) is None:
                return None
            return self._put(group_key(found.number, group), None)

    def groups(self, topic: str) -> dict[str, int]:
        """The topic's groups, and the offset before which each has acknowledged."""
        with self._journal:
            found = self._topics.get(topic)
            return dict(found.groups) if found is not None else {}

    def _acknowledged(self, number: int) -> int | None:
        groups = self._numbers[number].groups
        return min(groups.values()) if groups else None

    # -- what is not needed any more ---------------------------------------------------------------------

    def discard(self, topic: str, begin: int, end: int) -> int | None:
        """The blobs of these messages are not needed any more; the messages stay. The record's sequence.

        They are read with `discarded` from now on. Their room on the disk is given back when the record is
        synced and nobody has a view of them: by `commit`, `collect`, a new segment, or `close`; whole pages
        only, and where the file system can. None: all of it was discarded before. Raises UsageError.
        """
        with self._journal:
            self._journal.make_room(2 * HEADER_SIZE + 2 * _RANGE_BODY, limited=False)
            found = self._topics.get(topic)
            last = found.end if found is not None else 0
            if not 0 <= begin <= end <= last:
                raise UsageError(f"offsets {begin} to {end} of topic {topic!r}, which ends at {last}")
            if found is None or not (missing := found.discarded.missing(begin, end)):
                return None
            sequence = 0
            for low, high in found.discard(begin, end):
                if high:
                    sequence = self._put(discarded_key(found.number, low), high.to_bytes(8, "little"))
                else:  # it went up in another; whoever reads the old record merges both
                    self._state.pop(discarded_key(found.number, low))
            self._ask(found, missing, sequence)
            return sequence

    def drop(self, topic: str) -> int | None:
        """The topic is gone, with its messages and groups; the name can be a new topic's, which begins at 0.

        Its blobs are given back as in `discard`, and its messages keep no segment. The record's sequence;
        None: there was no such topic.
        """
        with self._journal:
            self._journal.make_room(2 * HEADER_SIZE + 2 * _RANGE_BODY, limited=False)
            found = self._topics.pop(topic, None)
            if found is None:
                return None
            del self._numbers[found.number]
            forget_topic(self._state, found.number)
            self._put(HIGHEST, self._highest.to_bytes(4, "little"))
            body = state_body(topic_key(found.number), b"")
            sequence, _, _ = self._journal.append(Kind.STATE, Flag.REMOVED, 0, 0, 0, body)
            for segment in self._journal.segments:
                segment.ends.pop(found.number, None)
            self._ask(found, found.discarded.missing(0, found.end), sequence)
            found.discarded = found.discarded.joined(0, found.end)
            return sequence

    def _ask(self, topic: Topic, ranges: Iterable[tuple[int, int]], sequence: int = -1) -> None:
        for begin, end in ranges:
            self._holes.ask(sequence, topic, begin, end)

    def _relieve(self) -> None:
        """Gives back what was discarded, what was viewed too; with the lock."""
        journal = self._journal
        self._holes.keep(give_back(self._holes.due(journal.synced, journal.segments, again=True)))

    # -- the folder --------------------------------------------------------------------------------------

    @property
    def disk_bytes(self) -> int:
        """What the log takes on the disk, room that is reserved too."""
        with self._journal:
            return self._journal.disk_bytes

    def collect(self) -> int:
        """Gives back what was discarded and removes the segments that retention lets go: how many of them.

        It is done at every new segment too.
        """
        with self._journal:
            return self._journal.collect(0)

    def _forget(self, segment: int) -> None:
        for topic in self._numbers.values():
            topic.forget(segment)

    def close(self) -> None:
        """Keeps what was appended, and ends. Messages that were read stay good. Idempotent."""
        try:
            self._journal.close()
        finally:
            if self._thread is not None and self._thread is not threading.current_thread():
                self._thread.join()
            fd, self._lock_fd = self._lock_fd, -1
            if fd >= 0:
                os.close(fd)

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
