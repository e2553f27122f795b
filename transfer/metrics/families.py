"""The metrics that a context's numbers make up: their names, types, help texts and labels. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its type, its help text, the names of its labels."""

    kind: str  # counter, gauge, histogram
    text: str
    labels: tuple[str, ...] = ()


FAMILIES: Final[Mapping[str, Family]] = {
    "transfer_messages_sent_total": Family("counter", "Messages taken from callers.", ("socket",)),
    "transfer_messages_received_total": Family("counter", "Messages handed to callers.", ("socket",)),
    "transfer_bytes_sent_total": Family("counter", "Payload bytes taken from callers.", ("socket",)),
    "transfer_bytes_received_total": Family("counter", "Payload bytes handed to callers.", ("socket",)),
    "transfer_drops_total": Family("counter", "Messages dropped.", ("socket", "reason")),
    "transfer_unconfirmed_total": Family(
        "counter", "Messages written to a peer that went before it confirmed them.", ("socket",)
    ),
    "transfer_resent_total": Family("counter", "Messages sent again after their peer went.", ("socket",)),
    "transfer_redistributed_total": Family(
        "counter", "Messages not yet written to a peer that went, given to another.", ("socket",)
    ),
    "transfer_connections_total": Family("counter", "Connections made, both ways.", ("socket",)),
    "transfer_disconnections_total": Family("counter", "Connections that ended.", ("socket",)),
    "transfer_reconnects_total": Family("counter", "Further attempts to connect.", ("socket",)),
    "transfer_silent_peers_total": Family("counter", "Peers given up because they were silent.", ("socket",)),
    "transfer_handshake_failures_total": Family("counter", "Peers refused, or that refused us.", ("reason",)),
    "transfer_protocol_errors_total": Family("counter", "Connections ended for invalid bytes.", ("reason",)),
    "transfer_spool_removals_total": Family(
        "counter", "What a spool removed because nothing had used it for too long.", ("reason",)
    ),
    "transfer_spool_removed_bytes_total": Family(
        "counter",
        "Bytes that a spool removed because nothing had used them for too long.",
        ("reason",),
    ),
    "transfer_fallback_total": Family(
        "counter", "Peers reached by a lesser transport than wished.", ("from", "to", "reason")
    ),
    "transfer_transport_unused_total": Family(
        "counter", "Peers where both sides have a better transport than was asked for.", ("transport",)
    ),
    "transfer_send_blocked_seconds_total": Family("counter", "Time senders waited for room.", ("socket",)),
    "transfer_receive_wait_seconds_total": Family("counter", "Time receivers waited for data.", ("socket",)),
    "transfer_peer_send_blocked_seconds_total": Family(
        "counter", "Time senders waited for room, by the peer that had none.", ("socket", "peer")
    ),
    "transfer_peer_receive_wait_seconds_total": Family(
        "counter", "Time receivers waited, by the peer that sent next.", ("socket", "peer")
    ),
    "transfer_registration_seconds_total": Family("counter", "Time spent registering memory with a device."),
    "transfer_discovery_lookups_total": Family(
        "counter", "Look-ups of endpoints that stand for many: done, or failed.", ("result",)
    ),
    "transfer_discovery_changes_total": Family(
        "counter", "Members that were added, retired, restored, removed, or do not answer.", ("change",)
    ),
    "transfer_discovery_members": Family(
        "gauge", "Members that are listed now, of endpoints that stand for many.", ("socket",)
    ),
    "transfer_local_refused_total": Family(
        "counter", "Large payloads that shared memory had no place for.", ("socket", "reason")
    ),
    "transfer_local_bytes": Family("gauge", "Shared memory: for copies, or of empty().", ("kind",)),
    "transfer_sockets": Family("gauge", "Open sockets.", ("socket",)),
    "transfer_peers": Family("gauge", "Connections now.", ("socket", "peer", "transport")),
    "transfer_queue_messages": Family(
        "gauge", "Messages taken and not yet given to the kernel.", ("socket",)
    ),
    "transfer_queue_bytes": Family("gauge", "Their payload bytes.", ("socket",)),
    "transfer_in_flight_messages": Family("gauge", "Messages written and not yet confirmed.", ("socket",)),
    "transfer_pool_bytes": Family("gauge", "Receive buffers: on lease, or kept for reuse.", ("state",)),
    "transfer_core_info": Family("gauge", "Contexts by the core in use.", ("implementation",)),
    "transfer_request_seconds": Family("histogram", "Round trip of a request: from send to the reply."),
}
