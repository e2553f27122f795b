"""Programs announce their endpoints to a broker's registry, and find each other there.

    with Registration("registry://broker:5580/trainers", "tcp://10.0.0.7:5590"):
        ...                                   # others connect to registry://broker:5580/trainers

A socket does it by `announce`; who connects to a `registry://` endpoint follows it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

from transfer.broker.clients.registry_connection import RegistryConnection, broker_of, host_towards
from transfer.broker.protocols.native import Head, Op, encode
from transfer.broker.protocols.native_registry import (
    LONGEST_LEASE,
    SHORTEST_LEASE,
    Listed,
    LookUp,
    Member,
    Registering,
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
)

if TYPE_CHECKING:
    from types import TracebackType

    from transfer.sockets.context import Context

__all__ = ["LEASE", "Member", "Registration", "RegistryDirectory", "look_up", "reachable"]

logger = logging.getLogger("transfer")

#: seconds for which an endpoint is registered, if nobody hears of its program
LEASE = 5.0
#: seconds between two questions of a watcher whether it has missed something
ASK_AGAIN = 5.0
#: the only number of a word that a connection of ours needs
_NUMBER = 1
_WILDCARDS = ("*", "0.0.0.0", "::")
#: seconds until the first and the longest pause behind a connection that was lost
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0


class Registration:
    """An endpoint that is known to a broker under a name, until `close`: then, or when this process dies,
    nobody new finds it. A thread `transfer-registration` renews the lease, and registers again when the
    broker was away.

    registry: registry://broker:port/name. endpoint: tcp://host:port as others reach it; of a wildcard, see
    `reachable`. lease: seconds after which a program that has vanished is forgotten. metadata: texts that are
    told to whoever looks up. Raises AddressError, ProtocolError, OptionError for what cannot be registered.
    Whether it is shows `wait`: it is not an error when the broker comes later. failure: why it is refused,
    if it is; it is tried again.
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
        # A program that comes again has begun later, and so has a larger one.
        member = Member(check_endpoint(found), time.time_ns(), check_metadata(metadata or {}))
        self.endpoint = found
        self.failure: TransferError | None = None
        self._wish = Registering(name, lease, member)
        self._context = context or Context()
        self._owns_context = context is None
        self._changed = threading.Condition()
        self._link: RegistryConnection | None = None
        self._registered = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="transfer-registration", daemon=True)
        self._thread.start()

    @property
    def registered(self) -> bool:
        """The broker has said so, and is there."""
        return self._registered

    def wait(self, timeout: float = 30.0) -> Self:
        """Returns when it is registered. Raises Again after `timeout` seconds, and what the broker
        refused."""
        with self._changed:
            self._changed.wait_for(lambda: self._registered or self.failure or self._stop.is_set(), timeout)
        if self.failure is not None:
            raise self.failure
        if not self._registered:
            raise Again(f"not registered at {self._broker} within {timeout:g} s", hint="is the broker there?")
        return self

    def close(self, timeout: float = 1.0) -> None:
        """Gives the name back, and waits until the broker knows, for so many seconds at most. Idempotent."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        if self._registered:
            self._thread.join(timeout)
        link = self._link
        if link is not None:
            link.close()  # wakes the thread, if it still waits for the broker
        self._thread.join(timeout)
        if self._owns_context:
            self._context.destroy(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- its thread -------------------------------------------------------------------------------------

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
                self._say(False)
                self._stop.wait(self._wish.lease)  # whoever has its place may go
            except Closed:
                break
            except TransferError as error:
                logger.info("%s registers again: %s", self.endpoint, error)
            finally:
                self._say(False)
            backoff.lasted(time.monotonic() - since)
            self._stop.wait(backoff.next())

    def _say(self, registered: bool) -> None:
        with self._changed:
            self._registered = registered
            if registered:
                self.failure = None
            self._changed.notify_all()

    def _serve(self) -> None:
        """One connection: until it ends, or `close`. Raises Broken, Again; UsageError: refused."""
        link = self._link = RegistryConnection(self._broker, self._context)
        try:
            if self._stop.is_set():  # by another thread, which may not have seen this link
                return
            link.open()
            link.say(encode_registering(_NUMBER, self._wish))
            link.answer(Op.REGISTERED)
            self._say(True)
            due = time.monotonic() + self._wish.lease / 3
            while not self._stop.is_set():
                self._stop.wait(min(0.1, max(0.0, due - time.monotonic())))
                link.hear(0)  # sees that the broker has gone
                if time.monotonic() >= due:
                    self._renew(link)
                    due = time.monotonic() + self._wish.lease / 3
            link.say(encode(Op.UNREGISTER, _NUMBER))
            link.answer(Op.REGISTERED)
        finally:
            link.close()

    def _renew(self, link: RegistryConnection) -> None:
        link.say(encode(Op.RENEW, _NUMBER))
        try:
            link.answer(Op.REGISTERED)
        except UsageError:  # stopped for longer than the lease; somebody newer may have the place now
            link.say(encode_registering(_NUMBER, self._wish))
            link.answer(Op.REGISTERED)


def reachable(endpoint: str, broker: Address, advertise: str = "") -> str:
    """A bound endpoint as others reach it. For a wildcard: the host that `advertise` or TRANSFER_ADVERTISE
    names, or else the number of this machine by which it reaches the broker. `advertise` may name a port too,
    where another one leads here. Raises AddressError."""
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
    """Who has a name now: registry://broker:port/name. Raises Again, Broken, AddressError."""
    from transfer.sockets.context import Context

    broker, name = broker_of(parse(registry))
    own = context or Context()
    try:
        link = RegistryConnection(broker, own)
        try:
            link.open()
            link.say(encode_look_up(_NUMBER, LookUp(name)))
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
    """Follows one name of a broker's registry. See Directory. While the broker is away, `look_up` raises."""

    def __init__(self, address: Address, context: Context) -> None:
        self._broker, self._name = broker_of(address)
        self._policy = address.policy
        self._context = context
        self._link: RegistryConnection | None = None
        self._members: set[str] = set()
        self._revision = -1
        self._settled = True
        self._heard = 0.0
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
                left = self._heard + ASK_AGAIN - time.monotonic()
                heard = link.hear(left) if left > 0 else self._ask(link)
                listing = self._taken(heard) if heard is not None else None
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
        self._revision, self._heard = -1, 0.0
        if self._closed:  # by another thread, which may not have seen this link
            raise Closed(f"{self._name} is not followed any more")
        link.open()
        return link

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _ask(self, link: RegistryConnection) -> tuple[Head, list[bytes]]:
        link.say(encode_look_up(_NUMBER, LookUp(self._name, True, self._revision)))
        # What came before is in what the answer says.
        return link.answer(Op.LISTED)

    def _taken(self, heard: tuple[Head, list[bytes]]) -> Listing | None:
        """None: nothing new."""
        head, parts = heard
        listed = _decoded(head, parts)
        gone: tuple[str, ...] = ()
        settled, self._settled = self._settled, listed.settled
        if head.op is Op.LISTED:
            self._heard = time.monotonic()
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
