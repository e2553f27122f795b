"""Heartbeats: sent to idle peers, and awaited from silent ones."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from transfer.sockets import drain
from transfer.sockets.connections.state import control
from transfer.sockets.monitor import EventKind
from transfer.sockets.peer import Peer
from transfer.transports.core.wire import HEADER_SIZE, Control
from transfer.transports.errors import Broken, Closed, ProtocolError

if TYPE_CHECKING:
    from transfer.sockets.connections.connection_loss import ConnectionLoss
    from transfer.sockets.connections.state import ConnectionState
    from transfer.sockets.socket import Socket

_SIZE = HEADER_SIZE + 1
#: heartbeats that may wait for a receiver
_GATHERED = 16


class Heartbeats:
    """Checks the peers of one socket, in the reactor's thread."""

    def __init__(self, state: ConnectionState, loss: ConnectionLoss) -> None:
        self._state, self._loss, self._lock = state, loss, state.lock
        self._pulse = 0.0  # seconds between two checks of the peers

    def schedule(self) -> None:
        """Schedules the next check of the peers, often enough for each of the three options."""
        socket = self._state.socket()
        if socket is None or self._state.closing:
            return
        beat = socket.heartbeat_ivl or socket.heartbeat_timeout
        pulse = min((ms for ms in (beat, (socket.frame_timeout + 3) // 4) if ms > 0), default=0) / 1000.0
        with self._lock:
            if "heartbeat" in self._state.timers and pulse < self._pulse:
                self._state.timers.pop("heartbeat").cancel()
            if pulse:
                self._pulse = pulse
                self._state.later("heartbeat", pulse, self._check_peers)

    def _check_peers(self) -> None:
        """Sends heartbeats to idle peers, and ends connections that were silent for too long. One-way."""
        socket = self._state.socket()
        if socket is None or self._state.closing:
            return
        now = time.monotonic_ns()
        with self._lock:
            peers = [peer for peer in self._state.peers.values() if peer.fd >= 0]
        idle = socket.heartbeat_ivl * 1_000_000
        for peer in peers:
            if peer.agreement is None:
                continue
            stream = peer.stream
            beats = idle and not peer.agreement.plain  # a plain peer knows no heartbeats
            # A peer notices data of a foreign stream when its application reads; its reactor notices the
            # control connection.
            way = stream.control if peer.foreign else stream
            try:
                last_sent = max(way.last_sent_ns, peer.since_ns)  # the hello is a sign of life, too
                if beats and now - last_sent >= idle // 2 and not way.queued:
                    stream.send(control(bytes([Control.HEARTBEAT])), force=True)
                if self._is_silent(socket, peer, now):
                    self._state.emit(EventKind.SILENT, peer.endpoint, peer.address)
                    self._state.count("silent")
                    self._loss.lost(stream, Broken("the peer was silent for too long"))
                elif self._is_stalled(socket, peer, now):
                    # Not raised: the event would keep the half-read message alive through the traceback.
                    self._loss.lost(stream, _stalled(socket.frame_timeout))
            except Broken as error:
                self._loss.lost(stream, error)
        if any(map(self._has_gathered, peers)):
            with suppress(Closed):
                socket._readable()
        self.schedule()

    def _has_gathered(self, peer: Peer) -> bool:
        """Whether many control frames wait, and only such, by their length: the next receive would have to
        go through an hour of heartbeats first."""
        unread = drain.unread(peer) if self._state.receives else 0
        return unread >= _GATHERED * _SIZE and unread % _SIZE == 0

    def _is_silent(self, socket: Socket, peer: Peer, now: int) -> bool:
        """Whether a peer is silent. Unread bytes are a sign of life: the application is only slow to read."""
        if not peer.heartbeat or socket.heartbeat_timeout <= 0:
            return False
        allowed = max(socket.heartbeat_timeout, 3 * peer.heartbeat) * 1_000_000
        last = max(peer.stream.last_received_ns, peer.since_ns)
        return now - last > allowed and drain.unread(peer) == 0

    def _is_stalled(self, socket: Socket, peer: Peer, now: int) -> bool:
        """Whether a peer is silent in the middle of a message. Between messages it may be silent for ever."""
        allowed = socket.frame_timeout * 1_000_000
        stream = peer.stream
        if allowed <= 0 or not stream.midway or drain.unread(peer):
            return False
        # Checked again after the kernel's queue, which a thread may have emptied in this moment.
        return bool(stream.midway) and now - stream.last_received_ns > allowed


def _stalled(milliseconds: int) -> ProtocolError:
    return ProtocolError(
        "stalled",
        f"the peer was silent for {milliseconds / 1000:g} s inside a message",
        hint="frame_timeout sets the time",
    )
