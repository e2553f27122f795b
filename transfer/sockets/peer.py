"""The state of one peer of a socket, and of one endpoint that it bound or connected."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from transfer.sockets.tracker import Tracker
from transfer.transports.address import Address
from transfer.transports.connect.connection import Acceptor, Connector
from transfer.transports.core.wire import SocketType

if TYPE_CHECKING:
    from transfer.patterns.base import OutFrame
    from transfer.sockets.adaptive_limit import AdaptiveLimit
    from transfer.sockets.connections.directory_connector import DirectoryConnector
    from transfer.sockets.connections.orphans import Orphan
    from transfer.sockets.connections.topic_positions import LogId
    from transfer.transports.errors import TransferError
    from transfer.transports.handshake.hello import Agreement


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """The state of one peer at one moment.

    Attributes:
        endpoint: this side's endpoint through which the peer is connected.
        address: the peer's address.
        transport, reason: the transport that carries the data, and why it was chosen.
        device: the network device, if the transport names one.
        confirmed: messages that the peer has consumed, as far as it has acknowledged them.
        unconfirmed: messages given to the kernel, not confirmed; 0 for peers that never confirm (PUB/SUB).
        encrypted: whether the messages go through TLS.
        authenticated: whether the peer proved its identity by a certificate or a token.
        queue_limit: payload bytes that may be queued for the peer now.
        gpu: how the socket's last tensor on a GPU was sent, and why so: "mapped: every peer maps ...".
        gpu_received: the same of the socket's last tensor that was received for a GPU.
    """

    endpoint: str
    address: str
    transport: str
    reason: str
    device: str
    identity: bytes
    socket_type: SocketType
    sent: int
    received: int
    queued: int
    confirmed: int
    unconfirmed: int
    encrypted: bool = False
    authenticated: bool = False
    queue_limit: int = 0
    gpu: str = ""
    gpu_received: str = ""


class Peer:
    """One connection of a socket, or the queue of an endpoint that is not connected yet."""

    __slots__ = (
        "_confirming",
        "address",
        "agreement",
        "attached",
        "catch_up",
        "confirms",
        "confirms_ours",
        "ended",
        "endpoint",
        "fd",
        "foreign",
        "heartbeat",
        "log",
        "loss",
        "moved",
        "queue_limit",
        "read_later",
        "reading",
        "refusal",
        "retained",
        "settled",
        "since_ns",
        "socket_type",
        "source",
        "stream",
        "trackers",
        "unsubscribed",
        "watched",
    )

    def __init__(self, stream: Any, source: Endpoint, socket_type: SocketType) -> None:
        self.stream = stream
        self.source = source
        self.socket_type = socket_type
        self.endpoint = str(source.address)
        self.address = ""
        self.agreement: Agreement | None = None
        #: whether the core sends to it and reads from it
        self.attached = False
        #: the peer has closed its side: no more data arrives
        self.ended = False
        #: reading its control frames continues after the other peers' turn
        self.read_later = False
        #: the peer sends credits
        self.confirms = False
        #: this side sends it credits
        self.confirms_ours = False
        #: time.monotonic_ns() when it was attached
        self.since_ns = 0
        #: milliseconds between the heartbeats that the peer announced; 0: none
        self.heartbeat = 0
        #: the descriptor that the reactor watches, kept since the stream forgets it when it closes
        self.fd = -1
        #: the descriptor that the reactor reads, if not `fd`
        self.watched = -1
        #: the stream is not the core's; then `fd` is its control connection, or -1
        self.foreign = False
        #: (number of the message in the stream, its tracker), in order
        self.trackers: deque[tuple[int, Tracker]] = deque()
        #: (number, message) not confirmed yet, for the option `resend`
        self.retained: deque[tuple[int, list[OutFrame]]] = deque()
        #: the peer is lost, and messages from this number on had not left for it; None: it is connected
        self.settled: int | None = None
        #: of a lost peer: messages without a tracker that had not left for it, by their number
        self.moved: dict[int, Orphan] = {}
        #: where a subscriber begins in this PUB's log, "old" or "new"; "": it wants new messages only
        self.catch_up = ""
        #: the log of a publisher, if this socket reads it from a position
        self.log: LogId | None = None
        #: prefixes unsubscribed at that publisher: it may have sent messages that this socket dropped
        self.unsubscribed: set[bytes] = set()
        #: the number of its loss among those of its socket
        self.loss = 0
        #: why it ends the connection, in its words, and the number of the message that it refuses, or 0
        self.refusal: tuple[str, int] | None = None
        #: the adaptive limit of its queue (option `adaptive_hwm`)
        self.queue_limit: AdaptiveLimit | None = None
        #: held while control frames are read and processed
        self.reading = threading.RLock()
        self._confirming = threading.Lock()

    @property
    def pending(self) -> bool:
        """Whether the queue has no connection yet."""
        return self.agreement is None

    @property
    def origin(self) -> Hashable:
        """The same for connections that replace each other: those of one connecting endpoint, here or there.
        None: the peer does not say which it is."""
        if self.source.outgoing:
            return self.source
        instance = "" if self.agreement is None else self.agreement.remote.instance
        return (self.source, instance) if instance else None

    @property
    def unconfirmed(self) -> int:
        stream = self.stream
        if not self.confirms:
            return 0
        return max(0, int(stream.sent - stream.queued - stream.confirmed))

    def note(self, number: int, tracker: Tracker | None, message: list[OutFrame] | None) -> bool:
        """Remembers a sent message. False: the peer is lost, and its messages are settled already."""
        with self._confirming:
            if self.settled is not None:
                return False
            if tracker is not None:
                _put_in_order(self.trackers, number, tracker)
            if message is not None:
                _put_in_order(self.retained, number, message)
        return True

    def settle(self, first: int) -> None:
        """Marks the peer as lost: messages from number `first` on had not left for it."""
        with self._confirming:
            self.settled = first

    def part(self) -> None:
        """Replaces the settled peer in its stream by the little that late calls need. Both are freed without
        the garbage collector then."""
        self.stream.peer = LostPeer(self)

    def confirm(self, consumed: int) -> None:
        """Records that the peer has consumed this many messages of the stream in all."""
        stream = self.stream
        with self._confirming:
            if consumed > stream.confirmed:
                stream.confirmed = consumed
            while self.trackers and self.trackers[0][0] <= consumed:
                self.trackers.popleft()[1]._confirm()
            while self.retained and self.retained[0][0] <= consumed:
                self.retained.popleft()

    def answered(self) -> None:
        """Records a reply, which confirms every earlier request."""
        if self.trackers or self.retained:
            self.confirm(self.stream.sent)

    def info(self, gpu: str, gpu_received: str) -> PeerInfo:
        agreement = self.agreement
        stream = self.stream
        choice = None if agreement is None else agreement.choice
        return PeerInfo(
            self.endpoint,
            self.address,
            choice.transport if choice else "",
            choice.reason if choice else "not connected yet",
            getattr(stream, "device", "") or getattr(getattr(stream, "carrier", None), "device", ""),
            agreement.remote.routing_id if agreement else b"",
            self.socket_type,
            stream.sent,
            stream.received,
            stream.queued,
            stream.confirmed,
            self.unconfirmed,
            agreement is not None and agreement.data_encrypted,
            agreement is not None and agreement.authenticated,
            stream.send_high_water_bytes,
            gpu,
            gpu_received,
        )


class LostPeer:
    """What a stream keeps of its settled peer: for a send that returns only now, a late credit, or a message
    that is received only now."""

    __slots__ = (
        "agreement", "confirms", "endpoint", "log", "loss", "moved", "pending", "settled",
    )  # fmt: skip

    def __init__(self, peer: Peer) -> None:
        self.confirms, self.pending, self.log = peer.confirms, peer.pending, peer.log
        self.settled, self.moved, self.loss = peer.settled, peer.moved, peer.loss
        self.endpoint = peer.endpoint
        self.agreement = peer.agreement

    def note(self, number: int, tracker: Tracker | None, message: list[OutFrame] | None) -> bool:
        """See Peer."""
        return False

    def answered(self) -> None:
        """Does nothing: all messages are settled."""


def _put_in_order(noted: deque[tuple[int, T]], number: int, what: T) -> None:
    """Inserts in order: threads that send at once record their messages slightly out of order."""
    place = len(noted)
    while place and noted[place - 1][0] > number:
        place -= 1
    noted.insert(place, (number, what))


class Endpoint:
    """A bound or connected endpoint of a socket, or a member of an endpoint that stands for many."""

    __slots__ = (
        "acceptor",
        "address",
        "attempts",
        "caught_up",
        "connector",
        "error",
        "follower",
        "instance",
        "last_seen",
        "outgoing",
        "peer",
        "queue",
        "since",
    )

    def __init__(self, address: Address, since: float, outgoing: bool) -> None:
        self.address = address
        #: connected, not bound
        self.outgoing = outgoing
        self.acceptor: Acceptor | None = None
        self.connector: Connector | None = None
        #: of a connector: its connection, if it has one
        self.peer: Peer | None = None
        #: of a connector with lazy connect: the queue until there is a connection
        self.queue: Peer | None = None
        #: time.monotonic() of the first attempt, for hints
        self.since = since
        #: of a connector: its connection's publisher, which has a log, has confirmed all subscriptions
        self.caught_up = False
        #: of a connector: time.monotonic() of the last sign of such a publisher; None: there was none
        self.last_seen: float | None = None
        #: of a connector: names it in its hellos; "" before the first
        self.instance = ""
        self.attempts = 0
        self.error: TransferError | None = None
        #: of a member: the DirectoryConnector that follows its endpoint
        self.follower: DirectoryConnector | None = None

    def close(self) -> None:
        """Stops listening or connecting; existing connections stay. Idempotent."""
        if self.acceptor is not None:
            self.acceptor.close()
        if self.connector is not None:
            self.connector.close()
