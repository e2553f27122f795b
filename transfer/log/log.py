"""The log: messages by topic and offset, state by key, and how far groups of consumers have come."""

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
from transfer.log.message import Message, body_of, first_that, messages_at
from transfer.log.quarantine import quarantined
from transfer.log.record import Record, state_body
from transfer.log.recovery import recover
from transfer.log.retention import Retention, segment_size
from transfer.log.segment import LARGEST
from transfer.log.state import group_key
from transfer.log.topics import ENOUGH, Topics
from transfer.log.verify import Verified, to_verify, verify
from transfer.transports.errors import Closed, OptionError, UsageError

Fsync = Literal["always", "interval", "never"]
_FSYNC = ("always", "interval", "never")
_SMALLEST_SEGMENT = 4096


class Log:
    """A durable log of messages of many topics, and of state, in a folder of its own. Thread-safe.

    fsync: what `commit` waits for. "always": a sync that covers it, which all waiting callers share.
    "interval": the next sync, at most `interval` seconds later. "never": the system has it, so that a crash
    of the machine loses it, one of the process does not. segment_bytes: of a file; by default 64 MiB, or a
    16th of `Retention.bytes` if that is less, which is 1 MiB at least then. repair: damage that is found at
    the start is cut off with all behind it, into quarantine, instead of LogDamaged. damaged: "serve" opens a
    log of which messages are missing; reading them raises LogDamaged. clock: nanoseconds since 1970; see
    `steady_clock`.

    Raises LogInUse, LogDamaged, LogFull, NotSupported (a newer format), InternalError. A write or sync that
    failed ends the log: what was not committed is in doubt until it is opened again. At the start are found:
    cut, bytes of a torn tail that were thrown away; damage, what is damaged; quarantined, bytes of files that
    belong to no known segment and are kept.
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
            self.damage = tuple(found.told)
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
                relieve=self._topics.relieve,
            )
            write_format(self.folder)  # now that a segment is synced
            # A crash may have come before they were given back.
            with self._journal:
                self._journal.fit_last()
                for topic in found.topics.values():
                    self._topics.ask(topic, topic.discarded)
                for topic in found.dropped:
                    self._topics.ask(topic, [(0, topic.end)])
                self._topics.relieve()
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
        if blob is None:
            return self._appender.append(topic, flat(body))
        return self._appender.append_blob(topic, flat(body), parts_of(blob))

    def append_many(self, topic: str, bodies: Sequence[Any]) -> tuple[int, int]:
        """Appends messages of one topic: (the first one's sequence, its offset). All of them, or none.

        Their sequences and offsets follow each other: `commit(sequence + len(bodies) - 1)` waits for them. A
        crash before that may leave some of them. bodies: 1 GiB together at most. Raises as `append`.
        """
        return self._appender.append_many(topic, [flat(body) for body in bodies])

    def append_all(self, messages: Sequence[tuple[str, Any]]) -> tuple[int, list[int]]:
        """The same for messages (topic, body) of any topics: (the first one's sequence, their offsets)."""
        names = [topic for topic, _ in messages]
        return self._appender.append_all(names, [flat(body) for _, body in messages])

    def blob(self, topic: str, nbytes: int, *, arriving: bool = False) -> BlobWriter:
        """Begins a message whose blob of `nbytes` arrives in pieces. Raises LogFull, UsageError, Closed.

        Its room is reserved; it gets its body and its offset when it is committed. Closing the log abandons
        what is not. arriving: `nbytes` are the most that may come. Room is reserved as they do, some ahead of
        them, and what is committed may have fewer.
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
        """Returns when all up to this record (None: all that was appended) is kept, as `fsync` says.

        The first caller writes and syncs for all who wait. What was discarded before is synced, in each mode,
        and given back. Raises Again after `timeout` seconds, Closed, InternalError if the disk failed.
        """
        journal = self._journal
        journal.commit(sequence, timeout, synced=self._topics.holes.asked)
        if self._topics.holes.asked:
            with journal:
                due = self._topics.holes.due(journal.synced, journal.segments, again=True)
            left = give_back(due)
            if left:
                with journal:
                    self._topics.holes.keep(left)

    # -- state -------------------------------------------------------------------------------------------

    def put(self, key: bytes, value: bytes) -> int:
        """Appends state: the key's value from now on. Its sequence, for `commit`. Raises as `append`."""
        check_key(key)
        with self._journal:
            return self._topics.put(bytes(key), bytes(value))

    def remove(self, key: bytes) -> int:
        """Appends the end of a key, which need not be there. Its sequence, for `commit`."""
        check_key(key)
        with self._journal:
            return self._topics.put(bytes(key), None)

    def get(self, key: bytes) -> bytes | None:
        """A key's value, which need not be committed yet."""
        return self._topics.state.get(key)

    @property
    def state(self) -> Mapping[bytes, bytes]:
        """All keys and their values, the log's own among them (they begin with a zero). It changes."""
        return MappingProxyType(self._topics.state)

    # -- reading -----------------------------------------------------------------------------------------

    @property
    def topics(self) -> tuple[str, ...]:
        """The names of all topics, in the order in which they were made."""
        with self._journal:
            return tuple(self._topics.named)

    def range(self, topic: str) -> tuple[int, int]:
        """(offset of the oldest message that is there, that of the next one); (0, 0): no such topic."""
        with self._journal:
            found = self._topics.named.get(topic)
            return (found.begin, found.end) if found is not None else (0, 0)

    def read(
        self, topic: str, offset: int, *, limit: int = 1000, nbytes: int = 1 << 20, verify: bool | int = True
    ) -> list[Message]:
        """Messages that are kept, from `offset` on (or from the oldest that is there): at most `limit`, and
        not more than `nbytes` beside the first. verify: blobs too are checked; a number: those smaller than
        that.

        Raises LogDamaged, UsageError (offset beyond the end), Closed.
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
            # A blob's segment may have gone while it was looked at: its message was carried elsewhere.
            doubtful = [one.offset for one in messages if one.discarded and one.offset not in found.discarded]
            with self._journal if doubtful else nullcontext():
                if all(one < found.begin or found.find(one) == places[one - begin] for one in doubtful):
                    return messages

    def blob_at(self, topic: str, offset: int) -> BlobReader | None:
        """The blob of one message, to be read in ranges. None: it has none, or is gone. Raises LogDamaged,
        Closed."""

        def look() -> BlobPlace | None:
            with self._journal as journal:
                found = self._topics.named.get(topic)
                if found is None or not found.begin <= offset < found.end:
                    return None
                first, position = found.find(offset)
                segments = {segment.first: segment for segment in journal.segments}
            return blob_place(found, segments, (segments[first].memory, position, offset))

        place = look()
        return BlobReader(place, look) if place is not None else None

    def offset_at(self, topic: str, time_ns: int) -> int:
        """The offset of the first message that is as young as that, or that of the next one to be kept.
        time_ns: nanoseconds since 1970, as a message's `time`."""
        return self._first_that(topic, lambda record: record.time >= time_ns)

    def boundary(self) -> int:
        """A time for `offset_at`, which all messages until now are before, and later ones are not."""
        with self._journal:
            return self._appender.boundary()

    def search(self, topic: str, key: Callable[[memoryview], int], value: int) -> int | None:
        """The offset of the last message that is kept whose key is at most `value`; None: there is none.

        key: gets a message's body. It must not go down from one message to the next: then it is asked about
        log2(messages) times, and none of them is checked, so that a key has to bear with damaged bodies.
        Raises LogDamaged, Closed, and what `key` raises.
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
        """The group has done with all before `offset`; the first time it joins there. The record's sequence.

        Going back is allowed: messages that are still there can be read again. Raises UsageError.
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
        """The group is gone; nothing is kept for its sake. The record's sequence; None: there was none."""
        with self._journal:
            self._journal.make_room(len(state_body(group_key(0, group), b"")), limited=False)
            found = self._topics.named.get(topic)
            if found is None or found.groups.pop(group, None) is None:
                return None
            return self._topics.put(group_key(found.number, group), None)

    def groups(self, topic: str) -> dict[str, int]:
        """The topic's groups, and the offset before which each has acknowledged."""
        with self._journal:
            found = self._topics.named.get(topic)
            return dict(found.groups) if found is not None else {}

    def acknowledged(self, topic: str, group: str) -> int | None:
        """The offset before which this group has acknowledged; None: there is no such group."""
        with self._journal:
            found = self._topics.named.get(topic)
            return found.groups.get(group) if found is not None else None

    # -- what is not needed any more ---------------------------------------------------------------------

    def discard(self, topic: str, begin: int, end: int) -> int | None:
        """The blobs of these messages are not needed any more; the messages stay. The record's sequence.

        They are read with `discarded` from now on. Their room on the disk is given back when the record is
        synced and nobody has a view of them: by `commit`, `collect`, a new segment, or `close`; whole pages
        only, and where the file system can. None: all of it was discarded before. Raises UsageError.
        """
        with self._journal as journal:
            journal.make_room(ENOUGH, limited=False)
            found = self._topics.named.get(topic)
            last = found.end if found is not None else 0
            if not 0 <= begin <= end <= last:
                raise UsageError(f"offsets {begin} to {end} of topic {topic!r}, which ends at {last}")
            return self._topics.discard(found, begin, end) if found is not None else None

    def drop(self, topic: str) -> int | None:
        """The topic is gone, with its messages and groups; the name can be a new topic's, which begins at 0.

        Its blobs are given back as in `discard`, and its messages keep no segment. The record's sequence;
        None: there was no such topic.
        """
        with self._journal as journal:
            journal.make_room(ENOUGH, limited=False)
            return self._topics.drop(topic)

    def purge(self, topic: str) -> int | None:
        """All messages of the topic are gone, as in `drop`; its groups stay, and have done with them. The
        next message has the offset that it would have had. The record's sequence; None: no such topic."""
        with self._journal:
            return self._topics.purge(topic)

    def begin(self, topic: str, offset: int) -> bool:
        """Makes a topic whose first message has this offset. False: it is there. Raises as `append`."""
        with self._journal:
            return self._topics.begin(topic, offset)

    # -- the folder --------------------------------------------------------------------------------------

    @property
    def disk_bytes(self) -> int:
        """What the log takes on the disk, room that is reserved too."""
        with self._journal:
            return self._journal.disk_bytes

    @property
    def full(self) -> threading.Event:
        """Is set when a message was refused since `Retention.bytes` has no room for it: `compact` may give it
        some."""
        return self._journal.room.full

    def collect(self) -> int:
        """Gives back what was discarded, removes the segments that retention lets go: how many of them. Every
        new segment does the same."""
        with self._journal:
            return self._journal.collect(0)

    def compact(self, share: float = 0.25, timeout: float = 30.0) -> int:
        """Carries what is needed of the oldest segments into the newest one, and removes them: how many.

        It takes as many of them as need, together, at most `share` of their messages: those that a group of
        their topic has not acknowledged, and all of a topic without groups. Of segments that retention would
        remove by bytes or age it takes as many as need, if groups hold no more than half of their bytes, and
        carries nothing of topics without groups. A carried message keeps its
        offset, its time and its bytes; those that were acknowledged are gone. Others append and read
        meanwhile. One thread at a time compacts, others get 0. It takes room before it gives some, whatever
        `Retention.bytes` is.

        Raises LogFull (the disk), LogDamaged (what is to be carried is not what was written), Again after
        `timeout` seconds for a sync, Closed, InternalError; nothing is lost then.
        """
        if not self._compaction.acquire(blocking=False):
            return 0
        try:
            return Compaction(self._topics, self._appender).run(share, timeout)
        finally:
            self._compaction.release()

    def verify(self, progress: Callable[[int], object] | None = None) -> Verified:
        """Reads all records and blobs that are written: what is wrong with them. Others may go on meanwhile.

        Blobs that were discarded are not read. progress: is told how many bytes were read until now, after
        each segment. Raises Closed, InternalError.
        """
        with self._journal as journal:
            segments = {segment.first: segment for segment in journal.segments}
            parts = to_verify(journal.segments, journal.written)
        return verify(parts, segments, self._topics.wanted, progress)

    def close(self) -> None:
        """Keeps what was appended, and ends; blobs that are being written are abandoned. Messages that were
        read stay good. Idempotent."""
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
