"""Accepts peers on this host: one abstract Unix socket for each context."""

from __future__ import annotations

import os
import re
import secrets
import socket
import struct
import time
from collections import OrderedDict, deque
from contextlib import suppress

from transfer.transports.errors import InternalError, TransferError
from transfer.transports.handshake.upgrade import Declined
from transfer.transports.peercred import same_user
from transfer.transports.reactor import READABLE, Reactor
from transfer.transports.shm import fd_passing

TOKEN_SIZE = 16
#: the names of these sockets
SOCKET_NAME = re.compile(r"transfer-[0-9a-f]{32}")
#: accepted connections that no handshake has taken yet; older ones are dropped
_MOST_WAITING = 64
_PATIENCE = 30.0
#: connections that the kernel queues, and seconds between two rounds of accept
_BACKLOG, _REST = 1024, 0.01
#: how long a connect waits for room in the queue, as the kernel takes it: 50 ms
_WAIT = struct.pack("ll", 0, 50_000)

#: (the connection for the frames, the one for descriptors)
Pair = tuple[socket.socket, socket.socket]


class UnixListener:
    """A listener in the abstract name space: nothing stays, however the process ends.

    A peer connects and sends a token, which it got over TCP, and with it one end of a second socket, for
    descriptors. Every user of the host can read the name and connect, so connections are accepted at once:
    those of others are closed, and do not fill the backlog. Not thread-safe: only the reactor's thread uses
    it.
    """

    def __init__(self, reactor: Reactor) -> None:
        self.name = f"transfer-{secrets.token_hex(16)}"
        self._pid = os.getpid()
        self._waiting: OrderedDict[bytes, tuple[float, Pair]] = OrderedDict()
        #: accepted, without a greeting so far
        self._silent: deque[tuple[float, socket.socket]] = deque()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.setblocking(False)
            self._listener.bind("\0" + self.name)
            self._listener.listen(_BACKLOG)
        except OSError as error:
            self._listener.close()
            raise InternalError(f"no abstract Unix socket can be made: {error}") from error
        self._reactor = reactor
        reactor.register(self._listener.fileno(), READABLE, self._ready)

    def take(self, token: bytes) -> Pair:
        """The connection of the peer that got this token. Raises Declined if it has not connected."""
        self._accept_all()
        found = self._waiting.pop(token, None)
        if found is None:
            raise Declined("unreachable", "the peer did not connect to the Unix socket")
        return found[1]

    def forget(self, token: bytes) -> None:
        """Stops waiting for the peer that got this token. Idempotent."""
        self._accept_all()
        found = self._waiting.pop(token, None)
        if found is not None:
            _close(found[1])

    def close(self) -> None:
        """Idempotent. In a forked child it closes the child's copies only."""
        if self._listener.fileno() >= 0:
            self._reactor.unregister(self._listener.fileno())
        self._listener.close()
        while self._waiting:
            _close(self._waiting.popitem()[1][1])
        while self._silent:
            self._silent.pop()[1].close()

    def _ready(self, _events: int) -> None:
        """Accepts the present connections, and pauses: a user who connects endlessly leaves time for
        others."""
        self._accept_all()
        with suppress(TransferError):  # the context ends
            self._listen(0)
            self._reactor.call_later(_REST, self._listen, READABLE)

    def _listen(self, events: int) -> None:
        if self._listener.fileno() >= 0:
            self._reactor.modify(self._listener.fileno(), events)

    def _accept_all(self) -> None:
        now = time.monotonic()
        for _ in range(_BACKLOG):
            try:
                connection, _ = self._listener.accept()
            except OSError:  # there are no more, or no descriptor is left: the peer falls back
                break
            if same_user(connection):
                self._silent.append((now, connection))
            else:
                connection.close()
        for since, connection in [self._silent.popleft() for _ in range(len(self._silent))]:
            self._read_greeting(since, connection)
        while self._silent and (now - self._silent[0][0] > _PATIENCE or len(self._silent) > _MOST_WAITING):
            self._silent.popleft()[1].close()
        for token, (since, pair) in list(self._waiting.items()):
            if now - since > _PATIENCE or len(self._waiting) > _MOST_WAITING:
                del self._waiting[token]
                _close(pair)

    def _read_greeting(self, since: float, connection: socket.socket) -> None:
        """Keeps the connection under its token, or for later, or closes it."""
        try:
            greeting = _greeting(connection)
        except BlockingIOError:  # the peer has connected and not sent its greeting
            self._silent.append((since, connection))
            return
        if greeting is None or greeting[0] in self._waiting:
            connection.close()
            if greeting is not None:
                greeting[1].close()
        else:
            self._waiting[greeting[0]] = since, (connection, greeting[1])


def connect(name: str, token: bytes) -> Pair:
    """Connects to a peer's listener. Raises Declined."""
    made: list[socket.socket] = []
    try:
        made.append(connection := socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        made += ours, theirs
        ours.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _WAIT)
        connection.connect("\0" + name)  # waits for room if others fill the backlog
        connection.setblocking(False)
        if not same_user(connection):
            raise Declined("other_user", "the Unix socket belongs to another user")
        fd_passing.send(connection, token, [theirs.fileno()])
    except BaseException as error:
        for each in made:
            each.close()
        if isinstance(error, OSError):
            raise Declined("unreachable", f"the peer's Unix socket cannot be reached: {error}") from error
        raise
    theirs.close()
    return connection, ours


def _greeting(connection: socket.socket) -> tuple[bytes, socket.socket] | None:
    """(token, the socket for descriptors), or None for an invalid greeting. Raises BlockingIOError if none
    has arrived yet."""
    descriptors: list[int] = []
    try:
        connection.setblocking(False)
        token, descriptors, _ = fd_passing.receive(connection, TOKEN_SIZE, 1)
        if len(token) != TOKEN_SIZE or len(descriptors) != 1:
            return None
        control = socket.socket(fileno=descriptors[0])  # OSError: it is no socket
        descriptors.clear()
        # Announcements need the bounds of messages.
        if (control.family, control.type) != (socket.AF_UNIX, socket.SOCK_SEQPACKET):
            control.close()
            return None
        control.setblocking(False)
        return token, control
    except BlockingIOError:
        raise
    except OSError:
        return None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _close(pair: Pair) -> None:
    for end in pair:
        end.close()
