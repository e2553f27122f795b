"""How far a SUB has come in what publishers keep, so that it goes on there when its connection was lost."""

from __future__ import annotations

import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from patterns import Subscriber
from patterns.pub_sub import decode_order
from transports.errors import AddressError, ProtocolError
from transports.wire import MAX_TOPIC, Control

if TYPE_CHECKING:
    from patterns.base import Pattern
    from transfer.peer import Peer
    from transports.address import Address
    from transports.core_contract import Frame

#: in the hello of a SUB: where it begins in what is kept
BEGIN = "begin"
#: in the hello of a PUB: the name of its log
KEEPS = "keeps"
#: letters of a log's name
MAX_LOG = 64
#: topics of one log whose places are remembered; those that were not heard of for longest begin anew
_MOST, _MOST_LOGS = 100_000, 64
_PLACE = struct.Struct("<BQ")


def encode_place(number: int, topic: bytes) -> bytes:
    """The data of a PLACE control frame, of either side: behind which message of a topic it goes on."""
    return _PLACE.pack(Control.PLACE, number) + topic


def decode_place(data: bytes) -> tuple[int, bytes]:
    """(number, topic). Raises ProtocolError."""
    if not _PLACE.size < len(data) <= _PLACE.size + MAX_TOPIC:
        raise ProtocolError("control", f"a place of {len(data)} bytes")
    return _PLACE.unpack_from(data)[1], bytes(data[_PLACE.size :])


def check_begin(address: Address, pattern: Pattern, *, bound: bool = False) -> bool:
    """Whether the endpoint says where to begin. Raises AddressError: it cannot, there."""
    if address.begin is None:
        return False
    if bound or not isinstance(pattern, Subscriber) or address.is_directory:
        raise AddressError(
            f"{address}: ?begin= is for a SUB that connects to one publisher",
            hint="`registry://` and `dns://` stand for many" if address.is_directory else "",
        )
    return True


class Keeper(ABC):
    """What keeps the messages of a PUB. Called in the reactor's thread. log: the name of where they are."""

    log: str

    @abstractmethod
    def subscribed(self, peer: Peer, number: int, prefix: bytes, again: bool) -> None:
        """A peer with BEGIN in its hello has subscribed: the keeper gives it all messages, and answers.

        again: not for the first time; topics without a place have begun since. Raises ProtocolError.
        """

    @abstractmethod
    def unsubscribed(self, peer: Peer, prefix: bytes) -> None:
        """It takes that back. Raises ProtocolError."""

    @abstractmethod
    def placed(self, peer: Peer, number: int, topic: bytes) -> None:
        """It has received this message of the topic, and none behind it. Raises ProtocolError, also where it
        has subscribed before."""


class Places:
    """Of one socket, by the log of the publisher and the topic. Thread-safe.

    Messages of a topic are numbered one after the other, from 1.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_log: dict[str, dict[bytes, int]] = {}
        self._told: dict[str, frozenset[bytes]] = {}

    def note(self, stream: Any, frames: Sequence[Frame]) -> int:
        """The program has this message. How many before it did not come: they were not kept so long, or this
        side cannot take them."""
        peer, first = stream.peer, frames[0]
        number, topic = first.sequence, first.topic
        if peer is None or not peer.keeps or not number or topic is None:
            return 0
        with self._lock:
            before = self._by_log.get(peer.keeps, {}).get(topic)
            self._set(peer.keeps, topic, number if before is None else max(before, number))
        return 0 if before is None else max(0, number - before - 1)

    def follow(self, peer: Peer, number: int, topic: bytes) -> None:
        """The publisher goes on behind this message of the topic, whatever is known here."""
        with self._lock:
            self._set(peer.keeps, topic, number)

    def _set(self, log: str, topic: bytes, number: int) -> None:
        places = self._by_log.pop(log, {})  # the newest stands last, here and there
        self._by_log[log] = places
        if len(self._by_log) > _MOST_LOGS:
            self._told.pop(next(iter(self._by_log)), None)
            del self._by_log[next(iter(self._by_log))]
        places.pop(topic, None)
        places[topic] = number
        if len(places) > _MOST:
            del places[next(iter(places))]

    def of(self, log: str) -> Iterator[bytes]:
        """The control frames that tell a publisher."""
        with self._lock:
            places = list(self._by_log.get(log, {}).items())
        return (encode_place(number, topic) for topic, number in places)

    def told(self, log: str, prefixes: Iterable[bytes]) -> None:
        """The publisher holds these subscriptions, and has said where it begins their topics."""
        with self._lock:
            self._told[log] = frozenset(prefixes)

    def again(self, log: str, order: bytes) -> bytes:
        """The SUBSCRIBE order, marked if the log had it before: topics without a place have begun since."""
        prefix = decode_order(order)[2]
        again = prefix in self._told.get(log, ())
        return bytes([Control.SUBSCRIBE_AGAIN]) + order[1:] if again else order
