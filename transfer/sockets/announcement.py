"""A socket tells a broker's registry where it is bound, so that others find it by a name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from transfer.transports.errors import UsageError
from transfer.transports.forking import undivided

if TYPE_CHECKING:
    from transfer.broker.clients.registry import Registration
    from transfer.sockets.connections import Connections
    from transfer.sockets.context import Context


class Announcing:
    """What a socket has for that."""

    if TYPE_CHECKING:
        context: Context
        _links: Connections
        _announced: list[Registration]

        def _check_usable(self) -> None: ...

    def announce(
        self,
        registry: str,
        endpoint: str | None = None,
        *,
        lease: float | None = None,
        advertise: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> Registration:
        """Announces where this socket is bound to `registry://broker:port/name`, until it closes or the
        result is closed. Returns at once; `wait()` of the result waits until the broker knows.

        endpoint: the one that is announced; None: the first that was bound. advertise: the host (or
        host:port) that is announced in its place, as TRANSFER_ADVERTISE; else the one that was bound, or for
        a wildcard the address by which this machine reaches the broker. lease, metadata: see
        `transfer.broker.clients.registry.Registration`. Raises UsageError before `bind`, AddressError,
        OptionError.
        """
        with undivided():
            from transfer.broker.clients.registry import LEASE, Registration

        self._check_usable()
        if endpoint is None:
            bound = [str(one.address) for one in self._links.endpoints if one.acceptor is not None]
            if not bound:
                raise UsageError("nothing is bound that could be announced", hint="bind first")
            endpoint = bound[0]
        registration = Registration(
            registry,
            endpoint,
            lease=LEASE if lease is None else lease,
            advertise=advertise,
            metadata=metadata,
            context=self.context,
        )
        self._announced.append(registration)
        return registration

    def _end_announcements(self) -> None:
        """First of all when a socket closes: nobody new shall come."""
        while self._announced:
            self._announced.pop().close()
