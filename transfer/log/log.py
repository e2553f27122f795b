"""The log: messages by topic and offset, state by key, and the offsets of consumer groups."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from transfer import steady_clock
from transfer.log.appender import Appender, flat
from transfer.log.blob import BlobPlace, BlobReader, blob_place
from transfer.log.blob_writer import BlobWriter
from transfer.log.checks import check_key, check_name, lock, parts_of
from transfer.log.compaction import Compaction
from transfer.log.format import check as check_format, write as write_format
from transfer.log.holes import give_back
from transfer.log.journal import Journal
from transfer.log.message import LogMessage, body_of, first_that, messages_at
from transfer.log.quarantine import quarantined
from transfer.log.record import Record, state_body
from transfer.log.recovery import recover
from transfer.log.retention import Retention, segment_size
from transfer.log.segment import LARGEST
from transfer.log.state import group_key
from transfer.log.topics import ENOUGH, Topics
from transfer.log.verify import VerifyResult, to_verify, verify
from transfer.transports.errors import Closed, OptionError, UsageError

Fsync = Literal["always", "interval", "never"]
_FSYNC = ("always", "interval", "never")
_SMALLEST_SEGMENT = 4096


class Log:
    """A durable log of the messages of many topics, and of state, in one folder. Thread-safe.

    fsync: what `commit` waits for. "always": a sync, which all waiting callers share. "interval": the next
    sync, at most `interval` seconds later. "never": the write to the system; a crash of the machine may lose
    the record, a crash of the process does not.
    segment_bytes: size of a file; default: 64 MiB, or a 16th of `Retention.bytes` (then at least 1 MiB).
    repair: moves damage that the start finds, and all records after it, into quarantine instead of raising
    LogDamaged. damaged: "serve" opens a log with missing messages; reading these raises LogDamaged.
    clock: returns nanoseconds since 1970; see `steady_clock`.

    Raises LogInUse, LogDamaged, LogFull, NotSupported (a newer format), InternalError. A failed write or sync
    ends the log: uncommitted records are in doubt until it is opened again.
    cut: bytes of a torn tail that the start removed. damage: the damage that it found. quarantined: bytes of
    files without a known segment, which are kept.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        fsync: Fsync = "always",
        interval: float = 0.05,
        retention: Retention | None = None,
        segment_bytes: int | None = None,
        repair: bool = False,
        damaged: Literal["refuse", "serve"] = "refuse",
        clock: Callable[[], int] = steady_clock.unix_ns,
    ) -> None:
        if fsync not in _FSYNC:
            raise OptionError(f"fsync={fsync!r}", hint="one of " + ", ".join(_FSYNC))
        if damaged not in ("refuse", "serve"):
            raise OptionError(f"damaged={damaged!r}", hint="one of refuse, serve")
        retention = retention or Retention()
        if segment_bytes is None:
            segment_bytes = segment_size(retention.bytes)
        if not _SMALLEST_SEGMENT <= segment_bytes <= LARGEST:
            raise OptionError(f"segment_bytes={segment_bytes}", hint=f"from {_SMALLEST_SEGMENT} to {LARGEST}")
        self.folder = Path(folder)
        self._lock_fd = lock(self.folder)
        try:
            begun = check_format(self.folder)
            found = recover(self.folder, begun=begun, repair=repair, serve=damaged == "serve")
            self.cut = found.cut
            self.damage = tuple(found.all_damage)
            self.quarantined = quarantined(self.folder)
            self._topics = Topics(found)
            newest = max((segment.newest for segment in found.segments), default=0)
            self._appender = Appender(self._topics, clock, newest)
            self._writers: set[BlobWriter] = set()
            self._closing = False
            self._compaction = threading.Lock()
            self._journal = self._topics.journal = self._appender.journal = Journal(
                self.folder,
                found.segments,
                found.sequence,
                mode=fsync,
                segment_bytes=segment_bytes,
                retention=retention,
                clock=self._appender.now,
                snapshot=self._topics.snapshot,
                acknowledged=self._topics.acknowledged,
                removed=self._topics.forget,
                free_discarded=self._topics.free_discarded,
            )
            write_format(self.folder)  # now that a segment is synced
            # The last run may have crashed before it freed discarded blobs.
            with self._journal:
                self._journal.fit_last()
                for topic in found.topics.values():
                    self._topics.free_blobs(topic, topic.discarded)
                for topic in found.dropped:
                    self._topics.free_blobs(topic, [(0, topic.end)])
                self._topics.free_discarded()
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
        """Appends a message; returns (sequence, offset). `commit(sequence)` waits until it is kept.

        body: a flat buffer, copied at once. blob: a large payload, written without a copy before this
        returns: a flat buffer, or a list or tuple of them, which become one blob. Raises LogFull (nothing is
        appended then), UsageError, Closed, InternalError.
        """
        if blob is None:
            return self._appender.append(topic, body if type(body) is bytes else flat(body))
        return self._appender.append_blob(topic, flat(body), parts_of(blob))

    def append_many(self, topic: str, bodies: Sequence[Any]) -> tuple[int, int]:
        """Appends messages of one topic, all or none; returns (first sequence, first offset).

        Their sequences and offsets are consecutive: `commit(sequence + len(bodies) - 1)` waits for all. A
        crash before that may leave some of them. bodies: at most 1 GiB together. Raises as `append`.
        """
        return self._appender.append_many(
            topic, [body if type(body) is bytes else flat(body) for body in bodies]
        )

    def append_all(self, messages: Sequence[tuple[str, Any]]) -> tuple[int, list[int]]:
        """Appends messages (topic, body) of any topics, all or none; returns (first sequence, offsets)."""
        names = [topic for topic, _ in messages]
        return self._appender.append_all(names, [flat(body) for _, body in messages])

    def blob(self, topic: str, nbytes: int, *, arriving: bool = False) -> BlobWriter:
        """Begins a message whose blob of `nbytes` arrives in pieces. Raises LogFull, UsageError, Closed.

        Reserves room for the blob; the message gets its body and offset at `BlobWriter.commit`. Closing the
        log abandons an open writer. arriving: `nbytes` is only the maximum; room is reserved as bytes arrive,
        as much again ahead of them, 64 MiB at most.
        """
        if nbytes < 0:
            raise UsageError(f"a blob of {nbytes} bytes")
        writer = BlobWriter(self._appender, topic, nbytes, self._writers.discard, arriving=arriving)
        self._writers.add(writer)
        if self._closing:
            writer.abandon()
            raise Closed("the log is closed")
        return writer

    def commit(self, sequence: int | None = None, timeout: float = 30.0) -> None:
        """Waits until all records up to this one (None: the last) are kept, according to `fsync`.

        The first caller writes and syncs for all waiting callers. In every mode this also syncs earlier
        discards, and frees their blobs. Raises Again after `timeout` seconds, Closed, InternalError if the
        disk failed.
        """
        journal = self._journal
        journal.commit(sequence, timeout, synced=self._topics.holes.pending)
        if self._topics.holes.pending:
            with journal:
                due = self._topics.holes.due(journal.synced, journal.segments, again=True)
            left = give_back(due)
            if left:
                with journal:
                    self._topics.holes.keep(left)

    # -- state -------------------------------------------------------------------------------------------

    def put(self, key: bytes, value: bytes) -> int:
        """Appends state: sets a key's value. Returns the sequence, for `commit`. Raises as `append`."""
        check_key(key)
        with self._journal:
            return self._topics.put(bytes(key), bytes(value))

    def remove(self, key: bytes) -> int:
        """Removes a key, which need not exist. Returns the sequence, for `commit`."""
        check_key(key)
        with self._journal:
            return self._topics.put(bytes(key), None)

    def get(self, key: bytes) -> bytes | None:
        """Returns a key's value, which may not be committed yet."""
        return self._topics.state.get(key)

    @property
    def state(self) -> Mapping[bytes, bytes]:
        """A live view of all keys and values, including the log's internal ones, which begin with a zero."""
        return MappingProxyType(self._topics.state)

    # -- reading -----------------------------------------------------------------------------------------

    @property
    def topics(self) -> tuple[str, ...]:
        """The names of all topics, in the order in which they were made."""
        with self._journal:
            return tuple(self._topics.named)

    def range(self, topic: str) -> tuple[int, int]:
        """Returns (offset of the oldest message, offset of the next new one); (0, 0): no such topic."""
        with self._journal:
            found = self._topics.named.get(topic)
            return (found.begin, found.end) if found is not None else (0, 0)

    def read(
        self, topic: str, offset: int, *, limit: int = 1000, nbytes: int = 1 << 20, verify: bool | int = True
    ) -> list[LogMessage]:
        """Reads kept messages from `offset`, or from the oldest one: at most `limit`.

        nbytes: limit of their bytes; the first message may exceed it. verify: checks blobs too; a number:
        those smaller than that. Raises LogDamaged, UsageError (offset beyond the end), Closed.
        """
        while True:
            with self._journal as journal:
                found = self._topics.named.get(topic)
                end = found.end if found is not None else 0
                if not 0 <= offset <= end:
                    raise UsageError(f"offset {offset} of topic {topic!r}, which ends at {end}")
                if found is None:
                    return []
                begin = max(offset, found.begin)
                segments = {segment.first: segment for segment in journal.segments}
                offsets = range(begin, min(end, begin + limit))
                places = list(takewhile(journal.is_kept, map(found.find, offsets)))
                parts = [
                    (segments[first].memory, position, at)
                    for (first, position), at in zip(places, offsets, strict=False)
                ]
            messages = messages_at(found, segments, parts, nbytes, verify)
            # Compaction may have moved a message, and removed its blob's segment, during the read.
            doubtful = [one.offset for one in messages if one.discarded and one.offset not in found.discarded]
            with self._journal if doubtful else nullcontext():
                if all(one < found.begin or found.find(one) == places[one - begin] for one in doubtful):
                    return messages

    def blob_at(self, topic: str, offset: int) -> BlobReader | None:
        """Returns the blob of one message, to be read in ranges. None: the message has none, or is removed.
        Raises LogDamaged, Closed."""

        def find() -> BlobPlace | None:
            with self._journal as journal:
                found = self._topics.named.get(topic)
                if found is None or not found.begin <= offset < found.end:
                    return None
                first, position = found.find(offset)
                segments = {segment.first: segment for segment in journal.segments}
            return blob_place(found, segments, (segments[first].memory, position, offset))

        place = find()
        return BlobReader(place, find) if place is not None else None

    def offset_at(self, topic: str, time_ns: int) -> int:
        """Returns the offset of the first message from `time_ns` on, or that of the next one to be kept.
        time_ns: nanoseconds since 1970, as a message's `time`."""
        return self._first_that(topic, lambda record: record.time >= time_ns)

    def boundary(self) -> int:
        """Returns a time for `offset_at`: all existing messages are before it, later ones are not."""
        with self._journal:
            return self._appender.boundary()

    def search(self, topic: str, key: Callable[[memoryview], int], value: int) -> int | None:
        """Returns the offset of the last kept message whose key is at most `value`; None: there is none.

        key: gets a message's body. Keys must not decrease from one message to the next: a binary search calls
        it log2(messages) times. The bodies are not verified, so `key` must handle damaged ones. Raises
        LogDamaged, Closed, and the errors of `key`.
        """
        found = self._first_that(topic, lambda record: key(body_of(record)) > value) - 1
        begin, end = self.range(topic)
        return found if begin <= found < end else None

    def _first_that(self, name: str, test: Callable[[Record], bool]) -> int:
        with self._journal as journal:
            topic = self._topics.named.get(name)
            if topic is None:
                return 0
            begin, end = topic.begin, topic.kept(journal.kept_at)

        def place(offset: int) -> tuple[memoryview, int] | None:
            with self._journal as journal:
                first, position = topic.find(offset) if offset >= topic.begin else (-1, 0)
                segment = journal.segment(first)
                return (segment.memory, position) if segment is not None else None

        return first_that(begin, end, place, test)

    # -- groups ------------------------------------------------------------------------------------------

    def acknowledge(self, topic: str, group: str, offset: int) -> int:
        """Acknowledges all messages before `offset` for a group, which is made if it is new.

        Returns the record's sequence. A lower offset than before is allowed: messages that still exist can be
        read again. Raises UsageError.
        """
        check_name(group)
        with self._journal:
            size = len(state_body(group_key(0, group), bytes(8)))
            found = self._topics.with_room(topic, size, limited=False)
            if not 0 <= offset <= found.end:
                raise UsageError(f"offset {offset} of topic {topic!r}, which ends at {found.end}")
            sequence = self._topics.put(group_key(found.number, group), offset.to_bytes(8, "little"))
            found.groups[group] = offset
            return sequence

    def leave(self, topic: str, group: str) -> int | None:
        """Removes a group: no message is kept for it. Returns the record's sequence; None: no such group."""
        with self._journal:
            self._journal.make_room(len(state_body(group_key(0, group), b"")), limited=False)
            found = self._topics.named.get(topic)
            if found is None or found.groups.pop(group, None) is None:
                return None
            return self._topics.put(group_key(found.number, group), None)

    def groups(self, topic: str) -> dict[str, int]:
        """Returns the topic's groups, with the offset before which each has acknowledged."""
        with self._journal:
            found = self._topics.named.get(topic)
            return dict(found.groups) if found is not None else {}

    def acknowledged(self, topic: str, group: str) -> int | None:
        """Returns the offset before which this group has acknowledged; None: there is no such group."""
        with self._journal:
            found = self._topics.named.get(topic)
            return found.groups.get(group) if found is not None else None

    # -- removing ----------------------------------------------------------------------------------------

    def discard(self, topic: str, begin: int, end: int) -> int | None:
        """Discards the blobs of these messages; the messages stay. Returns the record's sequence.

        They are read with `discarded` from now on. Their disk space is freed when the record is synced and
        they
        have no views: by `commit`, `collect`, a new segment, or `close`; in whole pages, and only if the file
        system supports holes. None: all were discarded before. Raises UsageError.
        """
        with self._journal as journal:
            journal.make_room(ENOUGH, limited=False)
            found = self._topics.named.get(topic)
            last = found.end if found is not None else 0
            if not 0 <= begin <= end <= last:
                raise UsageError(f"offsets {begin} to {end} of topic {topic!r}, which ends at {last}")
            return self._topics.discard(found, begin, end) if found is not None else None

    def drop(self, topic: str) -> int | None:
        """Removes a topic with its messages and groups. A new topic of the same name begins at 0.

        Frees its blobs as `discard` does; its messages keep no segment. Returns the record's sequence; None:
        there is no such topic.
        """
        with self._journal as journal:
            journal.make_room(ENOUGH, limited=False)
            return self._topics.drop(topic)

    def purge(self, topic: str) -> int | None:
        """Removes all messages of a topic, as `drop` does; its groups stay, and have acknowledged them.
        Offsets continue. Returns the record's sequence; None: there is no such topic."""
        with self._journal:
            return self._topics.purge(topic)

    def begin(self, topic: str, offset: int) -> bool:
        """Makes a topic whose first message has this offset.
        Returns False if it exists. Raises as `append`."""
        with self._journal:
            return self._topics.begin(topic, offset)

    # -- the folder --------------------------------------------------------------------------------------

    @property
    def disk_bytes(self) -> int:
        """The disk space of the log, reserved room included."""
        with self._journal:
            return self._journal.disk_bytes

    @property
    def full(self) -> threading.Event:
        """An event that is set when a message is refused for lack of room: `compact` may free some."""
        return self._journal.room.full

    def collect(self) -> int:
        """Frees discarded blobs, and removes the segments that retention selects; returns their number.
        Every new segment does the same."""
        with self._journal:
            return self._journal.collect(0)

    def compact(self, share: float = 0.25, timeout: float = 30.0) -> int:
        """Copies the needed messages of the oldest segments into the newest one, and removes the old ones.

        Needed are the messages that a group of their topic has not acknowledged, and all of a topic without
        groups. It takes as many of the oldest segments as need, together, at most `share` of their messages.
        It also takes segments that retention would remove by bytes or age, if groups hold no more than half
        of their bytes; of these it copies no messages of topics without groups.

        A copied message keeps its offset, time and bytes; acknowledged messages are removed. Other threads
        append and read meanwhile. Returns the number of removed segments; 0 if another thread compacts. It
        needs disk space before it frees some, whatever `Retention.bytes` is.

        Raises LogFull (the disk), LogDamaged (a message to copy is damaged), Again after `timeout` seconds
        for a sync, Closed, InternalError; no message is lost then.
        """
        if not self._compaction.acquire(blocking=False):
            return 0
        try:
            return Compaction(self._topics, self._appender).run(share, timeout)
        finally:
            self._compaction.release()

    def verify(self, progress: Callable[[int], object] | None = None) -> VerifyResult:
        """Verifies all written records and blobs; returns the damage.

        Other threads may use the log meanwhile. Does not read discarded blobs. progress: called after each
        segment with the bytes read so far. Raises Closed, InternalError.
        """
        with self._journal as journal:
            segments = {segment.first: segment for segment in journal.segments}
            parts = to_verify(journal.segments, journal.written)
        return verify(parts, segments, self._topics.wanted, progress)

    def close(self) -> None:
        """Syncs all appended records, abandons open blob writers, and closes the files. Idempotent.
        Messages that were read stay valid."""
        self._closing = True
        try:
            for writer in self._writers.copy():
                writer.abandon()
            self._journal.close()
        finally:
            if self._thread is not None and self._thread is not threading.current_thread():
                while self._thread.is_alive():
                    self._thread.join(60.0)
            fd, self._lock_fd = self._lock_fd, -1
            if fd >= 0:
                os.close(fd)

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
