"""Who may come in by a Unix socket: processes of the same user as they are, those of others by the token."""

from __future__ import annotations

import os
import secrets
import socket
from contextlib import ExitStack

import pytest

import transfer
from tests.security.conftest import TOKEN
from tests.sockets.processes import Program
from transfer.transports.address import parse
from transfer.transports.connect import connection
from transfer.transports.core.wire import HEADER, MAGIC, VERSION, SocketType
from transfer.transports.ipc import IpcTransport
from transfer.transports.peercred import peer_credentials
from transfer.transports.security.settings import Security
from transfer.transports.testing.ends import until

#: another user of this host
OTHER = 65534


@pytest.fixture
def endpoint():
    return f"ipc://@transfer-test-{secrets.token_hex(8)}"


@pytest.fixture
def apart(monkeypatch):
    """Both ends take each other for another user's."""
    monkeypatch.setattr(connection, "same_user", lambda *_: False)


@pytest.fixture
def meet(core, endpoint):
    """The PUSH and the PULL, which are about to meet, of two contexts."""
    with ExitStack() as kept:

        def make(ours: Security, theirs: Security):
            one, other = (kept.enter_context(transfer.Context(core=core, security=s)) for s in (ours, theirs))
            pull = kept.enter_context(one.socket(transfer.PULL, rcvtimeo=10_000))
            push = kept.enter_context(other.socket(transfer.PUSH, linger=0, sndtimeo=10_000))
            watched = kept.enter_context(pull.get_monitor()), kept.enter_context(push.get_monitor())
            pull.bind(endpoint)
            push.connect(endpoint)
            return pull, push, watched

        yield make


def failure(monitor):
    """The error of the next handshake that fails."""
    while True:
        event = monitor.recv(10)
        if event.kind == "handshake_failed":
            return event.error


def test_both_ends_hear_of_the_other_by_the_kernel(endpoint):
    listener = IpcTransport().listen(parse(endpoint))
    with IpcTransport().start_connect(listener.address) as one:
        other, _ = until(listener.accept, "the connection")
        with other:
            for end in (one, other):
                assert peer_credentials(end)[:2] == (os.getpid(), os.geteuid())
    listener.close()


def test_another_user_with_the_token_comes_in(apart, meet):
    pull, push, _ = meet(Security(token=TOKEN), Security(token=TOKEN))
    push.send(b"x")
    assert pull.recv() == b"x"
    assert pull.peers()[0].authenticated and push.peers()[0].authenticated


def test_the_same_user_is_asked_for_nothing(meet, pki):
    """Whatever each side has: it may read the other's files."""
    pull, push, _ = meet(pki.security(token=TOKEN), Security())
    push.send(b"x")
    assert pull.recv() == b"x" and not pull.peers()[0].authenticated


@pytest.mark.parametrize("listens", [True, False])
def test_another_user_without_the_token_does_not(apart, meet, listens):
    """Neither who connects to a service, nor who holds its name while it is down."""
    sides = Security(token=TOKEN), Security()
    pull, push, watched = meet(*(sides if listens else sides[::-1]))
    for monitor in watched:
        error = failure(monitor)
        assert error.reason == "token" and "same token" in error.hint
    assert not pull.peers() and not push.peers()


def test_another_user_with_another_token_does_not(apart, meet):
    pull, push, watched = meet(Security(token=TOKEN), Security(token=TOKEN[::-1]))
    assert failure(watched[0]).reason == failure(watched[1]).reason == "token"
    assert not pull.peers() and not push.peers()


def test_where_there_are_certificates_only_another_user_is_refused(apart, meet, pki):
    pull, push, watched = meet(pki.security(), Security())
    assert "TRANSFER_TOKEN_FILE" in failure(watched[0]).hint
    error = failure(watched[1])
    assert error.reason == "token" and "this side runs under another user" in str(error)
    assert not pull.peers() and not push.peers()


def test_who_has_certificates_only_says_nothing_to_another_user(apart, core, endpoint, pki):
    with socket.socket(socket.AF_UNIX) as squatter:
        squatter.bind("\0" + endpoint.removeprefix("ipc://@"))
        squatter.listen()
        squatter.settimeout(10)
        with transfer.Context(core=core, security=pki.security()) as context:
            with context.socket(transfer.PUSH, linger=0) as push, push.get_monitor() as monitor:
                push.connect(endpoint)
                assert "TRANSFER_TOKEN_FILE" in failure(monitor).hint
                heard, _ = squatter.accept()
                with heard:
                    assert heard.recv(1) == b""


@pytest.mark.parametrize("what", ["token", "certificates"])
def test_a_plain_peer_of_another_user_is_refused(apart, core, endpoint, pki, what):
    """One that says no hello has nothing to show."""
    security = Security(token=TOKEN) if what == "token" else pki.security()
    with transfer.Context(core=core, security=security) as context:
        with context.socket(transfer.PULL, rcvtimeo=0) as pull, pull.get_monitor() as monitor:
            pull.bind(endpoint)
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.settimeout(10)
                stranger.connect("\0" + endpoint.removeprefix("ipc://@"))
                stranger.sendall(HEADER.pack(MAGIC, VERSION, SocketType.PUSH, 0, 0, 0, 1, 0) + b"x")
                assert failure(monitor).reason == "token"
            with pytest.raises(transfer.Again):
                pull.recv()


def test_without_credentials_an_abstract_name_is_for_all(apart, meet):
    """As tcp:// on loopback."""
    pull, push, _ = meet(Security(), Security())
    push.send(b"x")
    assert pull.recv() == b"x"


def test_inproc_asks_for_nothing(core):
    with transfer.Context(core=core, security=Security(token=TOKEN)) as context:
        with context.socket(transfer.PULL) as pull, context.socket(transfer.PUSH) as push:
            pull.bind("inproc://here")
            push.connect("inproc://here")
            push.send(b"x")
            assert pull.recv() == b"x"


#: pushes to the endpoint as another user, after all that is needed was loaded
PUSHES = f"""
    import os, sys, transfer
    with transfer.Context() as context:
        with context.socket(transfer.PULL) as pull, context.socket(transfer.PUSH) as push:
            pull.bind("ipc://@transfer-test-%d" % os.getpid())
            push.connect(pull.last_endpoint)
            push.send(b"x")
            pull.recv()
    os.setgid({OTHER})
    os.setuid({OTHER})
    with transfer.Context() as context, context.socket(transfer.PUSH, linger=0) as push:
        push.connect(sys.argv[1])
        push.wait_for_peers(1, 10)
        push.send(b"forged")
        print("in", push.peers()[0].authenticated, flush=True)
        sys.stdin.readline()
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root may change the user")
@pytest.mark.parametrize("token", ["", TOKEN])
def test_a_process_of_another_user(endpoint, token):
    with transfer.Context(security=Security(token=TOKEN)) as context:
        with context.socket(transfer.PULL, rcvtimeo=10_000) as pull, pull.get_monitor() as monitor:
            pull.bind(endpoint)
            with Program(PUSHES, endpoint, core="native", TRANSFER_TOKEN=token) as program:
                if token:
                    assert program.line() == "in True" and pull.recv() == b"forged"
                else:
                    assert failure(monitor).reason == "token" and not pull.peers()
