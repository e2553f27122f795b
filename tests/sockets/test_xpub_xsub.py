"""XPUB and XSUB beyond what ZeroMQ promises: limits, older peers, acknowledgements. See tests/zmq_compat."""

from __future__ import annotations

import pytest

import transfer
from transfer import PUB, SUB, XPUB, XSUB
from transfer.sockets.connections import upstream
from transfer.transports.errors import Again, NotSupported, OptionError

from .helpers import TCP, eventually


@pytest.fixture
def pair(context):
    """An XPUB, and an XSUB that subscribes to all."""
    pub, sub = context.socket(XPUB, rcvtimeo=10_000), context.socket(XSUB, rcvtimeo=10_000)
    pub.bind(TCP)
    sub.send(b"\1")
    sub.connect(pub.last_endpoint)
    sub.wait_for_peers(1, 10)
    assert pub.recv() == b"\1"
    return pub, sub


def test_subscriptions_and_messages_both_ways(context, endpoint):
    pub, sub = context.socket(XPUB, rcvtimeo=10_000), context.socket(XSUB, rcvtimeo=10_000)
    pub.bind(endpoint)
    sub.send(b"\1a")
    sub.connect(pub.last_endpoint)
    pub.wait_for_peers(1, 10)
    sub.wait_for_peers(1, 10)
    assert pub.recv() == b"\1a"
    pub.send(b"b")
    pub.send_multipart([b"a", b"rest"])
    assert sub.recv_multipart() == [b"a", b"rest"]
    tracker = sub.send(b"upstream", track=True)
    tracker.wait(10)
    assert pub.recv() == b"upstream"
    sub.close()
    assert pub.recv() == b"\0a"
    assert pub.subscribers() == 0


def test_an_xsub_may_call_subscribe(context):
    pub, sub = context.socket(XPUB, rcvtimeo=10_000), context.socket(XSUB, rcvtimeo=10_000)
    pub.bind(TCP)
    sub.connect(pub.last_endpoint)
    sub.subscribe("a")
    assert pub.recv() == b"\1a"
    sub.unsubscribe("a")
    assert pub.recv() == b"\0a"


@pytest.mark.parametrize(("bound", "connected"), [(XPUB, SUB), (PUB, XSUB), (PUB, SUB)])
def test_only_an_xpub_gets_messages_of_an_xsub(context, bound, connected):
    """A peer without the feature in its hello, as all older ones are, would end the connection for it."""
    pub, sub = context.socket(bound), context.socket(connected)
    pub.bind(TCP)
    sub.subscribe("")
    sub.connect(pub.last_endpoint)
    pub.wait_for_peers(1, 10)
    if connected == XSUB:
        sub.send(b"dropped")
        assert sub._pattern.drops == {"no_peer": 1}
    else:
        with pytest.raises(NotSupported):
            sub.send(b"no")
        stream = next(iter(sub._links.state.peers))
        stream.send([(0, 0, None, None, b"message of a SUB")])
        eventually(lambda: pub._links.state.counts.get("protocol:flags"))
        return
    pub.send(b"news")
    assert sub.recv() == b"news"


def test_what_the_program_leaves_unread_is_limited(pair, monkeypatch):
    monkeypatch.setattr(upstream, "MAX_UNREAD", 10)
    monkeypatch.setattr(upstream, "_RECOUNT", 5)
    pub, sub = pair
    for number in range(100):
        sub.send(b"%d" % number)
    eventually(lambda: pub._pattern.drops.get("unread", 0) >= 80)
    got = 0
    while pub.poll(50):
        pub.recv()
        got += 1
    assert got == 10
    for number in range(20):  # it notices that there is room again
        sub.send(b"%d" % number)
    assert pub.poll(5000)


def test_what_the_program_leaves_unread_is_limited_in_bytes(pair, monkeypatch):
    monkeypatch.setattr(upstream, "MAX_UNREAD_BYTES", 100_000)
    pub, sub = pair
    for _ in range(20):
        sub.send(b"x" * 30_000)
    eventually(lambda: pub._pattern.drops.get("unread", 0) == 17)
    assert [len(pub.recv()) for _ in range(3)] == [30_000] * 3
    with pytest.raises(Again):
        pub.recv(transfer.DONTWAIT)


def test_options_of_subscriptions_are_those_of_one_type(context):
    with pytest.raises(NotSupported):
        context.socket(XPUB).subscribe("a")
    with pytest.raises(OptionError, match="drop subscriptions"):
        context.socket(XSUB, conflate=True)
    with pytest.raises(OptionError, match="an option of XPUB"):
        context.socket(PUB, xpub_manual=True)
    assert context.socket(XPUB, xpub_nodrop=True, xpub_welcome_msg="hello").xpub_welcome_msg == b"hello"


def test_a_lost_connection_is_made_again_with_its_subscriptions(pair):
    pub, sub = pair
    pub._links.loss.lost(next(iter(pub._links.state.peers)), transfer.Broken("cut"))
    assert [pub.recv(), pub.recv()] == [b"\0", b"\1"]
    pub.send(b"abc")
    assert sub.recv() == b"abc"
