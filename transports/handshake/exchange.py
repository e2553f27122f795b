"""Drives one handshake over a non-blocking socket in the reactor's thread."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from transfer.transports.address import POLICIES, Address
from transfer.transports.core.wire import HEADER_SIZE
from transfer.transports.errors import Closed, HandshakeError, TransferError, without_frames
from transfer.transports.handshake.handshake import Handshake
from transfer.transports.handshake.hello import Agreement, Hello
from transfer.transports.handshake.upgrade import Made, declined
from transfer.transports.reactor import EDGE, ERROR, HANGUP, PEER_CLOSED, READABLE, WRITABLE, Reactor
from transfer.transports.security import hints
from transfer.transports.security.mechanism import Question, Verdict

if TYPE_CHECKING:
    from transfer.transports.core.contract import TlsChannel

#: where the system has no edge-triggered readiness: seconds between two looks at an incomplete header
_LOOK_AGAIN = 0.01

#: makes TLS for a descriptor. Raises SecurityError
Secure = Callable[[int], "TlsChannel"]

#: (the exchange, its outcome, the transport: the receiver owns it; None after an error)
OnEnd = Callable[["Exchange", Agreement | HandshakeError, Made | None], object]


class Exchange:
    """Owns the socket until the end, when `on_end` is called once, in the reactor's thread.

    It reads no byte behind the handshake. `timeout` seconds limit the whole exchange, and a peer that falls
    silent inside a header. `cancel` may be called from any thread.
    """

    def __init__(
        self,
        reactor: Reactor,
        connection: socket.socket,
        handshake: Handshake,
        peer: str,
        on_end: OnEnd,
        secure: Secure | None = None,
        *,
        begins: bool | None = None,
    ) -> None:
        """secure: makes TLS. begins: this side is its client; None: if it connects."""
        self.peer = peer
        self._reactor = reactor
        self._socket = connection
        self._fd = connection.fileno()
        self._handshake = handshake
        self._on_end = on_end
        self._secure = secure
        self._begins = handshake.connecting if begins is None else begins
        #: ends the question to the authenticator
        self._withdraw: Callable[[], object] | None = None
        self._channel: TlsChannel | None = None
        self._events = 0
        # Input and output run under this lock, so that `cancel` never closes a descriptor whose number the
        # system has given to another file by the time that it is read.
        self._lock = threading.Lock()
        self._done = False

    def start(self, timeout: float, since: float | None = None) -> None:
        """Call once, in the reactor's thread. since: the start of the time, by time.monotonic(); None:
        now."""
        if self._secure is None:
            self._handshake.begin()
        spent = 0.0 if since is None else time.monotonic() - since
        self._timer = self._reactor.call_later(timeout - spent, self._late, timeout)
        self._events = self._wanted()
        self._reactor.register(self._fd, self._events, self._ready)

    def cancel(self) -> None:
        """Ends it at once; `on_end` is not called after that. Idempotent."""
        with self._lock:
            if not self._done:
                self._finish()
                self._handshake.abandon()
                self._socket.close()

    # ------------------------------------------------------------------------------------------

    def _ready(self, events: int) -> None:
        with self._lock:
            if self._done:
                return
            try:
                self._read(events)
            except OSError as error:
                self._broke(error)
            ended = self._ended()
        self._report(ended)

    def _broke(self, error: OSError) -> None:
        if self._secure is not None and (error.errno == errno.EPROTO or not self._is_tls):
            text = f"no TLS with {self.peer}: {error.strerror}"
            curve = self._handshake.mechanism.encrypts
            hint = hints.CURVE if curve else hints.hint_of(text, hints.CLOSED)
            self._handshake.fail("tls", text, hint=hint)
        else:
            why = f"the connection ended in the handshake: {error.strerror}"
            self._handshake.fail("broken", why, hint=self._closed_hint)
        self._handshake.outcome.__cause__ = without_frames(error)  # type: ignore[union-attr]

    @property
    def _is_tls(self) -> bool:
        return self._channel is not None and self._channel.done

    @property
    def _closed_hint(self) -> str:
        """The hint for a peer that closes without an answer."""
        if not self._handshake.connecting or self._handshake.begun:
            return ""
        if self._secure is None:
            return hints.PLAIN
        return "" if self._channel is None or self._channel.own_certificate else hints.BARE

    def _late(self, timeout: float) -> None:
        with self._lock:
            if self._done:
                return
            error = late(self.peer, timeout)
            self._handshake.fail(error.reason, error.message, hint=error.hint)
            ended = self._ended()
        self._report(ended)

    def _report(self, ended: tuple[Agreement | HandshakeError, Made | None] | None) -> None:
        if ended is not None:
            self._on_end(self, *ended)

    # -- under the lock ------------------------------------------------------------------------

    def _read(self, events: int) -> None:
        handshake = self._handshake
        try:
            if self._secure is not None and not self._is_secured(self._secure):
                return
            connection = self._channel or self._socket
            while self._write() and handshake.outcome is None:
                if handshake.question is not None:
                    if not self._is_answered(handshake.question, events):
                        return
                    continue
                if handshake.peeking:
                    data = self._socket.recv(HEADER_SIZE, socket.MSG_PEEK)
                    if data and not handshake.look(data):
                        if events & (PEER_CLOSED | HANGUP | ERROR):
                            handshake.fail("truncated", "the peer closed in the middle of its first header")
                        return
                else:
                    data = connection.recv(handshake.wants)
                    if data:
                        handshake.feed(data)
                if not data:
                    reason = "truncated" if handshake.begun else "closed"
                    why = "the peer closed before its hello was complete"
                    handshake.fail(reason, why, hint=self._closed_hint)
        except BlockingIOError:
            return

    def _is_secured(self, secure: Secure) -> bool:
        """Whether TLS is established; the hello follows."""
        if self._channel is None:
            try:
                self._channel = secure(self._fd)
            except TransferError as error:  # the certificate cannot be used any more
                self._handshake.fail("tls", str(error).partition("\n")[0])
                return False
        channel = self._channel
        if channel.done:
            return True
        if not channel.handshake():
            return False
        if channel.context.keyed:
            self._handshake.secured(channel.binding, authenticated=False)
        else:
            shown = channel.peer_certificate
            accepting = shown if self._handshake.connecting else channel.own_certificate
            self._handshake.secured(accepting, authenticated=bool(shown))
        self._handshake.begin()
        return True

    def _is_answered(self, question: Question, events: int) -> bool:
        """Asks the authenticator, once. False: it decides later, and nothing is read until then."""
        asks = self._handshake.mechanism.asks
        if asks is None:
            self._handshake.answer(None)
            return True
        if events & (PEER_CLOSED | HANGUP | ERROR):
            self._handshake.fail("truncated", "the peer closed before the authenticator had decided")
        elif self._withdraw is None:
            try:
                self._withdraw = asks(question, self._decided)
            except TransferError as error:
                self._handshake.answer(Verdict(500, f"the authenticator cannot be asked: {error}"))
                return True
        return False

    def _decided(self, verdict: Verdict | None) -> None:
        """The authenticator's decision. Any thread."""
        with suppress(Closed):  # the context ends
            self._reactor.call_soon(self._answered, verdict)

    def _answered(self, verdict: Verdict | None) -> None:
        with self._lock:
            if self._done:
                return
            self._withdraw = None
            self._handshake.answer(verdict)
        self._ready(0)

    def _write(self) -> bool:
        """True when nothing is left to send."""
        output = self._handshake.output
        connection = self._channel or self._socket
        try:
            while output:
                del output[: connection.send(bytes(output))]
            return self._channel is None or self._channel.flush()
        except BlockingIOError:
            return False
        except OSError:
            if isinstance(self._handshake.outcome, HandshakeError):
                output.clear()  # the refusal cannot be sent; its reason is kept
                return True
            raise

    @property
    def _unsent(self) -> bool:
        return self._channel is not None and self._channel.unsent > 0

    def _wanted(self) -> int:
        begins = self._secure is not None and self._channel is None and self._begins
        writes = self._handshake.output or self._unsent or begins
        # Nothing is read while the authenticator decides: without edges a byte would wake the loop endlessly.
        reads = READABLE if self._handshake.question is None else 0
        return reads | PEER_CLOSED | EDGE | (WRITABLE if writes else 0)

    def _ended(self) -> tuple[Agreement | HandshakeError, Made | None] | None:
        """The arguments for `on_end`, or None if the exchange goes on."""
        outcome = self._handshake.outcome
        if outcome is None or self._handshake.output or (self._unsent and isinstance(outcome, Agreement)):
            self._go_on()
            return None
        self._finish()
        if isinstance(outcome, Agreement):
            return self._made(outcome, self._socket.detach())
        self._socket.close()
        return outcome, None

    def _made(self, agreement: Agreement, fd: int) -> tuple[Agreement | HandshakeError, Made | None]:
        inode = os.fstat(fd).st_ino
        try:
            made = self._handshake.made(fd, self._channel)
        except Exception as error:  # noqa: BLE001 - of another distribution's transport
            why = declined(error)
            with suppress(OSError):  # closed already, or reused by another file
                if os.fstat(fd).st_ino == inode:
                    os.close(fd)
            return HandshakeError("upgrade", str(why).partition("\n")[0], hint=why.hint), None
        return agreement, made

    def _go_on(self) -> None:
        wanted = self._wanted()
        if not EDGE and self._handshake.peeking:
            # Without edges the bytes that were peeked at would wake the loop endlessly.
            self._events = 0
            self._reactor.modify(self._fd, 0)
            self._reactor.call_later(_LOOK_AGAIN, self._ready, 0)
        elif wanted != self._events:
            self._events = wanted
            self._reactor.modify(self._fd, wanted)

    def _finish(self) -> None:
        self._done = True
        withdraw, self._withdraw = self._withdraw, None
        if withdraw is not None:
            withdraw()
        self._timer.cancel()
        self._reactor.unregister(self._fd)


def late(peer: str, timeout: float) -> HandshakeError:
    """The error of a handshake that took too long."""
    return HandshakeError(
        "timeout",
        f"no hello from {peer} within {timeout:g} s",
        hint="is a peer of this library at the other end? handshake_ivl sets the time",
    )


def wished(hello: Hello, address: Address, base: str) -> Hello:
    """The hello with the endpoint's requests for a transport: its scheme, its `?policy=`."""
    offer = hello.offer
    if address.scheme != base:
        offer = replace(offer, protocol=address.scheme, source=f"the endpoint {address}")
    if address.policy is not None:
        offer = replace(offer, policy=max(offer.policy, address.policy, key=POLICIES.index))
    return hello if offer is hello.offer else replace(hello, offer=offer)
