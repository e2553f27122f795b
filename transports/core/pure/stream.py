"""One connection. The sending half is in `outgoing.py`, the decoder in `codec.py`."""

from __future__ import annotations

import array
import errno
import fcntl
import socket
import termios
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from transfer.transports.core import fork
from transfer.transports.core.pure.codec import CONTROL, Decoder
from transfer.transports.core.pure.flusher import Flusher
from transfer.transports.core.pure.outgoing import Outgoing, failed, interrupted
from transfer.transports.core.pure.pool import Pool
from transfer.transports.core.python_tls import SPILL, TlsChannel
from transfer.transports.errors import Broken, ProtocolError, unraised
from transfer.transports.prefixes import Prefixes, Subscribable

if TYPE_CHECKING:
    from transfer.transports.core.contract import Carrier, Sink
    from transfer.transports.core.pure.frame import Frame

#: bytes of one read
READ_AHEAD = 64 * 1024
#: bytes that are read behind the data of a large frame: they have to be copied
_READ_BEHIND = 4 * 1024
#: bytes of one system call: so that a check for signs of life sees progress
SLICE = 1 << 20


class Stream(Subscribable, Outgoing):
    """Framing, gathering and reading over one descriptor. See `Stream` in core/contract.pyi.

    `_reading` guards the decoder; the order of locks is `_reading`, `_lock`, the flusher's.
    """

    def __init__(
        self,
        fd: int,
        socket_type: int,
        flusher: Flusher,
        pool: Pool,
        *,
        send_high_water: int = 1000,
        send_high_water_bytes: int = 64 << 20,
        max_message: int = 16 << 30,
        checksum: bool = False,
        credits: bool = False,
        channel: TlsChannel | None = None,
    ) -> None:
        super().__init__(socket_type, flusher)
        self.peer: Any = None
        self.identity: bytes | None = None
        self.received_bytes = self.waited_ns = self.last_received_ns = 0
        self.send_high_water = send_high_water
        self.send_high_water_bytes = send_high_water_bytes
        self.checksum = checksum
        self.credits = credits
        self._closed = False
        self._inside = self._left = False  # a thread is in a read, which closes the descriptor
        self._prefixes = Prefixes()
        self._reading = threading.Lock()
        self._decoder = Decoder(pool, max_message)
        self._behind = bytearray(_READ_BEHIND)
        self._failure: BaseException | None = None
        if fd >= 0:
            self.open(fd, channel)

    def fileno(self) -> int:
        return self.fd

    by_rdma = registers_device_memory = False

    @property
    def unread(self) -> int:
        answer = array.array("i", [0])
        with suppress(OSError, ValueError):  # the second one for no descriptor
            fcntl.ioctl(self.fd, termios.FIONREAD, answer)
        return answer[0]

    def open(self, fd: int, channel: TlsChannel | None = None) -> None:
        """For a stream made with fd -1: takes the descriptor over and writes queued output."""
        self._flusher.check()
        if channel is not None:
            channel.give()
            self._behind = bytearray(SPILL)
        with self._lock:
            self._channel = channel
            self._socket = socket.socket(fileno=fd)
            self._socket.setblocking(False)
            if self._queue:
                self._write()
        self._settle()
        owner = self._owner_ref()
        if owner is not None:
            owner._opened(self)

    @property
    def consumed(self) -> int:
        return self.received

    @property
    def max_message(self) -> int:
        return self._decoder.max_message

    @max_message.setter
    def max_message(self, value: int) -> None:
        self._decoder.max_message = value

    @property
    def carrier(self) -> Carrier | None:
        return self._decoder.carrier

    @carrier.setter
    def carrier(self, value: Carrier | None) -> None:
        self._decoder.carrier = value

    @property
    def midway(self) -> bool:
        if not self._reading.acquire(blocking=False):
            return False  # another thread reads at this moment
        try:
            return self._failure is None and self._decoder.starving
        finally:
            self._reading.release()

    # -- receiving

    def receive(self) -> list[Frame] | None:
        """One message or control frame, None: there is none. Raises ProtocolError, Broken."""
        self._flusher.check()
        with self._reading:
            if not self._decoder.messages:
                self._pull(None)
            taken = self._next()
        if taken is None:
            return None
        self._count(taken[0])
        return taken[0]

    @property
    def _has_decoded(self) -> bool:
        """`_next` will return a message or raise the end."""
        return bool(self._decoder.messages) or self._failure is not None

    def _next(self) -> tuple[list[Frame], set[int]] | None:
        """The oldest decoded message and which of its frames a sink placed. Raises the stream's end."""
        return None if self._oldest() is None else self._decoder.take()

    def _oldest(self) -> list[Frame] | None:
        """The oldest decoded message, which stays here. Raises the stream's end."""
        messages = self._decoder.messages
        if not messages and self._failure is not None:
            raise unraised(self._failure)
        return messages[0] if messages else None

    def _count(self, frames: list[Frame]) -> None:
        """The application has this message: a message that was only found is not consumed."""
        if frames[0].flags & CONTROL:
            return
        nbytes = sum(map(len, frames))
        self.received += 1
        self.received_bytes += nbytes
        if self.credits and not self._credit_listed and self._socket is not None:
            self._credit_listed = True
            self._flusher.credit(self)

    def _pull(self, sink: Sink | None) -> None:
        """Reads until a message is complete or no byte is left. Only exceptions of the sink get out; they
        end the stream if they are a ProtocolError."""
        decoder, owner = self._decoder, self._owner_ref()
        while not decoder.messages and self._failure is None and self._owner_ref() is owner:
            try:
                body = None if decoder.head is None else decoder.body(sink)
            except ProtocolError as error:  # the sink refuses the header, or there is no memory
                self._end(error.with_traceback(None))
                return
            if not self._read(body):
                return

    def _leave_sink(self) -> None:
        """Moves a half received message out of memory that belongs to the caller again."""
        try:
            self._decoder.unplace()
        except ProtocolError as error:  # there is no memory for it
            self._end(error.with_traceback(None))
        if self._closed:  # by another thread, which could not drop the bytes read here
            self._drop_unread()

    def _read(self, body: memoryview | None) -> bool:
        """Reads once and decodes. False: no byte is there, or the end (see `_failure`). A stream that is
        closed meanwhile leaves its descriptor to the reader: its number may be reused at once."""
        with self._lock:
            self._inside = not self._closed
        try:
            more = self._inside and self._read_once(body)
        finally:
            with self._lock:
                self._inside = False
                if self._left and self._socket is not None:
                    self._socket.close()
        if self._closed:
            self._failure = self.broken
            self._drop_unread()
            return False
        return more

    def _drop_unread(self) -> None:
        self._decoder.abandon()
        self._decoder.messages.clear()

    def _read_once(self, body: memoryview | None) -> bool:
        if self._socket is None:
            return False
        sock: Any = self._channel or self._socket
        try:
            if body is not None and not len(body):
                self._decoder.filled(0)
                return True
            if body is None:
                data = sock.recv(READ_AHEAD)
                count = len(data)
            elif len(body) > SLICE:  # more than what TLS needs, see `tls.SPILL`
                count, data = sock.recv_into(body[:SLICE]), b""
            else:
                count = sock.recvmsg_into((body, self._behind))[0]
                data = bytes(self._behind[: max(0, count - len(body))])
            if not count:
                self._end(self._end_of_stream())
                return False
            self.last_received_ns = time.monotonic_ns()
            self._turn = True
            if body is not None:
                self._decoder.filled(min(count, len(body)))
            if data:
                self._decoder.feed(data)
            return True
        except BlockingIOError:
            return False
        except OSError as error:  # without its traceback, which would keep the memory
            if self._channel is not None and error.errno == errno.EPROTO:
                self._end(ProtocolError("tls", f"invalid TLS: {error.strerror}"))
                return False
            self._end(failed(error.with_traceback(None)))
        except ProtocolError as error:
            self._end(error.with_traceback(None))
        except BaseException as error:
            # Interrupted between the system call and the update of the decoder: the stream ends, since it may
            # have lost some bytes.
            self._end(interrupted(error))
            raise
        return False

    def _end_of_stream(self) -> BaseException:
        if self._decoder.inside:
            return ProtocolError("truncated", "the connection ended inside a message")
        return Broken("the peer closed the connection")

    def _end(self, error: BaseException) -> None:
        self._failure = error
        self._decoder.abandon()
        if not isinstance(error, ProtocolError) or self._owner_ref() is None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """No more is sent. After a bad frame the socket calls it, when it has sent the reason."""
        with self._lock:
            self._break(error)
        self._settle()

    # -- the end

    def _close_descriptor(self) -> None:
        with self._lock:
            if self._socket is None:
                return
            if not self._inside:
                self._socket.close()
                return
            self._left = True
            with suppress(OSError):  # the peer was faster
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> int:
        """Idempotent, at once, no waiting. Returns how many queued messages were lost."""
        if self._flusher.generation != fork.generation:
            # The parent's locks may be held for ever in this process; it shares the selectors too.
            if self._socket is not None:
                self._socket.close()
            return 0
        with self._lock:
            if self._closed:
                return 0
            self._closed = True
            if self.broken is None:
                self.broken = Broken("this end closed the stream")
            self._end_drain()
            lost = self.queued
            unsent = list(self._queue)
            while self._queue:
                self._leave(self._queue.popleft(), self.broken)
            self._finished = [item for item in self._finished if item[0] not in unsent]
        if self._reading.acquire(blocking=False):  # else the reading thread does it
            self._drop_unread()
            self._reading.release()
        if self.carrier is not None:
            self.carrier.close()
        self._flusher.forget(self)
        owner = self._owner_ref()
        if owner is not None:
            owner._closing(self)
        self._close_descriptor()
        self._room = True
        self._settle()
        for message in unsent:
            if message.released is not None:
                message.released(self.broken)
        return lost
