"""Queues without a limit, and queues of large messages."""

from __future__ import annotations

import pytest

from .conftest import PATIENCE, join

pytestmark = pytest.mark.timeout(60)

#: together more than `sndhwm_bytes` of `transfer` and the kernel's buffers
COUNT, SIZE = 12, 10 << 20


def numbers(sock):
    """The numbers of `COUNT` messages, as far as they arrive."""
    found = []
    while len(found) < COUNT and sock.poll(PATIENCE):
        found.append(int.from_bytes(sock.recv(copy=False).buffer[:2], "big"))
    return found


@pytest.mark.parametrize("mark", [0, 1000])
def test_large_messages_are_not_dropped(zmq, ctx, mark):
    pub = ctx.socket(zmq.PUB)
    pub.sndhwm = mark
    subs = [ctx.socket(zmq.SUB) for _ in range(2)]
    port = pub.bind_to_random_port("tcp://127.0.0.1")
    for sub in subs:
        sub.rcvhwm = mark
        sub.subscribe(b"")
        sub.connect(f"tcp://127.0.0.1:{port}")
    for sub in subs:
        join(zmq, pub, sub)
    pub.sndhwm = mark
    for sub in subs:  # what `join` sent to the others
        while sub.poll(100):
            sub.recv()
    for number in range(COUNT):
        pub.send(number.to_bytes(2, "big") + bytes(SIZE), copy=False)
    for sub in subs:
        assert numbers(sub) == list(range(COUNT))


@pytest.mark.parametrize("mark", [0, 1000])
def test_a_router_drops_no_large_messages(zmq, link, mark):
    router, dealer = link(zmq.ROUTER, zmq.DEALER, sndhwm=mark, rcvhwm=mark)
    dealer.send(b"hello")
    identity = router.recv_multipart()[0]
    for number in range(COUNT):
        router.send_multipart([identity, number.to_bytes(2, "big") + bytes(SIZE)], copy=False)
    assert numbers(dealer) == list(range(COUNT))


@pytest.mark.parametrize("scheme", ["tcp", "inproc"])
def test_an_unlimited_push_never_waits(zmq, ctx, scheme):
    push, pull = ctx.socket(zmq.PUSH), ctx.socket(zmq.PULL)
    push.sndhwm = pull.rcvhwm = 0
    endpoint = "inproc://unlimited" if scheme == "inproc" else "tcp://127.0.0.1:*"
    pull.bind(endpoint)
    push.connect(pull.last_endpoint.decode())
    for number in range(COUNT):
        push.send(number.to_bytes(2, "big") + bytes(SIZE), copy=False)
    assert numbers(pull) == list(range(COUNT))


def test_the_programs_own_limit_of_bytes(zmq, ctx, ours):
    if not ours:
        pytest.skip("libzmq has no such limit")
    for kind, given, limit in (
        (zmq.PUB, 1000, 0),
        (zmq.ROUTER, 5, 0),
        (zmq.PUSH, 0, 0),
        (zmq.PUSH, 5, 64 << 20),
    ):
        sock = ctx.socket(kind)
        sock.sndhwm = given
        assert sock.sndhwm_bytes == limit
        sock.sndhwm_bytes = 7
        sock.sndhwm = 0
        assert sock.sndhwm_bytes == 7
