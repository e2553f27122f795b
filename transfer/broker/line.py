"""A TCP connection of the broker, on its loop: reads what comes, and writes what is queued, without copies.

asyncio's own transports copy what the kernel does not take at once, and read into memory of their own for
each connection. Here all connections read into one arena, whose views go on to logs and subscribers as they
are.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from abc import ABC, abstractmethod
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from transfer.broker.pipes import POUR_FROM, Poured, Waiting, pipes_of, pour
from transports.errors import ProtocolError

if TYPE_CHECKING:
    from transfer.broker.message import Buffer
    from transports.core_contract import Pool

_log = logging.getLogger("transfer.broker")

#: bytes of the arena that connections read into, one behind the other
_ARENA = 1 << 20
#: an arena with less room than this is left to those who hold views of it
_LEAST_ROOM = 64 << 10
#: bytes that one connection reads in one turn, so that others come to theirs
_TURN = 1 << 20
#: bytes and buffers that one call of the system is given
_WRITE_BYTES, _WRITE_BUFFERS = 1 << 20, 512
#: queued bytes that are written at once, instead of at the end of the turn
_WRITE_NOW = 512 << 10
#: bytes that are read behind a payload that came in pipes: the head of the next one, and little of its data
_LOOK = 4 << 10
#: what a socket or a system answers that cannot do it
_NO_PIPES = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM})
#: the rest of a frame that is kept until more of it comes; larger payloads come in pieces
LARGEST_FRAME = 1 << 20


class Lines:
    """What the connections of one loop share: the memory they read into, and who has something to write.

    pipes: for payloads that are not copied (`pipes.py`); None: there are none here.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: Pool) -> None:
        self.loop = loop
        self.pipes = pipes_of(pool)
        self._pool = pool
        self._arena = memoryview(pool.lease(_ARENA))
        self._used = 0
        self._dirty: list[Line] = []
        #: lines whose peers do not take what is queued
        self.blocked: set[Line] = set()

    @property
    def busy(self) -> bool:
        """Something waits to be written."""
        return bool(self._dirty or self.blocked)

    def close(self) -> None:
        """When all connections have ended. Idempotent."""
        if self.pipes is not None:
            self.pipes.close()

    def room(self) -> memoryview:
        """Memory to read into; `take` says how much of it was used."""
        if _ARENA - self._used < _LEAST_ROOM:
            self._arena = memoryview(self._pool.lease(_ARENA))
            self._used = 0
        return self._arena[self._used :]

    def take(self, nbytes: int) -> memoryview:
        """What was read; it stays as it is while somebody has a view of it."""
        begin = self._used
        self._used = begin + nbytes
        return self._arena[begin : self._used]

    def soon(self, line: Line) -> None:
        """The line writes at the end of this turn."""
        if not self._dirty:
            self.loop.call_soon(self._flush)
        self._dirty.append(line)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for line in dirty:
            try:
                line.flush()
            except Exception:  # noqa: BLE001 - the others write all the same
                line.fail()


class Line(ABC):
    """One connection, in non-blocking mode, that belongs to the loop from now on. Used on the loop only.

    peer: "host:port". queued: bytes that wait to be written. heard: the loop's time when it last read
    something. closed: nothing is read or written any more.
    """

    def __init__(self, lines: Lines, connection: socket.socket, peer: str) -> None:
        self.peer = peer
        self.queued = 0
        self.closed = False
        self.heard = lines.loop.time()
        self._lines = lines
        self._loop = lines.loop
        self._socket = connection
        self._rest = b""  # the beginning of a frame
        self._body = 0  # bytes of a payload that are still to come, in pieces
        self._out: deque[Buffer | Waiting] = deque()
        self._in_pipes = 0  # how many of them wait in pipes
        self._pouring = False  # the payload on its way is large enough for pipes
        self._looks = False  # the next read takes little
        self._scheduled = self._blocked = False
        self._paused = 0
        self._loop.add_reader(connection.fileno(), self._readable)

    # -- for the protocol above --------------------------------------------------------------------------

    @abstractmethod
    def cut(self, data: memoryview) -> int:
        """Takes the whole frames from the beginning of `data`: how many bytes they have together.

        What is left is given again with what comes next; more than LARGEST_FRAME is refused. `expect` says
        that bytes of a payload follow behind those that were taken; then it returns at once.
        May keep views of `data`. A ProtocolError ends the connection (`refuse`).
        """

    def body(self, data: memoryview) -> None:
        """The next bytes of a payload that was announced by `expect`; `data` may be kept."""

    @property
    def takes_pipes(self) -> bool:
        """The next bytes of the payload may be given to `body_poured` instead."""
        return False

    def body_poured(self, data: Poured) -> None:
        """As `body`, for bytes in a pipe, which is emptied when it returns."""

    def body_ended(self) -> None:
        """All bytes of a payload were given to `body` or `body_poured`."""

    @abstractmethod
    def refuse(self, error: ProtocolError) -> None:
        """The peer broke the protocol: it may be told (`write`), and is closed (`close`)."""

    @abstractmethod
    def lost(self, reason: str) -> None:
        """The connection has ended, whoever ended it. Called once."""

    def relieved(self) -> None:
        """What was queued has been written, all of it."""

    # -- reading -----------------------------------------------------------------------------------------

    def expect(self, nbytes: int) -> None:
        """The next `nbytes` bytes go to `body`, as they come; then `body_ended` is called."""
        self._body = nbytes
        self._pouring = nbytes >= POUR_FROM and self._lines.pipes is not None

    def pause(self) -> None:
        """Reads no more until `resume` was called as often: the peer's own buffers fill, and it waits."""
        self._paused += 1
        if self._paused == 1 and not self.closed:
            self._loop.remove_reader(self._socket.fileno())

    def resume(self) -> None:
        """See `pause`."""
        self._paused -= 1
        if not self._paused and not self.closed:
            self._loop.add_reader(self._socket.fileno(), self._readable)
            if self._rest:  # frames may stand there that were not cut when it was paused
                self._loop.call_soon(self._again)

    @property
    def paused(self) -> bool:
        """Nothing is read at the moment."""
        return self._paused > 0

    def _readable(self) -> None:
        left = _TURN
        while left > 0 and not self._paused and not self.closed:
            try:
                data, more = self._receive()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self.close(error.strerror or str(error))
                return
            if not data:
                self.close("the peer has closed it")
                return
            self.heard = self._loop.time()
            left -= len(data)
            if isinstance(data, Poured):
                self._take_poured(data)
            else:
                self._take(data)
            if not more:
                return

    def _receive(self) -> tuple[memoryview | Poured, bool]:
        """What came, and whether more may be there."""
        if self._pouring and self.takes_pipes:
            data = self._pour()
            if data is not None:
                if not data:
                    data.end()
                return data, True
        room = self._lines.room()
        if self._looks:
            self._looks, room = False, room[:_LOOK]
        nbytes = self._socket.recv_into(room)
        return self._lines.take(nbytes), nbytes == len(room)

    def _pour(self) -> Poured | None:
        """The next bytes of a payload, in a pipe; None: they have to be read."""
        assert self._lines.pipes is not None
        try:
            return pour(self._lines.pipes, self._socket.fileno(), self._body)
        except OSError as error:
            if error.errno not in _NO_PIPES:
                raise
            self._pouring = False
            return None

    def _again(self) -> None:
        if not self.closed and not self._paused:
            rest, self._rest = self._rest, b""
            self._take(memoryview(rest))

    def _take(self, data: memoryview) -> None:
        """Bytes that came: to the payload on its way, and to `cut`."""
        try:
            while data and not self.closed:
                if self._body:
                    data = self._take_body(data)
                    continue
                if self._paused:
                    break
                if self._rest:
                    data, self._rest = memoryview(self._rest + data), b""
                cut = self.cut(data)
                data = data[cut:]
                if not self._body and (not cut or self._paused):
                    break
            if data and not self.closed:
                if not self._paused and len(data) > LARGEST_FRAME:
                    raise ProtocolError("size", f"a frame of more than {LARGEST_FRAME} bytes")
                self._rest = self._rest + data if self._rest else bytes(data)
        except ProtocolError as error:
            self.refuse(error)
        except Exception:  # noqa: BLE001 - what comes behind cannot be understood
            self.fail()

    def _take_body(self, data: memoryview) -> memoryview:
        piece = data[: self._body]
        self._body -= len(piece)
        self.body(piece)
        if not self._body and not self.closed:
            self.body_ended()
        return data[len(piece) :]

    def _take_poured(self, data: Poured) -> None:
        """The same for bytes in a pipe."""
        self._body -= len(data)
        try:
            self.body_poured(data)
            if not self._body and not self.closed:
                self._looks = True  # of the next payload as much as can be goes through pipes
                self.body_ended()
        except ProtocolError as error:
            self.refuse(error)
        except Exception:  # noqa: BLE001 - what comes behind cannot be understood
            self.fail()
        finally:
            data.end()

    # -- writing -----------------------------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        """Queues bytes, which stay as they are until they are written. Never waits."""
        if self.closed or not data:
            return
        self._out.append(data)
        self.queued += len(data)
        if self._blocked:
            return
        if self.queued >= _WRITE_NOW:
            self.flush()
        elif not self._scheduled:
            self._scheduled = True
            self._lines.soon(self)

    def write_poured(self, data: Poured) -> None:
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
        while out and not self.closed:
            try:
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
        except Exception:  # noqa: BLE001 - it is ours, and told in the log
            self.fail()

    def _write_buffers(self, most: int = _WRITE_BUFFERS, flags: int = 0) -> bool:
        """Whether all was written that the system was given."""
        buffers: list[Buffer] = []
        nbytes = 0
        for data in islice(self._out, most):
            buffers.append(data)  # type: ignore[arg-type]
            nbytes += len(data)
            if nbytes >= _WRITE_BYTES:
                break
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
            self._lines.blocked.add(self)
            self._loop.add_writer(self._socket.fileno(), self._writable)

    # -- the end -----------------------------------------------------------------------------------------

    def close(self, reason: str) -> None:
        """Ends the connection; what the system does not take at once is not written. Idempotent."""
        if self.closed:
            return
        if self._out and not self._blocked:
            self._last_words()
        self.closed = True
        self._lines.blocked.discard(self)
        number = self._socket.fileno()
        self._loop.remove_reader(number)
        self._loop.remove_writer(number)
        self._socket.close()
        for data in self._out:
            if isinstance(data, Waiting):
                data.end()
        self._out.clear()
        self._in_pipes = 0
        self._rest, self.queued = b"", 0
        self.lost(reason)

    def fail(self) -> None:
        """Ends the connection in an `except`: the mistake is ours, and is logged."""
        _log.exception("the connection of %s fails", self.peer)
        self.close("the broker has failed")

    def _last_words(self) -> None:
        """An error that was written just before: one try."""
        try:
            if not self._in_pipes:
                self._write_buffers()
        except OSError:
            return
