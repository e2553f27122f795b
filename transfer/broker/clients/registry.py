"""Registers endpoints of programs with a broker, and looks them up by name.

    with RegisteredName("registry://broker:5580/trainers", "tcp://10.0.0.7:5590"):
        ...                                   # others connect to registry://broker:5580/trainers

A socket registers by `announce`; a socket that connects to a `registry://` endpoint follows the name.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

from transfer.broker.clients.registry_connection import RegistryConnection, broker_of, host_towards
from transfer.broker.core.registry_types import Listed, LookUp, Member, Registering
from transfer.broker.protocols.native import Head, Op, encode
from transfer.broker.protocols.native_registry import (
    LONGEST_LEASE,
    SHORTEST_LEASE,
    check_endpoint,
    check_metadata,
    decode_listed,
    encode_look_up,
    encode_registering,
)
from transfer.transports.address import Address, advertised, parse
from transfer.transports.arguments import seconds, text, wrong
from transfer.transports.config import advertised_host
from transfer.transports.connect.backoff import Backoff
from transfer.transports.discovery.directory import Directory, Listing
from transfer.transports.errors import (
    AddressError,
    Again,
    Broken,
    Closed,
    OptionError,
    ProtocolError,
    TransferError,
    UsageError,
    unraised,
)
from transfer.transports.waiters import Waiters

if TYPE_CHECKING:
    from transfer.sockets.context import Context

__all__ = ["LEASE", "Member", "RegisteredName", "RegistryDirectory", "look_up", "reachable"]

logger = logging.getLogger("transfer")

#: seconds for which an endpoint stays registered without a renewal
LEASE = 5.0
#: seconds between two look-ups of a watcher, in case that it has missed a change
_LOOK_UP_INTERVAL = 5.0
#: the number of all requests: a connection has only one registration or look-up
_NUMBER = 1
_WILDCARDS = ("*", "0.0.0.0", "::")
#: seconds of the first and of the longest pause after a lost connection
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0


class RegisteredName:
    """Registers an endpoint with a broker under a name, until `close` or the end of this process.

    A thread `transfer-registration` renews the lease, and registers again when the broker was away.

    registry: registry://broker:port/name. endpoint: tcp://host:port as other programs reach it; for a
    wildcard see `reachable`. lease: seconds after which the broker removes a vanished program. metadata:
    texts that look-ups return. failure: why the broker refuses it; the thread retries. Raises AddressError,
    ProtocolError, OptionError for invalid arguments. A broker that is away is no error: call `wait` to wait
    for the registration.
    """

    def __init__(
        self,
        registry: str,
        endpoint: str,
        *,
        lease: float = LEASE,
        advertise: str = "",
        metadata: Mapping[str, str] | None = None,
        context: Context | None = None,
    ) -> None:
        from transfer.sockets.context import Context

        self._broker, name = broker_of(parse(registry))
        if not SHORTEST_LEASE <= (seconds(lease, "lease") or 0) <= LONGEST_LEASE:
            raise OptionError(f"a lease of {lease} seconds", hint=f"{SHORTEST_LEASE:g} to {LONGEST_LEASE:g}")
        if not (metadata is None or isinstance(metadata, Mapping)):
            raise wrong("metadata", metadata, "a dict of texts")
        if not (context is None or isinstance(context, Context)):
            raise wrong("context", context, "a transfer.Context, or None")
        found = reachable(endpoint, self._broker, text(advertise, "advertise"))
        # A restarted program has a larger number.
        member = Member(check_endpoint(found), time.time_ns(), check_metadata(metadata or {}))
        self.endpoint = found
        self.failure: TransferError | None = None
        self._registering = Registering(name, lease, member)
        self._context = context or Context()
        self._owns_context = context is None
        self._lock = threading.RLock()
        self._changed = Waiters(self._lock)
        self._link: RegistryConnection | None = None
        self._registered = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="transfer-registration", daemon=True)
        self._thread.start()

    @property
    def registered(self) -> bool:
        """Whether the endpoint is registered, and the broker is connected."""
        return self._registered

    def wait(self, timeout: float = 30.0) -> Self:
        """Waits for the registration. Raises Again after `timeout` seconds, and the broker's refusal."""
        self._changed.wait_for(lambda: self._registered or self.failure or self._stop.is_set(), timeout)
        if self.failure is not None:
            raise unraised(self.failure)
        if not self._registered:
            raise Again(f"not registered at {self._broker} within {timeout:g} s", hint="is the broker there?")
        return self

    def close(self, timeout: float = 1.0) -> None:
        """Ends the registration, and waits up to `timeout` seconds for the broker's answer. Idempotent."""
        with self._lock:
            self._stop.set()
            self._changed.notify_all()
        if self._registered:
            self._thread.join(timeout)
        link = self._link
        if link is not None:
            link.close()  # wakes the thread if it waits for the broker
        self._thread.join(timeout)
        if self._owns_context:
            self._context.destroy(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- the thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while not self._stop.is_set():
            since = time.monotonic()
            try:
                self._serve()
            except UsageError as error:
                if self.failure is None:
                    logger.warning("%s is not registered: %s", self.endpoint, error)
                self.failure = error
                self._set_registered(False)
                self._stop.wait(self._registering.lease)  # the program that has the name may end
            except Closed:
                break
            except TransferError as error:
                logger.info("%s registers again: %s", self.endpoint, error)
            finally:
                self._set_registered(False)
            backoff.lasted(time.monotonic() - since)
            self._stop.wait(backoff.next())

    def _set_registered(self, registered: bool) -> None:
        with self._lock:
            self._registered = registered
            if registered:
                self.failure = None
            self._changed.notify_all()

    def _serve(self) -> None:
        """Serves one connection until its end, or `close`. Raises Broken, Again; UsageError if refused."""
        link = self._link = RegistryConnection(self._broker, self._context)
        try:
            if self._stop.is_set():  # set by another thread, which may not have seen this connection
                return
            link.open()
            link.send(encode_registering(_NUMBER, self._registering))
            link.answer(Op.REGISTERED)
            self._set_registered(True)
            due = time.monotonic() + self._registering.lease / 3
            while not self._stop.is_set():
                self._stop.wait(min(0.1, max(0.0, due - time.monotonic())))
                link.receive(0)  # raises Broken if the broker has gone
                if time.monotonic() >= due:
                    self._renew(link)
                    due = time.monotonic() + self._registering.lease / 3
            link.send(encode(Op.UNREGISTER, _NUMBER))
            link.answer(Op.REGISTERED)
        finally:
            link.close()

    def _renew(self, link: RegistryConnection) -> None:
        link.send(encode(Op.RENEW, _NUMBER))
        try:
            link.answer(Op.REGISTERED)
        except (
            UsageError
        ):  # this process stood still longer than the lease; another program may have the name
            link.send(encode_registering(_NUMBER, self._registering))
            link.answer(Op.REGISTERED)


def reachable(endpoint: str, broker: Address, advertise: str = "") -> str:
    """Returns a bound endpoint as other machines reach it. Raises AddressError.

    For a wildcard it takes the host of `advertise` or TRANSFER_ADVERTISE, else the IP address by which this
    machine reaches the broker. `advertise` may include a port, for port forwarding.
    """
    address = parse(endpoint)
    if address.is_named or address.is_directory:
        raise AddressError(f"{endpoint} cannot be announced", hint="announce tcp://host:port")
    advertise = advertise or advertised_host()
    if advertise:
        return str(advertised(advertise, address.port))
    if address.host in _WILDCARDS:
        return str(Address("tcp", host_towards(broker), address.port))
    return str(Address("tcp", address.host, address.port))


def look_up(registry: str, context: Context | None = None) -> list[Member]:
    """Returns the members of a name, registry://broker:port/name. Raises Again, Broken, AddressError."""
    from transfer.sockets.context import Context

    broker, name = broker_of(parse(registry))
    own = context or Context()
    try:
        link = RegistryConnection(broker, own)
        try:
            link.open()
            link.send(encode_look_up(_NUMBER, LookUp(name)))
            head, parts = link.answer(Op.LISTED)
            return list(_decoded(head, parts).members)
        finally:
            link.close()
    finally:
        if context is None:
            own.destroy(0)


def _decoded(head: Head, parts: list[bytes]) -> Listed:
    if len(parts) != 1:
        raise ProtocolError("parts", f"{len(parts)} parts behind a listing")
    return decode_listed(head, parts[0])


class RegistryDirectory(Directory):
    """Follows one name of a broker's registry. See Directory. `look_up` raises while the broker is away."""

    def __init__(self, address: Address, context: Context) -> None:
        self._broker, self._name = broker_of(address)
        self._policy = address.policy
        self._context = context
        self._link: RegistryConnection | None = None
        self._members: set[str] = set()
        self._revision = -1
        self._settled = True
        self._looked_up = 0.0
        self._closed = False

    def close(self) -> None:
        self._closed = True
        link = self._link
        if link is not None:
            link.close()

    def look_up(self) -> Listing:
        try:
            while True:
                link = self._link
                if link is None:
                    link = self._connect()
                left = self._looked_up + _LOOK_UP_INTERVAL - time.monotonic()
                message = link.receive(left) if left > 0 else self._request(link)
                listing = self._process(message) if message is not None else None
                if listing is not None:
                    return listing
        except TransferError as error:
            self._drop()
            if isinstance(error, Closed) and not self._closed:
                raise Broken(f"the context of {self._name} is closed") from error
            raise

    def _connect(self) -> RegistryConnection:
        if self._closed:
            raise Closed(f"{self._name} is not followed any more")
        self._link = link = RegistryConnection(self._broker, self._context)
        self._revision, self._looked_up = -1, 0.0
        if self._closed:  # set by another thread, which may not have seen this connection
            raise Closed(f"{self._name} is not followed any more")
        link.open()
        return link

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _request(self, link: RegistryConnection) -> tuple[Head, list[bytes]]:
        link.send(encode_look_up(_NUMBER, LookUp(self._name, True, self._revision)))
        # The answer includes all changes that arrived before it.
        return link.answer(Op.LISTED)

    def _process(self, message: tuple[Head, list[bytes]]) -> Listing | None:
        """Returns the new listing; None if nothing has changed."""
        head, parts = message
        listed = _decoded(head, parts)
        gone: tuple[str, ...] = ()
        settled, self._settled = self._settled, listed.settled
        if head.op is Op.LISTED:
            self._looked_up = time.monotonic()
            if listed.same and settled == listed.settled:
                return None
            if not listed.same:
                self._members = {member.endpoint for member in listed.members}
        elif head.op is Op.CHANGED:
            gone = listed.gone
            self._members |= {member.endpoint for member in listed.members}
            self._members -= set(gone)
        else:
            return None
        self._revision = listed.revision
        return Listing(
            frozenset(map(self._address, self._members)),
            complete=listed.settled,
            gone=frozenset(map(self._address, gone)),
        )

    def _address(self, endpoint: str) -> Address:
        address = parse(endpoint)
        return Address("tcp", address.host, address.port, policy=self._policy)
