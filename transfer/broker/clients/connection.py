"""A TCP connection of a client: whole buffers out, an exact number of bytes in, each with a deadline."""

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

#: bytes that are read ahead: small messages then need no call of the system each
_AHEAD = 256 << 10
#: buffers that one call of the system is given
_BUFFERS = 512
#: seconds that one call of the system waits; a deadline may be as far away as infinity
_LONGEST = 3600.0
#: seconds that `close` waits for threads that are inside
_CLOSING = 1.0
#: seconds in which a broker that has no room closes a new connection
_SOON = 0.1
#: PyBroker and rqueue have no word for it
_FULL = "if the broker's log is full, its publishers wait: GET /readyz of its HTTP says so, and who holds it"


def checked_address(host: str, port: int) -> tuple[str, int]:
    """Raises ArgumentError."""
    if not text(host, "host"):
        raise wrong("host", host, "a name or number of a host")
    return host, whole(port, "port", 1, 65535)


def flat(payload: Any) -> memoryview:
    """The bytes of a payload. Raises ArgumentError."""
    try:
        return memoryview(payload).cast("B")
    except (TypeError, ValueError):
        raise not_a_buffer(payload) from None


class Connection:
    """Connects at once. One thread may send while another receives; more of them wait for each other.

    timeout: seconds for the connection, and for each call that does not say another number, which may be
    float("inf"). security: certificates, instead of what the environment says. Raises Again (nobody answered
    in time), Broken (refused, unreachable), HandshakeError (no TLS), SecurityError (files that cannot be
    used, or a token that the protocol does not know).
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
        self._begin = self._until = 0  # of what was read ahead
        self._large = bytearray()  # what is being received, and did not fit there
        self._got = 0  # bytes of it
        self._heard = False  # the peer has said something
        self._begun = False  # we have
        self._socket, self._channel = self._opened(time.monotonic() + timeout)
        #: what bytes go by
        self._way: socket.socket | TlsChannel = self._channel or self._socket

    def _opened(self, deadline: float) -> tuple[socket.socket, TlsChannel | None]:
        """A new connection, and its TLS where there are certificates."""
        patient = max(0.001, min(deadline - time.monotonic(), _LONGEST))
        try:
            opened = socket.create_connection(self._address, patient)
        except TimeoutError as error:
            raise Again(f"{self.peer} did not answer within {patient:.3g} s") from error
        except OSError as error:
            raise Broken(f"{self.peer} cannot be reached: {error.strerror or error}") from error
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return opened, secured(opened, self._address[0], deadline, self._security)
        except BaseException:
            opened.close()
            raise

    def send(self, buffers: Sequence[bytes | memoryview], *, timeout: float | None = None) -> None:
        """Sends all of them, one behind the other; they are the caller's again when it returns.

        Raises Again, after which the connection has ended, since part of a message is on its way; Broken,
        Closed.
        """
        deadline = self._deadline(timeout)
        with self._sending:
            self._check()
            if not self._begun:
                self._begin_to_say(deadline)
            left = [memoryview(data).cast("B") for data in buffers if len(data)]
            left.reverse()
            while not self._is_sent(left):
                self._wait_to_send(deadline)

    def receive(self, nbytes: int, *, timeout: float | None = None) -> bytes | bytearray:
        """The next `nbytes` bytes, in memory of their own.

        Raises Again: what came until then is kept, and the same call goes on with it. Broken, Closed.
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
        """Waits, before something is tried again. Raises Closed if it is closed meanwhile."""
        self._closed.wait(seconds)
        self._check()

    def close(self) -> None:
        """Ends it, for threads that wait in it too. Idempotent; any thread."""
        if self._channel is not None and not self._closed.is_set() and self._sending.acquire(blocking=False):
            try:
                self._channel.close()
            finally:
                self._sending.release()
        self._end()
        # Threads inside are awake, but for one that connects again, which closes what it makes.
        if self._sending.acquire(timeout=_CLOSING):
            with self._receiving:
                self._socket.close()
            self._sending.release()

    def _end(self) -> None:
        """Wakes all who wait."""
        self._closed.set()
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended before

    def _begin_to_say(self, deadline: float) -> None:
        """A broker may have put out a connection that had sent nothing, to make room for another: the first
        bytes would be lost without a word. Nothing is lost by another connection. Raises Broken, Again."""
        if self._has_ended(0):
            if self._heard or not self._receiving.acquire(blocking=False):  # someone waits in the old one
                raise closed(self.peer, self._channel, heard=self._heard)
            try:
                ended, (self._socket, self._channel) = self._socket, self._opened(deadline)
                self._way = self._channel or self._socket
                ended.close()
            finally:
                self._receiving.release()
            if self._closed.is_set():  # meanwhile, and does not wait for this
                self._socket.close()
            self._check()
            if self._has_ended(_SOON):
                raise closed(self.peer, self._channel, heard=False)
        self._begun = True

    def _has_ended(self, seconds: float) -> bool:
        """Whether the peer has closed the connection, or does so in this time."""
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        return bool(poll.poll(seconds * 1000))

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
                nbytes = self._way.recv_into(memory)
            except (BlockingIOError, InterruptedError):
                self._wait(select.POLLIN, deadline)
                continue
            except OSError as error:
                raise self._broken(error) from error
            if nbytes:
                self._heard = True
                return nbytes
            self._check()
            raise closed(self.peer, self._channel, heard=self._heard)

    def _is_sent(self, left: list[memoryview]) -> bool:
        """Sends what the system takes; `left` gets shorter. False: it takes no more now."""
        try:
            while left:
                _drop(left, self._way.sendmsg(list(islice(reversed(left), _BUFFERS))))
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
        return failure(error, self.peer, self._channel, heard=self._heard)


def _drop(left: list[memoryview], sent: int) -> None:
    """Takes so many bytes off the end of `left`, where the next ones stand."""
    while sent:
        first = left[-1]
        if len(first) > sent:
            left[-1] = first[sent:]
            return
        sent -= len(left.pop())
