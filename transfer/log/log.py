"""The log: messages by topic and offset, state by key, and how far groups of consumers have come."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from transfer.log.index import Topic
from transfer.log.journal import Journal
from transfer.log.record import BLOB, HEADER_SIZE, MAX_BODY, Flag, Kind, Record, decode, state_body
from transfer.log.recovery import group_key, recover, topic_key, topic_value
from transfer.log.retention import Retention
from transfer.log.segment import LARGEST, Segment, full_disk_told
from transports.core import crc32c
from transports.errors import LogDamaged, LogInUse, OptionError, UsageError

Fsync = Literal["always", "interval", "never"]
_FSYNC = ("always", "interval", "never")
SEGMENT_BYTES = 64 << 20
_SMALLEST_SEGMENT = 4096
_MESSAGE = int(Kind.MESSAGE)
#: bytes of a topic's or group's name at most
MAX_NAME = 1024


class Message(NamedTuple):
    """A message of a topic. time: nanoseconds since 1970, when it was appended.

    body, blob: read-only views of the log's files, which stay good when the log is closed or it is removed.
    """

    offset: int
    time: int
    body: memoryview
    blob: memoryview | None


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
        self._lock_fd = _lock(self.folder)
        try:
            found = recover(self.folder, repair=repair)
            self.cut = found.cut
            self._state = found.state
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
            )
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
        this returns. Raises LogFull (nothing was appended), UsageError, Closed, InternalError.
        """
        view = body if type(body) is bytes else memoryview(body).cast("B")
        if len(view) > MAX_BODY:
            raise UsageError(f"a body of {len(view)} bytes", hint="give what is large as blob=")
        journal = self._journal
        if blob is None:
            with journal:
                return self._append(topic, view, 0)
        payload = memoryview(blob).cast("B")
        with journal:
            self._topic(topic)
            segment, position = journal.reserve_blob(payload.nbytes)
        try:
            # Without the lock: others append meanwhile, and a new segment may begin.
            with full_disk_told():
                segment.write_blob(position, payload)
            reference = BLOB.pack(segment.first, position, payload.nbytes, crc32c(payload))
            with journal:
                journal.blob_written(segment)
                appended = self._append(topic, reference + bytes(view), Flag.HAS_BLOB)
                segment.needed_until = max(segment.needed_until, journal.segments[-1].first)
                return appended
        finally:
            journal.unpin(segment)

    def commit(self, sequence: int | None = None, timeout: float = 30.0) -> None:
        """Returns when all up to this record (None: all that was appended) is kept, as `fsync` says.

        The first caller writes and syncs for all who wait. Raises Again after `timeout` seconds, Closed,
        InternalError if the disk failed.
        """
        self._journal.commit(sequence, timeout)

    def _append(self, name: str, body: bytes | memoryview, flags: int) -> tuple[int, int]:
        journal = self._journal
        topic = self._topics.get(name) or self._topic(name)
        journal.make_room(len(body))
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
        _check_name(name)
        self._journal.make_room(2 * MAX_NAME)
        topic = self._topics.get(name)  # somebody may have come in between
        if topic is None:
            topic = Topic(name, max(self._numbers, default=0) + 1)
            body = state_body(topic_key(topic.number), topic_value(topic))
            self._journal.append(Kind.STATE, 0, 0, 0, 0, body)
            self._topics[name] = self._numbers[topic.number] = topic
        return topic

    def _now(self) -> int:
        now = self._clock()
        if now > self._time:  # never back
            self._time = now
        return self._time

    # -- state -------------------------------------------------------------------------------------------

    def put(self, key: bytes, value: bytes) -> int:
        """Appends state: the key's value from now on. Its sequence, for `commit`. Raises as `append`."""
        _check_key(key)
        with self._journal:
            return self._put(bytes(key), bytes(value))

    def remove(self, key: bytes) -> int:
        """Appends the end of a key, which need not be there. Its sequence, for `commit`."""
        _check_key(key)
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
        messages: list[Message] = []
        size = 0
        for memory, position, number in places:
            message = self._message(memory, position, number, segments, verify)
            if message is None:
                continue  # removed meanwhile
            size += len(message.body) + (len(message.blob) if message.blob is not None else 0)
            if messages and size > nbytes:
                break
            messages.append(message)
        return messages

    def _message(
        self, memory: memoryview, position: int, offset: int, segments: Mapping[int, Segment], verify: bool
    ) -> Message | None:
        record = decode(memory, position)
        if record is None or record.offset != offset:
            raise LogDamaged(f"message {offset} at byte {position} is not what was written")
        if not record.flags & Flag.HAS_BLOB:
            return Message(record.offset, record.time, record.body, None)
        first, begin, nbytes, crc = BLOB.unpack_from(record.body)
        segment = segments.get(first)
        blob = segment.blob(begin, nbytes) if segment is not None else None
        if segment is None or segment.closed:
            return None
        if blob is None or (verify and crc32c(blob) != crc):
            raise LogDamaged(f"the blob of message {offset} is not what was written")
        return Message(record.offset, record.time, record.body[BLOB.size :], blob)

    def offset_at(self, topic: str, time_ns: int) -> int:
        """The offset of the first message that is as young as that, or that of the next one."""
        with self._journal:
            found = self._topics.get(topic)
            if found is None:
                return 0
            low, high = found.begin, found.end
            segments = {segment.first: segment for segment in self._journal.segments}
            while low < high:
                middle = (low + high) // 2
                first, position = found.find(middle)
                record = self._header(segments[first], position)
                if record is None or record.time >= time_ns:  # None: it is not written yet, so it is younger
                    high = middle
                else:
                    low = middle + 1
            return low

    @staticmethod
    def _header(segment: Segment, position: int) -> Record | None:
        return (
            decode(segment.memory, position, verify=False) if position + HEADER_SIZE <= segment.end else None
        )

    # -- groups ------------------------------------------------------------------------------------------

    def acknowledge(self, topic: str, group: str, offset: int) -> int:
        """The group has done with all before `offset`; the first time it joins there. The record's sequence.

        Going back is allowed: messages that are still there can be read again. Raises UsageError.
        """
        _check_name(group)
        with self._journal:
            found = self._topic(topic)
            if not 0 <= offset <= found.end:
                raise UsageError(f"offset {offset} of topic {topic!r}, which ends at {found.end}")
            sequence = self._put(group_key(found.number, group), offset.to_bytes(8, "little"))
            found.groups[group] = offset
            return sequence

    def leave(self, topic: str, group: str) -> int | None:
        """The group is gone; nothing is kept for its sake. The record's sequence; None: there was none."""
        with self._journal:
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

    # -- the folder --------------------------------------------------------------------------------------

    @property
    def disk_bytes(self) -> int:
        """What the log takes on the disk, room that is reserved too."""
        with self._journal:
            return self._journal.disk_bytes

    def collect(self) -> int:
        """Removes the segments that retention lets go; how many. It is done at every new segment too."""
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


def _lock(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise LogInUse(f"the log in {folder} is open elsewhere") from error
    return fd


def _check_name(name: str) -> None:
    if not 0 < len(name.encode()) <= MAX_NAME:
        raise UsageError(f"a name of {len(name.encode())} bytes", hint=f"1 to {MAX_NAME}")


def _check_key(key: bytes) -> None:
    if not 0 < len(key) <= MAX_NAME or key[:1] == b"\0":
        raise UsageError(f"the key {key!r:.80}", hint=f"1 to {MAX_NAME} bytes, the first of them not zero")
