"""Checks of a transport's addresses, listeners, connecting and handshake."""

from __future__ import annotations

import hashlib
from typing import Any

from transfer.transports.address import parse
from transfer.transports.connect.establish import reach, serve
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import AddressError, AddressInUse, Broken, HandshakeError, TransferError
from transfer.transports.handshake.identity import make_hello
from transfer.transports.reactor import Reactor
from transfer.transports.testing.ends import IMPATIENT, Side, Subject, close_all, meet, until


def check_meets(subject: Subject) -> None:
    """Both sides get the other's hello, and the bound endpoint is one to connect to."""
    with meet(subject, kinds=(SocketType.PUSH, SocketType.PULL)) as ends:
        ours, theirs = ends.at_connecting, ends.at_accepting
        assert ours.agreement.remote.socket_type is SocketType.PULL
        assert theirs.agreement.remote.socket_type is SocketType.PUSH
        assert ours.agreement.choice.transport == theirs.agreement.choice.transport
        assert ours.agreement.version == theirs.agreement.version
        assert ours.agreement.features == theirs.agreement.features
        assert not theirs.endpoint.is_wildcard, f"{theirs.endpoint} cannot be connected to"
        assert parse(str(theirs.endpoint)) == theirs.endpoint


def check_connects_before_bind(subject: Subject) -> None:
    """Without a listener the connector keeps trying, and finds one that is bound later."""
    listener = subject.make().listen(subject.address)
    address = listener.address  # a real one, which is free again
    listener.close()
    reactor, one, other = Reactor(), Side(), Side()
    connector = reach(
        reactor, subject.make(), address, hello=lambda: make_hello(SocketType.PAIR),
        on_connected=one.connected.append, on_failed=one.refused, options=IMPATIENT,
        credentials=subject.credentials(),
    )  # fmt: skip
    try:
        if subject.make().capabilities.has_socket:
            until(lambda: one.failed, "the news that no listener is bound")
            assert all(isinstance(error, Broken) and error.hint for error in one.failed), one.failed
        acceptor = serve(
            reactor, subject.make(), address, hello=lambda: make_hello(SocketType.PAIR),
            on_connected=other.connected.append, on_failed=other.refused,
            credentials=subject.credentials(),
        )  # fmt: skip
        try:
            until(lambda: one.connected and other.connected, "the connection")
        finally:
            acceptor.close()
    finally:
        connector.close()
        reactor.close()
        close_all(one, other)


def check_reconnects(subject: Subject) -> None:
    """After `lost`, reported once or twice, there is one new connection; after `close` none."""
    reactor, one, other = Reactor(), Side(), Side()
    acceptor = serve(
        reactor, subject.make(), subject.address, hello=lambda: make_hello(SocketType.PAIR),
        on_connected=other.connected.append, on_failed=other.refused,
        credentials=subject.credentials(),
    )  # fmt: skip
    connector = reach(
        reactor, subject.make(), acceptor.address, hello=lambda: make_hello(SocketType.PAIR),
        on_connected=one.connected.append, on_failed=one.refused, options=IMPATIENT,
        credentials=subject.credentials(),
    )  # fmt: skip
    try:
        for times in (1, 2, 3):
            until(lambda: len(one.connected) == times and len(other.connected) == times, "the connection")  # noqa: B023
            connector.lost()
            connector.lost()
        until(lambda: len(one.connected) == 4, "the last connection")
        nonces = {connected.agreement.remote.nonce for connected in one.connected}
        assert len(nonces) == 4, "a nonce was used twice"
        connector.close()
        connector.close()
        connector.lost()
    finally:
        connector.close()
        acceptor.close()
        reactor.close()
        close_all(one, other)


def check_refuses(subject: Subject) -> None:
    """Socket types that do not match are refused with their names on both sides. So is a wrong or missing
    token, on a network transport."""
    fits = {"socket_type": SocketType.PULL}
    nothing: dict[str, Any] = {}
    cases: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
        ("socket_type", {"socket_type": SocketType.SUB}, nothing, nothing)
    ]
    if subject.make().capabilities.networked:
        one_token, other_token = ({"token": hashlib.sha256(side).hexdigest()} for side in (b"one", b"other"))
        cases += [("token", fits, one_token, other_token), ("token", fits, {"token": ""}, other_token)]
    for reason, hello, ours, theirs in cases:
        reactor, one, other = Reactor(), Side(), Side()
        acceptor = serve(
            reactor, subject.make(), subject.address, hello=lambda: make_hello(**hello),  # noqa: B023
            on_connected=other.connected.append, on_failed=other.refused,
            credentials=subject.credentials(**theirs),
        )  # fmt: skip
        connector = reach(
            reactor, subject.make(), acceptor.address, hello=lambda: make_hello(SocketType.PUSH),
            on_connected=one.connected.append, on_failed=one.refused, options=IMPATIENT,
            credentials=subject.credentials(**ours),
        )  # fmt: skip
        try:
            until(lambda: one.failed and other.failed, "the refusal")  # noqa: B023
            for error in (one.failed[0], other.failed[0]):
                assert isinstance(error, HandshakeError) and error.reason == reason, error
        finally:
            connector.close()
            acceptor.close()
            reactor.close()
        assert not one.connected and not other.connected


def check_addresses(subject: Subject) -> None:
    """One endpoint, one listener; closing twice is fine and frees it; a wildcard cannot be reached."""
    transport = subject.make()
    listener = transport.listen(subject.address)
    try:
        assert listener.accept() is None, "accept has no client to return, and must not wait"
        _expect(AddressInUse, lambda: subject.make().listen(listener.address), transport, listener.address)
    finally:
        listener.close()
        listener.close()
    again = transport.listen(listener.address)
    again.close()
    if not subject.address.is_named:
        _expect(AddressError, lambda: transport.start_connect(subject.address.with_port(0)))


def _expect(kind: type[TransferError], *calls: Any) -> None:
    call = calls[0]
    if len(calls) == 3 and not calls[1].capabilities.has_socket:
        transport, address = calls[1:]  # names of bare streams belong to one transport
        call = lambda: transport.listen(address)  # noqa: E731
    try:
        made = call()
    except kind as error:
        if not error.hint:
            raise AssertionError(f"{error!r} has no hint") from error
    else:
        made.close()
        raise AssertionError(f"{kind.__name__} was expected")
