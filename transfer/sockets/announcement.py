"""Announces to a broker's registry where a socket is bound, so that peers find it by a name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from transfer.sockets.directories import announce
from transfer.transports.errors import UsageError

if TYPE_CHECKING:
    from transfer.broker.clients.registry import RegisteredName
    from transfer.sockets.connections import Connections
    from transfer.sockets.context import Context


class Announcing:
    """The methods of a socket that announce it."""

    if TYPE_CHECKING:
        context: Context
        _links: Connections
        _announced: list[RegisteredName]

        def _check_usable(self) -> None: ...

    def announce(
        self,
        registry: str,
        endpoint: str | None = None,
        *,
        lease: float | None = None,
        advertise: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> RegisteredName:
        """Announces a bound endpoint under a name of a broker's registry, until the socket closes.

        It returns at once; `wait()` of the result blocks until the broker has the announcement, and `close()`
        withdraws it.

        Args:
            registry: the name, "registry://broker:port/name".
            endpoint: the bound endpoint to announce; None announces the first one.
            lease: see `transfer.broker.clients.registry.RegisteredName`, in seconds.
            advertise: the host or host:port to announce instead of the bound one (as TRANSFER_ADVERTISE).
                By default a wildcard is announced as the address by which this machine reaches the broker.
            metadata: see `transfer.broker.clients.registry.RegisteredName`.

        Raises:
            UsageError: nothing is bound.
            AddressError: the registry's address is not valid.
            OptionError: a value is not valid.
        """
        self._check_usable()
        if endpoint is None:
            bound = [str(one.address) for one in self._links.state.endpoints if one.acceptor is not None]
            if not bound:
                raise UsageError("nothing is bound that could be announced", hint="bind first")
            endpoint = bound[0]
        registration: RegisteredName = announce(
            registry,
            endpoint,
            **({} if lease is None else {"lease": lease}),
            advertise=advertise,
            metadata=metadata,
            context=self.context,
        )
        self._announced.append(registration)
        return registration

    def _end_announcements(self) -> None:
        """Withdraws the announcements before anything else closes: no new peer shall connect."""
        while self._announced:
            self._announced.pop().close()
