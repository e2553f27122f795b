"""Closing without losing what was sent: flush, say the end, wait until the peer's kernel has it."""

from __future__ import annotations

import array
import fcntl
import os
import select
import socket as sockets
import termios
import time
from collections.abc import Iterable
from typing import Any

from transfer.transports.base import Stream
from transfer.transports.errors import Broken

#: seconds between two looks at kernel queues that cannot be waited for
_LOOK = 0.002
#: SIOCOUTQ: bytes that the peer's kernel has not acknowledged
_UNACKNOWLEDGED = termios.TIOCOUTQ
_UNREAD = termios.FIONREAD


def unread(fd: int) -> int:
    """Bytes that wait in the kernel to be read; 0 if nobody can tell."""
    return _ask(fd, _UNREAD)


def has_ended(fd: int) -> bool:
    """The peer has closed the connection, also if what it sent before is still to be read."""
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
    """Or it has nowhere to go any more."""
    try:
        return bool(stream.flush()) or stream.broken is not None
    except Broken:
        return True


def _wait_for_room(streams: list[Any], seconds: float) -> None:
    poll = select.poll()
    for stream in streams:
        fd = getattr(stream, "fd", -1)
        if fd < 0 or isinstance(stream, Stream):
            # Its reader decides when there is room. `fd` is only the connection beside it, which has some.
            seconds = min(seconds, _LOOK)
        else:
            poll.register(fd, select.POLLOUT)
    # The flusher writes to the same descriptors, so a look from time to time is needed anyway.
    poll.poll(min(seconds, 0.05) * 1000)


def finish(fds: Iterable[int], deadline: float) -> None:
    """Ends the sending side of each connection and waits until the peers' kernels have all of it.

    Without this, a credit frame that nobody read turns the close into a reset, which throws away
    what the peer's kernel has not taken yet.
    """
    left = [fd for fd in fds if _shut(fd)]
    while left:
        left = [fd for fd in left if _ask(fd, _UNACKNOWLEDGED) > 0]
        if not left or time.monotonic() >= deadline:
            return
        time.sleep(_LOOK)


def unacknowledged(fd: int) -> int:
    """Bytes that the peer's kernel does not have yet. A Unix socket's are in the peer's queue."""
    try:
        with sockets.socket(fileno=os.dup(fd)) as connection:
            return 0 if connection.family == sockets.AF_UNIX else _ask(fd, _UNACKNOWLEDGED)
    except OSError:  # there is none, or not any more
        return 0


def _shut(fd: int) -> bool:
    """False where there is nothing to wait for: a Unix socket's bytes are in the peer's queue."""
    with sockets.socket(fileno=os.dup(fd)) as connection:
        try:
            connection.shutdown(sockets.SHUT_WR)
        except OSError:  # the peer was quicker
            return False
        return connection.family != sockets.AF_UNIX


def resize(fd: int, send: int, receive: int) -> None:
    """Sets the kernel's buffers, in bytes; -1 leaves one as it is."""
    with sockets.socket(fileno=os.dup(fd)) as connection:
        if send >= 0:
            connection.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF, send)
        if receive >= 0:
            connection.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, receive)
