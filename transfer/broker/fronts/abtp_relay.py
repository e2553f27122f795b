"""The relay in front of abtp's sockets.

libzmq has neither TLS nor a limit on connections, so its sockets listen in a private folder. The relay copies
bytes between them and the connections that the broker accepted. libzmq sees the end of a peer's connection
only after it has read everything. If a connection closes while its input is stopped (RCVHWM), libzmq 4.3.5
aborts the process at the next PING after that, or keeps the descriptor for ever.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from transfer.broker.fronts.abtp_peer_names import NamedConnection, NameTable
from transfer.broker.fronts.abtp_subscription_limits import SubscriptionLimits
from transfer.broker.net.connection import Connection
from transfer.broker.protocols.zmtp import GREETING, IDENTITY, check_greeting, read_ready, write_ready
from transfer.throttled_log import ThrottledLog
from transfer.transports.address import format_host, parse
from transfer.transports.connect.pending import PENDING
from transfer.transports.descriptors import is_reserved
from transfer.transports.errors import InternalError, ProtocolError
from transfer.transports.shm.memory import available_memory
from transfer.transports.tcp import bind_address

if TYPE_CHECKING:
    from transfer.broker.net.connection_group import ConnectionGroup
    from transfer.broker.net.listener_set import ListenerSet

_log = logging.getLogger("transfer.broker")

#: bytes that wait for one end before the relay stops reading from the other
_MOST = 4 << 20
#: bytes that may be published while a subscriber is blocked, or half of the free memory if that is more; then
#: it is disconnected
_SLOW_SUBSCRIBER_BYTES = 256 << 20
#: published bytes between two checks for such subscribers
_CHECK_EVERY = 16 << 20
#: bytes of a SUB that are checked before other connections may get their turn
_SUBSCRIPTION_BYTES = 4 << 10
#: seconds in which an end may read what came before the other end closed
_LAST_WORDS = 10.0
#: limit on the bytes of a Unix socket's name
_LONGEST = 100
#: detects a peer whose machine is gone: after 10 s without a byte the kernel probes it, up to three times
_KEEP_ALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


class PrivateFolder:
    """A folder that only this user can access. parent: where it is made, if its path is short enough. Raises
    InternalError."""

    def __init__(self, parent: Path) -> None:
        self.path = parent / "abtp"
        try:
            if len(os.fsencode(self.path.absolute())) > _LONGEST - 10:
                self.path = Path(tempfile.mkdtemp(prefix="transfer-abtp-"))
            else:
                shutil.rmtree(self.path, ignore_errors=True)
                self.path.mkdir(mode=0o700)
        except OSError as error:
            raise InternalError(f"no folder for abtp's sockets can be made: {error}") from error

    def endpoint(self, name: str) -> str:
        """Returns the endpoint of a ZeroMQ socket in the folder."""
        return f"ipc://{self.path.absolute() / name}"

    def close(self) -> None:
        """Removes the folder and its contents. Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)


class Relay:
    """Relays external connections to one ZeroMQ socket, on the broker's loop. endpoint: of that socket.
    names: of peers by identity; the newest connection of each stays. subscribers: the peers are SUBs.
    connections: open ones; each counts until libzmq has read all that came. ends: of all of them, on both
    sides. published_bytes: size of all messages that the broker gave to libzmq for subscribers."""

    def __init__(
        self,
        lines: ConnectionGroup,
        endpoint: str,
        names: PeerNames | None = None,
        *,
        subscribers: bool = False,
    ) -> None:
        self._lines = lines
        self._path = endpoint.removeprefix("ipc://")
        self._throttled = ThrottledLog(_log)
        self.names = names
        self.subscription_limits = SubscriptionLimits(self.disconnect) if subscribers else None
        self.connections = 0
        self.unanswered = 0  # inner ends that libzmq has not accepted yet
        self.ends: set[_End] = set()
        self.published_bytes = self._checked_at = 0

    def on_published(self, nbytes: int) -> None:
        """Counts a message. libzmq keeps it until every subscriber has read it."""
        self.published_bytes += nbytes
        if self.published_bytes - self._checked_at >= _CHECK_EVERY:
            self._checked_at = self.published_bytes
            self._disconnect_slowest()

    def _disconnect_slowest(self) -> None:
        """Disconnects the subscriber that is blocked for longest, if libzmq may keep too much for it."""
        blocked = [end for end in self.ends if isinstance(end, _Inner) and end.is_blocked]
        slowest = min(blocked, key=lambda end: end.published_before, default=None)
        if slowest is None or slowest.other is None:
            return
        unread = self.published_bytes - slowest.published_before
        if unread > max(_SLOW_SUBSCRIBER_BYTES, available_memory() // 2):
            why = f"a slow subscriber: {unread:,} bytes were published since it stopped reading"
            self._throttled.log(logging.WARNING, "unread", "abtp disconnects %s: %s", slowest.peer, why)
            slowest.other.close(why)

    def connected(self, connection: socket.socket, peer: str) -> Connection:
        """Takes an accepted connection, in non-blocking mode."""
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEP_ALIVE:
                if hasattr(socket, name):
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        outer = Outer(self, self._lines, connection, peer)
        self.connections += 1
        return outer

    def refused(self, peer: str, error: ProtocolError) -> None:
        """Logs a refused connection, at a bounded rate."""
        self._throttled.log(logging.WARNING, error.reason, "abtp refuses %s: %s", peer, error)

    def disconnect(self, outer: Outer, why: str) -> None:
        """Disconnects a peer, and logs the reason."""
        self.refused(outer.peer, ProtocolError("subscriptions", why))
        outer.close(why)

    def reach(self, outer: Outer) -> None:
        """Connects a peer to the inner socket. Raises ProtocolError."""
        try:
            inside = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError as error:
            raise _busy(error.strerror or str(error)) from error
        if is_reserved(inside.fileno() + self.unanswered):  # libzmq takes a descriptor for each of them
            inside.close()
            PENDING.make_room()
            raise _busy("the last file descriptors are reserved for files")
        try:
            inside.connect(self._path)
        except OSError as error:
            inside.close()
            raise _busy(error.strerror or str(error)) from error
        outer.other = inner = _Inner(self, self._lines, inside, outer.peer)
        inner.other = outer

    def close(self) -> None:
        """Ends all connections. Idempotent."""
        for end in list(self.ends):
            end.close("the broker ends")


def _busy(why: str) -> ProtocolError:
    return ProtocolError("busy", f"abtp cannot accept a connection now: {why}")


class _End(Connection):
    """One end of a relayed connection: what it reads is written to the other one."""

    def __init__(self, relay: Relay, lines: ConnectionGroup, connection: socket.socket, peer: str) -> None:
        self.other: _End | None = None
        self._relay = relay
        self.is_blocked = False  # reading is paused until the other end has written its queue
        self.published_before = 0  # `published_bytes` at the moment it was blocked
        self._last = False  # the other end has closed: this one ends when all is written
        super().__init__(lines, connection, peer)
        relay.ends.add(self)

    def take_frames(self, data: memoryview) -> int:
        """See Connection."""
        other = self.other
        if other is None:
            return len(data)  # the peer has gone
        other.write(data)
        if other.queued >= _MOST and not self.is_blocked and not self.closed:
            self.is_blocked, self.published_before = True, self._relay.published_bytes
            self.pause()
        return len(data)

    def on_drained(self) -> None:
        """See Connection."""
        if self._last:
            self.end()
        elif self.other is not None:
            self.other.go_on()

    def go_on(self) -> None:
        """Resumes reading: the other end has written what was read, or is gone."""
        if self.is_blocked:
            self.is_blocked = False
            self.resume()

    def left(self, reason: str) -> None:
        """Ends after the rest is written: the other end has closed."""
        self._last, self.other = True, None
        if not self.queued:
            self.end()

    def end(self) -> None:
        """Ends the connection: the other end has closed, and all that came from it is written."""
        self.close("the other end has closed")

    def refuse(self, error: ProtocolError) -> None:
        """See Connection."""
        self._relay.refused(self.peer, error)
        self.close(str(error))

    def lost(self, reason: str) -> None:
        """See Connection."""
        self._relay.ends.discard(self)
        other, self.other = self.other, None
        if other is None:
            self._relay.connections -= 1
        else:
            other.left(reason)


class _Inner(_End):
    """The end at libzmq. It stays open, and is read, until libzmq has read everything and closes it."""

    def __init__(self, relay: Relay, lines: ConnectionGroup, connection: socket.socket, peer: str) -> None:
        self._answered = False
        relay.unanswered += 1
        super().__init__(relay, lines, connection, peer)

    def take_frames(self, data: memoryview) -> int:
        """See Connection. libzmq's greeting comes at once."""
        self._accepted()
        if isinstance(self.other, Outer):
            self.other.count_forwarded(len(data))
        return super().take_frames(data)

    def _accepted(self) -> None:
        self._relay.unanswered -= not self._answered
        self._answered = True

    def left(self, reason: str) -> None:
        """See _End."""
        super().left(reason)
        self.go_on()

    def end(self) -> None:
        """See _End. libzmq reads the end of the stream after everything else."""
        with suppress(OSError):  # libzmq has closed it, which is read next
            self._socket.shutdown(socket.SHUT_WR)

    def lost(self, reason: str) -> None:
        """See Connection."""
        self._accepted()
        super().lost(reason)


class Outer(_End):
    """The end at a peer. libzmq does not know it before its first bytes: in ZeroMQ both sides send at
    once."""

    def __init__(self, relay: Relay, lines: ConnectionGroup, connection: socket.socket, peer: str) -> None:
        self._greeting = b""
        self._begun = False  # its READY has come
        self._named: NamedConnection[Outer] | None = None
        super().__init__(relay, lines, connection, peer)

    def take_frames(self, data: memoryview) -> int:
        """See Connection."""
        if not self._begun:
            return self._begin(data)
        limits = self._relay.subscription_limits
        if limits is None:
            return super().take_frames(data)
        data = data[:_SUBSCRIPTION_BYTES]
        pause = limits.feed(self, data, self._loop.time())
        if self.closed:
            return len(data)
        if pause > 0:
            self.pause()
            self._loop.call_later(pause, self.resume)
        elif monotonic() >= self.turn_ends:
            self.give_way()
        return super().take_frames(data)

    def _begin(self, data: memoryview) -> int:
        missing = GREETING - len(self._greeting)
        if missing:
            came = bytes(data[:missing])
            self._greeting += came
            check_greeting(self._greeting)
            return super().take_frames(memoryview(came)) if self._reached() else 0
        ready = read_ready(data)
        if ready is None:
            return 0
        size, properties = ready
        names = self._relay.names
        if names is not None:
            self._named, before = names.enter(properties.get(IDENTITY, b""), self)
            properties[IDENTITY] = self._named.name
            if before is not None:
                before.close("another connection has its identity")
        self._begun = True
        super().take_frames(memoryview(write_ready(properties)))
        return size

    def count_forwarded(self, nbytes: int) -> None:
        """Counts the bytes that libzmq wrote to this peer."""
        if self._named is not None:
            self._named.forwarded += nbytes

    def _reached(self) -> bool:
        if self.other is None:
            self._relay.reach(self)
        return not self.closed

    def has_begun(self, take_frames: int) -> bool:
        """See Connection. libzmq has a timeout for the rest of the handshake."""
        return self._begun

    def left(self, reason: str) -> None:
        """See _End. A peer that reads nothing is disconnected after a while."""
        super().left(reason)
        if not self.closed:
            self.pause()
            self._loop.call_later(_LAST_WORDS, self.close, reason)

    def lost(self, reason: str) -> None:
        """See Connection."""
        if self._named is not None and self._relay.names is not None:
            self._relay.names.leave(self._named)
            self._named = None
        if self._relay.subscription_limits is not None:
            self._relay.subscription_limits.remove(self)
        super().lost(reason)


#: names of the connections that came through a relay
PeerNames = NameTable[Outer]


def relayed(
    doors: ListenerSet,
    lines: ConnectionGroup,
    where: Mapping[str, str],
    inside: Mapping[str, str],
    names: PeerNames,
) -> Relays:
    """Opens the relays in front of abtp's sockets. where: public endpoints by name; inside: endpoints of the
    inner sockets. names: of the ROUTER's peers. Raises AddressInUse, AddressError, SecurityError."""
    relays: dict[str, Relay] = {}
    endpoints: dict[str, str] = {}
    for name, endpoint in where.items():
        address = parse(endpoint)
        named = names if name == "router" else None
        relays[name] = relay = Relay(lines, inside[name], named, subscribers=name == "pub")
        open_now = partial(getattr, relay, "connections")
        if address.scheme == "ipc":
            entry = doors.acceptor("abtp", relay.connected, open_now, local=True)
            endpoints[name] = doors.listen_local(f"abtp {name}", address, entry).endpoint
            continue
        entry = doors.acceptor("abtp", relay.connected, open_now)
        host, port = bind_address(address)[1][:2]
        listener = doors.listen(f"abtp {name}", str(host), int(port), entry)
        endpoints[name] = f"tcp://{format_host(listener.host)}:{listener.port}"
    return Relays(endpoints, relays)


class Relays(NamedTuple):
    """The open relays. endpoints: where they listen, by name."""

    endpoints: dict[str, str]
    relays: dict[str, Relay]

    def close(self) -> None:
        """Ends all connections. Idempotent."""
        for relay in self.relays.values():
            relay.close()
