"""Connects in the reactor's thread, does the handshake, and reconnects when the connection is lost."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum

from transfer.transports.address import Address
from transfer.transports.base import Transport
from transfer.transports.connect.backoff import Backoff
from transfer.transports.connect.connection import Connected, ConnectOptions, ConnectorOwner, final, hand_over
from transfer.transports.connect.pending import PENDING
from transfer.transports.descriptors import descriptor_hint, is_reserved
from transfer.transports.errors import (
    AddressError,
    Broken,
    Closed,
    Fatal,
    HandshakeError,
    OutOfDescriptors,
    TransferError,
)
from transfer.transports.handshake.exchange import Exchange
from transfer.transports.handshake.hello import Agreement
from transfer.transports.handshake.upgrade import Made
from transfer.transports.reactor import EDGE, WRITABLE, Reactor, Timer
from transfer.transports.tcp import connect_error, describe


class _State(Enum):
    WAITING = "waiting"  # for the next attempt
    CONNECTING = "connecting"  # resolving the name, or the kernel connects
    SHAKING = "shaking hands"
    CONNECTED = "connected"  # the owner has the descriptor
    ENDED = "ended"  # closed, or failed for good


class SocketConnector:
    """See `connection.Connector`; made by `connection.reach`.

    It never has more than one timer, one descriptor and one lookup, however long the peer is away.
    """

    def __init__(
        self,
        reactor: Reactor,
        transport: Transport,
        address: Address,
        make_owner: Callable[[], ConnectorOwner],
        options: ConnectOptions,
    ) -> None:
        """make_owner: called when the first attempt begins. Many sockets are closed before that."""
        if address.is_wildcard:
            raise AddressError(f"{address} can be bound, not connected to", hint="name a host and a port")
        self.address = address
        self._reactor = reactor
        self._transport = transport
        self._make_owner = make_owner
        self._options = options
        self._backoff = Backoff(options.reconnect_first, options.reconnect_limit)
        # Guards the attributes below; the owner's callbacks are never called under it.
        self._lock = threading.Lock()
        self._state = _State.WAITING
        self._attempt = 0  # numbers the attempts, to recognize a late answer to an old one
        self._timer: Timer | None = None
        self._socket: socket.socket | None = None
        self._exchange: Exchange | None = None
        self._since = 0.0
        reactor.call_soon(self._begin)

    @property
    def state(self) -> str:
        """For logs: waiting, connecting, shaking hands, connected, ended."""
        return self._state.value

    def slow_down(self, seconds: float) -> None:
        """From now on pauses last up to `seconds`, until `retry_now`: another one may succeed instead."""
        with self._lock:
            self._backoff = Backoff(seconds, seconds)

    def retry_now(self, limit: float = 0.0) -> None:
        """Tries at once, and then in short pauses, which grow to at least `limit` seconds."""
        with self._lock:
            longest = max(limit, self._options.reconnect_limit)
            self._backoff = Backoff(self._options.reconnect_first, longest)
            waits = self._state is _State.WAITING
            if waits:
                self._cancel_timer()
        if waits:
            with suppress(TransferError):  # the context ends
                self._reactor.call_soon(self._begin)

    def lost(self) -> None:
        with self._lock:
            if self._state is not _State.CONNECTED:
                return
            self._state = _State.WAITING
            self._backoff.lasted(time.monotonic() - self._since)
        try:
            self._reactor.call_soon(self._retry)
        except Closed:  # the context ends, and no caller waits for this connection
            self.close()

    def close(self) -> None:
        if self._reactor.forked:  # another thread of the parent may have held the locks
            self._state = _State.ENDED
            return
        with self._lock:
            self._state = _State.ENDED
            exchange = self._drop()
        if exchange is not None:
            exchange.cancel()

    # -- an attempt, step by step; all in the reactor's thread -----------------------------------

    def _begin(self) -> None:
        if self._attempt == 0 and self._state is _State.WAITING:
            self._owner = self._make_owner()
        with self._lock:
            if self._state is not _State.WAITING:
                return
            self._state = _State.CONNECTING
            self._attempt += 1
            number = self._attempt
            self._timer = self._reactor.call_later(self._options.connect_timeout, self._late, number)
        if self.address.needs_lookup or self._must_prepare(number):
            # Either may block for seconds, and all connections share the reactor's thread.
            threading.Thread(
                target=self._look_up, args=(number,), name="transfer-lookup", daemon=True
            ).start()
        else:
            self._started(number, self._start())

    def _start(self) -> socket.socket | TransferError:
        try:
            started = self._transport.start_connect(self.address)
        except TransferError as error:
            return error
        assert isinstance(started, socket.socket)
        if not is_reserved(started.fileno()):
            return started
        started.close()
        PENDING.make_room()  # for the next attempt
        return OutOfDescriptors("the last descriptors are kept for files", hint=descriptor_hint())

    def _must_prepare(self, number: int) -> bool:
        return number == 1 and self._options.prepare is not None

    def _look_up(self, number: int) -> None:
        if self._must_prepare(number):
            assert self._options.prepare is not None
            self._options.prepare()
        started = self._start()
        if isinstance(started, socket.socket):
            # Stored at once, so that `close` closes it: a reactor that ends drops its pending calls.
            with self._lock:
                if not self._is_current(number, _State.CONNECTING):
                    started.close()
                    return
                self._socket = started
        with suppress(TransferError):  # the context was closed in the meantime
            self._reactor.call_soon(self._started, number, started)

    def _started(self, number: int, started: socket.socket | TransferError) -> None:
        if isinstance(started, TransferError):
            self._failed(number, started)
            return
        with self._lock:
            if not self._is_current(number, _State.CONNECTING):
                started.close()  # twice is fine
                return
            self._socket = started
            self._reactor.register(started.fileno(), WRITABLE | EDGE, lambda _events: self._writable(number))
            delayed = _peer_name(started) is None
        if delayed and self._owner.on_delayed is not None:
            self._owner.on_delayed()

    def _writable(self, number: int) -> None:
        with self._lock:
            if not self._is_current(number, _State.CONNECTING) or self._socket is None:
                return
            code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            peer = _peer_name(self._socket) if code == 0 else None
            if code == 0 and peer is None:
                return  # not connected: some kernels report a fresh socket as writable
            error: TransferError | None = connect_error(code, self.address) if code else None
            if peer is not None:
                error = self._may_begin() or self._shake_hands(number, peer)
        if error is not None:
            self._failed(number, error)

    def _may_begin(self) -> HandshakeError | None:
        try:
            if self._owner.begins is not None:
                self._owner.begins()
        except HandshakeError as error:
            return error
        return None

    def _shake_hands(self, number: int, peer: str) -> TransferError | None:
        """Starts the handshake; returns the error if it could not."""
        assert self._socket is not None
        connection, self._socket = self._socket, None
        self._reactor.unregister(connection.fileno())
        self._cancel_timer()
        self._state = _State.SHAKING
        try:
            self._exchange = self._owner.exchange(
                self._reactor, connection, self.address, peer,
                lambda exchange, outcome, made: self._ended(number, exchange, outcome, made),
                base=self._transport.scheme,
                server_name=self.address.server_name or self.address.host,
            )  # fmt: skip
            self._exchange.start(self._options.handshake_timeout)
        except BaseException as error:
            connection.close()
            if isinstance(error, HandshakeError):
                return error
            raise
        return None

    def _ended(
        self, number: int, exchange: Exchange, outcome: Agreement | HandshakeError, made: Made | None
    ) -> None:
        if isinstance(outcome, HandshakeError):
            self._failed(number, outcome)
            return
        assert made is not None
        connected = Connected.of(made, outcome, self.address, exchange.peer)
        with self._lock:
            current = self._is_current(number, _State.SHAKING)
            if current:
                self._exchange = None
                self._state = _State.CONNECTED
                self._since = time.monotonic()
        if not current:
            connected.discard()
            return
        try:
            hand_over(connected, self._owner.on_connected)
        except BaseException:
            self.lost()
            raise

    def _late(self, number: int) -> None:
        seconds = self._options.connect_timeout
        self._failed(
            number,
            Broken(
                f"cannot connect to {self.address}: no answer within {seconds:g} s",
                hint="is the host right, and does a firewall drop its packets?",
            ),
        )

    def _failed(self, number: int, error: TransferError) -> None:
        error = final(self.address, error)
        with self._lock:
            if number != self._attempt or self._state is _State.ENDED:
                return
            self._state = _State.ENDED if isinstance(error, Fatal) else _State.WAITING
            exchange = self._drop()
        if exchange is not None:
            exchange.cancel()
        try:
            self._owner.on_failed(error)
        finally:
            self._retry()

    def _retry(self) -> None:
        with self._lock:
            if self._state is not _State.WAITING:
                return
            pause = self._backoff.next()
            self._timer = self._reactor.call_later(pause, self._begin)
        if self._owner.on_retried is not None:
            self._owner.on_retried(pause)

    # -- under the lock ------------------------------------------------------------------------

    def _is_current(self, number: int, state: _State) -> bool:
        return number == self._attempt and self._state is state

    def _drop(self) -> Exchange | None:
        """Drops timer and socket. The caller cancels the returned exchange outside the lock."""
        self._cancel_timer()
        if self._socket is not None:
            self._reactor.unregister(self._socket.fileno())
            self._socket.close()
            self._socket = None
        exchange, self._exchange = self._exchange, None
        return exchange

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _peer_name(connection: socket.socket) -> str | None:
    """The address of the peer, or None if the socket is not connected."""
    try:
        return describe(connection.getpeername())
    except OSError:
        return None
