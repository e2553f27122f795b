"""The output of a TCP connection of the broker: a queue that is written without copies."""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any

from transfer.broker.net.connection_group import copy_small_view
from transfer.broker.net.splice import PipedBytes, SplicedChunk
from transfer.broker.net.tls_socket import channel_of

if TYPE_CHECKING:
    from transfer.broker.delivery.message import Buffer
    from transfer.broker.net.connection_group import ConnectionGroup
    from transfer.transports.core.contract import TlsChannel

#: buffers of one system call
_WRITE_BUFFERS = 512
#: queued bytes that are written at once, instead of at the end of the turn
_WRITE_NOW = 512 << 10
#: bytes that TLS takes at once
_SEAL_BYTES = 64 << 10


class Output(ABC):
    """The output half of a `Connection`. Used on the loop only.

    queued: bytes that wait to be written, including encrypted ones. closed: whether the connection has ended.
    """

    def __init__(self, group: ConnectionGroup, connection: socket.socket) -> None:
        self.queued = 0
        self.closed = False
        self._group = group
        self._loop: asyncio.AbstractEventLoop = group.loop
        self._socket = connection
        self._channel = channel_of(connection)
        self._sealed = 0  # bytes that TLS has encrypted, and the kernel has not taken
        self._out: deque[Buffer | PipedBytes] = deque()
        self._in_pipes = 0  # how many of them are in pipes
        self._scheduled = self._blocked = False

    @abstractmethod
    def close(self, reason: str) -> None:
        """Closes the connection; bytes that the kernel does not take at once are lost. Idempotent."""

    @abstractmethod
    def fail(self) -> None:
        """Logs the current exception as a fault of the broker, and closes the connection."""

    def relieved(self) -> None:
        """Called when all queued bytes are written."""

    def write(self, *buffers: Buffer) -> None:
        """Queues bytes, which must not change until they are written. Never blocks."""
        if self.closed:
            return
        for data in buffers:
            if data:
                self.queued += len(data)
                self._out.append(copy_small_view(data) if self._blocked else data)
        if self._blocked or not self._out:
            return
        if self.queued >= _WRITE_NOW:
            self.flush()
        elif not self._scheduled:
            self._scheduled = True
            self._group.soon(self)

    def write_spliced(self, data: SplicedChunk) -> None:
        """Queues bytes in a pipe, and keeps those that are not written at once."""
        if self.closed:
            return
        piped = data.share()
        if piped is not None:
            self._out.append(piped)
            self._in_pipes += 1
            self.queued += len(piped)
        missing = len(data) - (len(piped) if piped is not None else 0)
        if missing:
            self.write(data.memory()[-missing:])
        if not self._blocked:
            self.flush()

    def flush(self) -> None:
        """Writes as much as the kernel takes."""
        self._scheduled = False
        out = self._out
        while (out or self._sealed) and not self.closed:
            try:
                if self._channel is not None:
                    whole = self._write_sealed(self._channel)
                else:
                    whole = self._write_piped() if self._in_pipes else self._write_buffers()
            except (BlockingIOError, InterruptedError):
                whole = False
            except OSError as error:
                self.close(error.strerror or str(error))
                return
            if not whole:
                self._block()
                return
        if self._blocked and not self.closed:
            self._blocked = False
            self._group.blocked.discard(self)
            self._loop.remove_writer(self._socket.fileno())
        if not self.closed:
            self.relieved()

    def _writable(self) -> None:
        try:
            self.flush()
        except Exception:  # noqa: BLE001 - a fault of the broker; `fail` logs it
            self.fail()

    def _write_sealed(self, channel: TlsChannel) -> bool:
        """Encrypts and writes. Returns whether the kernel took all encrypted bytes."""
        try:
            if self._sealed:
                channel.flush()
            else:
                buffers: list[Any] = []
                nbytes = 0
                for data in islice(self._out, _WRITE_BUFFERS):
                    buffers.append(data)
                    nbytes += len(data)
                    if nbytes >= _SEAL_BYTES:
                        break
                self._written(channel.sendmsg(buffers))
        finally:
            unsent = channel.unsent
            self.queued += unsent - self._sealed
            self._sealed = unsent
        return not unsent

    def _write_buffers(self, most: int = _WRITE_BUFFERS, flags: int = 0) -> bool:
        """Writes buffers. Returns whether the kernel took all of them."""
        buffers: list[Any] = list(islice(self._out, most))
        nbytes = sum(map(len, buffers))
        written = self._socket.sendmsg(buffers, [], flags)
        if written == nbytes and len(buffers) == len(self._out):
            self._out.clear()
            self.queued -= nbytes
        else:
            self._written(written)
        return written == nbytes

    def _write_piped(self) -> bool:
        """Writes while bytes in pipes are queued. Returns whether the kernel took all of this call."""
        out = self._out
        first = out[0]
        if not isinstance(first, PipedBytes):
            before = next(n for n, data in enumerate(out) if isinstance(data, PipedBytes))
            # the bytes in the pipe go into the same packets
            return self._write_buffers(min(before, _WRITE_BUFFERS), socket.MSG_MORE)
        self.queued -= first.write(self._socket.fileno())
        if first:
            return False
        self._in_pipes -= 1
        out.popleft()
        first.end()
        return True

    def _written(self, nbytes: int) -> None:
        self.queued -= nbytes
        out = self._out
        while nbytes:
            first = out[0]
            assert not isinstance(first, PipedBytes)
            if len(first) > nbytes:
                out[0] = memoryview(first)[nbytes:]
                return
            nbytes -= len(first)
            out.popleft()

    def _block(self) -> None:
        if not self._blocked:
            self._blocked = True
            self._out = deque(map(copy_small_view, self._out))
            self._group.blocked.add(self)
            self._loop.add_writer(self._socket.fileno(), self._writable)
