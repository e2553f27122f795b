"""The metrics of a context: their names, types, help texts and labels. Pure."""

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
        "counter", "Messages written to a peer that ended before it confirmed them.", ("socket",)
    ),
    "transfer_resent_total": Family("counter", "Messages resent after their peer disconnected.", ("socket",)),
    "transfer_redistributed_total": Family(
        "counter", "Unwritten messages given to another peer after their peer ended.", ("socket",)
    ),
    "transfer_connections_total": Family(
        "counter", "Connections made, accepted and connected ones.", ("socket",)
    ),
    "transfer_disconnections_total": Family("counter", "Connections that ended.", ("socket",)),
    "transfer_reconnects_total": Family("counter", "Repeated attempts to connect.", ("socket",)),
    "transfer_silent_peers_total": Family(
        "counter", "Peers disconnected because they were silent.", ("socket",)
    ),
    "transfer_handshake_failures_total": Family(
        "counter", "Handshakes that failed, on either side.", ("reason",)
    ),
    "transfer_protocol_errors_total": Family(
        "counter", "Connections closed because of invalid bytes.", ("reason",)
    ),
    "transfer_spool_removals_total": Family(
        "counter",
        "Runs, rows and groups that a spool removed because they were unused for too long.",
        ("reason",),
    ),
    "transfer_spool_removed_bytes_total": Family(
        "counter",
        "Bytes that a spool removed because they were unused for too long.",
        ("reason",),
    ),
    "transfer_fallback_total": Family(
        "counter", "Peers connected by a lesser transport than the requested one.", ("from", "to", "reason")
    ),
    "transfer_transport_unused_total": Family(
        "counter",
        "Peers for which both sides have a better transport than the requested one.",
        ("transport",),
    ),
    "transfer_send_blocked_seconds_total": Family(
        "counter", "Time that senders waited for queue space.", ("socket",)
    ),
    "transfer_receive_wait_seconds_total": Family(
        "counter", "Time that receivers waited for data.", ("socket",)
    ),
    "transfer_peer_send_blocked_seconds_total": Family(
        "counter",
        "Time that senders waited for queue space, by the peer whose queue was full.",
        ("socket", "peer"),
    ),
    "transfer_peer_receive_wait_seconds_total": Family(
        "counter", "Time that receivers waited for data, by the peer that sent next.", ("socket", "peer")
    ),
    "transfer_registration_seconds_total": Family(
        "counter", "Time spent registering memory with a device; rdma only."
    ),
    "transfer_discovery_lookups_total": Family(
        "counter", "Look-ups of dns:// and registry:// endpoints, by result: done, or failed.", ("result",)
    ),
    "transfer_discovery_changes_total": Family(
        "counter",
        "Members of dns:// and registry:// endpoints added, retired, restored, removed, or not answering.",
        ("change",),
    ),
    "transfer_discovery_members": Family(
        "gauge", "Members of dns:// and registry:// endpoints.", ("socket",)
    ),
    "transfer_gpu_sends_total": Family(
        "counter",
        "Messages with tensors on a GPU of 64 KiB or more, by the way of their bytes.",
        ("socket", "route"),
    ),
    "transfer_gpu_receives_total": Family(
        "counter",
        "Messages with tensors for a GPU of 64 KiB or more, by the way of their bytes.",
        ("socket", "route"),
    ),
    "transfer_local_refused_total": Family(
        "counter",
        "Large payloads for which shared memory, or that of a GPU, had no room.",
        ("socket", "reason"),
    ),
    "transfer_local_bytes": Family(
        "gauge", "Bytes of shared memory, by kind: segments for copies, tensors of empty().", ("kind",)
    ),
    "transfer_sockets": Family("gauge", "Open sockets.", ("socket",)),
    "transfer_peers": Family("gauge", "Open connections.", ("socket", "peer", "transport")),
    "transfer_queue_messages": Family("gauge", "Messages that wait for the kernel.", ("socket",)),
    "transfer_queue_bytes": Family("gauge", "Payload bytes that wait for the kernel.", ("socket",)),
    "transfer_in_flight_messages": Family("gauge", "Messages written and not yet confirmed.", ("socket",)),
    "transfer_pool_bytes": Family(
        "gauge", "Bytes of receive buffers, by state: in_use, or cached for reuse.", ("state",)
    ),
    "transfer_core_info": Family(
        "gauge", "Contexts, by the implementation of their core.", ("implementation",)
    ),
    "transfer_request_seconds": Family("histogram", "Round trip of a request, from its send to the reply."),
}
