"""PUB and SUB: the publisher receives, applies and acknowledges subscriptions.

On the wire a subscription is a control frame: kind (1 byte), a number chosen by the subscriber
(4 bytes), the prefix. The publisher answers SUBSCRIBED with that number, so that the subscriber
knows from when on it receives every message.
"""

from __future__ import annotations

import struct

from transfer.patterns.base import Pattern, Peer, ReceiveMode, SendMode
from transfer.patterns.subscriptions import Subscriptions
from transfer.transports.core.wire import MAX_CONTROL, MAX_TOPIC, Control, SocketType
from transfer.transports.errors import ProtocolError, UsageError

_ORDER = struct.Struct("<BI")
#: bytes of a subscription that fit into a control frame
_MAX_PREFIX = MAX_CONTROL - _ORDER.size
#: subscriptions of one peer, and their bytes: each takes memory
MAX_SUBSCRIPTIONS, MAX_SUBSCRIBED = 100_000, 16 << 20


def encode_order(kind: Control, number: int, prefix: bytes = b"") -> bytes:
    """The data of a SUBSCRIBE, UNSUBSCRIBE or SUBSCRIBED control frame."""
    return _ORDER.pack(kind, number) + prefix


def decode_order(data: bytes) -> tuple[int, int, bytes]:
    """(kind, number, prefix). Raises ProtocolError."""
    if len(data) < _ORDER.size:
        raise ProtocolError("control", f"a subscription of {len(data)} bytes")
    kind, number = _ORDER.unpack_from(data)
    prefix = bytes(data[_ORDER.size :])
    if len(prefix) > MAX_TOPIC:
        raise ProtocolError("control", f"a subscription of {len(prefix)} bytes")
    return kind, number, prefix


class Publisher(Pattern):
    """Sends a message to every peer with a matching subscription; never blocks."""

    socket_type = SocketType.PUB
    peer_types = frozenset({SocketType.SUB, SocketType.XSUB})
    send_mode = SendMode.FANOUT
    #: False: the program decides which messages a peer gets
    applies_subscriptions = True

    def __init__(self) -> None:
        super().__init__()
        self._subscriptions: dict[Peer, Subscriptions] = {}

    def attach(self, peer: Peer, socket_type: SocketType, identity: bytes = b"") -> Peer | None:
        super().attach(peer, socket_type, identity)
        self._subscriptions[peer] = Subscriptions()
        return None

    def detach(self, peer: Peer) -> bool:
        self._subscriptions.pop(peer, None)
        return super().detach(peer)

    def subscribe(self, peer: Peer, prefix: bytes) -> bool:
        """Adds a subscription of the peer. False: it has too many."""
        known = self._subscriptions.get(peer)
        if known is None or len(known) >= MAX_SUBSCRIPTIONS or known.nbytes + len(prefix) > MAX_SUBSCRIBED:
            return False
        known.add(prefix)
        return True

    def unsubscribe(self, peer: Peer, prefix: bytes) -> bool:
        """Removes one subscription of the peer. False: there was none."""
        known = self._subscriptions.get(peer)
        return known is not None and known.remove(prefix)

    def wanting(self, topic: bytes) -> int:
        """The number of peers that subscribe to messages of this topic."""
        return sum(known.matches(topic) for known in self._subscriptions.values())

    @property
    def ready(self) -> int:
        """The number of peers with a subscription."""
        return sum(1 for known in self._subscriptions.values() if len(known))


class Subscriber(Pattern):
    """Sends its subscriptions to each publisher, and filters received messages again."""

    socket_type = SocketType.SUB
    peer_types = frozenset({SocketType.PUB, SocketType.XPUB})
    receive_mode = ReceiveMode.FILTERED

    def __init__(self) -> None:
        super().__init__()
        self.subscriptions = Subscriptions()
        self._waiting: dict[Peer, set[int]] = {}
        self._number = 0

    def attach(self, peer: Peer, socket_type: SocketType, identity: bytes = b"") -> Peer | None:
        super().attach(peer, socket_type, identity)
        self._waiting[peer] = set()
        return None

    def detach(self, peer: Peer) -> bool:
        self._waiting.pop(peer, None)
        return super().detach(peer)

    def introduce(self, peer: Peer) -> list[bytes]:
        """Returns the control frames that send a new peer all subscriptions."""
        return [self._order(peer, prefix) for prefix in self.subscriptions]

    def subscribe(self, prefix: bytes) -> list[tuple[Peer, bytes]]:
        """Adds a subscription; returns the control frame for each peer."""
        if len(prefix) > _MAX_PREFIX:
            raise UsageError(f"a subscription has at most {_MAX_PREFIX} bytes, not {len(prefix)}")
        self.subscriptions.add(prefix)
        return [(peer, self._order(peer, prefix)) for peer in self.peers]

    def unsubscribe(self, prefix: bytes) -> list[tuple[Peer, bytes]]:
        """Removes a subscription. Raises UsageError if there is none."""
        if not self.subscriptions.remove(prefix):
            raise UsageError(f"{prefix!r} is not subscribed")
        return [(peer, encode_order(Control.UNSUBSCRIBE, 0, prefix)) for peer in self.peers]

    def acknowledged(self, peer: Peer, number: int) -> None:
        """Records that the publisher has the subscription of this number."""
        if peer in self._waiting:
            self._waiting[peer].discard(number)

    def is_held(self, peer: Peer) -> bool:
        """Whether the publisher has all subscriptions."""
        return not self._waiting.get(peer, {0})

    @property
    def ready(self) -> int:
        """The number of publishers that have all subscriptions."""
        if not len(self.subscriptions):
            return 0
        return sum(1 for missing in self._waiting.values() if not missing)

    def _order(self, peer: Peer, prefix: bytes) -> bytes:
        self._number = (self._number + 1) & 0xFFFFFFFF
        self._waiting[peer].add(self._number)
        return encode_order(Control.SUBSCRIBE, self._number, prefix)
