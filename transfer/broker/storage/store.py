"""The broker's topics in the log: appended, read again, and as streams of bytes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from transfer.broker.delivery.message import Buffer, Message, Written
from transfer.broker.delivery.topic import DIRECT_PREFIX, LOG_PREFIX, Topic
from transfer.broker.storage.stored_message import BLOB_FROM, message_of, position_of, record_of
from transfer.broker.storage.volume import free_bytes
from transfer.log import HOLDS, undisturbed
from transfer.transports.errors import LogDamaged, LogFull, UsageError

if TYPE_CHECKING:
    from transfer.log import Log, Message as Kept

_log = logging.getLogger("transfer.broker")

#: payloads of a stream of bytes that are read at once: some milliseconds, if they are small
MOST_PAYLOADS = 1000
#: bytes that one look into the log reads
_READ = 4 << 20
#: topics whose positions are kept at one time: others are served in between
_AT_ONCE = 2000
#: topics that are looked at to find one that may be forgotten
_LOOKED_AT = 100
#: damaged messages that are remembered
_DAMAGE = 100
#: in front of the keys under which topics' positions are kept
_POSITION = b"broker/position/"
#: the log's group that keeps messages until the topic's position behind them is kept, and reads none
_HOLDER = HOLDS + "position"
#: in front of the keys of the ends of topics that were removed, if one of the same name has to go on there
_ENDED = b"broker/ended/"


class NotKept(UsageError):
    """A position of a topic's byte stream is gone. next: the first one behind it that is there."""

    def __init__(self, topic: str, position: int, following: int) -> None:
        super().__init__(
            f"position {position} of topic {topic!r} is not kept any more",
            hint=f"the first one behind it that is there is {following}",
        )
        self.next = following


class Store:
    """Topics over a log. On the broker's loop; the log itself may be used by others meanwhile.

    durable: says of a name whether its messages are kept. most: topics that may be known at once; a name
    beyond them is refused. room: bytes that the log takes at most; a payload of more than half of them is
    refused.
    """

    def __init__(
        self, log: Log, durable: Callable[[str], bool], *, most: int, room: int | None = None
    ) -> None:
        self.log = log
        self._durable = durable
        self._most = most
        self._room = room
        #: bytes that the volume has left; tests say another number
        self.free: Callable[[], int] = lambda: free_bytes(log.folder)
        self._topics: dict[str, Topic] = {}
        self._direct_topics: dict[str, Topic] = {}
        self._transient: dict[str, Topic] = {}  # of them, those that keep nothing
        self._grown: dict[Topic, None] = {}  # whose positions are to be kept; those that wait longest first
        self._held: set[Topic] = set()  # those with a holder
        self._checked: tuple[str, int] = ("", -1)  # topic and offset of the payload that was checked last
        #: what was published since the start, of topics that are forgotten too
        self.messages = self.nbytes = 0
        #: what was found to be damaged when it was read, in words; the log itself knows what its start found
        self.damage: dict[tuple[str, int], str] = {}
        with undisturbed():
            for name in log.topics:
                if name.startswith(LOG_PREFIX):
                    self._found(name)

    @property
    def topics(self) -> dict[str, Topic]:
        """All topics that are known, by name."""
        return self._topics

    def topic(self, name: str) -> Topic:
        """The topic, which begins by being named. Raises UsageError when there are too many."""
        topic = self._topics.get(name)
        if topic is None:
            if len(self._topics) >= self._most and not self._forget_one():
                raise UsageError(
                    f"topic {name!r} would be one more than the {self._most} that may be there",
                    hint="remove topics that nobody needs, or raise topics.most",
                )
            topic = Topic(name, durable=self._durable(name))
            if not topic.durable:
                self._transient[name] = topic
            elif (ended := self.log.get(_ENDED + name.encode())) is not None:
                topic.kept = int.from_bytes(ended, "little")
                self.log.begin(topic.log_name, topic.kept)
                self.log.remove(_ENDED + name.encode())
            self._topics[name] = topic
        return topic

    @property
    def largest(self) -> int:
        """Bytes of the largest payload that fits."""
        return self._room // 2 if self._room is not None else 1 << 62

    def check_room(self, nbytes: int) -> None:
        """A payload that never fits would be waited for for ever. Raises UsageError."""
        if nbytes > self.largest:
            raise UsageError(
                f"a payload of {nbytes} bytes, where the log takes {self._room}",
                hint="raise the bytes of retention to twice the largest payload at least",
            )

    def check_volume(self, nbytes: int) -> None:
        """So many bytes of payloads are announced, and are to be kept. Raises LogFull: the volume has no room
        for them, whatever retention lets go."""
        free, wanted = self.free(), nbytes
        if self._room is not None:
            wanted = min(nbytes, max(0, self._room - self.log.disk_bytes))
        if wanted > free:
            raise LogFull(
                f"{nbytes} bytes are announced, where the volume has {free} left",
                hint="free some, or send less at once",
            )

    def append(self, topic: Topic, message: Message) -> int:
        """Appends a message to its durable topic, and gives it its offset: the record's sequence. Raises
        LogFull."""
        nbytes = message.nbytes
        large = nbytes >= BLOB_FROM
        if large or self._room is not None:
            self.check_room(nbytes)
        record = record_of(message, topic.position, blob=large)
        if large and isinstance(message, Written):
            sequence, message.offset = message.blob.commit(record)
        else:
            sequence, message.offset = self.log.append(
                topic.log_name, record, blob=list(message.parts) if large else None
            )
        self.grew(topic, nbytes)
        return sequence

    def append_many(self, topics: Sequence[Topic], messages: Sequence[Message]) -> int:
        """The same for several small messages, each with its topic, in one go: the last record's sequence.
        All or none are appended. Raises LogFull."""
        ends = {topic: topic.position for topic in dict.fromkeys(topics)}
        records = []
        for topic, message in zip(topics, messages, strict=True):
            records.append(record_of(message, ends[topic], blob=False))
            ends[topic] += message.nbytes
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
        """A payload was appended to the topic's byte stream."""
        if topic not in self._held:
            self._hold(topic)
        topic.position += nbytes
        self._grown[topic] = None

    def durable_topic(self, name: str) -> Topic:
        """A topic that keeps its messages. Raises UsageError when it does not, or there are too many."""
        topic = self.topic(name)
        if not topic.durable:
            raise UsageError(
                f"topic {name!r} keeps nothing, so nobody can acknowledge its messages",
                hint="make it durable in the broker's configuration, or subscribe to it",
            )
        return topic

    def direct_topic(self, topic: Topic) -> Topic:
        """For messages of a topic that keeps nothing, but which have to be kept for a consumer of their
        own: a topic beside it, which nobody else sees."""
        beside = self._direct_topics.get(topic.name)
        if beside is None:
            beside = self._direct_topics[topic.name] = Topic(topic.name, durable=True)
            beside.log_name = DIRECT_PREFIX + topic.name
        return beside

    def purge(self, topic: Topic) -> int:
        """All its messages are gone, those for direct delivery too; offsets and the position in the stream go
        on. The record's sequence. Raises LogFull when the disk is full."""
        sequence = self.log.put(_POSITION + topic.name.encode(), topic.position.to_bytes(8, "little"))
        for log_name in (topic.log_name, DIRECT_PREFIX + topic.name):
            sequence = self.log.purge(log_name) or sequence
        self._grown.pop(topic, None)
        return sequence

    def remove(self, topic: Topic) -> int:
        """Forgets a topic with its messages. The record's sequence. Raises LogFull when the disk is full.

        One of the same name that comes later begins with the next offset: others know messages by these.
        """
        name, end = topic.name, self.range(topic)[1]
        sequence = self.log.remove(_POSITION + name.encode())
        if end:
            sequence = self.log.put(_ENDED + name.encode(), end.to_bytes(8, "little"))
        for log_name in (topic.log_name, DIRECT_PREFIX + name):
            sequence = self.log.drop(log_name) or sequence
        for known in (self._topics, self._direct_topics, self._transient):
            known.pop(name, None)
        self._grown.pop(topic, None)
        self._held.discard(topic)
        return sequence

    def bytes_from(self, topic: Topic, offset: int) -> int:
        """Payload bytes of a topic from a message on that is there; 0: it is damaged, or not there."""
        low, high = self.range(topic)
        begin = self._begin_of(topic, max(offset, low)) if max(offset, low) < high else None
        return topic.position - begin if begin is not None else 0

    def message(self, log_name: str, offset: int) -> Message | None:
        """One message that is kept; None: it is gone. Raises LogDamaged."""
        found = self._read_one(log_name, offset)
        if not found or found[0].offset != offset or found[0].discarded:
            return None
        return message_of(log_name.partition("/")[2], found[0])

    def range(self, topic: Topic) -> tuple[int, int]:
        """(offset of the oldest message that is there, that of the next one)."""
        return self.log.range(topic.log_name)

    def remember(self) -> tuple[int, list[tuple[Topic, int]]] | None:
        """Positions of topics that have grown are kept, so that they never move when retention takes all. Of
        very many some come later.

        (sequence of the last record, what `remembered` is given when that is on the disk); None: nothing
        has grown. Raises LogFull, InternalError.
        """
        sequence, marks = -1, []
        for topic in list(islice(self._grown, _AT_ONCE)):
            sequence = self.log.put(_POSITION + topic.name.encode(), topic.position.to_bytes(8, "little"))
            marks.append((topic, self.range(topic)[1]))
        for topic, _ in marks:
            del self._grown[topic]
        return (sequence, marks) if marks else None

    def remembered(self, marks: Sequence[tuple[Topic, int]]) -> None:
        """These positions are on the disk: retention may take the messages before them."""
        for topic, offset in marks:
            if any(
                known.get(topic.name) is topic for known in (self._topics, self._direct_topics)
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
        """Messages that are kept, from `offset` on, or from the oldest that is there; those before a damaged
        one. verify: as in `Log.read`. Raises LogDamaged when the first one is damaged."""
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
        """Looks at all of a message's payload. Raises LogDamaged."""
        self._read_one(topic.log_name, offset)

    def note_damage(self, log_name: str, offset: int, error: Exception) -> None:
        """A message was found to be damaged when it was read. Any thread."""
        if len(self.damage) < _DAMAGE:
            text = str(error).partition("\n  hint: ")[0]
            self.damage[log_name, offset] = f"topic {log_name.partition('/')[2]!r}, message {offset}: {text}"

    def _read_one(self, log_name: str, offset: int) -> list[Kept]:
        try:
            return self.log.read(log_name, offset, limit=1)
        except LogDamaged as error:
            self.note_damage(log_name, offset, error)
            raise

    def stream(self, topic: Topic, position: int, limit: int) -> list[Buffer]:
        """Bytes of all the topic's payloads, one behind the other, from a position on: at most `limit`, of at
        most MOST_PAYLOADS.

        Only what is kept. Raises NotKept when the position is gone; UsageError when it was never there;
        LogDamaged.
        """
        if not 0 <= position <= topic.position:
            raise UsageError(f"position {position} of topic {topic.name!r}, which ends at {topic.position}")
        if position == topic.position or not topic.durable:
            return []
        parts: list[Buffer] = []
        try:
            self._collect(topic, position, limit, parts)
        except LogDamaged:
            if not parts:  # else whoever asks on is told
                raise
        return parts

    def _collect(self, topic: Topic, position: int, limit: int, parts: list[Buffer]) -> None:
        for begin, payload in self._payloads(topic, position):
            if begin > position:  # what should stand here is gone
                if parts:
                    break
                raise NotKept(topic.name, position, begin)
            part = memoryview(payload)[position - begin : position - begin + limit]
            if part:
                parts.append(part)
                position += len(part)
                limit -= len(part)
            if limit <= 0 or len(parts) == MOST_PAYLOADS:
                break
        if not parts and topic.kept == self.range(topic)[1]:  # and not only because it is not synced yet
            raise NotKept(topic.name, position, topic.position)

    def _hold(self, topic: Topic) -> None:
        try:
            self.log.acknowledge(topic.log_name, _HOLDER, self.range(topic)[0])
            self._held.add(topic)
        except LogFull:
            return  # at the next message

    def _payloads(self, topic: Topic, position: int) -> Iterator[tuple[int, Buffer]]:
        """(where it begins, payload) of the message at a position, and of those behind it. Raises
        LogDamaged behind those that are good."""
        offset = self._offset_at(topic, position)
        # A large payload is asked for in many pieces: it is checked at the first one.
        place = (topic.log_name, offset)
        kept = self.log.read(topic.log_name, offset, limit=1, verify=place != self._checked)
        if kept:
            self._checked = place
        while kept:
            for one in kept:
                if not one.discarded:  # retention was so quick that the payload has gone before its record
                    yield position_of(one.body), message_of(topic.name, one).payload
            offset = kept[-1].offset + 1
            try:
                kept = self.log.read(topic.log_name, offset, nbytes=_READ)
            except LogDamaged:
                kept = self._read_one(topic.log_name, offset)

    def _offset_at(self, topic: Topic, position: int) -> int:
        """The offset of the last message that begins at this position or before it, and is there."""
        begin, _ = self.log.range(topic.log_name)
        low, high = begin, topic.kept
        while high - low > 1:
            middle = (low + high) // 2
            found = self._begin_of(topic, middle)
            if found is not None and found > position:
                high = middle
            else:  # of one that is damaged it is not known
                low = middle
        while low > begin and self._begin_of(topic, low) is None:
            low -= 1
        return low

    def _begin_of(self, topic: Topic, offset: int) -> int | None:
        """Where a message that is kept begins; None: it is damaged."""
        try:
            kept = self.log.read(topic.log_name, offset, limit=1, verify=False)
        except LogDamaged:
            return None
        return position_of(kept[0].body) if kept else None

    def _found(self, log_name: str) -> None:
        """A topic of an earlier run."""
        topic = Topic(log_name.removeprefix(LOG_PREFIX), durable=True)
        remembered = int.from_bytes(self.log.get(_POSITION + topic.name.encode()) or b"", "little")
        _, topic.kept = self.log.range(log_name)
        held = self.log.groups(log_name).get(_HOLDER)
        if held is not None:
            self._held.add(topic)
        if held != topic.kept:  # it has grown since its position was kept
            remembered = max(remembered, self._end_of(topic, topic.kept - 1) if topic.kept else 0)
        topic.position = remembered
        self._topics[topic.name] = topic

    def _end_of(self, topic: Topic, offset: int) -> int:
        """The position behind a message; 0: it is gone, or damaged."""
        try:
            kept = self.log.read(topic.log_name, offset, limit=1, verify=False)
            return position_of(kept[0].body) + message_of(topic.name, kept[0]).nbytes if kept else 0
        except LogDamaged as error:
            _log.error("the last message of topic %r: %s", topic.name, error)
            return 0

    def _forget_one(self) -> bool:
        """Room for one name more: a topic that keeps nothing, and to which nobody listens. A few are looked
        at each time: all of them would take a while for each name that is refused."""
        for name, topic in list(islice(self._transient.items(), _LOOKED_AT)):
            del self._transient[name]
            if all(one.passive for one in topic.listeners):
                del self._topics[name]
                return True
            self._transient[name] = topic  # the others have their turn next time
        return False
