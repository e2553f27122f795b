"""A TCP connection of the broker, on its loop: reads and writes without copies.

asyncio's transports copy what the kernel does not take at once, and each reads into separate memory. Here all
connections read into one arena, and logs and subscribers get views of it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from abc import ABC, abstractmethod
from collections import deque
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Any

from transfer.broker.net.connection_group import copy_small_view
from transfer.broker.net.splice import SPLICE_FROM, PipedBytes, SplicedChunk, splice_in
from transfer.broker.net.tls_socket import channel_of
from transfer.transports.errors import ProtocolError

if TYPE_CHECKING:
    from transfer.broker.core.message import Buffer
    from transfer.broker.net.connection_group import ConnectionGroup
    from transfer.broker.net.pending_connections import PendingConnections
    from transfer.transports.core.contract import TlsChannel

_log = logging.getLogger("transfer.broker")

#: bytes that one connection reads in one turn, and seconds for its frames: then other connections run
_TURN, _TURN_SECONDS = 1 << 20, 0.002
#: buffers of one system call that writes
_WRITE_BUFFERS = 512
#: queued bytes that are written at once, instead of at the end of the turn
_WRITE_NOW = 512 << 10
#: bytes that TLS takes at once
_SEAL_BYTES = 64 << 10
#: room that TLS may leave although more data is there: less than another record needs
_SPILL = 32 << 10
#: bytes to read after a spliced payload: the head of the next payload, and little of its data
_HEAD_BYTES = 4 << 10
#: errors of a socket or a system that does not support splice
_NO_SPLICE = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM})
#: bytes of an incomplete frame that are kept; larger payloads arrive in pieces
LARGEST_FRAME = 1 << 20


class Connection(ABC):
    """One connection, in non-blocking mode, which the loop reads from now on. Used on the loop only.

    peer: "host:port". queued: bytes that wait to be written, including encrypted ones. closed: whether the
    connection has ended. last_read: when it last read, on the monotonic clock, which is the loop's.
    turn_ends: when its turn ends: then `take_frames` gives way to other connections.
    """

    def __init__(self, group: ConnectionGroup, connection: socket.socket, peer: str) -> None:
        self.peer = peer
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
        self.last_read = monotonic()
        self.turn_ends = 0.0
        self._rest = b""  # the beginning of a frame
        self._body = 0  # bytes of the current payload that have not arrived
        self._splices = False  # the current payload is large enough for pipes
        self._reads_head = False  # the next read is small
        self._gives_way = False
        self._paused = 0
        self._pending: PendingConnections[Connection] | None = None  # until its first whole frame
        self._loop.add_reader(connection.fileno(), self.read)

    # -- for the protocol's subclass ---------------------------------------------------------------------

    @abstractmethod
    def take_frames(self, data: memoryview) -> int:
        """Takes the whole frames from the beginning of `data`, and returns their number of bytes.

        The rest is passed again together with the next bytes; more than LARGEST_FRAME is refused. If a
        payload follows, it calls `expect` and returns at once. After `turn_ends` it takes one frame, and
        calls `give_way`. It may keep views of `data`. A ProtocolError ends the connection (`refuse`).
        """

    def body(self, data: memoryview) -> None:
        """Takes the next bytes of a payload after `expect`. It may keep `data`."""

    @property
    def can_splice(self) -> bool:
        """Whether `body_spliced` may get the next bytes of the payload instead of `body`."""
        return False

    def body_spliced(self, data: SplicedChunk) -> None:
        """As `body`, for bytes in a pipe. The pipe is emptied when it returns."""

    def body_ended(self) -> None:
        """Called after the last bytes of a payload."""

    @abstractmethod
    def refuse(self, error: ProtocolError) -> None:
        """Handles a peer that broke the protocol: may send an error (`write`), and calls `close`."""

    @abstractmethod
    def lost(self, reason: str) -> None:
        """Called once when the connection has ended, by either side."""

    def on_drained(self) -> None:
        """Called when all queued bytes are written."""

    def has_begun(self, take_frames: int) -> bool:
        """Whether the peer has sent a whole frame, given the bytes that `take_frames` took."""
        return take_frames > 0

    # -- before the first frame --------------------------------------------------------------------------

    def join(self, pending: PendingConnections[Connection]) -> None:
        """Stays in `pending` until its first whole frame, or its end."""
        if not self.closed:
            self._pending = pending
            pending.add(self)

    def evict(self) -> bool:
        """Closes the connection unless it has received a whole frame. Returns whether it is closed."""
        self.read(at_once=True)
        if self._pending is None:
            return self.closed
        self.close("it was closed for a newer connection before its first frame")
        return True

    def _leave_pending(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.remove(self)

    # -- reading -----------------------------------------------------------------------------------------

    def expect(self, nbytes: int) -> None:
        """Passes the next `nbytes` bytes to `body` as they arrive, then calls `body_ended`."""
        self._body = nbytes
        self._splices = nbytes >= SPLICE_FROM and self.has_pipes

    @property
    def has_pipes(self) -> bool:
        """Whether payloads can pass through pipes. With TLS they cannot: their bytes are encrypted."""
        return self._channel is None and self._group.pipes is not None

    def pause(self) -> None:
        """Stops reading until `resume` is called as often: the peer's buffers fill, and it blocks."""
        self._paused += 1
        if self._paused == 1 and not self.closed:
            self._loop.remove_reader(self._socket.fileno())

    def resume(self) -> None:
        """See `pause`."""
        if self._unpause() and self._rest:  # it may contain whole frames that the pause left
            self._group.later(self, self._cut_rest)

    def give_way(self) -> None:
        """Lets other connections run before it cuts the next frames."""
        if not self._gives_way:
            self._gives_way = True
            Connection.pause(self)  # the peer is not the reason for this pause
            self._group.later(self, self._go_on)

    def _go_on(self) -> None:
        self._gives_way = False
        if self._unpause() and self._rest:
            self._cut_rest()

    def _unpause(self) -> bool:
        """Undoes one pause. Returns whether it reads again."""
        self._paused -= 1
        if self._paused or self.closed:
            return False
        self._loop.add_reader(self._socket.fileno(), self.read)
        return True

    @property
    def paused(self) -> bool:
        """Whether reading is paused."""
        return self._paused > 0

    def read(self, *, at_once: bool = False) -> None:
        """Reads what has arrived, if this turn of the loop has time left. at_once: regardless of the time."""
        left = _TURN
        source, spill = (self._socket, 0) if self._channel is None else (self._channel, _SPILL)
        data: memoryview | SplicedChunk | None
        self.turn_ends = monotonic() + _TURN_SECONDS
        while left > 0 and not self._paused and not self.closed and (at_once or self._group.may_read(self)):
            try:
                data = self._splice_in() if self._splices and self.can_splice else None
                more = True
                if data is None:
                    most = _HEAD_BYTES if self._reads_head else _TURN
                    self._reads_head = False
                    data, room = self._group.receive(source, most)
                    more = len(data) >= room - spill
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self.close(error.strerror or str(error))
                return
            if not data:
                self.close("the peer has closed it")
                return
            self.last_read = monotonic()
            left -= len(data)
            if isinstance(data, SplicedChunk):
                self._take_spliced(data)
            else:
                self._take(data)
            if not more:
                return

    def _splice_in(self) -> SplicedChunk | None:
        """Returns the next bytes of a payload in a pipe; None: splice is not possible."""
        assert self._group.pipes is not None
        try:
            data = splice_in(self._group.pipes, self._socket.fileno(), self._body)
            if data is not None and not data:
                data.end()
            return data
        except OSError as error:
            if error.errno not in _NO_SPLICE:
                raise
            self._splices = False
            return None

    def _cut_rest(self) -> None:
        if not self.closed and not self._paused:
            rest, self._rest = self._rest, b""
            self.turn_ends = monotonic() + _TURN_SECONDS
            self._take(memoryview(rest))

    def _take(self, data: memoryview) -> None:
        """Passes received bytes to the current payload, and to `take_frames`."""
        try:
            while data and not self.closed:
                if self._body:
                    data = self._take_body(data)
                    continue
                if self._paused:
                    break
                if self._rest:
                    data, self._rest = memoryview(self._rest + data), b""
                take_frames = self.take_frames(data)
                data = data[take_frames:]
                if self._pending is not None and self.has_begun(take_frames):
                    self._leave_pending()
                if not self._body and (not take_frames or self._paused):
                    break
            if data and not self.closed:
                if not self._paused and len(data) > LARGEST_FRAME:
                    raise ProtocolError("size", f"a frame of more than {LARGEST_FRAME} bytes")
                self._rest = self._rest + data if self._rest else bytes(data)
        except ProtocolError as error:
            self.refuse(error)
        except Exception:  # noqa: BLE001 - the bytes that follow cannot be parsed
            self.fail()

    def _take_body(self, data: memoryview) -> memoryview:
        piece = data[: self._body]
        self._body -= len(piece)
        self.body(piece)
        if not self._body and not self.closed:
            self.body_ended()
            if monotonic() >= self.turn_ends:
                self.give_way()
        return data[len(piece) :]

    def _take_spliced(self, data: SplicedChunk) -> None:
        """Passes bytes in a pipe to the current payload."""
        self._body -= len(data)
        try:
            self.body_spliced(data)
            if not self._body and not self.closed:
                self._reads_head = True  # so that as much as possible of the next payload goes through pipes
                self.body_ended()
        except ProtocolError as error:
            self.refuse(error)
        except Exception:  # noqa: BLE001 - the bytes that follow cannot be parsed
            self.fail()
        finally:
            data.end()

    # -- writing -----------------------------------------------------------------------------------------

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
            self.on_drained()

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

    # -- the end -----------------------------------------------------------------------------------------

    def close(self, reason: str) -> None:
        """Closes the connection; bytes that the kernel does not take at once are lost. Idempotent."""
        if self.closed:
            return
        if self._out and not self._blocked:
            self._flush_once()
        self.closed = True
        self._leave_pending()
        self._group.blocked.discard(self)
        number = self._socket.fileno()
        self._loop.remove_reader(number)
        self._loop.remove_writer(number)
        self._socket.close()
        for data in self._out:
            if isinstance(data, PipedBytes):
                data.end()
        self._out.clear()
        self._in_pipes = self._sealed = 0
        self._rest, self.queued = b"", 0
        self.lost(reason)

    def fail(self) -> None:
        """Logs the current exception as a fault of the broker, and closes the connection."""
        _log.exception("the connection of %s fails", self.peer)
        self.close("the broker has failed")

    def _flush_once(self) -> None:
        """Tries once to send the error that was written just before."""
        try:
            if self._channel is not None:
                self._write_sealed(self._channel)
            elif not self._in_pipes:
                self._write_buffers()
        except OSError:
            return
