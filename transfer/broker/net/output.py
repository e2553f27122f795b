"""The output of a TCP connection of the broker: a queue that is written without copies."""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from transfer.broker.net.connection_group import copy_small_view
from transfer.broker.net.splice import SplicedChunk, Waiting
from transfer.broker.net.tls_socket import channel_of

if TYPE_CHECKING:
    from transfer.broker.delivery.message import Buffer
    from transfer.broker.net.connection_group import ConnectionGroup
    from transfer.transports.core.contract import TlsChannel

#: bytes and buffers that one call of the system is given
_WRITE_BYTES, _WRITE_BUFFERS = 1 << 20, 512
#: queued bytes that are written at once, instead of at the end of the turn
_WRITE_NOW = 512 << 10
#: bytes that are given to TLS at once: it takes no more
_SEAL_BYTES = 64 << 10


class Output(ABC):
    """The output half of a `Line`. Used on the loop only.

    queued: bytes that wait to be written, those that TLS has taken already among them. closed: nothing is
    read or written any more.
    """

    def __init__(self, lines: ConnectionGroup, connection: socket.socket) -> None:
        self.queued = 0
        self.closed = False
        self._lines = lines
        self._loop: asyncio.AbstractEventLoop = lines.loop
        self._socket = connection
        self._channel = channel_of(connection)
        self._sealed = 0  # bytes that TLS has taken, and the system has not
        self._out: deque[Buffer | Waiting] = deque()
        self._in_pipes = 0  # how many of them wait in pipes
        self._scheduled = self._blocked = False

    @abstractmethod
    def close(self, reason: str) -> None:
        """Ends the connection; what the system does not take at once is not written. Idempotent."""

    @abstractmethod
    def fail(self) -> None:
        """Ends the connection in an `except`: the mistake is ours, and is logged."""

    def relieved(self) -> None:
        """What was queued has been written, all of it."""

    def write(self, data: Buffer) -> None:
        """Queues bytes, which stay as they are until they are written. Never waits."""
        if self.closed or not data:
            return
        self.queued += len(data)
        self._out.append(copy_small_view(data) if self._blocked else data)
        if self._blocked:
            return
        if self.queued >= _WRITE_NOW:
            self.flush()
        elif not self._scheduled:
            self._scheduled = True
            self._lines.soon(self)

    def write_poured(self, data: SplicedChunk) -> None:
        """The same for bytes in a pipe, of which the line keeps what is not written at once."""
        if self.closed:
            return
        waiting = data.share()
        if waiting is not None:
            self._out.append(waiting)
            self._in_pipes += 1
            self.queued += len(waiting)
        missing = len(data) - (len(waiting) if waiting is not None else 0)
        if missing:
            self.write(data.memory()[-missing:])
        if not self._blocked:
            self.flush()

    def flush(self) -> None:
        """Writes as much as the system takes."""
        self._scheduled = False
        out = self._out
        while (out or self._sealed) and not self.closed:
            try:
                if self._channel is not None:
                    whole = self._write_sealed(self._channel)
                else:
                    whole = self._write_waiting() if self._in_pipes else self._write_buffers()
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
            self._lines.blocked.discard(self)
            self._loop.remove_writer(self._socket.fileno())
        if not self.closed:
            self.relieved()

    def _writable(self) -> None:
        try:
            self.flush()
        except Exception:  # noqa: BLE001 - it is ours; `fail` logs it
            self.fail()

    def _next_buffers(self, most: int, most_bytes: int) -> tuple[list[Buffer], int]:
        """What is queued first, and how many bytes that is."""
        buffers: list[Buffer] = []
        nbytes = 0
        for data in islice(self._out, most):
            buffers.append(data)  # type: ignore[arg-type]
            nbytes += len(data)
            if nbytes >= most_bytes:
                break
        return buffers, nbytes

    def _write_sealed(self, channel: TlsChannel) -> bool:
        """Whether the system took all that TLS has made of it."""
        try:
            if self._sealed:
                channel.flush()
            else:
                buffers, _ = self._next_buffers(_WRITE_BUFFERS, _SEAL_BYTES)
                self._written(channel.sendmsg(buffers))
        finally:
            unsent = channel.unsent
            self.queued += unsent - self._sealed
            self._sealed = unsent
        return not unsent

    def _write_buffers(self, most: int = _WRITE_BUFFERS, flags: int = 0) -> bool:
        """Whether all was written that the system was given."""
        buffers, nbytes = self._next_buffers(most, _WRITE_BYTES)
        written = self._socket.sendmsg(buffers, [], flags)
        self._written(written)
        return written == nbytes

    def _write_waiting(self) -> bool:
        """The same while something waits in pipes."""
        out = self._out
        first = out[0]
        if not isinstance(first, Waiting):
            before = next(n for n, data in enumerate(out) if isinstance(data, Waiting))
            # what waits in the pipe goes into the same packets
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
            assert not isinstance(first, Waiting)
            if len(first) > nbytes:
                out[0] = memoryview(first)[nbytes:]
                return
            nbytes -= len(first)
            out.popleft()

    def _block(self) -> None:
        if not self._blocked:
            self._blocked = True
            self._out = deque(map(copy_small_view, self._out))
            self._lines.blocked.add(self)
            self._loop.add_writer(self._socket.fileno(), self._writable)
