"""A peer made of a bare socket: it says a proper hello and then whatever a test wants."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

from tests.core.raw_frames import HEADER, Raw, read
from transfer.sockets.monitor import Event
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import Again
from transfer.transports.handshake.hello import encode
from transfer.transports.handshake.identity import make_hello


def tcp_connected(endpoint: str) -> socket.socket:
    """A TCP connection to a bound endpoint, before any hello."""
    host, port = endpoint.removeprefix("tcp://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


@contextlib.contextmanager
def raw_peer(endpoint: str, kind: SocketType = SocketType.PUSH, **hello: object) -> Iterator[socket.socket]:
    """A connection whose handshake is done."""
    with tcp_connected(endpoint) as sock:
        sock.sendall(encode(make_hello(kind, **hello)))
        header = HEADER.unpack(read(sock, HEADER.size))
        read(sock, header[-2])  # the other side's hello
        yield sock


def accepted(listener: socket.socket, kind: SocketType) -> socket.socket:
    """The next connection to a bare listener, after its handshake."""
    listener.settimeout(10)
    sock, _ = listener.accept()
    header = HEADER.unpack(read(sock, HEADER.size))
    read(sock, header[-2])
    sock.sendall(encode(make_hello(kind)))
    return sock


def send_frames(sock: socket.socket, *frames: Raw | bytes) -> None:
    """Sends frames, or plain bytes; the other side may hang up in the middle of it."""
    data = b"".join(frame if isinstance(frame, bytes) else frame.encode() for frame in frames)
    with contextlib.suppress(ConnectionError):
        sock.sendall(data)


def reset(sock: socket.socket) -> None:
    """Ends the connection at once with a reset, as the kernel of a machine that went does."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def is_closed(sock: socket.socket) -> bool:
    """Waits until the other side has ended the connection; what it says before does not matter."""
    try:
        while sock.recv(65536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def next_event(monitor, kind: str, seconds: float = 10.0) -> Event:
    """The next event of this kind; others are skipped."""
    while True:
        event = monitor.recv(seconds)
        if event.kind == kind:
            return event


def pending_events(monitor) -> list[Event]:
    """All events that are there now."""
    found = []
    with contextlib.suppress(Again):
        while True:
            found.append(monitor.recv(0))
    return found
