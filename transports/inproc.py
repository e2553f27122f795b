"""`inproc://name`: two sockets of one context. A name may be connected to before it is bound."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from transfer.transports.address import Address
from transfer.transports.base import Capabilities, Listener
from transfer.transports.config import DescriptorOptions
from transfer.transports.connect.backoff import Backoff
from transfer.transports.connect.connection import (
    Acceptor,
    AcceptorOwner,
    Connected,
    ConnectOptions,
    Connector,
    ConnectorOwner,
    DirectTransport,
    check_sharing,
    final,
    hand_over,
)
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import Broken, Closed, Fatal, HandshakeError
from transfer.transports.handshake.compatibility import compatible
from transfer.transports.handshake.exchange import wished
from transfer.transports.handshake.hello import mirrored, negotiate
from transfer.transports.inproc_stream import InprocStream, pair
from transfer.transports.reactor import Reactor, Timer

SCHEME = "inproc"
#: seconds at most that `settle` waits, for a reactor whose callback waits for this thread
_SETTLED = 1.0
_WAIT_FOR_A_PEER = frozenset({SocketType.PUSH, SocketType.PULL, SocketType.PAIR})


class InprocNames:
    """The bound names, and the connectors that wait for one. Thread-safe; one for each reactor (context)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bound: dict[str, list[Any]] = {}
        self._waiting: dict[str, dict[Callable[[], None], None]] = {}  # in order of arrival

    def bind(self, address: Address, bound: Any) -> None:
        """Binds a name. Raises AddressInUse. Calls the connectors that wait for the name."""
        with self._lock:
            others = self._bound.setdefault(address.path, [])
            for other in others:
                check_sharing(address, other.owner, bound.owner)
            others.append(bound)
            waiting = self._waiting.pop(address.path, {})
        for wake in waiting:
            wake()

    def unbind(self, name: str, bound: Any) -> None:
        with self._lock:
            others = self._bound.get(name, [])
            if bound in others:
                others.remove(bound)
            if not others:
                self._bound.pop(name, None)

    def find(self, name: str, wake: Callable[[], None] | None = None) -> list[Any]:
        """The owners of the bound name. If there is none, `wake` is called once when the name is bound."""
        with self._lock:
            found = list(self._bound.get(name, ()))
            if not found and wake is not None:
                self._waiting.setdefault(name, {})[wake] = None
            return found

    def forget(self, name: str, wake: Callable[[], None]) -> None:
        """Stops waiting for the name."""
        with self._lock:
            waiting = self._waiting.get(name, {})
            waiting.pop(wake, None)
            if not waiting:
                self._waiting.pop(name, None)


_names: weakref.WeakKeyDictionary[Reactor, InprocNames] = weakref.WeakKeyDictionary()


def names_of(reactor: Reactor) -> InprocNames:
    """The names of the context that has this reactor."""
    return _names.setdefault(reactor, InprocNames())  # atomic: there is no lock that a fork could leave held


def settle(reactor: Reactor, socket_type: int) -> None:
    """Waits until the reactor has made the connections of names that are bound and connected to: as in
    libzmq, what a PUB or a ROUTER sends next arrives. Messages of other types wait for a peer anyway."""
    if socket_type not in _WAIT_FOR_A_PEER and reactor.running and not reactor.in_loop():
        made = threading.Event()
        reactor.call_soon(made.set, otherwise=made.set)
        made.wait(_SETTLED)


class InprocTransport(DirectTransport):
    """Sockets meet by `serve` and `reach`; `listen` and `start_connect` give bare streams, without hello."""

    scheme = SCHEME
    capabilities = Capabilities(by_reference=True, same_host=True, has_socket=False)

    def __init__(self, options: DescriptorOptions | None = None) -> None:
        self.options = options  # there is no descriptor to set them on
        self._names = InprocNames()  # for bare streams only

    def serve(self, reactor: Reactor, address: Address, owner: AcceptorOwner) -> Acceptor:
        return InprocAcceptor(names_of(reactor), address, owner)

    def reach(
        self, reactor: Reactor, address: Address, owner: ConnectorOwner, options: ConnectOptions
    ) -> Connector:
        return InprocConnector(reactor, address, owner, options)

    def listen(self, address: Address, *, backlog: int = 4096) -> Listener:
        return InprocListener(self._names, address, backlog)

    def start_connect(self, address: Address) -> InprocStream:
        listener = next(iter(self._names.find(address.path)), None)
        if listener is None:
            raise Broken(f"cannot connect to {address}: it is not bound")
        ours, theirs = pair(SocketType.PAIR, SocketType.PAIR)
        listener.offer(theirs)
        return ours


class InprocListener(Listener):
    """Hands out the other ends of bare streams. It has no descriptor: the caller polls `accept`."""

    owner = None

    def __init__(self, names: InprocNames, address: Address, backlog: int) -> None:
        self.address = address
        self._names = names
        self._waiting: deque[InprocStream] = deque()
        self._backlog = max(1, backlog)
        names.bind(address, self)

    def fileno(self) -> int:
        return -1

    def offer(self, stream: InprocStream) -> None:
        if len(self._waiting) >= self._backlog:
            stream.close()
            raise Broken(f"the backlog of {self.address} is full")
        self._waiting.append(stream)

    def accept(self) -> tuple[InprocStream, str] | None:
        return (self._waiting.popleft(), str(self.address)) if self._waiting else None

    def close(self) -> None:
        self._names.unbind(self.address.path, self)
        while self._waiting:
            self._waiting.popleft().close()


class InprocAcceptor:
    """See `connection.Acceptor`."""

    def __init__(self, names: InprocNames, address: Address, owner: AcceptorOwner) -> None:
        self.address = address
        self.owner = owner
        self._names = names
        names.bind(address, self)

    def close(self) -> None:
        self._names.unbind(self.address.path, self)


class InprocConnector:
    """See `connection.Connector`. Both sides are in this process: the handshake is one step of the
    reactor."""

    def __init__(
        self,
        reactor: Reactor,
        address: Address,
        owner: ConnectorOwner,
        options: ConnectOptions,
    ) -> None:
        self.address = address
        self._reactor = reactor
        self._names = names_of(reactor)
        self._owner = owner
        self._backoff = Backoff(options.reconnect_first, options.reconnect_limit)
        self._lock = threading.Lock()
        self._closed = False
        self._connected = False
        self._since = 0.0
        self._timer: Timer | None = None
        reactor.call_soon(self._begin)

    def lost(self) -> None:
        with self._lock:
            if self._closed or not self._connected:
                return
            self._connected = False
            self._backoff.lasted(time.monotonic() - self._since)
        try:
            self._reactor.call_soon(self._retry)
        except Closed:  # the context ends
            self.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()
        self._names.forget(self.address.path, self._bound)

    # -- in the reactor's thread -----------------------------------------------------------------

    def _bound(self) -> None:
        """The name was bound; called in the thread that bound it."""
        try:
            self._reactor.call_soon(self._begin)
        except Closed:
            self.close()

    def _begin(self) -> None:
        if self._closed or self._connected:
            return
        acceptors = self._names.find(self.address.path, self._bound)
        if self._closed:
            self._names.forget(self.address.path, self._bound)
        elif acceptors:
            self._meet(acceptors)

    def _meet(self, acceptors: list[InprocAcceptor]) -> None:
        local = wished(self._owner.hello(), self.address, SCHEME)
        talking = [one for one in acceptors if compatible(one.owner.socket_type, local.socket_type)]
        acceptor = [*talking, *acceptors][0]
        remote = acceptor.owner.hello()
        try:
            if not talking and len(acceptors) > 1:
                names = " and ".join(one.owner.socket_type.name for one in acceptors)
                raise HandshakeError("socket_type", f"{names} cannot talk to {local.socket_type.name}")
            ours = negotiate(local, remote, base=SCHEME)
            if self._owner.admits is not None:
                self._owner.admits(ours)
        except HandshakeError as error:
            self._refused(error, mirrored(error), acceptor)
            return
        try:
            theirs = negotiate(remote, local, base=SCHEME)
            if acceptor.owner.admits is not None:
                acceptor.owner.admits(theirs)
        except HandshakeError as error:
            self._refused(mirrored(error), error, acceptor)
            return
        here, there = pair(local.socket_type, remote.socket_type)
        with self._lock:
            if self._closed:
                return
            self._connected = True
            self._since = time.monotonic()
        peer = str(self.address)
        try:
            hand_over(Connected(-1, there, theirs, acceptor.address, peer), acceptor.owner.on_connected)
            hand_over(Connected(-1, here, ours, self.address, peer), self._owner.on_connected)
        except BaseException:
            here.close()
            self.lost()
            raise

    def _refused(self, error: HandshakeError, theirs: HandshakeError, acceptor: InprocAcceptor) -> None:
        acceptor.owner.on_failed(theirs, str(self.address))
        reported = final(self.address, error)
        if isinstance(reported, Fatal):
            self.close()
        try:
            self._owner.on_failed(reported)
        finally:
            self._retry()

    def _retry(self) -> None:
        pause = self._backoff.next()
        with self._lock:
            if self._closed:
                return
            self._timer = self._reactor.call_later(pause, self._begin)
        if self._owner.on_retried is not None:
            self._owner.on_retried(pause)
