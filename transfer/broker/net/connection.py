"""A TCP connection of the broker, on its loop: reads what comes, and writes what is queued, without copies.

asyncio's own transports copy what the kernel does not take at once, and read into memory of their own for
each connection. Here all connections read into one arena, whose views go on to logs and subscribers as they
are.
"""

from __future__ import annotations

import errno
import logging
import socket
from abc import abstractmethod
from time import monotonic
from typing import TYPE_CHECKING

from transfer.broker.net.output import Output
from transfer.broker.net.splice import POUR_FROM, SplicedChunk, Waiting, pour
from transfer.transports.errors import ProtocolError

if TYPE_CHECKING:
    from transfer.broker.net.connection_group import ConnectionGroup
    from transfer.broker.net.pending_connections import PendingConnections

_log = logging.getLogger("transfer.broker")

#: bytes that one connection reads in one turn, and seconds for its frames, so that others come to theirs
_TURN, _TURN_SECONDS = 1 << 20, 0.002
#: room that TLS may leave though more is there: less than what another record needs
_SPILL = 32 << 10
#: bytes that are read behind a payload that came in pipes: the head of the next one, and little of its data
_LOOK = 4 << 10
#: what a socket or a system answers that cannot do it
_NO_PIPES = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM})
#: the rest of a frame that is kept until more of it comes; larger payloads come in pieces
LARGEST_FRAME = 1 << 20


class Connection(Output):
    """One connection, in non-blocking mode, that belongs to the loop from now on. Used on the loop only.

    peer: "host:port". heard: the loop's time when it last read something. turn_ends: when it is the turn of
    others, of the monotonic clock: `cut` gives way then.
    """

    def __init__(self, lines: ConnectionGroup, connection: socket.socket, peer: str) -> None:
        super().__init__(lines, connection)
        self.peer = peer
        self.heard = lines.loop.time()
        self.turn_ends = 0.0
        self._rest = b""  # the beginning of a frame
        self._body = 0  # bytes of a payload that are still to come, in pieces
        self._pouring = False  # the payload on its way is large enough for pipes
        self._looks = False  # the next read takes little
        self._gives_way = False
        self._paused = 0
        self._crowd: PendingConnections[Connection] | None = (
            None  # of those who have not sent a whole frame yet
        )
        self._loop.add_reader(connection.fileno(), self.read)

    # -- for the protocol above --------------------------------------------------------------------------

    @abstractmethod
    def cut(self, data: memoryview) -> int:
        """Takes the whole frames from the beginning of `data`: how many bytes they have together.

        What is left is given again with what comes next; more than LARGEST_FRAME is refused. `expect` says
        that bytes of a payload follow behind those that were taken; then it returns at once. Behind
        `turn_ends` it takes one frame, and calls `give_way`.
        May keep views of `data`. A ProtocolError ends the connection (`refuse`).
        """

    def body(self, data: memoryview) -> None:
        """The next bytes of a payload that was announced by `expect`; `data` may be kept."""

    @property
    def takes_pipes(self) -> bool:
        """The next bytes of the payload may be given to `body_poured` instead."""
        return False

    def body_poured(self, data: SplicedChunk) -> None:
        """As `body`, for bytes in a pipe, which is emptied when it returns."""

    def body_ended(self) -> None:
        """All bytes of a payload were given to `body` or `body_poured`."""

    @abstractmethod
    def refuse(self, error: ProtocolError) -> None:
        """The peer broke the protocol: it may be told (`write`), and is closed (`close`)."""

    @abstractmethod
    def lost(self, reason: str) -> None:
        """The connection has ended, whoever ended it. Called once."""

    def has_begun(self, cut: int) -> bool:
        """Whether the peer has shown what it wants, now that `cut` took so many bytes: by a whole frame."""
        return cut > 0

    # -- before the first frame --------------------------------------------------------------------------

    def join(self, crowd: PendingConnections[Connection]) -> None:
        """It is one of them until its first frame is whole, or it ends."""
        if not self.closed:
            self._crowd = crowd
            crowd.add(self)

    def put_out(self) -> bool:
        """Makes room, unless a whole frame is there; False: it stays."""
        self.read(at_once=True)
        if self._crowd is None:
            return self.closed
        self.close("it made room for others before its first frame")
        return True

    def _leave_crowd(self) -> None:
        crowd, self._crowd = self._crowd, None
        if crowd is not None:
            crowd.remove(self)

    # -- reading -----------------------------------------------------------------------------------------

    def expect(self, nbytes: int) -> None:
        """The next `nbytes` bytes go to `body`, as they come; then `body_ended` is called."""
        self._body = nbytes
        self._pouring = nbytes >= POUR_FROM and self.has_pipes

    @property
    def has_pipes(self) -> bool:
        """Bytes can come and go in pipes. With TLS they cannot: they change on their way."""
        return self._channel is None and self._lines.pipes is not None

    def pause(self) -> None:
        """Reads no more until `resume` was called as often: the peer's own buffers fill, and it waits."""
        self._paused += 1
        if self._paused == 1 and not self.closed:
            self._loop.remove_reader(self._socket.fileno())

    def resume(self) -> None:
        """See `pause`."""
        if self._unpause() and self._rest:  # frames may stand there that were not cut when it was paused
            self._lines.later(self, self._again)

    def give_way(self) -> None:
        """Others come to their turn before the next frames are cut."""
        if not self._gives_way:
            self._gives_way = True
            Connection.pause(self)  # the peer is not the reason for this pause
            self._lines.later(self, self._go_on)

    def _go_on(self) -> None:
        self._gives_way = False
        if self._unpause() and self._rest:
            self._again()

    def _unpause(self) -> bool:
        """Whether it reads again."""
        self._paused -= 1
        if self._paused or self.closed:
            return False
        self._loop.add_reader(self._socket.fileno(), self.read)
        return True

    @property
    def paused(self) -> bool:
        """Nothing is read at the moment."""
        return self._paused > 0

    def read(self, *, at_once: bool = False) -> None:
        """Reads what is there, if this turn of the loop has time for it, or `at_once`."""
        left = _TURN
        self.turn_ends = monotonic() + _TURN_SECONDS
        while left > 0 and not self._paused and not self.closed and (at_once or self._lines.may_read(self)):
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
            if isinstance(data, SplicedChunk):
                self._take_poured(data)
            else:
                self._take(data)
            if not more:
                return

    def _receive(self) -> tuple[memoryview | SplicedChunk, bool]:
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
        nbytes = (self._socket if self._channel is None else self._channel).recv_into(room)
        return self._lines.take(nbytes), nbytes > len(room) - (1 if self._channel is None else _SPILL)

    def _pour(self) -> SplicedChunk | None:
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
            self.turn_ends = monotonic() + _TURN_SECONDS
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
                if self._crowd is not None and self.has_begun(cut):
                    self._leave_crowd()
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
            if monotonic() >= self.turn_ends:
                self.give_way()
        return data[len(piece) :]

    def _take_poured(self, data: SplicedChunk) -> None:
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

    # -- the end -----------------------------------------------------------------------------------------

    def close(self, reason: str) -> None:
        """Ends the connection; what the system does not take at once is not written. Idempotent."""
        if self.closed:
            return
        if self._out and not self._blocked:
            self._last_words()
        self.closed = True
        self._leave_crowd()
        self._lines.blocked.discard(self)
        number = self._socket.fileno()
        self._loop.remove_reader(number)
        self._loop.remove_writer(number)
        self._socket.close()
        for data in self._out:
            if isinstance(data, Waiting):
                data.end()
        self._out.clear()
        self._in_pipes = self._sealed = 0
        self._rest, self.queued = b"", 0
        self.lost(reason)

    def fail(self) -> None:
        """Ends the connection in an `except`: the mistake is ours, and is logged."""
        _log.exception("the connection of %s fails", self.peer)
        self.close("the broker has failed")

    def _last_words(self) -> None:
        """An error that was written just before: one try."""
        try:
            if self._channel is not None:
                self._write_sealed(self._channel)
            elif not self._in_pipes:
                self._write_buffers()
        except OSError:
            return
