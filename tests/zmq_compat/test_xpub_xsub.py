"""XPUB and XSUB: subscriptions that a program receives and sends, and proxies over them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from .conftest import PATIENCE

pytestmark = pytest.mark.timeout(30)


def received(sock, count):
    """So many messages of one part, in order of their bytes: several peers have none."""
    return sorted(sock.recv() for _ in range(count))


def is_quiet(sock):
    return not sock.poll(100)


@pytest.fixture
def xpub(zmq, ctx):
    """xpub(option=value) -> a bound XPUB."""

    def make(**options):
        sock = ctx.socket(zmq.XPUB)
        for name, value in options.items():
            setattr(sock, name, value)
        sock.bind("tcp://127.0.0.1:*")
        return sock

    return make


@pytest.fixture
def peer(zmq, ctx):
    """peer(bound, kind, b"topic") -> a connected socket with these subscriptions."""

    def make(bound, kind, *topics):
        sock = ctx.socket(kind)
        sock.connect(bound.last_endpoint.decode())
        for topic in topics:
            if kind == zmq.XSUB:
                sock.send(b"\1" + topic)
            else:
                sock.subscribe(topic)
        return sock

    return make


@pytest.mark.parametrize("kind", ["SUB", "XSUB"])
def test_xpub_receives_subscriptions_and_sends_what_they_match(zmq, xpub, peer, kind):
    pub = xpub()
    sub = peer(pub, getattr(zmq, kind), b"a", b"bc")
    assert received(pub, 2) == [b"\1a", b"\1bc"]
    for topic in (b"b", b"bcd", b"a"):
        pub.send_multipart([topic, b"rest"])
    assert sub.recv_multipart() == [b"bcd", b"rest"]
    assert sub.recv_multipart() == [b"a", b"rest"]


@pytest.mark.parametrize("transport", ["inproc", "ipc"])
@pytest.mark.parametrize("kind", ["SUB", "XSUB"])
def test_other_transports(zmq, ctx, peer, transport, kind, tmp_path):
    pub = ctx.socket(zmq.XPUB)
    pub.bind(f"{transport}://{tmp_path}/pub")
    sub = peer(pub, getattr(zmq, kind), b"a")
    assert pub.recv() == b"\1a"
    pub.send(b"abc")
    assert sub.recv() == b"abc"
    if kind == "XSUB":
        sub.send_multipart([b"up", b"stream"])
        assert pub.recv_multipart() == [b"up", b"stream"]
    sub.close()
    assert pub.recv() == b"\0a"


def test_xpub_may_connect(zmq, ctx):
    sub, pub = ctx.socket(zmq.XSUB), ctx.socket(zmq.XPUB)
    sub.bind("tcp://127.0.0.1:*")
    sub.send(b"\1")
    pub.connect(sub.last_endpoint.decode())
    assert is_quiet(sub)  # libzmq takes new peers in calls
    assert pub.recv() == b"\1"
    pub.send(b"news")
    assert sub.recv() == b"news"


def test_xsub_receives_from_pub(zmq, ctx, peer):
    pub = ctx.socket(zmq.PUB)
    pub.bind("tcp://127.0.0.1:*")
    sub = peer(pub, zmq.XSUB, b"a")
    while not sub.poll(10):
        pub.send(b"b?")
        pub.send(b"a?")
    assert sub.recv() == b"a?"
    sub.send(b"no PUB takes this")
    sub.send(b"\0a")
    while sub.poll(50):
        sub.recv()
        pub.send(b"a?")
    pub.send(b"a")
    assert is_quiet(sub)


def test_each_prefix_is_received_once(zmq, xpub, peer):
    pub = xpub()
    first = peer(pub, zmq.SUB, b"a")
    assert pub.recv() == b"\1a"
    second = peer(pub, zmq.SUB, b"a", b"b")
    assert pub.recv() == b"\1b"
    second.subscribe(b"a")
    second.unsubscribe(b"a")
    first.unsubscribe(b"a")
    second.unsubscribe(b"b")
    assert pub.recv() == b"\0b"
    second.unsubscribe(b"a")
    assert pub.recv() == b"\0a"
    assert is_quiet(pub)


def test_a_dead_subscriber_unsubscribes(zmq, xpub, peer):
    pub = xpub()
    first = peer(pub, zmq.SUB, b"a", b"b")
    second = peer(pub, zmq.XSUB, b"b", b"c")
    assert received(pub, 3) == [b"\1a", b"\1b", b"\1c"]
    first.close()
    assert pub.recv() == b"\0a"
    second.close()
    assert received(pub, 2) == [b"\0b", b"\0c"]


def test_verbose_receives_each_subscription(zmq, xpub, peer):
    pub = xpub(xpub_verbose=1)
    subs = [peer(pub, zmq.SUB, b"a") for _ in range(2)]
    assert received(pub, 2) == [b"\1a"] * 2
    subs[0].subscribe(b"a")
    assert pub.recv() == b"\1a"
    for _ in range(2):
        subs[0].unsubscribe(b"a")
    assert is_quiet(pub)
    subs[1].unsubscribe(b"a")
    assert pub.recv() == b"\0a"


def test_verboser_receives_each_unsubscription(zmq, xpub, peer):
    pub = xpub(xpub_verboser=1)
    subs = [peer(pub, zmq.SUB, b"a") for _ in range(3)]
    assert received(pub, 3) == [b"\1a"] * 3
    subs[0].unsubscribe(b"a")
    assert pub.recv() == b"\0a"
    subs[1].close()
    assert pub.recv() == b"\0a"
    subs[2].close()
    assert pub.recv() == b"\0a"


def test_manual_subscriptions(zmq, xpub, peer):
    pub = xpub(xpub_manual=1)
    first, second = peer(pub, zmq.SUB, b"a"), peer(pub, zmq.SUB)
    assert pub.recv() == b"\1a"
    first.subscribe(b"xb")
    assert pub.recv() == b"\1xb"
    pub.setsockopt(zmq.SUBSCRIBE, b"x")
    second.subscribe(b"x")
    assert pub.recv() == b"\1x"
    pub.send(b"a")
    pub.send(b"xb")
    assert first.recv() == b"xb"
    assert is_quiet(first) and is_quiet(second)
    first.unsubscribe(b"a")
    assert pub.recv() == b"\0a"
    pub.setsockopt(zmq.UNSUBSCRIBE, b"x")
    pub.send(b"xb")
    assert is_quiet(first)
    first.close()
    assert pub.recv() == b"\0xb"


@pytest.mark.parametrize("kind", ["PUB", "XPUB"])
def test_welcome_message(zmq, ctx, peer, kind):
    pub = ctx.socket(getattr(zmq, kind))
    pub.setsockopt(zmq.XPUB_WELCOME_MSG, b"welcome")
    pub.bind("tcp://127.0.0.1:*")

    def welcomed(sub):
        for _ in range(20):
            pub.getsockopt(zmq.EVENTS)  # libzmq takes new peers in calls
            if sub.poll(10):
                return sub.recv() == b"welcome"
        return False

    assert welcomed(peer(pub, zmq.SUB, b"w"))
    assert welcomed(peer(pub, zmq.XSUB))
    assert not welcomed(peer(pub, zmq.SUB, b"a"))
    pub.setsockopt(zmq.XPUB_WELCOME_MSG, b"")
    assert not welcomed(peer(pub, zmq.SUB, b"w"))


@pytest.mark.parametrize("kind", ["PUB", "XPUB"])
def test_nodrop_waits(zmq, ctx, peer, kind):
    pub = ctx.socket(getattr(zmq, kind))
    pub.xpub_nodrop = 1
    pub.sndhwm = 5
    pub.sndtimeo = 0
    pub.bind("tcp://127.0.0.1:*")
    sub = ctx.socket(zmq.SUB)
    sub.rcvhwm = 5
    sub.subscribe(b"")
    sub.connect(pub.last_endpoint.decode())
    while not sub.poll(10):
        pub.send(b"?")
    data, sent = bytes(100_000), 0
    with pytest.raises(zmq.Again):
        for _ in range(10_000):
            pub.send(data)
            sent += 1
    pub.sndtimeo = PATIENCE
    sender = threading.Thread(target=pub.send, args=(b"last",))
    sender.start()
    while (message := sub.recv()) == b"?":
        pass
    for _ in range(sent):
        assert message == data
        message = sub.recv()
    assert message == b"last"
    sender.join()


def test_full_queues_drop(zmq, xpub, peer):
    pub = xpub(sndhwm=5)
    sub = peer(pub, zmq.XSUB, b"")
    pub.recv()
    for _ in range(5000):
        pub.send(bytes(10_000), zmq.DONTWAIT)
    pub.close(linger=PATIENCE)
    got = 0
    while sub.poll(200):
        got += len(sub.recv()) == 10_000
    assert 5 <= got < 5000


def test_messages_go_upstream(zmq, xpub, peer):
    pub = xpub()
    sub = peer(pub, zmq.XSUB, b"")
    assert pub.recv() == b"\1"
    sub.send(b"")
    sub.send(b"hello")
    sub.send_multipart([b"two", b"parts"])
    sub.send(b"more", zmq.SNDMORE)
    sub.send(b"less")
    sub.send(b"\1again")
    assert [pub.recv_multipart() for _ in range(5)] == [
        [b""],
        [b"hello"],
        [b"two", b"parts"],
        [b"more", b"less"],
        [b"\1again"],
    ]


def test_unsubscribing_without_a_subscription(zmq, xpub, peer):
    pub = xpub()
    sub = peer(pub, zmq.XSUB, b"a")
    assert pub.recv() == b"\1a"
    sub.send(b"\0never")
    sub.send(b"\0a")
    assert pub.recv() == b"\0a"
    assert is_quiet(pub)


def test_a_sender_alone_need_not_receive(zmq, ctx, xpub, peer):
    """Subscriptions apply although the program of the XPUB reads none of them."""
    pub = xpub()
    sub = peer(pub, zmq.SUB, b"a")
    while not sub.poll(10):
        pub.send(b"a")
    assert sub.recv() == b"a"


def test_a_blocked_receive_and_a_poller_wake(zmq, xpub, peer):
    pub = xpub()
    got = []
    reader = threading.Thread(target=lambda: got.append(pub.recv()))
    reader.start()
    sub = peer(pub, zmq.SUB, b"a")
    reader.join()
    assert got == [b"\1a"]
    poller = zmq.Poller()
    poller.register(pub, zmq.POLLIN | zmq.POLLOUT)
    assert dict(poller.poll(0)) == {pub: zmq.POLLOUT}
    poller.modify(pub, zmq.POLLIN)
    sub.subscribe(b"b")
    assert dict(poller.poll(PATIENCE)) == {pub: zmq.POLLIN}
    assert pub.recv(copy=False).bytes == b"\1b"


@pytest.mark.parametrize("wanted", [("XPUB", True), ("XSUB", False)])
def test_events_and_directions(zmq, ctx, wanted):
    name, subscribes_never = wanted
    sock = ctx.socket(getattr(zmq, name))
    assert sock.type == getattr(zmq, name)
    assert sock.getsockopt(zmq.EVENTS) & zmq.POLLOUT
    sock.conflate = 1  # without effect
    for option in (zmq.SUBSCRIBE, zmq.UNSUBSCRIBE):
        with pytest.raises(zmq.ZMQError) as caught:
            sock.setsockopt(option, b"a")
        assert caught.value.errno == zmq.EINVAL or subscribes_never
    assert sock.linger == (-1 if name == "XPUB" else 0)


def test_options_of_other_types(zmq, ctx):
    for name in ("XPUB_VERBOSE", "XPUB_VERBOSER", "XPUB_MANUAL", "XPUB_NODROP", "XPUB_WELCOME_MSG"):
        option = getattr(zmq, name)
        bad = b"hi" if name.endswith("MSG") else 1
        for kind in (zmq.SUB, zmq.XSUB, zmq.PUSH):
            with pytest.raises(zmq.ZMQError) as caught:
                ctx.socket(kind).setsockopt(option, bad)
            assert caught.value.errno == zmq.EINVAL
        if bad == 1:
            with pytest.raises(zmq.ZMQError) as caught:
                ctx.socket(zmq.XPUB).setsockopt(option, -1)
            assert caught.value.errno == zmq.EINVAL


@pytest.fixture
def forwarder(zmq, ctx):
    """forwarder() -> its endpoints, for publishers and for subscribers; forwarder(endpoint): behind one."""
    threads = []

    def run(front, back):
        with pytest.raises(zmq.ContextTerminated):
            zmq.proxy(front, back)
        front.close(linger=0), back.close(linger=0)

    def make(upstream=None):
        front, back = ctx.socket(zmq.XSUB), ctx.socket(zmq.XPUB)
        if upstream is None:
            front.bind("tcp://127.0.0.1:*")
        else:
            front.connect(upstream)
        back.bind("tcp://127.0.0.1:*")
        ends = front.last_endpoint.decode(), back.last_endpoint.decode()
        threads.append(threading.Thread(target=run, args=(front, back)))
        threads[-1].start()
        return ends

    yield make
    ctx.destroy(linger=0) if not threads else ctx.term()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("chained", [False, True])
def test_a_forwarder_passes_subscriptions_upstream(zmq, ctx, forwarder, chained):
    publishers, subscribers = forwarder()
    if chained:
        _, subscribers = forwarder(subscribers)
    with ctx.socket(zmq.XPUB) as pub, ctx.socket(zmq.SUB) as one, ctx.socket(zmq.SUB) as two:
        pub.connect(publishers)
        for sub in (one, two):
            sub.connect(subscribers)
        one.subscribe(b"a")
        assert pub.recv() == b"\1a"
        two.subscribe(b"a")
        two.subscribe(b"b")
        assert pub.recv() == b"\1b"
        pub.send_multipart([b"b", b"for two"])
        assert two.recv_multipart() == [b"b", b"for two"]
        for number in range(100):
            pub.send(b"a%d" % number)
        assert [one.recv() for _ in range(100)] == [b"a%d" % number for number in range(100)]
        one.close()
        two.unsubscribe(b"b")
        assert pub.recv() == b"\0b"
        two.unsubscribe(b"a")
        assert pub.recv() == b"\0a"
        for sock in (pub, two):
            sock.linger = 0


def test_a_late_publisher_hears_of_the_subscriptions(zmq, ctx, forwarder):
    publishers, subscribers = forwarder()
    with ctx.socket(zmq.XPUB) as first, ctx.socket(zmq.XPUB) as late, ctx.socket(zmq.SUB) as sub:
        first.connect(publishers)
        sub.connect(subscribers)
        sub.subscribe(b"a")
        assert first.recv() == b"\1a"
        late.connect(publishers)
        assert late.recv() == b"\1a"
        late.send(b"a from the late one")
        assert sub.recv() == b"a from the late one"
        for sock in (first, late, sub):
            sock.linger = 0


def test_asyncio(zmq, aio):
    async def run():
        with aio.Context() as ctx, ctx.socket(zmq.XPUB) as pub, ctx.socket(zmq.XSUB) as sub:
            port = pub.bind_to_random_port("tcp://127.0.0.1")
            sub.connect(f"tcp://127.0.0.1:{port}")
            waits = asyncio.ensure_future(pub.recv_multipart())
            await asyncio.sleep(0.05)
            await sub.send(b"\1a")
            assert await asyncio.wait_for(waits, 5) == [b"\1a"]
            await sub.send(b"upstream")
            assert await asyncio.wait_for(pub.recv(), 5) == b"upstream"
            await pub.send(b"abc")
            assert await asyncio.wait_for(sub.recv(), 5) == b"abc"

    asyncio.run(run())
