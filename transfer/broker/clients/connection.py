"""A TCP connection of a client: sends whole buffers and receives exact numbers of bytes, with deadlines."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from transfer.broker.clients.tls import closed, failure, secured, security_for
from transfer.transports.arguments import patience, text, whole, wrong
from transfer.transports.errors import Again, Broken, Closed, TransferError, not_a_buffer

if TYPE_CHECKING:
    from transfer.transports.core.contract import TlsChannel
    from transfer.transports.security.settings import Security

#: bytes that it reads ahead, so that not every small message needs a system call
_AHEAD = 256 << 10
#: buffers of one system call
_BUFFERS = 512
#: seconds that one system call waits; a deadline may be infinity
_LONGEST = 3600.0
#: seconds that `close` waits for threads in `send` and `receive`
_CLOSING = 1.0
#: seconds in which a broker that has no room closes a new connection
_SOON = 0.1
#: a hint, since PyBroker and rqueue cannot report it
_FULL = (
    "publishers wait while the broker's log is full: GET /readyz of its HTTP names the groups that hold it"
)


def checked_address(host: str, port: int) -> tuple[str, int]:
    """Checks a host and a port. Raises ArgumentError."""
    if not text(host, "host"):
        raise wrong("host", host, "a name or number of a host")
    return host, whole(port, "port", 1, 65535)


def flat(payload: Any) -> memoryview:
    """Returns the bytes of a payload. Raises ArgumentError."""
    try:
        return memoryview(payload).cast("B")
    except (TypeError, ValueError):
        raise not_a_buffer(payload) from None


def connected(
    address: tuple[str, int], deadline: float, security: Security, protocols: tuple[str, ...] = ()
) -> tuple[socket.socket, TlsChannel | None]:
    """Connects, and returns the socket and its TLS channel. Raises Again, Broken, HandshakeError."""
    host, port = address
    patient = max(0.001, min(deadline - time.monotonic(), _LONGEST))
    try:
        opened = socket.create_connection(address, patient)
    except TimeoutError as error:
        raise Again(f"{host}:{port} did not answer within {patient:.3g} s") from error
    except OSError as error:
        raise Broken(f"{host}:{port} cannot be reached: {error.strerror or error}") from error
    try:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened, secured(opened, host, deadline, security, protocols)
    except BaseException:
        opened.close()
        raise


def has_ended(connection: socket.socket, seconds: float) -> bool:
    """Whether the peer has closed the connection, or closes it within `seconds`."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(seconds * 1000))


class ClientConnection:
    """A TCP connection, with TLS if configured. One thread may send while another receives; others block.

    timeout: seconds to connect, and the default of each call; it may be float("inf"). security: certificates,
    instead of those of the environment. Raises Again (no answer in time), Broken (refused, unreachable),
    HandshakeError (TLS failed), SecurityError (unusable files, or a token, which the protocol does not have).
    """

    def __init__(
        self, host: str, port: int, *, timeout: float = 30.0, security: Security | None = None
    ) -> None:
        host, port = self._address = checked_address(host, port)
        self.peer = f"{host}:{port}"
        self.timeout = timeout = patience(timeout, endless=False) or 0.0
        self._security = security_for(self.peer, security)
        self._sending = threading.Lock()
        self._receiving = threading.Lock()
        self._closed = threading.Event()
        self._ahead = memoryview(bytearray(_AHEAD))
        self._begin = self._until = 0  # the range of bytes that were read ahead
        self._large = bytearray()  # an incomplete message that does not fit into `_ahead`
        self._got = 0  # bytes of it
        self._received = False  # any byte was received
        self._begun = False  # any byte was sent
        self._socket, self._channel = connected(self._address, time.monotonic() + timeout, self._security)
        #: sends and receives bytes
        self._stream: socket.socket | TlsChannel = self._channel or self._socket

    def send(self, buffers: Sequence[bytes | memoryview], *, timeout: float | None = None) -> None:
        """Sends all buffers in order. The caller may change them when it returns.

        Raises Broken, Closed, and Again. Again ends the connection, since part of a message was sent.
        """
        deadline = self._deadline(timeout)
        with self._sending:
            self._check()
            if not self._begun:
                self._prepare_to_send(deadline)
            left = [memoryview(data).cast("B") for data in buffers if len(data)]
            left.reverse()
            while not self._is_sent(left):
                self._wait_to_send(deadline)

    def receive(self, nbytes: int, *, timeout: float | None = None) -> bytes | bytearray:
        """Returns the next `nbytes` bytes, in new memory.

        Raises Broken, Closed, and Again. After Again a call with the same `nbytes` continues without a loss.
        """
        deadline = self._deadline(timeout)
        with self._receiving:
            self._check()
            if nbytes > _AHEAD:
                return self._receive_large(nbytes, deadline)
            if nbytes > _AHEAD - self._begin:  # the rest moves to the front
                rest = bytes(self._ahead[self._begin : self._until])
                self._ahead[: len(rest)] = rest
                self._begin, self._until = 0, len(rest)
            while self._until - self._begin < nbytes:
                self._until += self._read(self._ahead[self._until :], deadline)
            data = bytes(self._ahead[self._begin : self._begin + nbytes])
            self._begin += nbytes
            if self._begin == self._until:
                self._begin = self._until = 0
            return data

    def rest(self, seconds: float) -> None:
        """Waits before a retry. Raises Closed if it is closed meanwhile."""
        self._closed.wait(seconds)
        self._check()

    def close(self) -> None:
        """Closes the connection; waiting calls of other threads raise Closed. Idempotent; any thread."""
        if self._channel is not None and not self._closed.is_set() and self._sending.acquire(blocking=False):
            try:
                self._channel.close()
            finally:
                self._sending.release()
        self._end()
        # Waiting threads are awake now, apart from one that connects again, which closes its new socket.
        if self._sending.acquire(timeout=_CLOSING):
            with self._receiving:
                self._socket.close()
            self._sending.release()

    def _end(self) -> None:
        """Wakes all waiting threads."""
        self._closed.set()
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the connection has ended already

    def _prepare_to_send(self, deadline: float) -> None:
        """Connects again if the broker has closed the connection before its first byte. Raises Broken, Again.

        The broker may close connections that have sent nothing, in favour of others. The first bytes would be
        lost without an error; a new connection loses nothing.
        """
        if has_ended(self._socket, 0):
            if self._received or not self._receiving.acquire(blocking=False):  # a thread waits in the old one
                raise closed(self.peer, self._channel, received=self._received)
            try:
                ended = self._socket
                self._socket, self._channel = connected(self._address, deadline, self._security)
                self._stream = self._channel or self._socket
                ended.close()
            finally:
                self._receiving.release()
            if self._closed.is_set():  # `close` was called meanwhile, and does not wait for this thread
                self._socket.close()
            self._check()
            if has_ended(self._socket, _SOON):
                raise closed(self.peer, self._channel, received=False)
        self._begun = True

    def _receive_large(self, nbytes: int, deadline: float) -> bytearray:
        if not self._large:
            self._large, self._got = bytearray(nbytes), 0
        with memoryview(self._large) as large:
            have = min(self._until - self._begin, nbytes - self._got)
            large[self._got : self._got + have] = self._ahead[self._begin : self._begin + have]
            self._begin += have
            self._got += have
            while self._got < nbytes:
                self._got += self._read(large[self._got :], deadline)
        whole, self._large = self._large, bytearray()
        return whole

    def _read(self, memory: memoryview, deadline: float) -> int:
        while True:
            try:
                nbytes = self._stream.recv_into(memory)
            except (BlockingIOError, InterruptedError):
                self._wait(select.POLLIN, deadline)
                continue
            except OSError as error:
                raise self._broken(error) from error
            if nbytes:
                self._received = True
                return nbytes
            self._check()
            raise closed(self.peer, self._channel, received=self._received)

    def _is_sent(self, left: list[memoryview]) -> bool:
        """Sends what the kernel takes, and removes it from `left`. Returns whether all is sent."""
        try:
            while left:
                _drop(left, self._stream.sendmsg(list(islice(reversed(left), _BUFFERS))))
            return self._channel is None or self._channel.flush()
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            raise self._broken(error) from error

    def _wait_to_send(self, deadline: float) -> None:
        try:
            self._wait(select.POLLOUT, deadline)
        except Again as error:
            self._end()
            raise Again(f"{self.peer} took nothing in time", hint=_FULL) from error

    def _wait(self, event: int, deadline: float) -> None:
        left = deadline - time.monotonic()
        poll = select.poll()
        poll.register(self._socket, event)
        if left <= 0 or (not poll.poll(min(left, _LONGEST) * 1000) and left <= _LONGEST):
            raise Again(f"{self.peer} did not answer in time")
        self._check()

    def _deadline(self, timeout: float | None) -> float:
        return time.monotonic() + (self.timeout if timeout is None else timeout)

    def _check(self) -> None:
        if self._closed.is_set():
            raise Closed(f"the connection to {self.peer} has ended")

    def _broken(self, error: OSError) -> TransferError:
        if self._closed.is_set():
            return Closed(f"the connection to {self.peer} has ended")
        return failure(error, self.peer, self._channel, received=self._received)


def _drop(left: list[memoryview], sent: int) -> None:
    """Removes `sent` bytes from the end of `left`, which is in reverse order."""
    while sent:
        first = left[-1]
        if len(first) > sent:
            left[-1] = first[sent:]
            return
        sent -= len(left.pop())
