"""The methods of a socket for its endpoints and its peers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, cast

from transfer.patterns import Subscriber
from transfer.sockets.binding import Binding
from transfer.transports.arguments import seconds, whole, wrong

if TYPE_CHECKING:
    from transfer.patterns.base import Pattern
    from transfer.sockets.connections import Connections
    from transfer.sockets.context import Context
    from transfer.sockets.peer import PeerInfo
    from transfer.sockets.socket import SocketMethods

#: seconds between two checks of `wait_for_peers` on a SUB, whose acknowledgements arrive with the data
_PUMP = 0.005


class SocketEndpoints:
    """Binds and connects a socket, and reports its peers."""

    if TYPE_CHECKING:
        context: Context
        last_endpoint: str
        _links: Connections
        _pattern: Pattern
        _long_wait: int

        def _check_usable(self) -> None: ...
        def _check_forked(self) -> None: ...
        def _readable(self) -> bool: ...
        def _linger_seconds(self, linger: float | None) -> float: ...

    def bind(self, addr: str) -> Binding:
        """Listens on an endpoint and returns at once.

        A socket may bind several endpoints. Sockets of one context may share an endpoint if their peers are
        of different types.

        Args:
            addr: the endpoint, for instance "tcp://*:5555"; port 0 takes any free port.

        Returns:
            A context manager that unbinds the endpoint. `last_endpoint` has the real port.

        Raises:
            AddressError: the endpoint is not valid.
            AddressInUse: another socket listens on it.
            AddressNotAvailable: this machine does not have the address.
        """
        self._check_usable()
        self.context.start()
        self.last_endpoint = self._links.bind(_text(addr))
        return Binding(cast("SocketMethods", self), "bind", self.last_endpoint)

    def connect(self, addr: str) -> Binding:
        """Starts to connect to an endpoint and returns at once; a lost connection is made again.

        With the policy `require`, for instance by `?policy=require` in the endpoint, it blocks until the
        handshake is complete.

        Args:
            addr: the endpoint, for instance "tcp://node7:5555".

        Returns:
            A context manager that disconnects the endpoint.

        Raises:
            AddressError: the endpoint is not valid.
            Again: with the policy `require`, the handshake was not complete in time.
            Fatal: with the policy `require`, the peers have no such transport in common.
        """
        self._check_usable()
        self.context.start()
        record = self._links.connect(_text(addr))
        self.last_endpoint = str(record.address)
        return Binding(cast("SocketMethods", self), "connect", _text(addr))

    def unbind(self, addr: str) -> None:
        """Stops listening on an endpoint; its accepted connections stay open.

        Args:
            addr: the endpoint as it was bound.

        Raises:
            AddressError: the socket is not bound to it.
        """
        self._check_usable()
        self._links.release(_text(addr), bound=True)

    def disconnect(self, addr: str) -> None:
        """Disconnects from an endpoint, after flushing queued messages for at most `linger`.

        Args:
            addr: the endpoint as it was connected.

        Raises:
            AddressError: the socket is not connected to it.
        """
        self._check_usable()
        record = self._links.release(_text(addr), bound=False)
        self._links.drop(record, self._linger_seconds(None))

    def peers(self) -> list[PeerInfo]:
        """Returns a PeerInfo for each peer: its transport, why that transport was chosen, message counts."""
        self._check_forked()
        return self._links.infos()

    def wait_for_peers(self, n: int = 1, timeout: float | None = 30.0) -> None:
        """Blocks until `n` peers are connected.

        A PUB counts peers whose subscriptions have arrived. A SUB counts publishers that acknowledged all of
        its subscriptions.

        Args:
            n: number of peers.
            timeout: seconds; None waits without limit.

        Raises:
            Again: fewer peers are connected in time; the text says what is known of each endpoint.
            Closed: the socket is closed.
        """
        n, timeout = whole(n, "n"), seconds(timeout)
        links = self._links
        deadline = None if timeout is None else time.monotonic() + timeout
        due = time.monotonic() + self._long_wait / 1000
        while True:
            self._check_usable()
            if time.monotonic() >= due:
                links.no_peer.long_wait()
            if isinstance(self._pattern, Subscriber):
                self._readable()  # acknowledgements arrive among the messages
            with links.state.changed:
                if links.state.ready >= n:
                    return
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                look = _PUMP if isinstance(self._pattern, Subscriber) else 0.2
                links.state.changed.wait(look if left is None else min(look, left))
        raise links.no_peer.error(f"{links.state.ready} of {n} peers after {timeout:g} s: ")


def _text(addr: str | bytes) -> str:
    if isinstance(addr, str):
        return addr
    if isinstance(addr, bytes):
        return addr.decode(errors="replace")
    raise wrong("an endpoint", addr, 'text, for instance "tcp://127.0.0.1:5555"')
