"""Faster transports are for those who have shown who they are; and the keys by which they are reached."""

from __future__ import annotations

import re
import secrets
from concurrent.futures import Future
from contextlib import ExitStack

import pytest

import transfer
from tests.security.conftest import TOKEN
from tests.transports.test_handshake import run
from transfer.transports import probe
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import Fatal, ProtocolError
from transfer.transports.handshake.choice import Offer
from transfer.transports.handshake.handshake import Handshake
from transfer.transports.handshake.hello import Agreement
from transfer.transports.handshake.identity import make_hello
from transfer.transports.handshake.upgrade import Declined, Made, Surroundings, Upgrade
from transfer.transports.reactor import Reactor
from transfer.transports.security.settings import Security
from transfer.transports.shm.unix_listener import TOKEN_SIZE, UnixListener, connect
from transfer.transports.shm.upgrade import LocalUpgrade

OFFER = Offer(("rdma",), "rdma", "prefer")


class Part(Upgrade):
    """One side's part in an upgrade, of which only the agreement matters."""

    def offer(self):
        return {"key": "of the exchange"}

    def accept(self, offer):
        return {}

    def finish(self, answer):
        pass

    def made(self, fd, channel=None):
        return Made(fd)

    def close(self):
        pass


def shaken(policy="prefer", *, tokens=(), guarded=(True, True), secured=False):
    """Both sides' handshakes after it, and the parts that were made."""
    parts = []

    def make(agreement, connecting):
        parts.append(Part(None, agreement, connecting=connecting))
        return parts[-1]

    sides = []
    for kind, guard in zip((SocketType.PUSH, SocketType.PULL), guarded, strict=True):
        side = Handshake(
            make_hello(kind, offer=Offer(("rdma",), "rdma", policy)),
            connecting=kind is SocketType.PUSH, upgrades=make, tokens=tokens, guarded=guard,
        )  # fmt: skip
        if secured:
            side.secured(b"certificate", authenticated=kind is SocketType.PUSH)
        sides.append(side)
    bytes_said = run(*sides)
    return (*sides, parts, bytes_said)


def test_who_has_proved_a_token_gets_the_offer():
    one, other, parts, _ = shaken(tokens=(TOKEN.encode(),))
    assert [side.outcome.choice.transport for side in (one, other)] == ["rdma", "rdma"] and len(parts) == 2
    assert all(part.agreement.authenticated for part in parts)


@pytest.mark.parametrize("secured", [False, True])
def test_an_unauthenticated_peer_learns_nothing_of_it(secured):
    """Encryption alone says not who the peer is. Both go on by TCP, and say why."""
    one, other, parts, _ = shaken(secured=secured)
    for side in (one, other):
        assert isinstance(side.outcome, Agreement)
        choice = side.outcome.choice
        assert (choice.transport, choice.fallback, choice.wanted) == ("tcp", True, "rdma")
    assert other.outcome.choice.word == "stranger" and not other.outcome.authenticated
    assert all(part.agreement.authenticated for part in parts), "the accepting side made none"


def test_one_side_that_is_guarded_is_enough():
    for guarded in ((True, False), (False, True)):
        one, other, _, _ = shaken(guarded=guarded)
        assert one.outcome.choice.transport == other.outcome.choice.transport == "tcp"


def test_with_require_an_unauthenticated_peer_is_refused():
    one, other, _, _ = shaken("require")
    assert [side.outcome.reason for side in (one, other)] == ["policy", "policy"]
    assert "has not authenticated" in str(other.outcome)


# --- sockets on one host ---------------------------------------------------------------------------


@pytest.fixture
def local(monkeypatch):
    monkeypatch.setenv("TRANSFER_LOCAL", "on")
    probe.forget()
    yield
    probe.forget()


def pair(core, theirs, ours):
    contexts = transfer.Context(core=core, security=theirs), transfer.Context(core=core, security=ours)
    pull = contexts[0].socket(transfer.PULL, rcvtimeo=10_000)
    push = contexts[1].socket(transfer.PUSH, linger=0, sndtimeo=10_000)
    return contexts, pull, push


def told(core, theirs, ours):
    """(PeerInfo at the server, at the client), after a message went through."""
    contexts, pull, push = pair(core, theirs, ours)
    try:
        pull.bind("tcp://127.0.0.1:0")
        push.connect(pull.last_endpoint)
        push.send(b"x" * 300_000)
        assert pull.recv() == b"x" * 300_000
        return pull.peers()[0], push.peers()[0]
    finally:
        for context in contexts:
            context.destroy(0)


def test_local_for_those_who_are_known(core, pki, local):
    for security in (Security(token=TOKEN), pki.security(), pki.security(clients="token", token=TOKEN)):
        for info in told(core, security, security):
            assert info.transport == "local"


def test_no_shared_memory_for_unauthenticated_peers(core, pki, local):
    """The server has a certificate and asks for none."""
    server = Security(pki.issued.certificate, pki.issued.key)
    for info in told(core, server, Security(authority=pki.authority.path)):
        assert info.transport == "tcp" and "not authenticated" in info.reason


def test_tcp_is_told_to_be_encrypted(core, pki):
    for info in told(core, pki.security(), pki.security()):
        assert info.transport == "tcp" and info.encrypted and info.authenticated


def test_where_all_is_to_be_encrypted(core, pki):
    """What carries data as it is, is no choice; and who requires it is told at once."""
    security = pki.security(encrypt="all")
    with transfer.Context(core=core, security=security) as context:
        assert not {"rdma", "ucx"} & set(context.offer.transports)
        for name in ("rdma", "ucx"):
            assert "TRANSFER_ENCRYPT" in context.offer.lacking[name]
    contexts, pull, _ = pair(core, security, security)
    strict = transfer.Context(core=core, security=security, protocol="rdma", policy="require")
    try:
        pull.bind("tcp://127.0.0.1:0")
        with strict.socket(transfer.PUSH, linger=0) as wants:
            with pytest.raises(Fatal) as caught:
                wants.connect(pull.last_endpoint)
                wants.wait_for_peers(1, 10)
            assert "TRANSFER_ENCRYPT" in str(caught.value)
    finally:
        for context in (*contexts, strict):
            context.destroy(0)


# --- the Unix listener of shared memory ------------------------------------------------------------


@pytest.fixture
def listener():
    reactor = Reactor()
    made = UnixListener(reactor)
    yield made
    made.close()
    reactor.close()


def taken(listener, key):
    """`take`, in the reactor's thread, as the listener wants it."""
    done = Future()

    def take():
        try:
            done.set_result(listener.take(key))
        except Declined as error:
            done.set_exception(error)

    listener._reactor.call_soon(take)
    return done.result(10)


def test_a_key_is_good_once(listener):
    key = secrets.token_bytes(TOKEN_SIZE)
    with ExitStack() as ends:
        first, *_ = [ends.enter_context(end) for end in connect(listener.name, key)]
        theirs, *_ = [ends.enter_context(end) for end in taken(listener, key)]
        for end in connect(listener.name, key):
            ends.enter_context(end)
        with pytest.raises(Declined):
            taken(listener, secrets.token_bytes(TOKEN_SIZE))
        assert first.send(b"x") and theirs.recv(1) == b"x", "the first one goes on undisturbed"


@pytest.fixture
def place(core):
    """What a transport may use of a socket."""
    made = Surroundings(core, Reactor(), core.Flusher(), core.Pool(), SocketType.PULL, 1 << 20, 1000, 1 << 20)
    yield made
    for kept in (*made.shared.values(), *made.own.values(), made.flusher, made.pool, made.reactor):
        kept.close()


def test_keys_are_new_for_each_connection(place):
    """And too long to be guessed."""
    seen = set()
    upgrades = [LocalUpgrade(place, None, connecting=False) for _ in range(20)]
    try:
        for upgrade in upgrades:
            said = upgrade.offer()
            assert re.fullmatch(r"[0-9a-f]{32}", said["token"])
            seen.add(said["token"])
        assert len(seen) == 20
        mine = connect(said["name"], bytes.fromhex(min(seen - {said["token"]})))
        with pytest.raises(Declined):
            upgrade.finish({})  # by the key of another connection nobody comes in here
        for end in mine:
            end.close()
    finally:
        for upgrade in upgrades:
            upgrade.close()


@pytest.mark.parametrize("name", ["/tmp/.X11-unix/X0", "transfer-", "transfer-" + "g" * 32,
                                  "transfer-" + "0" * 31,
                                  "dbus-" + "0" * 32, "transfer-" + "0" * 32 + "x"])  # fmt: skip
def test_a_peer_sends_nobody_to_other_sockets(place, name):
    """Its word says where this side connects to: to nothing but a Unix listener."""
    upgrade = LocalUpgrade(place, None, connecting=True)
    try:
        with pytest.raises(ProtocolError):
            upgrade.accept({"name": name, "token": "00" * TOKEN_SIZE})
    finally:
        upgrade.close()
