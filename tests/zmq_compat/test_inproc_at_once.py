"""What a PUB or a ROUTER sends by inproc right after the other side connected arrives."""

from __future__ import annotations

import threading

import pytest


@pytest.fixture(params=["bound first", "connected first"])
def meet(request, ctx):
    """meet(type that binds, type that connects, identity) -> the two sockets."""

    def make(binds, connects, identity=None, topic=None):
        bound, connected = ctx.socket(binds), ctx.socket(connects)
        if identity is not None:
            connected.identity = identity
        if topic is not None:
            connected.subscribe(topic)
        calls = [(bound.bind, "inproc://meet"), (connected.connect, "inproc://meet")]
        for call, endpoint in calls if request.param == "bound first" else reversed(calls):
            call(endpoint)
        return bound, connected

    return make


@pytest.mark.parametrize("kind", ["PUB", "XPUB"])
def test_a_subscriber_misses_nothing(zmq, ours, meet, kind):
    pub, sub = meet(getattr(zmq, kind), zmq.SUB, topic=b"a")
    for number in range(3):
        pub.send(b"a%d" % number)
    assert [sub.recv() for _ in range(3)] == [b"a0", b"a1", b"a2"]
    if not ours:
        return  # libzmq's PUB sees later subscriptions some time later
    sub.subscribe(b"b")
    pub.send(b"b")
    assert sub.recv() == b"b"
    sub.unsubscribe(b"a")
    pub.send(b"a")
    pub.send(b"b")
    assert sub.recv() == b"b"


@pytest.mark.parametrize("kind", ["DEALER", "ROUTER"])
def test_a_router_knows_its_peer(zmq, meet, kind):
    router, peer = meet(zmq.ROUTER, getattr(zmq, kind), identity=b"X")
    router.send_multipart([b"X", b"welcome"])
    assert peer.recv_multipart()[-1] == b"welcome"


@pytest.mark.parametrize(
    "kinds", [("REP", "REQ"), ("ROUTER", "DEALER"), ("DEALER", "DEALER"), ("PAIR", "PAIR")]
)
def test_a_proxy_from_a_socket_to_itself(zmq, ctx, link, kinds):
    echo, peer = link(*(getattr(zmq, kind) for kind in kinds))

    def run():
        with pytest.raises((zmq.ContextTerminated, zmq.ZMQError)):
            zmq.proxy(echo, echo)
        echo.close(linger=0)

    thread = threading.Thread(target=run)
    thread.start()
    for number in range(20):
        peer.send(b"%d" % number)
        assert peer.recv() == b"%d" % number
    peer.close()
    ctx.term()
    thread.join(5)
    assert not thread.is_alive()
