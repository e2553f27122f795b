"""Sockets of users over the rdma transport: chosen by name, told by `peers()`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import transfer
from tests.rdma.ends import devices


@pytest.fixture(params=["null", "real"])
def context(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "real" and not devices():
        pytest.skip("no RDMA device here: `make test-rdma` brings one")
    if request.param == "null":
        request.getfixturevalue("null")
    with transfer.Context(protocol="rdma", policy="require") as made:
        made._kept = []
        yield made
        for socket in made._kept:
            socket.close(0)


def pair(context: Any, one: Any, other: Any) -> tuple[Any, Any]:
    bound, connected = context.socket(other), context.socket(one)
    context._kept += bound, connected
    bound.bind("tcp://127.0.0.1:0")
    connected.connect(bound.last_endpoint)
    if one is transfer.SUB:
        connected.subscribe(b"a")
    connected.wait_for_peers(1)
    return connected, bound


def test_push_pull(context) -> None:
    push, pull = pair(context, transfer.PUSH, transfer.PULL)
    pull.rcvtimeo = push.sndtimeo = 30_000
    assert {peer.transport for peer in push.peers()} == {"rdma"}
    assert push.peers()[0].device
    messages = [b"", b"x", b"y" * 5000, b"z" * 300_000] * 20
    for message in messages:
        push.send(message)
        assert pull.recv() == message
    push.send_multipart([b"a", b"b" * 100_000, b"c"])
    assert pull.recv_multipart() == [b"a", b"b" * 100_000, b"c"]


def test_many_messages_ahead(context) -> None:
    push, pull = pair(context, transfer.PUSH, transfer.PULL)
    pull.rcvtimeo = push.sndtimeo = 30_000
    for number in range(500):
        push.send(b"%d" % number)
    assert [int(pull.recv()) for _ in range(500)] == list(range(500))


def test_confirmation(context) -> None:
    push, pull = pair(context, transfer.PUSH, transfer.PULL)
    data = bytearray(b"d" * 200_000)
    tracker = push.send(data, copy=False, track=True)
    pull.rcvtimeo = 30_000
    assert pull.recv() == data
    tracker.wait(30)
    data.append(1)
    tracker.wait_confirmed(30)  # although the receiver never asks again


def test_req_rep(context) -> None:
    req, rep = pair(context, transfer.REQ, transfer.REP)
    req.rcvtimeo = rep.rcvtimeo = 30_000
    for size in (1, 100, 100_000):
        req.send(b"q" * size)
        assert rep.recv() == b"q" * size
        rep.send(b"a" * size)
        assert req.recv() == b"a" * size


def test_pub_sub(context) -> None:
    sub, pub = pair(context, transfer.SUB, transfer.PUB)
    sub.rcvtimeo = 30_000
    pub.wait_for_peers(1)
    for number in range(50):
        pub.send(b"b%d" % number)
        pub.send(b"a%d" % number)
        assert sub.recv() == b"a%d" % number


def test_tensors(context) -> None:
    numpy = pytest.importorskip("numpy")
    push, pull = pair(context, transfer.PUSH, transfer.PULL)
    pull.rcvtimeo = push.sndtimeo = 30_000
    for shape in ((3,), (100, 100), (500, 1000)):
        tensor = numpy.random.default_rng(1).random(shape)
        push.send_tensor(tensor)
        arrived = pull.recv_tensor()
        assert (arrived == tensor).all() and arrived.flags.writeable
        push.send_tensor(tensor)
        out = numpy.empty(shape)
        assert pull.recv_tensor(out=out) is out and (out == tensor).all()


def test_a_closed_peer_loses_nothing(context) -> None:
    push, pull = pair(context, transfer.PUSH, transfer.PULL)
    pull.rcvtimeo = 30_000
    for number in range(20):
        push.send(bytes([number]) * (100 if number % 2 else 100_000))
    closing = threading.Thread(target=push.close, args=(20_000,))
    closing.start()
    assert [pull.recv()[0] for _ in range(20)] == list(range(20))
    closing.join()


def test_heartbeats_go_on_while_nobody_receives(context) -> None:
    """What is under way by the device is noticed when the application looks: only the control connection
    it says meanwhile that the peer lives."""
    options = {"heartbeat_ivl": 20, "heartbeat_timeout": 400, "frame_timeout": 100}
    bound, connected = context.socket(transfer.PULL, **options), context.socket(transfer.PUSH, **options)
    context._kept += bound, connected
    bound.rcvtimeo = 30_000
    bound.bind("tcp://127.0.0.1:0")
    connected.connect(bound.last_endpoint)
    connected.wait_for_peers(1)
    monitors = [one.get_monitor() for one in (bound, connected)]
    connected.send(b"first")
    assert bound.recv() == b"first"
    streams = bound._streams(), connected._streams()
    deadline = time.monotonic() + 2
    sent = 0
    while time.monotonic() < deadline:
        sent += sent < 100 and connected.send(b"x" * 5000) is None
        time.sleep(0.02)
    assert (bound._streams(), connected._streams()) == streams
    assert not any(len(monitor._events) for monitor in monitors)
    for _ in range(sent):
        assert len(bound.recv()) == 5000
