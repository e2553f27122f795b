"""The patterns over mutual TLS and a token: what users see of it, and that nothing else is different."""

from __future__ import annotations

import os

import numpy as np
import pytest

import transfer
from tests.sockets.conftest import KeepingContext
from tests.sockets.helpers import eventually
from transfer.certificates import Authority
from transfer.sockets.monitor import EventKind
from transfer.transports.errors import Again
from transfer.transports.security.settings import Security


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def secure(authority) -> Security:
    issued = authority.issue()
    return Security(
        certificate=issued.certificate,
        key=issued.key,
        authority=authority.path,
        token="17c11c070fe9d38e70c224ae891089be",
    )


@pytest.fixture
def made(core):
    """Makes contexts with a security of their own."""
    contexts: list[KeepingContext] = []

    def make(security: Security) -> KeepingContext:
        contexts.append(KeepingContext(core=core, security=security))
        return contexts[-1]

    yield make
    for context in reversed(contexts):
        context.destroy(0)


@pytest.fixture
def context(made, secure):
    return made(secure)


def failure(monitor):
    """The next peer that was not let in."""
    while (event := monitor.recv(10)).kind not in (EventKind.ACCEPT_FAILED, EventKind.HANDSHAKE_FAILED):
        pass
    return event


def pair(context, bound: int, connected: int):
    one, other = context.socket(bound), context.socket(connected)
    one.rcvtimeo = other.rcvtimeo = one.sndtimeo = other.sndtimeo = 10_000
    one.bind("tcp://127.0.0.1:0")
    if connected == transfer.SUB:
        other.subscribe(b"")
    other.connect(one.last_endpoint)
    for socket in (one, other):
        socket.wait_for_peers(1, timeout=10)
    return one, other


def test_a_peer_says_that_it_is_encrypted(context, monkeypatch) -> None:
    pull, push = pair(context, transfer.PULL, transfer.PUSH)
    for socket in (pull, push):
        (peer,) = socket.peers()
        assert peer.authenticated
        assert peer.encrypted == (peer.transport == "tcp")


@pytest.mark.parametrize("size", [0, 1, 5_000, 70_000, (1 << 20) + 3, 9 << 20])
def test_messages_of_all_sizes(context, size) -> None:
    pull, push = pair(context, transfer.PULL, transfer.PUSH)
    data = os.urandom(size)
    for _ in range(3):
        push.send(data)
        push.send_multipart([b"head", data, b"tail"])
    for _ in range(3):
        assert pull.recv() == data
        assert pull.recv_multipart() == [b"head", data, b"tail"]


def test_tensors(context) -> None:
    pull, push = pair(context, transfer.PULL, transfer.PUSH)
    array = np.random.default_rng(1).random((300, 500))
    into = np.empty_like(array)
    for _ in range(3):
        push.send_tensor(array)
        push.send_tensors({"a": array, "b": array[:7, :3]})
        assert pull.recv_tensor(out=into) is into and np.array_equal(into, array)
        tensors, _ = pull.recv_tensors()
        assert np.array_equal(tensors["a"], array) and np.array_equal(tensors["b"], array[:7, :3])


def test_requests_and_subscriptions(context) -> None:
    rep, req = pair(context, transfer.REP, transfer.REQ)
    for number in range(50):
        req.send(b"%d" % number)
        assert rep.recv() == b"%d" % number
        rep.send(b"yes")
        assert req.recv() == b"yes"
    pub, sub = pair(context, transfer.PUB, transfer.SUB)
    pub.send(b"news")
    assert sub.recv() == b"news"


def test_both_directions_at_once(context) -> None:
    """OpenSSL's object is one for both: neither waits for the other for ever."""
    one, other = pair(context, transfer.PAIR, transfer.PAIR)
    data = os.urandom(3 << 20)
    trackers = [socket.send(data, copy=False, track=True) for socket in (one, other) for _ in range(6)]
    for socket in (one, other):
        assert all(socket.recv() == data for _ in range(6))
    assert len(trackers) == 12


def test_who_has_no_certificate_stays_out(context, made, authority) -> None:
    pull = context.socket(transfer.PULL)
    pull.bind("tcp://127.0.0.1:0")
    endpoint = pull.last_endpoint
    monitor = pull.get_monitor()
    token = "17c11c070fe9d38e70c224ae891089be"
    for security in (Security(), Security(token=token), Security(authority=authority.path, token=token)):
        push = made(security).socket(transfer.PUSH)
        push.connect(endpoint)
        while failure(monitor).reason != "tls":
            pass  # one that was closed in the middle of its next try
        with pytest.raises(Again, match="TLS"):
            push.wait_for_peers(1, timeout=0.3)
        push.close()
    assert not pull.peers()


def test_more_connections_than_are_allowed(made, authority) -> None:
    issued = authority.issue("few")
    few = Security(
        certificate=issued.certificate, key=issued.key, authority=authority.path, max_connections=2
    )
    context = made(few)
    pull = context.socket(transfer.PULL)
    pull.bind("tcp://127.0.0.1:0")
    endpoint = pull.last_endpoint
    monitor = pull.get_monitor()
    pushes = [context.socket(transfer.PUSH) for _ in range(3)]
    for push in pushes[:2]:
        push.connect(endpoint)
        push.wait_for_peers(1, timeout=10)
    pushes[2].connect(endpoint)
    assert failure(monitor).reason == "busy"
    pushes[0].close()  # somebody goes, and the next comes in
    eventually(lambda: len(pull.peers()) == 2 and pushes[2].peers())
    pushes[2].wait_for_peers(1, timeout=10)


def test_a_closed_socket_says_what_was_not_sent(context) -> None:
    """What is encrypted and not taken by the kernel counts as not sent, too."""
    pull, push = pair(context, transfer.PULL, transfer.PUSH)
    if push.peers()[0].transport != "tcp":
        pytest.skip("by shared memory here: nothing waits in the connection")
    push.sndhwm = push.sndhwm_bytes = 0
    push.sndbuf = 64 * 1024  # what the kernel still has when it closes may be lost, and is counted as sent
    for _ in range(200):
        push.send(bytes(200_000))
    push.linger = 0
    unsent = push.close()
    received = 0
    pull.rcvtimeo = 500
    try:
        while True:
            pull.recv()
            received += 1
    except Again:
        pass
    assert unsent > 0
    assert received + unsent >= 198, "but for what was in the kernel when it closed"


def test_asyncio(core, secure) -> None:
    import asyncio

    import transfer.asyncio

    async def talk() -> list[bytes]:
        with transfer.asyncio.Context(core=core, security=secure) as context:
            pull, push = context.socket(transfer.PULL), context.socket(transfer.PUSH)
            pull.bind("tcp://127.0.0.1:0")
            push.connect(pull.last_endpoint)
            got = []
            for size in (10, 300_000, 3 << 20):
                data = os.urandom(size)
                sending = asyncio.create_task(push.send(data))
                got.append(await asyncio.wait_for(pull.recv(), 10) == data)
                await sending
            return got

    assert asyncio.run(talk()) == [True] * 3


def test_an_idle_connection_wakes_at_once(context) -> None:
    """Nothing that came stays behind unseen: each message ends a wait of its own."""
    pull, push = pair(context, transfer.PULL, transfer.PUSH)
    for size in (1, 16_384, 16_385, 40_000, 100_000) * 4:
        push.send(bytes(size))
        assert len(pull.recv()) == size


@pytest.mark.parametrize("missing", ["tls", "token"])
def test_the_listener_says_whom_it_refuses_and_why(made, secure, missing, caplog) -> None:
    has = secure if missing == "tls" else Security(token="17c11c070fe9d38e70c224ae891089be")
    pull = made(has).socket(transfer.PULL, rcvtimeo=50)
    pull.bind("tcp://127.0.0.1:0")
    made(Security()).socket(transfer.PUSH).connect(pull.last_endpoint)
    refused = "does not speak TLS" if missing == "tls" else "the peer has no token"
    assert eventually(
        lambda: [line for line in caplog.messages if "listening on" in line and refused in line]
    )
    with pytest.raises(Again, match=f"one was refused: {missing}: "):
        pull.recv()
