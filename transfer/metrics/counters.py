"""Reads the counters of sockets and peers, and keeps the totals of closed ones.

The fast path only adds to integers. This module maps them to the metrics of `transfer.metrics`. Pure apart
from reading: no prometheus, no clock, no thread.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from transfer.transports.core.wire import SocketType
from transfer.transports.handshake.identity import ONE_CONNECTION
from transfer.transports.req_rep_turn import Turn

if TYPE_CHECKING:
    from transfer.sockets.peer import Peer

#: (name of the metric, values of its labels)
Key = tuple[str, tuple[str, ...]]

#: peers with a name in a metric; all others share a name, so that a busy server's metrics stay small
MAX_PEERS: Final = 100
OTHER_PEERS: Final = "other"

#: keys of `Connections.counts`, and their counters; a reason may follow the key after a colon
_LINK_COUNTS: Final = {
    "connected": "transfer_connections_total",
    "disconnected": "transfer_disconnections_total",
    "retried": "transfer_reconnects_total",
    "unconfirmed": "transfer_unconfirmed_total",
    "resent": "transfer_resent_total",
    "redistributed": "transfer_redistributed_total",
    "silent": "transfer_silent_peers_total",
}
_LINK_REASONS: Final = {
    "looked_up": "transfer_discovery_lookups_total",
    "member": "transfer_discovery_changes_total",
    "accept_failed": "transfer_handshake_failures_total",
    "protocol": "transfer_protocol_errors_total",
    "handshake": "transfer_handshake_failures_total",
    "refused": "transfer_handshake_failures_total",
    "unused": "transfer_transport_unused_total",
}


class LatencyCounts:
    """A histogram of a REQ's round trips: buckets from 16 µs to 8.4 s, each twice the one before."""

    __slots__ = ("counts", "total_ns")

    def __init__(self) -> None:
        self.counts = [0] * (len(Turn.BOUNDS) + 1)
        self.total_ns = 0

    def merge(self, other: LatencyCounts | Turn) -> None:
        """Adds another histogram."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.total_ns += other.total_ns

    def merge_turn(self, socket: Any) -> None:
        """Adds the round trips of a REQ; other sockets have none."""
        pattern = socket._links.state.pattern
        if pattern.socket_type is SocketType.REQ:
            self.merge(pattern.turn)


class Tally:
    """A context's totals of closed sockets and peers, so that a counter never decreases."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended: dict[Key, float] = defaultdict(float)
        self._names: set[str] = set()
        #: round trips of requests: from `send` to the reply
        self.requests = LatencyCounts()

    def peer_ended(self, socket_type: str, peer: Peer) -> None:
        """Adds a peer's counters. Call it once for each peer, after their last change."""
        self.add(peer_counts(socket_type, peer, self.name_of(peer)))

    def socket_ended(self, socket: Any) -> None:
        """Adds a closed socket's counters. Call it once for each socket, after their last change."""
        pattern = socket._links.state.pattern
        label = (pattern.socket_type.name,)
        used = (
            socket.messages_sent or socket.messages_received or socket.blocked_ns or socket.waited_ns
            or socket.dropped_no_peer or socket.filtered or pattern.drops or socket._links.state.counts
        )  # fmt: skip
        if not used and ("transfer_messages_sent_total", label) in self._ended:
            return  # as most sockets of a program that makes one for each question
        self.add(socket_counts(socket))
        self.requests.merge_turn(socket)

    def name_of(self, peer: Peer) -> str:
        """Returns the peer's name in metrics. Only the first MAX_PEERS have one."""
        name = peer_name(peer)
        if name in self._names:
            return name
        with self._lock:
            if len(self._names) >= MAX_PEERS:
                return OTHER_PEERS
            self._names.add(name)
            return name

    def add(self, counts: Iterable[tuple[Key, float]]) -> None:
        with self._lock:
            for key, value in counts:
                self._ended[key] += value

    def ended(self) -> dict[Key, float]:
        """Returns a copy of the totals."""
        with self._lock:
            return dict(self._ended)


def socket_counts(socket: Any) -> Iterator[tuple[Key, float]]:
    """Yields the counters of one socket, without those of its peers."""
    counts: Mapping[str, int] = socket._links.state.counts
    drops: Mapping[str, int] = socket._links.state.pattern.drops
    socket_type = socket._links.state.pattern.socket_type.name
    label = (socket_type,)
    yield ("transfer_messages_sent_total", label), socket.messages_sent
    yield ("transfer_messages_received_total", label), socket.messages_received
    yield ("transfer_bytes_sent_total", label), socket.bytes_sent
    yield ("transfer_bytes_received_total", label), socket.bytes_received
    yield ("transfer_send_blocked_seconds_total", label), socket.blocked_ns / 1e9
    yield ("transfer_receive_wait_seconds_total", label), socket.waited_ns / 1e9
    yield ("transfer_drops_total", (socket_type, "no_peer")), socket.dropped_no_peer
    yield ("transfer_drops_total", (socket_type, "filtered")), socket.filtered
    for reason, count in list(drops.items()):
        yield ("transfer_drops_total", (socket_type, reason)), count
    for word, count in list(counts.items()):
        name, _, reason = word.partition(":")
        if name == "missed":  # by a SUB that reads a publisher's log
            yield ("transfer_drops_total", (socket_type, name)), count
        elif name == "gpu":
            yield ("transfer_gpu_sends_total", (socket_type, reason)), count
        elif name == "gpu_received":
            yield ("transfer_gpu_receives_total", (socket_type, reason)), count
        elif name in _LINK_COUNTS:
            yield (_LINK_COUNTS[name], label), count
        elif name == "fallback":  # preferred transport, used transport, reason
            yield ("transfer_fallback_total", tuple(reason.split(":"))), count
        elif name in _LINK_REASONS:
            yield (_LINK_REASONS[name], (reason or "unavailable",)), count


def peer_counts(socket_type: str, peer: Peer, name: str) -> Iterator[tuple[Key, float]]:
    """Yields the counters of one peer, under this name."""
    stream = peer.stream
    labels = (socket_type, name)
    yield ("transfer_peer_send_blocked_seconds_total", labels), stream.blocked_ns / 1e9
    yield ("transfer_peer_receive_wait_seconds_total", labels), stream.waited_ns / 1e9
    yield ("transfer_drops_total", (socket_type, "full")), stream.dropped
    refused: Mapping[str, int] = getattr(getattr(stream, "carrier", None), "refused", {})
    for reason, count in list(refused.items()):
        yield ("transfer_local_refused_total", (socket_type, reason)), count


def peer_gauges(socket_type: str, peer: Peer, name: str) -> Iterator[tuple[Key, float]]:
    """Yields the gauges of one peer, under this name."""
    transport = peer.agreement.choice.transport if peer.agreement else "none"
    yield ("transfer_peers", (socket_type, name, transport)), 1
    yield ("transfer_queue_messages", (socket_type,)), peer.stream.queued
    yield ("transfer_queue_bytes", (socket_type,)), peer.stream.queued_bytes
    yield ("transfer_in_flight_messages", (socket_type,)), peer.unconfirmed


def peer_name(peer: Peer) -> str:
    """Returns a peer's name for metrics: its permanent identity, the endpoint connected to, or its host.

    It never contains a client's port, which changes with each connection: every name costs memory in the
    monitoring system for as long as it keeps data.
    """
    identity = peer.agreement.remote.routing_id if peer.agreement is not None else b""
    if identity and not identity.startswith(ONE_CONNECTION):
        return identity.decode("utf-8", "backslashreplace")
    if peer.source.connector is None and peer.address.count(":"):
        return peer.address.rpartition(":")[0]
    return peer.endpoint
