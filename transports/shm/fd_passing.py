"""Passes descriptors between processes over a Unix socket."""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Sequence
from typing import NamedTuple


class Passed(NamedTuple):
    """data. descriptors: the receiver owns them. lost: there were more, and this process has no room for
    them."""

    data: bytes
    descriptors: list[int]
    lost: bool

    def close(self) -> None:
        """Of the descriptors."""
        for descriptor in self.descriptors:
            os.close(descriptor)


_SIZE = array.array("i").itemsize


def send(connection: socket.socket, data: bytes, descriptors: Sequence[int]) -> None:
    """Sends data with copies of descriptors, if there are any. Raises OSError, and the exception of a signal
    handler before it is sent: none runs between that and the caller's next statement."""
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
    flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
    [_] = map(connection.sendmsg, ([data],), ([rights] if descriptors else [],), (flags,))


def receive(connection: socket.socket, size: int, most: int, *, peek: bool = False) -> Passed:
    """Up to `size` bytes, and their descriptors. peek: both stay in the socket. Raises OSError.

    Not by `socket.recv_fds`, which drops its flags: the descriptors must not be inherited by programs that
    this process starts. Of more than `most` descriptors the kernel keeps the rest.
    """
    flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC | (socket.MSG_PEEK if peek else 0)
    data, ancillary, returned, _ = connection.recvmsg(size, socket.CMSG_SPACE(most * _SIZE), flags)
    found = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(content[: len(content) - len(content) % _SIZE])
    return Passed(data, list(found), bool(returned & socket.MSG_CTRUNC) and len(found) < most)
