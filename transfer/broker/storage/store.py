"""The broker's topics in the log: appends messages, reads them, and serves topics as byte streams."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from transfer.broker.core.message import Buffer, Message, Written
from transfer.broker.storage.stored_message import BLOB_FROM, message_of, position_of, record_of
from transfer.broker.storage.topic import DIRECT_PREFIX, LOG_PREFIX, Topic, Withheld
from transfer.broker.storage.volume import free_bytes
from transfer.log import HOLDS, gc_paused
from transfer.transports.errors import LogDamaged, LogFull, UsageError

if TYPE_CHECKING:
    from transfer.log import Log, LogMessage

_log = logging.getLogger("transfer.broker")

#: most payloads of one read of a byte stream: some milliseconds, if they are small
MOST_PAYLOADS = 1000
#: bytes of one read of the log
_READ = 4 << 20
#: most topics whose positions are stored in one call, so that the loop serves others in between
_MAX_STORED = 2000
#: most topics that are examined to find one that may be forgotten
_MAX_EXAMINED = 100
#: most damaged messages that are remembered
_MAX_DAMAGE = 100
#: prefix of the keys of topics' positions
_POSITION = b"broker/position/"
#: a group of the log that never reads; it keeps messages until the topic's position after them is stored
_HOLDER = HOLDS + "position"
#: prefix of the keys of removed topics' ends, at which a new topic of the same name begins
_ENDED = b"broker/ended/"
#: prefix of the keys of topics' withheld messages
_WITHHELD = b"broker/withheld/"


class PositionRemoved(UsageError):
    """A position of a topic's byte stream is no longer in the log. next: the first later position that is."""

    def __init__(self, topic: str, position: int, following: int) -> None:
        super().__init__(
            f"position {position} of topic {topic!r} is no longer in the log",
            hint=f"the first later position in the log is {following}",
        )
        self.next = following


class Store:
    """The broker's topics, stored in a log. On the broker's loop; other threads may use the log itself.

    durable: returns whether a topic of this name stores its messages. most: the most topics at one time;
    another name is refused. room: the most bytes that the log takes; a payload of more than half of them is
    refused.
    """

    def __init__(
        self, log: Log, durable: Callable[[str], bool], *, most: int, room: int | None = None
    ) -> None:
        self.log = log
        self._durable = durable
        self._most = most
        self._room = room
        #: bytes of the largest payload that the log accepts
        self.largest = room // 2 if room is not None else 1 << 62
        #: returns the volume's free bytes; tests replace it
        self.free: Callable[[], int] = lambda: free_bytes(log.folder)
        #: all known topics, by name
        self.topics: dict[str, Topic] = {}
        self._direct_topics: dict[str, Topic] = {}
        self._transient: dict[str, Topic] = {}  # topics that are not durable
        self._grown: dict[Topic, None] = {}  # topics whose positions must be stored, the oldest first
        self._held: set[Topic] = set()  # topics with a holder
        self._checked: tuple[str, int] = ("", -1)  # topic and offset of the last verified payload
        #: messages and bytes published since the start, those of forgotten topics too
        self.messages = self.nbytes = 0
        #: texts of the damage that reads have found; the log itself has the damage found at the start
        self.damage: dict[tuple[str, int], str] = {}
        with gc_paused():
            for name in log.topics:
                if name.startswith(LOG_PREFIX):
                    self._restore(name)

    def topic(self, name: str) -> Topic:
        """Returns the topic, and makes it if it is new. Raises UsageError if there are too many."""
        topic = self.topics.get(name)
        if topic is None:
            if len(self.topics) >= self._most and not self._forget_one():
                raise UsageError(
                    f"topic {name!r} would exceed the limit of {self._most} topics",
                    hint="remove unused topics, or raise topics.max_topics",
                )
            topic = Topic(name, durable=self._durable(name))
            if not topic.durable:
                self._transient[name] = topic
            elif (ended := self.log.get(_ENDED + name.encode())) is not None:
                topic.kept = int.from_bytes(ended, "little")
                self.log.begin(topic.log_name, topic.kept)
                self.log.remove(_ENDED + name.encode())
            self.topics[name] = topic
        return topic

    def check_room(self, nbytes: int) -> None:
        """Raises UsageError for a payload that can never fit: it would wait for room for ever."""
        if nbytes > self.largest:
            raise UsageError(
                f"a payload of {nbytes} bytes does not fit into a log of {self._room} bytes",
                hint="raise the bytes of retention to at least twice the largest payload",
            )

    def check_volume(self, nbytes: int) -> None:
        """Raises LogFull if the volume has no room for announced payloads, even after retention."""
        free, wanted = self.free(), nbytes
        if self._room is not None:
            wanted = min(nbytes, max(0, self._room - self.log.disk_bytes))
        if wanted > free:
            raise LogFull(
                f"{nbytes} bytes are announced, but the volume has {free} bytes free",
                hint="free disk space, or send less at a time",
            )

    def append(self, topic: Topic, message: Message) -> int:
        """Appends a message to its durable topic, and sets its offset. Returns the record's sequence.
        Raises LogFull."""
        nbytes = message.nbytes
        large = nbytes >= BLOB_FROM
        if nbytes > self.largest:
            self.check_room(nbytes)
        record = record_of(message, topic.position, blob=large)
        if large and isinstance(message, Written):
            sequence, message.offset = message.blob.commit(record)
        else:
            sequence, message.offset = self.log.append(
                topic.log_name, record, blob=list(message.parts) if large else None
            )
        if message.only_for is not None:
            self.grew(topic, 0)  # the topic's byte stream is for everyone
            return self._withhold(topic, message.offset, sequence)
        self.grew(topic, nbytes)
        return sequence

    def _withhold(self, topic: Topic, offset: int, sequence: int) -> int:
        """Notes that this appended message is not for subscribers. Returns the last record's sequence."""
        topic.withheld.add(offset)
        if self.topics.get(topic.name) is not topic:  # nobody subscribes to a hidden topic
            return sequence
        try:
            return self.log.put(_WITHHELD + topic.name.encode(), topic.withheld.pack())
        except LogFull:  # the message is kept: only its number may count as missed after a restart
            return sequence

    def append_many(self, topics: Sequence[Topic], messages: Sequence[Message]) -> int:
        """Appends several small messages, each to its topic: all or none. Returns the last record's sequence.
        Raises LogFull."""
        ends: dict[Topic, int] = {}
        records = []
        for topic, message in zip(topics, messages, strict=True):
            position = ends.get(topic, topic.position)
            records.append(record_of(message, position, blob=False))
            ends[topic] = position + message.nbytes
        if len(ends) == 1:
            sequence, begin = self.log.append_many(topics[0].log_name, records)
            offsets: Iterable[int] = range(begin, begin + len(messages))
        else:
            named = [(topic.log_name, record) for topic, record in zip(topics, records, strict=True)]
            sequence, offsets = self.log.append_all(named)
        for offset, message in zip(offsets, messages, strict=True):
            message.offset = offset
        for topic, end in ends.items():
            self.grew(topic, end - topic.position)
        return sequence + len(messages) - 1

    def grew(self, topic: Topic, nbytes: int) -> None:
        """Advances the topic's byte stream by an appended payload."""
        if topic not in self._held:
            self._hold(topic)
        topic.position += nbytes
        self._grown[topic] = None

    def durable_topic(self, name: str) -> Topic:
        """Returns a durable topic.
        Raises UsageError if it is not durable, or if there are too many topics."""
        topic = self.topic(name)
        if not topic.durable:
            raise UsageError(
                f"topic {name!r} is not durable, so its messages cannot be acknowledged",
                hint="make it durable in the broker's configuration, or subscribe to it",
            )
        return topic

    def direct_topic(self, topic: Topic) -> Topic:
        """Returns the hidden durable topic in which direct delivery stores messages of a transient topic."""
        direct = self._direct_topics.get(topic.name)
        if direct is None:
            direct = self._direct_topics[topic.name] = Topic(topic.name, durable=True)
            direct.log_name = DIRECT_PREFIX + topic.name
        return direct

    def purge(self, topic: Topic) -> int:
        """Deletes all messages of a topic, those of direct delivery too. Offsets and the position continue.
        Returns the record's sequence. Raises LogFull when the disk is full."""
        sequence = self.log.put(_POSITION + topic.name.encode(), topic.position.to_bytes(8, "little"))
        for log_name in (topic.log_name, DIRECT_PREFIX + topic.name):
            sequence = self.log.purge(log_name) or sequence
        self._grown.pop(topic, None)
        return sequence

    def remove(self, topic: Topic) -> int:
        """Removes a topic with its messages.

        Returns the record's sequence. Raises LogFull when the disk is full. A later topic of the same name
        begins with the next offset, since clients identify messages by offsets.
        """
        name, end = topic.name, self.range(topic)[1]
        sequence = self.log.remove(_POSITION + name.encode())
        if self.log.get(_WITHHELD + name.encode()) is not None:
            sequence = self.log.remove(_WITHHELD + name.encode())
        if end:
            sequence = self.log.put(_ENDED + name.encode(), end.to_bytes(8, "little"))
        for log_name in (topic.log_name, DIRECT_PREFIX + name):
            sequence = self.log.drop(log_name) or sequence
        for known in (self.topics, self._direct_topics, self._transient):
            known.pop(name, None)
        self._grown.pop(topic, None)
        self._held.discard(topic)
        return sequence

    def bytes_from(self, topic: Topic, offset: int) -> int:
        """Returns the payload bytes of a topic from an offset on; 0: no message, or a damaged one."""
        low, high = self.range(topic)
        begin = self._begin_of(topic, max(offset, low)) if max(offset, low) < high else None
        return topic.position - begin if begin is not None else 0

    def message(self, log_name: str, offset: int) -> Message | None:
        """Returns one message; None: it is no longer in the log. Raises LogDamaged."""
        found = self._read_one(log_name, offset)
        if not found or found[0].offset != offset or found[0].discarded:
            return None
        return message_of(log_name.partition("/")[2], found[0])

    def range(self, topic: Topic) -> tuple[int, int]:
        """Returns (offset of the oldest message, offset of the next new message)."""
        return self.log.range(topic.log_name)

    def remember(self) -> tuple[int, list[tuple[Topic, int]]] | None:
        """Stores positions of topics that have grown, so that they stay when retention removes all messages.

        Stores a limited number of them in one call. Returns (sequence of the last record, marks for
        `remembered` when that record is on the disk); None: no topic has grown. Raises LogFull,
        InternalError.
        """
        sequence, marks = -1, []
        for topic in list(islice(self._grown, _MAX_STORED)):
            sequence = self.log.put(_POSITION + topic.name.encode(), topic.position.to_bytes(8, "little"))
            marks.append((topic, self.range(topic)[1]))
        for topic, _ in marks:
            del self._grown[topic]
        return (sequence, marks) if marks else None

    def remembered(self, marks: Sequence[tuple[Topic, int]]) -> None:
        """Lets retention remove the messages before these positions, which are on the disk now."""
        for topic, offset in marks:
            if any(
                known.get(topic.name) is topic for known in (self.topics, self._direct_topics)
            ):  # not removed
                self.log.acknowledge(topic.log_name, _HOLDER, offset)

    def read(
        self,
        topic: Topic,
        offset: int,
        *,
        nbytes: int = _READ,
        limit: int = 1000,
        verify: bool | int = True,
    ) -> list[Message]:
        """Reads messages from `offset`, or from the oldest one, up to a damaged one.
        verify: as in `Log.read`. Raises LogDamaged if the first one is damaged."""
        while True:
            try:
                kept = self.log.read(topic.log_name, offset, limit=limit, nbytes=nbytes, verify=verify)
            except LogDamaged as error:
                if limit == 1:
                    self.note_damage(topic.log_name, offset, error)
                    raise
                limit //= 2
                continue
            messages = [message_of(topic.name, one) for one in kept if not one.discarded]
            if messages or not kept:
                return messages
            offset = kept[-1].offset + 1

    def check(self, topic: Topic, offset: int) -> None:
        """Verifies a message with its payload. Raises LogDamaged."""
        self._read_one(topic.log_name, offset)

    def note_damage(self, log_name: str, offset: int, error: Exception) -> None:
        """Records a damaged message that a read has found. Any thread."""
        if len(self.damage) < _MAX_DAMAGE:
            text = str(error).partition("\n  hint: ")[0]
            self.damage[log_name, offset] = f"topic {log_name.partition('/')[2]!r}, message {offset}: {text}"

    def _read_one(self, log_name: str, offset: int) -> list[LogMessage]:
        try:
            return self.log.read(log_name, offset, limit=1)
        except LogDamaged as error:
            self.note_damage(log_name, offset, error)
            raise

    def stream(self, topic: Topic, position: int, limit: int) -> list[Buffer]:
        """Reads the topic's byte stream from a position on: at most `limit` bytes of MOST_PAYLOADS payloads.

        Reads only synced messages. Raises PositionRemoved if the position is no longer in the log; UsageError
        if the stream has not reached it; LogDamaged.
        """
        if not 0 <= position <= topic.position:
            raise UsageError(f"position {position} of topic {topic.name!r}, which ends at {topic.position}")
        if position == topic.position or not topic.durable:
            return []
        parts: list[Buffer] = []
        try:
            self._collect(topic, position, limit, parts)
        except LogDamaged:
            if not parts:  # else the next call raises it
                raise
        return parts

    def _collect(self, topic: Topic, position: int, limit: int, parts: list[Buffer]) -> None:
        for begin, payload in self._payloads(topic, position):
            if begin > position:  # the message at this position is gone
                if parts:
                    break
                raise PositionRemoved(topic.name, position, begin)
            part = memoryview(payload)[position - begin : position - begin + limit]
            if part:
                parts.append(part)
                position += len(part)
                limit -= len(part)
            if limit <= 0 or len(parts) == MOST_PAYLOADS:
                break
        if not parts and topic.kept == self.range(topic)[1]:  # otherwise it may only not be synced yet
            raise PositionRemoved(topic.name, position, topic.position)

    def _hold(self, topic: Topic) -> None:
        try:
            self.log.acknowledge(topic.log_name, _HOLDER, self.range(topic)[0])
            self._held.add(topic)
        except LogFull:
            return  # the next message tries again

    def _payloads(self, topic: Topic, position: int) -> Iterator[tuple[int, Buffer]]:
        """Yields (begin, payload) of the message at a position and of those after it.
        Raises LogDamaged at the first damaged message."""
        offset = self._offset_at(topic, position)
        # A large payload is read in many pieces: only the first read verifies it.
        place = (topic.log_name, offset)
        kept = self.log.read(topic.log_name, offset, limit=1, verify=place != self._checked)
        if kept:
            self._checked = place
        while kept:
            for one in kept:
                if one.discarded:  # retention has removed the payload before the record
                    continue
                message = message_of(topic.name, one)
                if message.only_for is None:
                    yield position_of(one.body), message.payload
            offset = kept[-1].offset + 1
            try:
                kept = self.log.read(topic.log_name, offset, nbytes=_READ)
            except LogDamaged:
                kept = self._read_one(topic.log_name, offset)

    def _offset_at(self, topic: Topic, position: int) -> int:
        """Returns the offset of the last message in the log that begins at or before this position."""
        begin, _ = self.log.range(topic.log_name)
        low, high = begin, topic.kept
        while high - low > 1:
            middle = (low + high) // 2
            found = self._begin_of(topic, middle)
            if found is not None and found > position:
                high = middle
            else:  # the position of a damaged message is unknown
                low = middle
        while low > begin and self._begin_of(topic, low) is None:
            low -= 1
        return low

    def _begin_of(self, topic: Topic, offset: int) -> int | None:
        """Returns the position of a message; None: it is damaged, or not in the log."""
        try:
            kept = self.log.read(topic.log_name, offset, limit=1, verify=False)
        except LogDamaged:
            return None
        return position_of(kept[0].body) if kept else None

    def _restore(self, log_name: str) -> None:
        """Adds a topic of an earlier run."""
        topic = Topic(log_name.removeprefix(LOG_PREFIX), durable=True)
        remembered = int.from_bytes(self.log.get(_POSITION + topic.name.encode()) or b"", "little")
        _, topic.kept = self.log.range(log_name)
        held = self.log.groups(log_name).get(_HOLDER)
        if held is not None:
            self._held.add(topic)
        if held != topic.kept:  # the topic has grown since its position was stored
            remembered = max(remembered, self._end_of(topic, topic.kept - 1) if topic.kept else 0)
        topic.position = remembered
        topic.withheld = Withheld(self.log.get(_WITHHELD + topic.name.encode()) or b"")
        self.topics[topic.name] = topic

    def _end_of(self, topic: Topic, offset: int) -> int:
        """Returns the position after a message; 0: the message is gone or damaged."""
        try:
            kept = self.log.read(topic.log_name, offset, limit=1, verify=False)
            if not kept:
                return 0
            message = message_of(topic.name, kept[0])
            return position_of(kept[0].body) + (message.nbytes if message.only_for is None else 0)
        except LogDamaged as error:
            _log.error("the last message of topic %r: %s", topic.name, error)
            return 0

    def _forget_one(self) -> bool:
        """Forgets one transient topic without listeners; returns whether it found one.
        Examines a few topics per call: examining all would take long for each refused name."""
        for name, topic in list(islice(self._transient.items(), _MAX_EXAMINED)):
            del self._transient[name]
            if all(one.passive for one in topic.listeners):
                del self.topics[name]
                return True
            self._transient[name] = topic  # the next call examines other topics
        return False
