"""PUSH and PULL: each message goes to one of the pullers, in turn (the core's `peer_choice` chooses it)."""

from __future__ import annotations

from transfer.patterns.base import Pattern, ReceiveMode, SendMode
from transfer.transports.core.wire import SocketType


class Pusher(Pattern):
    """Round robin that skips full and dead peers. Blocks while no peer has room."""

    socket_type = SocketType.PUSH
    peer_types = frozenset({SocketType.PULL})
    send_mode = SendMode.ROUND_ROBIN


class Puller(Pattern):
    """Receives fairly, and sends credits back to the pushers."""

    socket_type = SocketType.PULL
    peer_types = frozenset({SocketType.PUSH})
    receive_mode = ReceiveMode.FAIR
    confirms = True
