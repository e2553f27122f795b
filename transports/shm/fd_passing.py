"""Descriptors from process to process over a Unix socket."""

from __future__ import annotations

import array
import socket
from collections.abc import Sequence
from typing import NamedTuple


class Passed(NamedTuple):
    """data. descriptors: the receiver's. lost: there were some, and this process has no room for another."""

    data: bytes
    descriptors: list[int]
    lost: bool


_SIZE = array.array("i").itemsize


def send(connection: socket.socket, data: bytes, descriptors: Sequence[int]) -> None:
    """Sends data with copies of descriptors. Raises OSError, and what a signal's handler raises before it
    is sent: none runs between that and what the caller notes of it."""
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
    flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
    [_] = map(connection.sendmsg, ([data],), ([rights],), (flags,))


def receive(connection: socket.socket, size: int, most: int, *, peek: bool = False) -> Passed:
    """Up to `size` bytes, and descriptors that came with them. peek: they come again. Raises OSError.

    Not by `socket.recv_fds`, which forgets its flags: what comes must not go on into programs that
    are started here. Of more than `most` descriptors the kernel keeps the rest.
    """
    flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC | (socket.MSG_PEEK if peek else 0)
    data, ancillary, said, _ = connection.recvmsg(size, socket.CMSG_SPACE(most * _SIZE), flags)
    found = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(content[: len(content) - len(content) % _SIZE])
    return Passed(data, list(found), bool(said & socket.MSG_CTRUNC) and not found)
