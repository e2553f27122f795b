"""PUB and SUB: prefixes, acknowledged subscriptions, topics, slow subscribers."""

from __future__ import annotations

import threading

import pytest

import transfer
from transfer import PUB, SUB
from transfer.sockets.connections.state import control
from transfer.transports.core.wire import Control
from transfer.transports.errors import Again, NotSupported, UsageError

from .helpers import TCP, Thread, binds, eventually, pair_of


def test_a_subscriber_gets_its_prefixes_and_nothing_else(context, endpoint):
    pub = context.socket(PUB)
    pub.bind(endpoint)
    sub = context.socket(SUB)
    sub.subscribe("a.")
    sub.subscribe(b"b")
    sub.connect(pub.last_endpoint)
    pub.wait_for_peers(1, 10)
    sub.wait_for_peers(1, 10)
    for topic in (b"a.1", b"a", b"b", b"c", b"bb", b"", b"a.2"):
        pub.send(topic)
    assert [sub.recv() for _ in range(4)] == [b"a.1", b"b", b"bb", b"a.2"]
    with pytest.raises(Again):
        sub.recv(transfer.DONTWAIT)


def test_after_wait_for_peers_nothing_is_missed(context):
    pub, sub = pair_of(context, PUB, SUB)
    for i in range(500):
        pub.send(b"%d" % i)
    assert [sub.recv() for _ in range(500)] == [b"%d" % i for i in range(500)]


def test_a_publisher_may_connect(context):
    sub, pub = pair_of(context, SUB, PUB)
    pub.send(b"x")
    assert sub.recv() == b"x"


def test_the_topic_is_the_first_part(context):
    pub, sub = pair_of(context, PUB, SUB)
    pub.send_multipart([b"weather.berlin", b"rain"])
    assert sub.recv_multipart() == [b"weather.berlin", b"rain"]


def test_threads_that_have_ended_leave_nothing_at_a_subscriber(context):
    """The record of threads that receive grew by the id of each thread that ever did."""
    pub, sub = pair_of(context, PUB, SUB)
    together = threading.Barrier(20)  # so that no two have the same id

    def receive():
        together.wait(20)
        sub.recv_multipart()
        together.wait(20)

    threads = [Thread(receive) for _ in range(20)]
    for _ in range(21):
        pub.send_multipart([b"x", b"y"])
    for thread in threads:
        thread.finish()
    sub.recv_multipart()
    assert eventually(lambda: sub._threads.all() == [sub._threads.here.thread])


def test_a_subscription_counts_how_often_it_was_made(context):
    pub, sub = pair_of(context, PUB, SUB)
    sub.subscribe(b"x")
    sub.subscribe(b"x")
    sub.unsubscribe(b"")
    sub.unsubscribe(b"x")
    sub.wait_for_peers(1, 10)
    assert eventually(lambda: _subscriptions(pub) == [(b"x",)])
    pub.send(b"x1")
    assert sub.recv() == b"x1"
    sub.unsubscribe(b"x")
    assert eventually(lambda: _subscriptions(pub) == [()])
    pub.send(b"x2")
    assert pub.dropped_no_peer == 1
    with pytest.raises(UsageError, match="not subscribed"):
        sub.unsubscribe(b"x")


def _subscriptions(pub):
    return [tuple(stream.subscriptions) for stream in pub._streams()]


def test_later_subscriptions_are_acknowledged_too(context):
    pub = context.socket(PUB)
    pub.bind(TCP)
    sub = context.socket(SUB)
    sub.connect(pub.last_endpoint)
    with pytest.raises(Again):
        sub.wait_for_peers(1, 0.2)
    sub.subscribe(b"late")
    sub.wait_for_peers(1, 10)
    pub.send(b"late news")
    assert sub.recv() == b"late news"


def test_many_subscribers_each_get_all(context):
    pub = context.socket(PUB)
    pub.bind(TCP)
    subs = [context.socket(SUB) for _ in range(8)]
    for sub in subs:
        sub.subscribe(b"")
        sub.connect(pub.last_endpoint)
    pub.wait_for_peers(8, 10)
    for i in range(100):
        pub.send(b"%d" % i)
    for sub in subs:
        assert [sub.recv() for _ in range(100)] == [b"%d" % i for i in range(100)]


def test_a_slow_subscriber_misses_messages_that_are_counted_and_nobody_waits(context):
    pub, sub = pair_of(context, PUB, SUB, sndhwm=10, sndbuf=4096, rcvbuf=4096)
    payload = b"x" * 50_000
    for _ in range(500):
        pub.send(payload)
    (stream,) = pub._streams()
    assert stream.dropped > 0
    got = 0
    sub.receive_timeout = 500
    with pytest.raises(Again):
        while True:
            sub.recv()
            got += 1
    assert got + stream.dropped == 500


def test_publishing_without_subscribers_is_counted(context):
    pub = context.socket(PUB)
    pub.bind(TCP)
    pub.send(b"x")
    pub.send_multipart([b"x", b"y"])
    assert pub.dropped_no_peer == 2


def test_subscriptions_live_on_after_a_reconnect(context):
    pub = context.socket(PUB)
    pub.bind(TCP)
    endpoint = pub.last_endpoint
    sub = context.socket(SUB, reconnect_ivl=10)
    sub.subscribe(b"k")
    sub.connect(endpoint)
    pub.wait_for_peers(1, 10)
    pub.close(0)
    again = context.socket(PUB)
    assert eventually(lambda: binds(again, endpoint))
    again.wait_for_peers(1, 10)
    again.send(b"key")
    assert sub.recv() == b"key"


def test_only_a_sub_subscribes(context):
    pub = context.socket(PUB)
    with pytest.raises(NotSupported):
        pub.subscribe(b"")
    with pytest.raises(NotSupported):
        pub.recv()


def test_compressed_messages_are_still_filtered(context):
    pytest.importorskip("lz4")
    pub = context.socket(PUB, compression="lz4")
    pub.bind(TCP)
    sub = context.socket(SUB)
    sub.subscribe(b"a")
    sub.connect(pub.last_endpoint)
    sub.wait_for_peers(1, 10)
    pub.wait_for_peers(1, 10)
    pub.send(b"b" * 5000)
    pub.send(b"a" * 5000)
    pub.send_multipart([b"a", b"z" * 5000])
    assert sub.recv() == b"a" * 5000
    assert sub.recv_multipart() == [b"a", b"z" * 5000]


def test_a_subscriber_that_says_more_and_more_keeps_no_other_out(context):
    """One more control frame comes for each that the publisher has read."""
    pub, talker = pair_of(context, transfer.PUB, transfer.SUB)
    (stream,) = talker._streams()
    (flooded,) = pub._streams()
    heartbeat = control(bytes([Control.HEARTBEAT]))
    on_control, read, ended = type(pub._links.control).on_control, [], threading.Event()

    def answered(links, origin, frame):
        on_control(links, origin, frame)
        if origin is flooded and not ended.is_set():
            read.append(frame)
            stream.send(heartbeat, force=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(pub._links.control), "on_control", answered)
        stream.send(heartbeat, force=True)
        assert eventually(lambda: len(read) > 500)
        late = context.socket(transfer.SUB)
        late.subscribe(b"")
        late.connect(pub.last_endpoint)
        late.wait_for_peers(1, 10)
        ended.set()
