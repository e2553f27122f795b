"""Adapts the byte limits of the peers' queues to their throughput and to the free memory."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from transfer.sockets.adaptive_limit import LEAST, AdaptiveLimit
from transfer.transports.shm.memory import available_memory

if TYPE_CHECKING:
    from transfer.sockets.connections.state import ConnectionState

#: seconds between two checks
_PAUSE = 0.1
#: the limit if there is no other
_UNLIMITED = 1 << 62


class QueueLimits:
    """For sockets with the option `adaptive_hwm`."""

    def __init__(self, state: ConnectionState) -> None:
        self._state = state
        self._checked_at = 0.0

    def schedule(self) -> None:
        """Schedules the next check."""
        socket = self._state.socket()
        if socket is not None and socket.adaptive_hwm and "limits" not in self._state.timers:
            self._checked_at = time.monotonic()
            self._state.later("limits", _PAUSE, self._adapt)

    def _adapt(self) -> None:
        socket = self._state.socket()
        if socket is None or self._state.closing:
            return
        delay = socket.adaptive_hwm / 1000
        peers = list(self._state.peers.values())
        if not delay:
            for peer in peers:
                peer.queue_limit = None
            socket._limits_changed()
            return
        now = time.monotonic()
        seconds, self._checked_at = max(now - self._checked_at, 1e-3), now
        raised = False
        most = self._most([peer.stream.queued_bytes for peer in peers], socket.sndhwm_bytes or _UNLIMITED)
        for peer in peers:
            stream = peer.stream
            if peer.pending:  # there is no connection that could take anything
                stream.send_high_water_bytes = most
                continue
            queued = stream.queued_bytes
            taken = stream.sent_bytes - queued
            if peer.queue_limit is None:
                peer.queue_limit = AdaptiveLimit(most, taken)
            before = peer.queue_limit.nbytes
            stream.send_high_water_bytes = peer.queue_limit.update(taken, queued, seconds, delay, most)
            raised |= peer.queue_limit.nbytes > before
        if raised:
            socket._notify()
        self._state.later("limits", _PAUSE, self._adapt)

    @staticmethod
    def _most(queued: list[int], option: int) -> int:
        """The largest limit of a queue, in bytes: all queues together may use half of the free memory."""
        if not any(queued):
            return option
        share = (available_memory() // 2 + sum(queued)) // len(queued)
        return min(option, max(LEAST, share))
