"""Closes connections without losing sent data: flush, shut down, wait until the peer's kernel has it."""

from __future__ import annotations

import array
import fcntl
import os
import select
import socket as sockets
import termios
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from transfer.transports.base import Stream
from transfer.transports.core.wire import CREDIT, HEADER_SIZE
from transfer.transports.errors import Broken

if TYPE_CHECKING:
    from transfer.sockets.peer import Peer

#: seconds between two checks of kernel queues, which cannot be waited for
_LOOK = 0.002
#: SIOCOUTQ: bytes that the peer's kernel has not acknowledged
_UNACKNOWLEDGED = termios.TIOCOUTQ
_UNREAD = termios.FIONREAD
#: bytes of what a closing socket writes behind its messages: a credit, and the end, which counts as one
_LAST = HEADER_SIZE + CREDIT.size + 1


def unread(peer: Peer) -> int:
    """Bytes that have arrived and wait to be read; 0 where that is not known."""
    return _ask(peer.fd, _UNREAD) if peer.foreign else int(peer.stream.unread)


def has_ended(fd: int) -> bool:
    """Whether the peer has closed the connection, even if data that it sent before is unread."""
    if fd < 0:
        return False
    poll = select.poll()
    poll.register(fd, getattr(select, "POLLRDHUP", 0))
    return bool(poll.poll(0))


def _ask(fd: int, request: int) -> int:
    answer = array.array("i", [0])
    try:
        fcntl.ioctl(fd, request, answer)
    except OSError:
        return 0
    return answer[0]


def flush(streams: Iterable[Any], deadline: float) -> None:
    """Writes what the streams have queued, until `deadline` (time.monotonic())."""
    left = list(streams)
    while left:
        left = [stream for stream in left if not _flushed(stream)]
        remaining = deadline - time.monotonic()
        if not left or remaining <= 0:
            return
        _wait_for_room(left, remaining)


def unsent(stream: Any) -> int:
    """Messages that the peer does not have yet."""
    return 0 if isinstance(stream, Stream) and stream.hands_over else int(stream.queued)


def _flushed(stream: Any) -> bool:
    """Whether the stream has nothing left to write, or its connection is lost."""
    try:
        return bool(stream.flush()) or stream.broken is not None
    except Broken:
        return True


def _wait_for_room(streams: list[Any], seconds: float) -> None:
    poll = select.poll()
    for stream in streams:
        fd = getattr(stream, "fd", -1)
        if fd < 0 or isinstance(stream, Stream) or stream.by_rdma:
            # Its reader decides when there is room. `fd` is only its control connection, which has some.
            seconds = min(seconds, _LOOK)
        else:
            poll.register(fd, select.POLLOUT)
    # The flusher writes to the same descriptors, so a periodic check is needed anyway.
    poll.poll(min(seconds, 0.05) * 1000)


def finish(fds: Iterable[int], deadline: float) -> None:
    """Shuts down the sending side of each connection and waits until the peers' kernels have all data.

    Without this, an unread credit frame turns the close into a reset, which discards data that the peer's
    kernel has not received yet.
    """
    left = [fd for fd in fds if _shut(fd)]
    while left:
        left = [fd for fd in left if _ask(fd, _UNACKNOWLEDGED) > 0]
        if not left or time.monotonic() >= deadline:
            return
        time.sleep(_LOOK)


def may_be_lost(fd: int) -> bool:
    """Whether the peer's kernel does not have all messages, or the peer has ended without reading them.
    After `finish`: a peer that reads all, and ends then, has lost nothing."""
    if fd < 0 or unacknowledged(fd) > _LAST:
        return True
    poll = select.poll()
    poll.register(fd, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def unacknowledged(fd: int) -> int:
    """Bytes that the peer's kernel has not received. Data of a Unix socket is in the peer's queue at once."""
    try:
        with sockets.socket(fileno=os.dup(fd)) as connection:
            return 0 if connection.family == sockets.AF_UNIX else _ask(fd, _UNACKNOWLEDGED)
    except OSError:  # there is no descriptor, or no longer
        return 0


def _shut(fd: int) -> bool:
    """Returns False where there is nothing to wait for: a Unix socket's data is in the peer's queue."""
    with sockets.socket(fileno=os.dup(fd)) as connection:
        try:
            connection.shutdown(sockets.SHUT_WR)
        except OSError:  # the peer was quicker
            return False
        return connection.family != sockets.AF_UNIX


def resize(fd: int, send: int, receive: int) -> None:
    """Sets the sizes of the kernel's buffers, in bytes; -1 leaves one unchanged."""
    with sockets.socket(fileno=os.dup(fd)) as connection:
        if send >= 0:
            connection.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF, send)
        if receive >= 0:
            connection.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, receive)
