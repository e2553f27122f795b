"""Small programs, one for each thing that the socket types promise."""

from __future__ import annotations

import threading

import pytest

from tests.ports import free_port

from .conftest import PATIENCE, join

pytestmark = pytest.mark.timeout(30)


def test_push_pull_keeps_order(zmq, link):
    pull, push = link(zmq.PULL, zmq.PUSH)
    for number in range(200):
        push.send(b"%d" % number)
    assert [pull.recv() for _ in range(200)] == [b"%d" % number for number in range(200)]


def test_push_may_bind(zmq, link):
    push, pull = link(zmq.PUSH, zmq.PULL)
    push.send(b"task")
    assert pull.recv() == b"task"


def test_push_shares_among_pullers(zmq, ctx):
    push = ctx.socket(zmq.PUSH)
    pulls = [ctx.socket(zmq.PULL) for _ in range(3)]
    for pull in pulls:
        push.connect(f"tcp://127.0.0.1:{pull.bind_to_random_port('tcp://127.0.0.1')}")
    if hasattr(push, "wait_for_peers"):  # libzmq shares with those that are not connected yet
        push.wait_for_peers(3)
    for _ in range(30):
        push.send(b"task")
    for pull in pulls:
        assert [pull.recv() for _ in range(10)] == [b"task"] * 10


def test_pull_takes_from_all_pushers(zmq, ctx):
    pull = ctx.socket(zmq.PULL)
    port = pull.bind_to_random_port("tcp://127.0.0.1")
    for name in (b"a", b"b", b"c"):
        push = ctx.socket(zmq.PUSH)
        push.connect(f"tcp://127.0.0.1:{port}")
        push.send(name)
    assert sorted(pull.recv() for _ in range(3)) == [b"a", b"b", b"c"]


def test_request_and_reply(zmq, link):
    rep, req = link(zmq.REP, zmq.REQ)
    for number in range(5):
        req.send(b"question %d" % number)
        assert rep.recv() == b"question %d" % number
        rep.send(b"answer %d" % number)
        assert req.recv() == b"answer %d" % number


def test_replies_go_to_their_requesters(zmq, ctx):
    rep = ctx.socket(zmq.REP)
    port = rep.bind_to_random_port("tcp://127.0.0.1")
    reqs = [ctx.socket(zmq.REQ) for _ in range(3)]
    for number, req in enumerate(reqs):
        req.connect(f"tcp://127.0.0.1:{port}")
        req.send(b"%d" % number)
    for _ in reqs:
        rep.send(rep.recv() * 2)
    assert [req.recv() for req in reqs] == [b"00", b"11", b"22"]


def test_req_alternates_between_repliers(zmq, ctx):
    req = ctx.socket(zmq.REQ)
    reps = [ctx.socket(zmq.REP) for _ in range(2)]
    for rep in reps:
        req.connect(f"tcp://127.0.0.1:{rep.bind_to_random_port('tcp://127.0.0.1')}")
    poller = zmq.Poller()
    for rep in reps:
        poller.register(rep, zmq.POLLIN)

    def ask():
        req.send(b"who?")
        ((rep, _),) = poller.poll(PATIENCE)
        rep.recv()
        rep.send(b"me")
        req.recv()
        return reps.index(rep)

    met = {ask()}
    while met != {0, 1}:  # on a busy machine the second is connected later
        met.add(ask())
    assert sorted(ask() for _ in range(4)) == [0, 0, 1, 1]


def test_req_relaxed_may_ask_again(zmq, link):
    rep, req = link(zmq.REP, zmq.REQ)
    req.setsockopt(zmq.REQ_RELAXED, 1)
    req.setsockopt(zmq.REQ_CORRELATE, 1)
    req.send(b"first")
    assert rep.recv() == b"first"
    req.send(b"second")
    rep.send(b"late answer")
    assert rep.recv() == b"second"
    rep.send(b"answer")
    assert req.recv() == b"answer"


def test_publish_and_subscribe(zmq, link):
    pub, sub = link(zmq.PUB, zmq.SUB)
    sub.subscribe(b"")
    join(zmq, pub, sub)
    for number in range(50):
        pub.send(b"%d" % number)
    assert [sub.recv() for _ in range(50)] == [b"%d" % number for number in range(50)]


def test_topics_are_prefixes(zmq, link):
    pub, sub = link(zmq.PUB, zmq.SUB)
    sub.subscribe("log.")
    join(zmq, pub, sub, b"log.")
    pub.send(b"metric.load")
    pub.send(b"log")
    pub.send(b"log.error")
    assert sub.recv() == b"log.error"


def test_the_first_part_is_the_topic(zmq, link):
    pub, sub = link(zmq.PUB, zmq.SUB)
    sub.setsockopt(zmq.SUBSCRIBE, b"a")
    join(zmq, pub, sub, b"a")
    pub.send_multipart([b"b", b"axis"])
    pub.send_multipart([b"a", b"other"])
    assert sub.recv_multipart() == [b"a", b"other"]


def test_unsubscribe(zmq, link):
    pub, sub = link(zmq.PUB, zmq.SUB)
    sub.subscribe(b"a")
    sub.subscribe(b"b")
    join(zmq, pub, sub, b"a")
    join(zmq, pub, sub, b"b")
    sub.unsubscribe(b"a")
    for _ in range(PATIENCE // 10):  # until the publisher has heard of it
        pub.send(b"a?")
        pub.send(b"b!")
        first = sub.recv()
        if first == b"b!":
            break
        assert sub.recv() == b"b!"
    pub.send(b"a")
    pub.send(b"b")
    assert sub.recv() == b"b"


def test_several_subscribers_get_all(zmq, ctx):
    pub = ctx.socket(zmq.PUB)
    port = pub.bind_to_random_port("tcp://127.0.0.1")
    subs = [ctx.socket(zmq.SUB) for _ in range(3)]
    for sub in subs:
        sub.connect(f"tcp://127.0.0.1:{port}")
        sub.subscribe(b"")
    for sub in subs:
        join(zmq, pub, sub)
    pub.send(b"news")
    for sub in subs:
        while (message := sub.recv()) in (b"?", b"!"):  # what was sent while the others joined
            pass
        assert message == b"news"


def test_sub_may_bind(zmq, link):
    sub, pub = link(zmq.SUB, zmq.PUB)
    sub.subscribe(b"")
    join(zmq, pub, sub)
    pub.send(b"news")
    assert sub.recv() == b"news"


def test_publishing_to_nobody_drops(zmq, ctx):
    pub = ctx.socket(zmq.PUB)
    pub.bind_to_random_port("tcp://127.0.0.1")
    for _ in range(5000):  # more than any queue holds
        pub.send(b"unheard", zmq.DONTWAIT)
    sub = ctx.socket(zmq.SUB)
    sub.subscribe(b"")
    sub.connect(pub.last_endpoint.decode())
    while not sub.poll(10):
        pub.send(b"heard")
    assert sub.recv() == b"heard"


def test_pair_talks_both_ways(zmq, link):
    left, right = link(zmq.PAIR, zmq.PAIR)
    left.send(b"ping")
    assert right.recv() == b"ping"
    right.send(b"pong")
    right.send(b"pong again")
    assert left.recv() == b"pong"
    assert left.recv() == b"pong again"


def test_dealer_talks_to_router(zmq, link):
    router, dealer = link(zmq.ROUTER, zmq.DEALER)
    dealer.send_multipart([b"one", b"two"])
    identity, *parts = router.recv_multipart()
    assert parts == [b"one", b"two"]
    assert len(identity) == 5 and identity[:1] == b"\0"
    router.send_multipart([identity, b"back"])
    assert dealer.recv_multipart() == [b"back"]


def test_router_knows_identities(zmq, ctx):
    router = ctx.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    dealers = {}
    for name in (b"ann", b"bob"):
        dealer = dealers[name] = ctx.socket(zmq.DEALER)
        dealer.setsockopt(zmq.IDENTITY, name)
        dealer.connect(f"tcp://127.0.0.1:{port}")
        dealer.send(b"hello")
    assert sorted(router.recv_multipart() for _ in range(2)) == [[b"ann", b"hello"], [b"bob", b"hello"]]
    router.send_multipart([b"bob", b"for bob"])
    router.send_multipart([b"ann", b"for ann"])
    assert dealers[b"ann"].recv() == b"for ann"
    assert dealers[b"bob"].recv() == b"for bob"


def test_router_drops_what_nobody_can_get(zmq, link):
    router, dealer = link(zmq.ROUTER, zmq.DEALER)
    dealer.send(b"hello")
    identity, _ = router.recv_multipart()
    router.send_multipart([b"nobody", b"lost"])
    router.send_multipart([identity, b"found"])
    assert dealer.recv() == b"found"


def test_router_mandatory_raises(zmq, link):
    router, _ = link(zmq.ROUTER, zmq.DEALER)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    with pytest.raises(zmq.ZMQError) as caught:
        router.send_multipart([b"nobody", b"lost"])
    assert caught.value.errno == zmq.EHOSTUNREACH


def test_router_mandatory_raises_at_the_identity(zmq, link):
    router, dealer = link(zmq.ROUTER, zmq.DEALER)
    router.router_mandatory = 1
    dealer.send(b"hello")
    known = router.recv_multipart()[0]
    for send in (router.send, lambda part, flags: router.send_multipart([part], flags)):
        with pytest.raises(zmq.ZMQError) as caught:
            send(b"nobody", zmq.SNDMORE)
        assert caught.value.errno == zmq.EHOSTUNREACH
        # Nothing of that message is left: the next part is an identity again.
        send(known, zmq.SNDMORE)
        router.send(b"nobody", zmq.SNDMORE)  # now a part like any other
        router.send(b"end")
        assert dealer.recv_multipart() == [b"nobody", b"end"]


def test_router_drops_a_message_part_by_part(zmq, link):
    router, dealer = link(zmq.ROUTER, zmq.DEALER)
    dealer.send(b"hello")
    known = router.recv_multipart()[0]
    router.send(b"nobody", zmq.SNDMORE)
    router.send(b"dropped")
    router.send_multipart([known, b"kept"])
    assert dealer.recv_multipart() == [b"kept"]


def test_req_talks_to_router(zmq, link):
    router, req = link(zmq.ROUTER, zmq.REQ)
    req.send(b"question")
    identity, empty, body = router.recv_multipart()
    assert (empty, body) == (b"", b"question")
    router.send_multipart([identity, b"", b"answer"])
    assert req.recv() == b"answer"


def test_dealer_talks_to_rep(zmq, link):
    rep, dealer = link(zmq.REP, zmq.DEALER)
    dealer.send_multipart([b"", b"question"])
    assert rep.recv() == b"question"
    rep.send(b"answer")
    assert dealer.recv_multipart() == [b"", b"answer"]


def test_dealer_envelopes_come_back(zmq, link):
    rep, dealer = link(zmq.REP, zmq.DEALER)
    dealer.send_multipart([b"tag", b"", b"question"])
    assert rep.recv_multipart() == [b"question"]
    rep.send_multipart([b"an", b"swer"])
    assert dealer.recv_multipart() == [b"tag", b"", b"an", b"swer"]


def test_inproc(zmq, ctx):
    pull, push = ctx.socket(zmq.PULL), ctx.socket(zmq.PUSH)
    pull.bind("inproc://here")
    push.connect("inproc://here")
    push.send_multipart([b"a", b"b"])
    assert pull.recv_multipart() == [b"a", b"b"]


def test_inproc_connect_before_bind(zmq, ctx):
    pull, push = ctx.socket(zmq.PULL), ctx.socket(zmq.PUSH)
    push.connect("inproc://later")
    push.send(b"early")
    pull.bind("inproc://later")
    assert pull.recv() == b"early"


def test_ipc(zmq, ctx, tmp_path):
    rep, req = ctx.socket(zmq.REP), ctx.socket(zmq.REQ)
    endpoint = f"ipc://{tmp_path}/s"
    rep.bind(endpoint)
    req.connect(endpoint)
    req.send(b"question")
    assert rep.recv() == b"question"
    rep.send(b"answer")
    assert req.recv() == b"answer"


def test_connect_before_bind_queues(zmq, ctx):
    """The lazy connect: what is sent before the peer is there arrives once it is."""
    port = free_port()
    push = ctx.socket(zmq.PUSH)
    push.setsockopt(zmq.RECONNECT_IVL, 20)
    push.connect(f"tcp://127.0.0.1:{port}")
    for number in range(10):
        push.send(b"%d" % number, zmq.DONTWAIT)
    pull = ctx.socket(zmq.PULL)
    pull.bind(f"tcp://127.0.0.1:{port}")
    assert [pull.recv() for _ in range(10)] == [b"%d" % number for number in range(10)]


def test_the_lazy_queue_ends_at_the_high_water_mark(zmq, ctx):
    push = ctx.socket(zmq.PUSH)
    push.sndhwm = 5
    push.connect("tcp://127.0.0.1:1")
    for _ in range(5):
        push.send(b"queued", zmq.DONTWAIT)
    with pytest.raises(zmq.Again):
        push.send(b"too much", zmq.DONTWAIT)


def test_immediate_does_not_queue(zmq, ctx):
    push = ctx.socket(zmq.PUSH)
    push.immediate = 1
    push.connect("tcp://127.0.0.1:1")
    with pytest.raises(zmq.Again):
        push.send(b"nobody is there", zmq.DONTWAIT)


def test_bound_push_without_peers_would_block(zmq, ctx):
    push = ctx.socket(zmq.PUSH)
    push.bind_to_random_port("tcp://127.0.0.1")
    with pytest.raises(zmq.Again):
        push.send(b"nobody is there", zmq.DONTWAIT)


def test_disconnect_stops_the_flow(zmq, ctx):
    push = ctx.socket(zmq.PUSH)
    first, second = ctx.socket(zmq.PULL), ctx.socket(zmq.PULL)
    for pull in (first, second):
        pull.bind_to_random_port("tcp://127.0.0.1")
        push.connect(pull.last_endpoint.decode())
    push.disconnect(first.last_endpoint.decode())
    for _ in range(4):
        push.send(b"task")
    assert [second.recv() for _ in range(4)] == [b"task"] * 4


def test_unbind_frees_the_port(zmq, ctx):
    first, second = ctx.socket(zmq.PULL), ctx.socket(zmq.PULL)
    first.bind("tcp://127.0.0.1:*")
    endpoint = first.last_endpoint.decode()
    first.unbind(endpoint)
    for _ in range(PATIENCE // 10):
        try:
            second.bind(endpoint)
        except zmq.ZMQError:  # in use still: libzmq closes in the background
            second.poll(10)
        else:
            break
    assert second.last_endpoint.decode() == endpoint


def test_bind_and_connect_are_context_managers(zmq, ctx):
    with ctx.socket(zmq.PULL) as pull, ctx.socket(zmq.PUSH) as push:
        with pull.bind("tcp://127.0.0.1:*") as bound:
            assert bound is pull
            with push.connect(pull.last_endpoint.decode()):
                push.send(b"task")
                assert pull.recv() == b"task"
    assert pull.closed and push.closed


def test_a_socket_binds_twice(zmq, ctx):
    pull = ctx.socket(zmq.PULL)
    for _ in range(2):
        port = pull.bind_to_random_port("tcp://127.0.0.1")
        push = ctx.socket(zmq.PUSH)
        push.connect(f"tcp://127.0.0.1:{port}")
        push.send(b"task")
        assert pull.recv() == b"task"


def test_reconnects_to_a_new_binder(zmq, ctx):
    push = ctx.socket(zmq.PUSH)
    push.setsockopt(zmq.RECONNECT_IVL, 20)
    pull = ctx.socket(zmq.PULL)
    port = pull.bind_to_random_port("tcp://127.0.0.1")
    push.connect(f"tcp://127.0.0.1:{port}")
    push.send(b"one")
    assert pull.recv() == b"one"
    pull.close(0)
    again = ctx.socket(zmq.PULL)
    for _ in range(PATIENCE // 10):
        try:
            again.bind(f"tcp://127.0.0.1:{port}")
        except zmq.ZMQError:
            again.poll(10)
        else:
            break
    for _ in range(PATIENCE // 20):
        push.send(b"two")  # the first ones may have gone to the socket that is no more
        if again.poll(20):
            break
    assert again.recv() == b"two"


def test_conflate_keeps_the_last(zmq, ctx):
    pull, push = ctx.socket(zmq.PULL), ctx.socket(zmq.PUSH)
    pull.conflate = 1
    port = pull.bind_to_random_port("tcp://127.0.0.1")
    push.connect(f"tcp://127.0.0.1:{port}")
    for number in range(100):
        push.send(b"%d" % number)
    received = [pull.recv()]
    while received[-1] != b"99":
        received.append(pull.recv())
    assert len(received) < 100
    assert pull.poll(50) == 0


def test_messages_survive_close(zmq, link):
    pull, push = link(zmq.PULL, zmq.PUSH)
    for number in range(100):
        push.send(b"%d" % number)
    push.close()
    assert [pull.recv() for _ in range(100)] == [b"%d" % number for number in range(100)]


def test_close_does_not_wait_for_the_peer(zmq, ctx):
    """close returns at once, also with the endless linger; what was sent still arrives."""
    port = free_port()
    push = ctx.socket(zmq.PUSH)
    push.setsockopt(zmq.RECONNECT_IVL, 20)
    push.connect(f"tcp://127.0.0.1:{port}")
    push.send(b"patience")
    push.close()
    assert push.closed
    pull = ctx.socket(zmq.PULL)
    pull.bind(f"tcp://127.0.0.1:{port}")
    assert pull.recv() == b"patience"


def test_a_request_served_by_a_thread(zmq, ctx):
    rep = ctx.socket(zmq.REP)
    port = rep.bind_to_random_port("tcp://127.0.0.1")

    def serve():
        for _ in range(20):
            rep.send(rep.recv().upper())
        rep.close()

    thread = threading.Thread(target=serve)
    thread.start()
    with ctx.socket(zmq.REQ) as req:
        req.connect(f"tcp://127.0.0.1:{port}")
        for _ in range(20):
            req.send(b"shout")
            assert req.recv() == b"SHOUT"
    thread.join(PATIENCE / 1000)
    assert not thread.is_alive()
