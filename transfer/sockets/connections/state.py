"""The data of a socket's connections, and the small functions that all of their parts use."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from transfer.patterns import Publisher, Subscriber, XPublisher
from transfer.patterns.base import Pattern, ReceiveMode, SendMode
from transfer.sockets import drain
from transfer.sockets.connections.upstream import UpstreamMessages
from transfer.sockets.monitor import Event, EventKind, Monitor
from transfer.sockets.peer import Endpoint, Peer
from transfer.throttled_log import ThrottledLog
from transfer.transports.core.wire import Flag
from transfer.transports.errors import Closed, Fatal
from transfer.transports.waiters import Waiters

if TYPE_CHECKING:
    from transfer.patterns.base import OutFrame
    from transfer.sockets.connections.topic_positions import CatchUpSource
    from transfer.sockets.context import Context
    from transfer.sockets.socket import Socket

logger = logging.getLogger("transfer")

#: counters of one socket
_MOST_WORDS = 500


def control(data: bytes) -> list[OutFrame]:
    """Makes a message of one control frame."""
    return [(Flag.CONTROL, 0, None, None, data)]


class ConnectionState:
    """Endpoints and peers of a socket. It refers to the socket weakly: the garbage collector can free an
    unused socket although the reactor refers to its connections."""

    def __init__(self, socket: Socket, context: Context, pattern: Pattern) -> None:
        self.socket = weakref.ref(socket)
        self.context = context
        self.pattern = pattern
        #: by stream; changed by `add` and `remove`
        self.peers: dict[Any, Peer] = {}
        #: one each, but for moments
        self._by_origin: dict[Hashable, list[Peer]] = {}
        self.endpoints: list[Endpoint] = []
        self.monitors: list[Monitor] = []
        #: lost peers whose unread messages do not yet replace their stream
        self.ending_peers: list[Peer] = []
        #: number of lost connections
        self.losses = 0
        #: plain counters by a constant word, read by the metrics
        self.counts: dict[str, int] = {}
        #: how the last tensor on a GPU was sent, and the last one for a GPU received, and why so
        self.gpu = self.gpu_received = ""
        #: why no further connect can succeed (policy `require`)
        self.fatal: Fatal | None = None
        self.closing = False
        #: log lines that peers cause, limited in rate
        self.throttled = ThrottledLog(logger)
        # Never held while the core is called, except for sends on one stream: the core calls
        # `lost` from any thread and may hold locks of its own then.
        self.lock = threading.RLock()
        self.changed = Waiters(self.lock)
        self.timers: dict[str, Any] = {}
        #: sends subscribers messages from a PUB's log
        self.catch_up_source: CatchUpSource | None = None
        #: what transports keep for all connections of this socket, by name; closed with it
        self.own: dict[str, Any] = {}
        #: descriptors of foreign streams that the reactor watches, and how many streams share each
        self._foreign_fds: dict[int, int] = {}
        #: what an XPUB receives
        self.upstream = UpstreamMessages(self, pattern) if isinstance(pattern, XPublisher) else None
        self.sends = pattern.send_mode is not SendMode.NONE or pattern.ordered
        self.receives = pattern.receive_mode is not ReceiveMode.NONE and not pattern.reads_at_once

    # -- peers, with the lock ---------------------------------------------------------------------

    def add(self, peer: Peer) -> None:
        """A peer, or the queue that becomes one."""
        self.peers[peer.stream] = peer
        if (origin := peer.origin) is not None:
            same = self._by_origin.setdefault(origin, [])
            if peer not in same:
                same.append(peer)

    def remove(self, stream: Any) -> Peer | None:
        peer = self.peers.pop(stream, None)
        if peer is not None and (origin := peer.origin) is not None:
            self._by_origin[origin].remove(peer)
            if not self._by_origin[origin]:
                del self._by_origin[origin]
        return peer

    def remove_all(self) -> None:
        self.peers.clear()
        self._by_origin.clear()

    def of_same_origin(self, peer: Peer) -> list[Peer]:
        """The peers with its origin, itself among them."""
        return list(self._by_origin.get(peer.origin, ()))

    # -- for display --------------------------------------------------------------------------------

    @property
    def ready(self) -> int:
        """Number of peers that messages can reach: connected, with their subscriptions known."""
        pattern = self.pattern
        with self.lock:  # the reactor adds and removes peers meanwhile
            if isinstance(pattern, (Publisher, Subscriber)):
                return pattern.ready
            return sum(1 for peer in self.peers.values() if peer.attached)

    def has_ready(self, n: int) -> bool:
        """Whether `n` peers are ready. It looks at each only when there are enough of them."""
        return len(self.peers) >= n and self.ready >= n

    @property
    def followed(self) -> int:
        """Number of members that are listed now, of all endpoints that stand for many."""
        return sum(getattr(record.connector, "listed", 0) for record in list(self.endpoints))

    def emit(
        self,
        kind: EventKind,
        endpoint: str = "",
        peer: str = "",
        reason: str = "",
        *,
        count: int = 0,
        error: BaseException | None = None,
    ) -> None:
        """Reports an event to the monitors, if there are any, and to the log at DEBUG."""
        if logger.isEnabledFor(logging.DEBUG):
            kind_of_socket = self.pattern.socket_type.name
            logger.debug(
                "%s: %s %s %s", kind_of_socket, kind, endpoint or peer, reason or error or count or ""
            )
        if self.monitors:
            event = Event(kind, endpoint, peer, reason, count, error)
            for monitor in list(self.monitors):
                monitor._put(event)

    def new_monitor(self) -> Monitor:
        """A new Monitor of these connections."""

        def forget(monitor: Monitor) -> None:
            if monitor in self.monitors:
                self.monitors.remove(monitor)

        monitor = Monitor(forget)
        self.monitors.append(monitor)
        return monitor

    # -- for the parts of `Connections` --------------------------------------------------------------

    def resize_buffers(self, send: int, receive: int) -> None:
        """Resizes the kernel buffers of existing connections."""
        # A connection leaves `peers` under the lock before its descriptor is closed, and could be reused.
        with self.lock:
            for peer in () if self.closing else self.peers.values():
                if peer.fd >= 0:
                    drain.resize(peer.fd, send, receive)

    def unwatch(self, peer: Peer) -> None:
        for fd in {peer.fd, peer.watched} - {-1}:
            self.context.reactor.unregister(fd)
        if peer.foreign:
            peer.stream.on_readable = None
            if not self.receives:
                self.share_foreign(peer, -1)

    def share_foreign(self, peer: Peer, change: int) -> list[int]:
        """Adds or removes a stream that waits on its descriptors; returns the descriptors that are new."""
        new = []
        with self.lock:
            for fd in peer.stream.wait_fds:
                count = self._foreign_fds.get(fd, 0) + change
                if count == change == 1:
                    new.append(fd)
                if count > 0:
                    self._foreign_fds[fd] = count
                elif self._foreign_fds.pop(fd, 0):
                    self.context.reactor.unregister(fd)
        return new

    def new_stream(self, socket: Socket, fd: int, credits: bool = False, channel: Any = None) -> Any:
        return self.context.core.Stream(
            fd,
            int(self.pattern.socket_type.on_wire),
            self.context.flusher,
            self.context.pool,
            send_high_water=1 if socket.conflate else socket.sndhwm,
            send_high_water_bytes=socket.sndhwm_bytes,
            max_message=socket.largest_message,
            checksum=socket.checksum,
            credits=credits,
            channel=channel,
        )

    @staticmethod
    def limit(socket: Socket, stream: Any) -> None:
        """Applies the socket's limits to a stream that its connection brought."""
        stream.send_high_water = 1 if socket.conflate else socket.sndhwm
        stream.send_high_water_bytes = socket.sndhwm_bytes
        stream.max_message = socket.largest_message

    def notify(self) -> None:
        socket = self.socket()
        if socket is not None and not socket.closed:
            socket._notify()

    def attach(self, socket: Socket, stream: Any, sends: bool = True) -> bool:
        """Gives the stream to the core. False: another thread has closed the socket."""
        try:
            socket._attach(stream, sends and self.sends, self.receives)
        except Closed:
            return False
        return True

    def owner(self) -> Socket:
        socket = self.socket()
        if socket is None or self.closing:
            raise Closed("the socket is closed")
        return socket

    def count(self, word: str, count: int = 1) -> None:
        if count:
            with self.lock:
                if word not in self.counts and len(self.counts) >= _MOST_WORDS and ":" in word:
                    # Peers choose the last word; the words before it are this side's, at most two.
                    name, *between, _ = word.split(":")
                    word = ":".join([name, *(between if name == "fallback" else ()), "other"])
                self.counts[word] = self.counts.get(word, 0) + count

    def later(self, name: str, seconds: float, call: Any) -> None:
        """Starts a timer, one of each name at a time."""

        def due() -> None:
            self.timers.pop(name, None)
            call()

        with self.lock:
            if name not in self.timers and not self.closing:
                self.timers[name] = self.context.reactor.call_later(seconds, due)
