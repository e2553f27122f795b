"""How far a SUB has come in what publishers keep, so that it goes on there when its connection was lost."""

from __future__ import annotations

import struct
import threading
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from patterns import Subscriber
from patterns.pub_sub import decode_order
from transports.errors import AddressError, ProtocolError, UsageError
from transports.wire import MAX_TOPIC, Control

if TYPE_CHECKING:
    from patterns.base import Pattern
    from transfer.peer import Peer
    from transports.address import Address
    from transports.core_contract import Frame
    from transports.hello import Hello

#: in the hello of a SUB: where it begins in what is kept
BEGIN = "begin"
#: in the hello of a PUB: the name of its log, and the number of the run that it writes it in
KEEPS, RUN = "keeps", "run"
#: letters of a log's name
MAX_LOG = 64
#: topics of one log whose places are remembered; those that were not heard of for longest begin anew
_MOST, _MOST_LOGS = 100_000, 64
#: bytes of topics that a publisher is told of: a broker listens to 16 MiB, subscriptions included
_MOST_TOLD = 12 << 20
#: runs of a log of which it is remembered how far a topic was read
_MOST_RUNS = 4
#: of a topic at once are missing where threads receive beside each other; so many numbers are remembered
FEW, _MOST_LATE = 64, 1000
#: messages of one log that are remembered as too large, so that they are told once
_MOST_LARGE = 10_000
_PLACE, _LARGE, _AWAY = struct.Struct("<BQQ"), struct.Struct("<BQQ"), struct.Struct("<BQ")


class KeptLog(NamedTuple):
    """A publisher's log. run: a number of its own for each time that it was opened to be written, since a
    backup that was put back has the log's name and other messages."""

    name: str
    run: int


class Place(NamedTuple):
    """The number of a message, and in which run of the log it was received."""

    number: int
    run: int


def log_of(remote: Hello) -> KeptLog | None:
    """The log of a publisher that keeps what it publishes."""
    name, run = remote.extra.get(KEEPS), remote.extra.get(RUN)
    if not isinstance(name, str) or not 0 < len(name) <= MAX_LOG or not isinstance(run, int):
        return None
    return KeptLog(name, run) if 0 <= run < 1 << 64 else None


def encode_place(place: Place, topic: bytes) -> bytes:
    """The data of a PLACE control frame, of either side: behind which message of a topic it goes on."""
    return _PLACE.pack(Control.PLACE, *place) + topic


def decode_place(data: bytes) -> tuple[Place, bytes]:
    """(place, topic). Raises ProtocolError."""
    number, run, topic = _numbers_and_topic(_PLACE, data)
    return Place(number, run), topic


def encode_too_large(number: int, nbytes: int, topic: bytes) -> bytes:
    """The data of a TOO_LARGE control frame: a message of the topic that its SUB does not take. number: 0
    if it has none."""
    return _LARGE.pack(Control.TOO_LARGE, number, nbytes) + topic


def decode_too_large(data: bytes) -> tuple[int, int, bytes]:
    """(number, bytes, topic). Raises ProtocolError."""
    return _numbers_and_topic(_LARGE, data)


def _numbers_and_topic(head: struct.Struct, data: bytes) -> tuple[int, int, bytes]:
    if not head.size < len(data) <= head.size + MAX_TOPIC:
        raise ProtocolError("control", f"{len(data)} bytes about what is kept")
    _, first, second = head.unpack_from(data)
    return first, second, bytes(data[head.size :])


def encode_away(seconds: float) -> bytes:
    """The data of an AWAY control frame: how long a SUB has had no publisher at this endpoint."""
    return _AWAY.pack(Control.AWAY, int(1000 * min(max(seconds, 0.0), 1e9)))


def decode_away(data: bytes) -> float:
    """Seconds. Raises ProtocolError."""
    if len(data) != _AWAY.size:
        raise ProtocolError("control", f"{len(data)} bytes of how long a SUB was away")
    return float(_AWAY.unpack(data)[1] / 1000)


def check_begin(address: Address, pattern: Pattern, *, bound: bool = False) -> bool:
    """Whether the endpoint says where to begin. Raises AddressError: it cannot, there."""
    if address.begin is None:
        return False
    if isinstance(pattern, Subscriber) and not bound and not address.is_directory:
        for prefix in pattern.subscriptions:
            check_kept_prefix(prefix)
        return True
    if address.is_directory:
        hint = f"`{address.scheme}://` stands for many: name the broker's own.subscriptions by tcp://"
    elif bound:
        hint = "bind without it"
    else:
        hint = f"a {pattern.socket_type.name} has no use for it: connect without"
    raise AddressError(f"{address}: ?begin= is for a SUB that connects to one publisher", hint=hint)


def check_kept_prefix(prefix: bytes) -> None:
    """Raises UsageError: no topic that is kept begins like that."""
    try:
        prefix.decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"a subscription to {prefix!r:.80}, beside ?begin= in an endpoint",
            hint="topics that are kept are UTF-8",
        ) from error


class Keeper(ABC):
    """What keeps the messages of a PUB. Called in the reactor's thread. log: where they are."""

    log: KeptLog

    @abstractmethod
    def subscribed(self, peer: Peer, number: int, prefix: bytes, again: bool) -> None:
        """A peer with BEGIN in its hello has subscribed: the keeper gives it all messages, and answers.

        again: not for the first time; topics without a place have begun since. Raises ProtocolError.
        """

    @abstractmethod
    def unsubscribed(self, peer: Peer, prefix: bytes) -> None:
        """It takes that back. Raises ProtocolError."""

    @abstractmethod
    def placed(self, peer: Peer, place: Place, topic: bytes) -> None:
        """It had received this message of the topic, and none behind it, at the end of this run; the newest
        run comes last. Raises ProtocolError, also where it has subscribed before."""

    @abstractmethod
    def away(self, peer: Peer, seconds: float) -> None:
        """So long it has had no publisher, after one that kept another log. Raises ProtocolError, also where
        it has subscribed before."""


class _InLog:
    """What is known of one log. run: the one that its publisher is in. places: by topic, how far it was read
    in each run, the newest last: a backup may know an earlier one only. told: what is subscribed there, since
    it said where it begins that. large: numbers of messages that it said were too large, by topic, the
    smallest first; larges: how many. late: the newest numbers that another thread may have received, and not
    noted yet."""

    __slots__ = ("large", "larges", "late", "places", "run", "told")

    def __init__(self) -> None:
        self.run = self.larges = 0
        self.late: dict[tuple[bytes, int], None] = {}
        self.places: dict[bytes, list[Place]] = {}
        self.told: frozenset[bytes] = frozenset()
        self.large: dict[bytes, list[int]] = {}

    def set(self, topic: bytes, place: Place) -> None:
        runs = self.places.pop(topic, [])
        if runs and runs[-1].run == place.run:
            runs[-1] = place
        else:
            runs = [*runs, place][-_MOST_RUNS:]
        self.places[topic] = runs  # the newest stands last
        if len(self.places) > _MOST:
            del self.places[next(iter(self.places))]

    def last(self, topic: bytes) -> Place | None:
        """How far it was read."""
        runs = self.places.get(topic)
        return runs[-1] if runs else None

    def add_large(self, topic: bytes, number: int) -> bool:
        """False: it is known."""
        numbers, before = self.large.get(topic, []), self.last(topic)
        if (numbers and number <= numbers[-1]) or (before is not None and number <= before.number):
            return False
        if self.larges < _MOST_LARGE:
            numbers.append(number)
            self.large[topic] = numbers
            self.larges += 1
        return True

    def may_come_late(self, topic: bytes, numbers: range) -> None:
        """They are missing: they did not come, or their thread is not so far."""
        self.late.update(((topic, number), None) for number in numbers)
        while len(self.late) > _MOST_LATE:
            del self.late[next(iter(self.late))]

    def large_before(self, topic: bytes, number: int) -> int:
        """How many of those the program has passed by now."""
        numbers = self.large.pop(topic, [])
        passed = bisect_right(numbers, number)
        if passed < len(numbers):
            self.large[topic] = numbers[passed:]
        self.larges -= passed
        return passed


class Places:
    """Of one socket, by the log of the publisher and the topic. Thread-safe.

    Messages of a topic are numbered one after the other, from 1.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_log: dict[str, _InLog] = {}

    def meet(self, log: KeptLog) -> bool:
        """A connection to its publisher begins. Whether there was one before that said where it begins."""
        with self._lock:
            known = self._in(log.name)
            if known.run != log.run:  # its numbers may be other messages'
                known.run, known.larges, known.large, known.late = log.run, 0, {}, {}
            return bool(known.told)

    def note(self, stream: Any, frames: Sequence[Frame]) -> int:
        """The program has this message. How many before it did not come, since they were not kept so long.
        -1: this one was counted so, and another thread had it in its hands."""
        peer, first = stream.peer, frames[0]
        number, topic = first.sequence, first.topic
        if peer is None or peer.keeps is None or not number or topic is None:
            return 0
        name, run = peer.keeps
        with self._lock:
            known = self._in(name)
            before = known.last(topic)
            if before is not None and before.run == run:
                if number <= before.number:
                    return -1 if known.late.pop((topic, number), False) is None else 0
                known.set(topic, Place(number, run))
                gone = number - before.number - 1
                missed = max(0, gone - known.large_before(topic, number)) if gone else 0
                if 0 < missed <= FEW:
                    known.may_come_late(topic, range(before.number + 1, number))
                return missed
            elif run == known.run:  # and not what came late by a connection to an earlier run
                known.set(topic, Place(number, run))
                known.large_before(topic, number)
        return 0

    def follow(self, peer: Peer, place: Place, topic: bytes) -> None:
        """The publisher goes on behind this message of the topic, whatever is known here."""
        if peer.keeps is not None:
            with self._lock:
                self._in(peer.keeps.name).set(topic, place)

    def too_large(self, peer: Peer, number: int, topic: bytes) -> bool:
        """The publisher has left out this message. False: that was known."""
        if peer.keeps is None or not number:
            return True
        with self._lock:
            return self._in(peer.keeps.name).add_large(topic, number)

    def _in(self, name: str) -> _InLog:
        known = self._by_log.pop(name, None) or _InLog()  # the newest stands last
        self._by_log[name] = known
        if len(self._by_log) > _MOST_LOGS:
            del self._by_log[next(iter(self._by_log))]
        return known

    def of(self, name: str) -> Iterator[bytes]:
        """The control frames that tell a publisher, as much as it listens to."""
        told, left = [], _MOST_TOLD
        with self._lock:
            for topic, runs in reversed(self._in(name).places.items()):
                left -= len(topic)
                if left < 0:
                    break
                told.append((topic, list(runs)))
        return (encode_place(place, topic) for topic, runs in told for place in runs)

    def told(self, name: str, prefixes: Iterable[bytes]) -> None:
        """The publisher holds these subscriptions, and has said where it begins their topics."""
        with self._lock:
            self._in(name).told = frozenset(prefixes)

    def again(self, name: str, order: bytes) -> bytes:
        """The SUBSCRIBE order, marked if the log had it before: topics without a place have begun since."""
        prefix = decode_order(order)[2]
        with self._lock:
            again = prefix in self._in(name).told
        return bytes([Control.SUBSCRIBE_AGAIN]) + order[1:] if again else order
