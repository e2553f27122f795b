"""A place where connections come in, and the endpoints behind it: who comes is given to the one that talks to
sockets of its type."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from transports.accepting import has_spoken, share_of
from transports.address import Address
from transports.base import Listener, Transport
from transports.compatible import compatible
from transports.connection import check_sharing
from transports.descriptors import descriptor_hint, is_reserved
from transports.errors import HandshakeError, OutOfDescriptors, TransferError
from transports.exchange import Exchange, late
from transports.peer_type import ENOUGH, ENOUGH_SECURED, Told, told_by_client_hello, told_by_header
from transports.pending import PENDING
from transports.reactor import EDGE, ERROR, HANGUP, PEER_CLOSED, READABLE, Reactor, Timer

if TYPE_CHECKING:
    from transports.acceptor import SocketAcceptor

#: seconds that a listener rests when there is no descriptor left: the backlog keeps who comes
_REST = 0.1
#: where the system has no edge-triggered readiness, too few bytes are looked at this often (s)
_LOOK_AGAIN = 0.05


class Silent:
    """A connection whose peer has not said enough yet: it costs a descriptor and a timer. It belongs to
    the thread that takes it out of the listening's `unfinished`. wanted: by that endpoint alone. refusal:
    what its peer gets."""

    __slots__ = (
        "_reactor", "_still", "_waits", "connection", "peer", "refusal", "seen", "since", "timer", "wanted",
    )  # fmt: skip

    def __init__(
        self, reactor: Reactor, connection: socket.socket, peer: str, wanted: SocketAcceptor | None
    ) -> None:
        self._reactor = reactor
        self._waits = False
        self._still = 0  # looks in a row that found no more than the one before
        self.connection = connection
        self.peer = peer
        self.wanted = wanted
        self.since = monotonic()
        self.seen = 0
        self.refusal: HandshakeError | None = None
        self.timer: Timer | None = None

    def look(self, *, secured: bool) -> Told:
        """What its first bytes tell, which stay where they are."""
        try:
            first = self.connection.recv(ENOUGH_SECURED if secured else ENOUGH, socket.MSG_PEEK)
        except OSError:
            return Told()
        self._still = self._still + 1 if len(first) == self.seen else 0
        self.seen = len(first)
        return told_by_client_hello(first) if secured else told_by_header(first)

    @property
    def is_stuck(self) -> bool:
        """It was woken without more bytes, again and again: the kernel has no room for what is needed."""
        return self._still > 2

    def wake_at(self, nbytes: int) -> None:
        """Is woken when so many bytes are there, or the peer goes: a peer that sends one at a time costs no
        more than others."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, max(nbytes, self.seen + 1))
        if not EDGE:
            self._reactor.modify(self.connection.fileno(), 0)
            self._reactor.call_later(_LOOK_AGAIN, self._look_again)
        elif not self._waits:  # once: each time what is there would be told again
            self._waits = True
            self._reactor.modify(self.connection.fileno(), READABLE | PEER_CLOSED | EDGE)

    def _look_again(self) -> None:
        self._reactor.modify(self.connection.fileno(), READABLE | PEER_CLOSED)

    def let_go(self) -> None:
        """The connection is another's now."""
        self._reactor.unregister(self.connection.fileno())
        if self.timer is not None:
            self.timer.cancel()
        if self.seen:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

    def cancel(self) -> None:
        self.let_go()
        self.connection.close()


class Listening:
    """One listener. Everything but `join` and `leave` runs in the reactor's thread.

    transport: that of the endpoint that brought it. user: as peers hear it from the kernel. acceptors: of the
    endpoints behind it, the oldest first. unfinished: connections whose handshake has not ended, the oldest
    first, and whose they are.
    """

    def __init__(
        self,
        reactor: Reactor,
        transport: Transport,
        listener: Listener,
        first: SocketAcceptor,
        forget: Callable[[Listening], object],
    ) -> None:
        first.owner.check_listening(listener.address)
        self._reactor = reactor
        self._listener = listener
        self._forget = forget
        self._secured = first.owner.speaks_tls
        self._most = first.owner.most_unfinished
        self._share = share_of(reactor)
        self._lock = threading.Lock()
        self.transport = transport
        self.address = listener.address
        self.user = os.geteuid()  # also when this process changes it later
        self.acceptors = [first]
        self.unfinished: dict[Exchange | Silent, SocketAcceptor | None] = {}
        first.placed(self)
        reactor.register(listener.fileno(), READABLE, self._ready)

    def join(self, acceptor: SocketAcceptor) -> bool:
        """It is one of them; False: the listener has just been closed. Raises AddressInUse where a peer may
        be meant for another one."""
        with self._lock:
            for other in self.acceptors:
                check_sharing(self.address, other.owner, acceptor.owner)
            if self.closed:
                return False
            acceptor.placed(self)
            self.acceptors = [*self.acceptors, acceptor]
            return True

    def leave(self, acceptor: SocketAcceptor) -> None:
        """Its handshakes end. With the last one the listener is closed. Idempotent."""
        if self._reactor.forked:  # locks may be held for ever here; the listener itself knows of fork
            self._listener.close()
            return
        with self._lock:
            if acceptor not in self.acceptors:
                return
            self.acceptors = [other for other in self.acceptors if other is not acceptor]
            last = not self.acceptors
            if last:
                self._reactor.unregister(self._listener.fileno())
                self._listener.close()
                self._forget(self)
            ended = [one for one, whose in self.unfinished.items() if last or whose is acceptor]
            for one in ended:
                del self.unfinished[one]
        for one in ended:
            PENDING.remove(one)
            one.cancel()

    def remove(self, unfinished: Exchange | Silent) -> bool:
        """It is the caller's; False: another has ended it."""
        with self._lock:
            if unfinished not in self.unfinished:
                return False
            del self.unfinished[unfinished]
        PENDING.remove(unfinished)
        return True

    def adopt(self, connection: socket.socket, peer: str, wanted: SocketAcceptor | None = None) -> None:
        """A new connection, for `wanted` if it is told."""
        spoken = has_spoken(connection)
        if spoken is False:  # in a storm most have gone, and nothing is made for them
            connection.close()
            self._fail(wanted, _gone(), peer)
            return
        alone = self.acceptors[0] if len(self.acceptors) == 1 else None
        silent = Silent(self._reactor, connection, peer, wanted)
        self._take(silent, wanted or alone if spoken else None)
        PENDING.trim(self._most)

    # ------------------------------------------------------------------------------------------

    def _ready(self, _events: int) -> None:
        self._share.begin()
        try:
            while self._accept() and not self._share.is_over():
                continue
        except TransferError as error:
            self._rest()
            self._fail(None, error, str(self.address))
            if isinstance(error, OutOfDescriptors):
                PENDING.make_room()

    def _accept(self) -> bool:
        """Takes one connection; False if there is none. Raises OutOfDescriptors, InternalError."""
        with self._lock:
            if not self.acceptors:
                return False
            accepted = self._listener.accept()
            if accepted is None:
                return False
        if is_reserved(accepted[0].fileno()) and not PENDING.make_room():
            accepted[0].close()
            raise OutOfDescriptors(
                "the last descriptors are kept for files, and a connection is closed", hint=descriptor_hint()
            )
        self.adopt(*accepted)
        return True

    def _take(self, silent: Silent, acceptor: SocketAcceptor | None) -> None:
        """Its handshake begins; None: it is not known yet whose it is."""
        with self._lock:
            if (acceptor or silent.wanted or self).closed:
                silent.cancel()
                return
            try:
                unfinished = self._await(silent) if acceptor is None else acceptor.begin(silent)
            except TransferError as error:
                silent.cancel()
                refused: TransferError | None = error
            except BaseException:
                silent.cancel()
                raise
            else:
                refused = None
                self.unfinished[unfinished] = acceptor or silent.wanted
                PENDING.add(unfinished, partial(self._evict, unfinished))
                crowd_out = next(iter(self.unfinished)) if len(self.unfinished) > self._most else None
        if refused is not None:
            self._fail(acceptor, refused, silent.peer)
        elif crowd_out is not None:
            self._evict(crowd_out)

    def _await(self, silent: Silent) -> Silent:
        timeout = max(acceptor.timeout for acceptor in self.acceptors)
        silent.timer = self._reactor.call_later(timeout, self._late, silent, timeout)
        events = READABLE | PEER_CLOSED
        self._reactor.register(silent.connection.fileno(), events, partial(self._spoke, silent))
        return silent

    def _spoke(self, silent: Silent, events: int) -> None:
        spoken = has_spoken(silent.connection)
        if spoken is None:
            return
        if spoken:
            acceptor = self._whose(silent, whole=bool(events & (PEER_CLOSED | HANGUP | ERROR)))
            if acceptor is not None and self.remove(silent):
                silent.let_go()
                self._take(silent, acceptor)
        elif self.remove(silent):
            silent.cancel()
            self._fail(silent.wanted, _gone(), silent.peer)

    def _whose(self, silent: Silent, *, whole: bool) -> SocketAcceptor | None:
        """The endpoint whose socket talks to this peer, or whose place it is to refuse it; None: it has not
        said enough. whole: it says no more."""
        acceptors = self.acceptors
        if silent.wanted is not None or len(acceptors) < 2:
            return silent.wanted or next(iter(acceptors), None)
        told = silent.look(secured=self._secured)
        if told.wanted and not whole and not silent.is_stuck:
            silent.wake_at(told.wanted)
            return None
        kind = told.socket_type
        if kind is not None:
            for acceptor in acceptors:
                if compatible(acceptor.socket_type, kind):
                    return acceptor
            here = " and ".join(acceptor.socket_type.name for acceptor in acceptors)
            silent.refusal = HandshakeError("socket_type", f"{here} cannot talk to {kind.name}")
        return acceptors[0]

    def _late(self, silent: Silent, timeout: float) -> None:
        if self.remove(silent):
            silent.cancel()
            self._fail(silent.wanted, late(silent.peer, timeout), silent.peer)

    def _evict(self, unfinished: Exchange | Silent) -> None:
        """It makes room for others, so that peers that say nothing keep no other out. Any thread."""
        acceptor = self.unfinished.get(unfinished)
        if not self.remove(unfinished):
            return
        unfinished.cancel()
        error = HandshakeError("crowded", "the oldest unfinished handshake makes room for the newest")
        with suppress(TransferError):  # the reactor ends
            self._reactor.call_soon(self._fail, acceptor, error, unfinished.peer)

    def _fail(self, acceptor: SocketAcceptor | None, error: TransferError, where: str) -> None:
        for told in (acceptor,) if acceptor is not None else self.acceptors[:1]:
            told.owner.on_failed(error, where)

    @property
    def closed(self) -> bool:
        """No endpoint is left."""
        return not self.acceptors

    def _rest(self) -> None:
        # The listener stays readable, so without the pause the loop would do nothing else.
        with self._lock:
            if not self.closed:
                self._reactor.modify(self._listener.fileno(), 0)
                self._reactor.call_later(_REST, self._resume)

    def _resume(self) -> None:
        with self._lock:
            if not self.closed:
                self._reactor.modify(self._listener.fileno(), READABLE)


class _Places:
    """Those of one context, by where they listen."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.taken: dict[Hashable, Listening] = {}

    def forget(self, place: Hashable, listening: Listening) -> None:
        """It is closed. Without the lock, which another thread may have that looks a name up."""
        found = self.taken.pop(place, None)
        if found is not None and found is not listening:
            self.taken.setdefault(place, found)


_places: WeakKeyDictionary[Reactor, _Places] = WeakKeyDictionary()


def listen(
    reactor: Reactor, transport: Transport, address: Address, backlog: int, acceptor: SocketAcceptor
) -> None:
    """Finds the endpoint its place: with a listener of its own, or at that of another socket of the context.
    Raises as `connection.serve`."""
    places = _places.setdefault(reactor, _Places())  # one step: no lock that a fork could leave held
    place = transport.place(address) if acceptor.owner.shares else None
    with places.lock:
        found = None if place is None else places.taken.get(place)
        if found is not None and found.join(acceptor):
            return
        listener = transport.listen(address, backlog=backlog)
        key = (transport.place(listener.address) if acceptor.owner.shares else None) or listener
        try:
            made = Listening(reactor, transport, listener, acceptor, partial(places.forget, key))
        except BaseException:
            listener.close()
            raise
        places.taken[key] = made


def _gone() -> HandshakeError:
    return HandshakeError("closed", "the peer closed before its hello was complete")
