"""A SUB's positions in a publisher's log, by topic: it reads on from there after a lost connection."""

from __future__ import annotations

import struct
import threading
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from transfer.patterns import Subscriber
from transfer.patterns.pub_sub import decode_order
from transfer.transports.core.wire import MAX_TOPIC, Control
from transfer.transports.errors import AddressError, ProtocolError, UsageError

if TYPE_CHECKING:
    from transfer.patterns.base import Pattern
    from transfer.sockets.peer import Peer
    from transfer.transports.address import Address
    from transfer.transports.core.contract import Frame
    from transfer.transports.handshake.hello import Hello

#: in the hello of a SUB: where it begins in the log
BEGIN = "begin"
#: in the hello of a PUB: the name of its log, and the number of the epoch in which it writes
LOG, EPOCH = "log", "epoch"
#: bytes of a topic in a log
_MAX_LOG_TOPIC = 255
#: characters of a log's name
_MAX_LOG_NAME = 64
#: topics of one log, and logs, whose positions are kept; the least recently used is forgotten first
_MAX_TOPICS, _MAX_LOGS = 100_000, 64
#: bytes of topics whose positions a publisher receives: a broker accepts 16 MiB, subscriptions included
_MAX_SENT_BYTES = 12 << 20
#: epochs of a log for which the position in a topic is kept
_MAX_EPOCHS = 4
#: a gap of so few messages may be filled by another receiving thread; so many missing numbers are kept
MAX_LATE_GAP, _MAX_LATE = 64, 1000
#: skipped messages of one log that are kept, so that each is reported once
_MAX_SKIPPED = 10_000
_POSITION, _SKIPPED, _OFFLINE = struct.Struct("<BQQ"), struct.Struct("<BQQ"), struct.Struct("<BQ")


class LogId(NamedTuple):
    """Identifies a publisher's log. Each time that the log is opened for writing, a new epoch begins: a
    restored backup has the log's name, but other messages."""

    name: str
    epoch: int


class TopicPosition(NamedTuple):
    """The number of the last received message of a topic, and the epoch in which it was received."""

    number: int
    epoch: int


def log_of(remote: Hello) -> LogId | None:
    """Returns the log of the publisher with this hello, or None."""
    name, epoch = remote.extra.get(LOG), remote.extra.get(EPOCH)
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_LOG_NAME or not isinstance(epoch, int):
        return None
    return LogId(name, epoch) if 0 <= epoch < 1 << 64 else None


def encode_position(position: TopicPosition, topic: bytes) -> bytes:
    """The data of a POSITION control frame, sent by either side."""
    return _POSITION.pack(Control.POSITION, *position) + topic


def decode_position(data: bytes) -> tuple[TopicPosition, bytes]:
    """(position, topic). Raises ProtocolError."""
    number, epoch, topic = _numbers_and_topic(_POSITION, data)
    return TopicPosition(number, epoch), topic


def encode_skipped(number: int, nbytes: int, topic: bytes) -> bytes:
    """The data of a SKIPPED control frame: this message is too large for its SUB. number: 0 if the message
    is not in the log."""
    return _SKIPPED.pack(Control.SKIPPED, number, nbytes) + topic


def decode_skipped(data: bytes) -> tuple[int, int, bytes]:
    """(number, bytes, topic). Raises ProtocolError."""
    return _numbers_and_topic(_SKIPPED, data)


def encode_withheld(numbers: range, topic: bytes) -> bytes:
    """The data of a WITHHELD control frame: these messages are not for subscribers."""
    return _SKIPPED.pack(Control.WITHHELD, numbers.start, len(numbers)) + topic


def decode_withheld(data: bytes) -> tuple[range, bytes]:
    """(numbers, topic). Raises ProtocolError."""
    first, count, topic = _numbers_and_topic(_SKIPPED, data)
    return range(first, first + count), topic


def _numbers_and_topic(head: struct.Struct, data: bytes) -> tuple[int, int, bytes]:
    if not head.size < len(data) <= head.size + MAX_TOPIC:
        raise ProtocolError("control", f"{len(data)} bytes for a topic of a log")
    _, first, second = head.unpack_from(data)
    return first, second, bytes(data[head.size :])


def encode_offline(seconds: float) -> bytes:
    """The data of an OFFLINE control frame: how long a SUB has had no publisher at this endpoint."""
    return _OFFLINE.pack(Control.OFFLINE, int(1000 * min(max(seconds, 0.0), 1e9)))


def decode_offline(data: bytes) -> float:
    """Seconds. Raises ProtocolError."""
    if len(data) != _OFFLINE.size:
        raise ProtocolError("control", f"{len(data)} bytes for the time that a SUB was offline")
    return float(_OFFLINE.unpack(data)[1] / 1000)


def check_begin(address: Address, pattern: Pattern, *, bound: bool = False) -> bool:
    """Whether the endpoint has a start position. Raises AddressError if this socket or scheme has no use
    for one."""
    if address.begin is None:
        return False
    if isinstance(pattern, Subscriber) and not bound and not address.is_directory:
        for prefix in pattern.subscriptions:
            check_log_prefix(prefix)
        return True
    if address.is_directory:
        hint = f"`{address.scheme}://` stands for many: name the broker's native.subscriptions by tcp://"
    elif bound:
        hint = "bind without ?begin="
    else:
        hint = f"a {pattern.socket_type.name} has no use for it: connect without"
    raise AddressError(f"{address}: ?begin= is for a SUB that connects to one publisher", hint=hint)


def check_log_prefix(prefix: bytes) -> None:
    """Raises UsageError: no topic of a log begins with this prefix."""
    try:
        text = prefix.decode()
    except UnicodeDecodeError:
        text = "\0"
    if len(prefix) > _MAX_LOG_TOPIC or "\0" in text:
        raise UsageError(
            f"a subscription to {prefix!r:.80}, together with ?begin= in an endpoint",
            hint=f"topics of a log are UTF-8 of at most {_MAX_LOG_TOPIC} bytes, without NUL",
        )


class CatchUpSource(ABC):
    """Sends subscribers messages from a PUB's log. The reactor's thread calls the methods."""

    log: LogId

    @abstractmethod
    def subscribe(self, peer: Peer, number: int, prefix: bytes, resubscribes: bool) -> None:
        """Subscribes a peer with BEGIN in its hello. The source sends it all messages, and the answer.

        resubscribes: the peer had this subscription before, so that a topic without a position has begun
        since. Raises ProtocolError.
        """

    @abstractmethod
    def unsubscribe(self, peer: Peer, prefix: bytes) -> None:
        """Ends a subscription. Raises ProtocolError."""

    @abstractmethod
    def set_position(self, peer: Peer, position: TopicPosition, topic: bytes) -> None:
        """Sets the last message of the topic that the peer received in an epoch. The newest epoch arrives
        last. Raises ProtocolError, also if the peer has subscribed already."""

    @abstractmethod
    def set_offline(self, peer: Peer, seconds: float) -> None:
        """Sets how long the peer has had no publisher, after one with another log. Raises ProtocolError,
        also if the peer has subscribed already."""


class _LogPositions:
    """The positions in one log.

    epoch: the one in which its publisher writes. by_topic: the position in each of the last epochs, the
    newest last (a restored backup may know an older epoch only). subscriptions: those that the publisher
    has confirmed. skipped: numbers of messages that were too large, or not for subscribers, by topic,
    ascending. late: the newest
    numbers that another thread may have received, and not recorded yet.
    """

    __slots__ = ("by_topic", "epoch", "late", "skipped", "skipped_count", "subscriptions")

    def __init__(self) -> None:
        self.epoch = self.skipped_count = 0
        self.late: dict[tuple[bytes, int], None] = {}
        self.by_topic: dict[bytes, list[TopicPosition]] = {}
        self.subscriptions: frozenset[bytes] = frozenset()
        self.skipped: dict[bytes, list[int]] = {}

    def set(self, topic: bytes, position: TopicPosition) -> None:
        epochs = self.by_topic.pop(topic, [])
        if epochs and epochs[-1].epoch == position.epoch:
            epochs[-1] = position
        else:
            epochs = [*epochs, position][-_MAX_EPOCHS:]
        self.by_topic[topic] = epochs  # the most recently used is the last
        if len(self.by_topic) > _MAX_TOPICS:
            del self.by_topic[next(iter(self.by_topic))]

    def newest(self, topic: bytes) -> TopicPosition | None:
        epochs = self.by_topic.get(topic)
        return epochs[-1] if epochs else None

    def add_skipped(self, topic: bytes, number: int) -> bool:
        """False: it was added before, or the position is behind it."""
        numbers, position = self.skipped.get(topic, []), self.newest(topic)
        if (numbers and number <= numbers[-1]) or (position is not None and number <= position.number):
            return False
        if self.skipped_count < _MAX_SKIPPED:
            numbers.append(number)
            self.skipped[topic] = numbers
            self.skipped_count += 1
        return True

    def add_withheld(self, topic: bytes, numbers: range) -> None:
        """Adds numbers of messages that nobody misses, as far as they are new and there is room."""
        known, position = self.skipped.get(topic, []), self.newest(topic)
        first = max(numbers.start, known[-1] + 1 if known else 0, position.number + 1 if position else 0)
        added = range(first, min(numbers.stop, first + _MAX_SKIPPED - self.skipped_count))
        if added:
            self.skipped[topic] = [*known, *added]
            self.skipped_count += len(added)

    def remove_skipped(self, topic: bytes, number: int) -> int:
        """Removes those up to this number, and returns how many there were."""
        numbers = self.skipped.pop(topic, [])
        removed = bisect_right(numbers, number)
        if removed < len(numbers):
            self.skipped[topic] = numbers[removed:]
        self.skipped_count -= removed
        return removed

    def expect_late(self, topic: bytes, numbers: range) -> None:
        """Records missing numbers: not sent, or received by a thread that has not recorded them yet."""
        self.late.update(((topic, number), None) for number in numbers)
        while len(self.late) > _MAX_LATE:
            del self.late[next(iter(self.late))]


class TopicPositions:
    """The positions of one socket, by log and topic. Thread-safe.

    Messages of a topic have consecutive numbers, from 1.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_log: dict[str, _LogPositions] = {}

    def connected(self, log: LogId) -> bool:
        """Begins a connection to the log's publisher; whether an earlier one confirmed subscriptions."""
        with self._lock:
            known = self._in(log.name)
            if known.epoch != log.epoch:  # its numbers may be other messages'
                known.epoch, known.skipped_count, known.skipped, known.late = log.epoch, 0, {}, {}
            return bool(known.subscriptions)

    def record(self, stream: Any, frames: Sequence[Frame]) -> int:
        """Records a message that the program received. Returns how many before it are missing, since the log
        had dropped them; -1: this one counted as missing while another thread was receiving it."""
        peer, first = stream.peer, frames[0]
        number, topic = first.sequence, first.topic
        if peer is None or peer.log is None or not number or topic is None:
            return 0
        name, epoch = peer.log
        with self._lock:
            known = self._in(name)
            before = known.newest(topic)
            if before is not None and before.epoch == epoch:
                if number <= before.number:
                    return -1 if known.late.pop((topic, number), False) is None else 0
                known.set(topic, TopicPosition(number, epoch))
                gap = number - before.number - 1
                missing = max(0, gap - known.remove_skipped(topic, number)) if gap else 0
                if 0 < missing <= MAX_LATE_GAP:
                    known.expect_late(topic, range(before.number + 1, number))
                return missing
            elif epoch == known.epoch:  # and not a late message of a connection to an earlier epoch
                known.set(topic, TopicPosition(number, epoch))
                known.remove_skipped(topic, number)
        return 0

    def reset(self, peer: Peer, position: TopicPosition, topic: bytes) -> None:
        """Sets the message behind which the publisher sends the topic, whatever was received before."""
        if peer.log is not None:
            with self._lock:
                self._in(peer.log.name).set(topic, position)

    def skip(self, peer: Peer, number: int, topic: bytes) -> bool:
        """Records a message that the publisher has left out. False: it is recorded already."""
        if peer.log is None or not number:
            return True
        with self._lock:
            return self._in(peer.log.name).add_skipped(topic, number)

    def withhold(self, peer: Peer, numbers: range, topic: bytes) -> None:
        """Records messages that the publisher has left out, since they are not for subscribers."""
        if peer.log is not None:
            with self._lock:
                self._in(peer.log.name).add_withheld(topic, numbers)

    def _in(self, name: str) -> _LogPositions:
        known = self._by_log.pop(name, None) or _LogPositions()  # the most recently used is the last
        self._by_log[name] = known
        if len(self._by_log) > _MAX_LOGS:
            del self._by_log[next(iter(self._by_log))]
        return known

    def control_frames(self, name: str) -> Iterator[bytes]:
        """The POSITION frames for a log's publisher, as many as it accepts."""
        chosen, left = [], _MAX_SENT_BYTES
        with self._lock:
            for topic, epochs in reversed(self._in(name).by_topic.items()):
                left -= len(topic)
                if left < 0:
                    break
                chosen.append((topic, list(epochs)))
        return (encode_position(position, topic) for topic, epochs in chosen for position in epochs)

    def confirm(self, name: str, prefixes: Iterable[bytes]) -> None:
        """Records that the log's publisher has confirmed these subscriptions and sent their positions."""
        with self._lock:
            self._in(name).subscriptions = frozenset(prefixes)

    def subscribe_order(self, name: str, order: bytes) -> bytes:
        """The SUBSCRIBE order for a log's publisher; RESUBSCRIBE if it confirmed this subscription before."""
        prefix = decode_order(order)[2]
        with self._lock:
            before = prefix in self._in(name).subscriptions
        return bytes([Control.RESUBSCRIBE]) + order[1:] if before else order
