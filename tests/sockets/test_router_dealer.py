"""ROUTER and DEALER: identities, envelopes, proxies in front of REP."""

from __future__ import annotations

import pytest

from transfer import DEALER, POLLIN, REP, REQ, ROUTER, Poller
from transfer.transports.errors import Again, NotSupported, TensorMismatch, Unroutable, UsageError

from .helpers import TCP, Thread, eventually, pair_of


def test_a_router_answers_by_identity(context, endpoint):
    router = context.socket(ROUTER)
    router.bind(endpoint)
    dealers = {}
    for name in (b"ann", b"bob"):
        dealers[name] = context.socket(DEALER, routing_id=name)
        dealers[name].connect(router.last_endpoint)
        dealers[name].send_multipart([b"hello from", name])
    for _ in dealers:
        identity, *rest = router.recv_multipart()
        assert rest == [b"hello from", identity]
        router.send_multipart([identity, b"hello", identity])
    for name, dealer in dealers.items():
        assert dealer.recv_multipart() == [b"hello", name]


def test_part_by_part(context):
    router, dealer = pair_of(context, ROUTER, DEALER)
    dealer.send(b"q")
    identity = router.recv()
    assert router.rcvmore
    assert router.recv() == b"q"
    router.send(identity, 2)
    router.send(b"a")
    assert dealer.recv() == b"a"


def test_a_peer_without_a_name_gets_one(context):
    router, dealer = pair_of(context, ROUTER, DEALER)
    dealer.send(b"x")
    identity, data = router.recv_multipart()
    assert identity[:1] == b"\0"
    assert len(identity) == 5
    assert data == b"x"


def test_a_req_sees_no_envelope(context):
    router, req = pair_of(context, ROUTER, REQ)
    req.send_multipart([b"a", b"b"])
    identity, empty, *parts = router.recv_multipart()
    assert (empty, parts) == (b"", [b"a", b"b"])
    router.send_multipart([identity, b"", b"answer"])
    assert req.recv() == b"answer"


def test_an_answer_to_a_req_without_the_empty_part_is_refused(context):
    router, req = pair_of(context, ROUTER, REQ)
    req.send(b"a")
    identity, _, _ = router.recv_multipart()
    with pytest.raises(UsageError, match="empty part"):
        router.send_multipart([identity, b"answer"])


def test_correlation_by_the_envelope(context):
    router, req = pair_of(context, ROUTER, REQ, rcvtimeo=5000)
    req.req_correlate = req.req_relaxed = True
    req.send(b"first")
    req.send(b"second")
    first = router.recv_multipart()
    second = router.recv_multipart()
    assert [len(part) for part in first] == [len(first[0]), 8, 0, 5]
    router.send_multipart([*first[:-1], b"to first"])
    router.send_multipart([*second[:-1], b"to second"])
    assert req.recv() == b"to second"


def test_dealer_to_rep_carries_the_delimiter(context):
    rep, dealer = pair_of(context, REP, DEALER)
    dealer.send_multipart([b"tag", b"", b"question", b"more"])
    assert rep.recv_multipart() == [b"question", b"more"]
    rep.send(b"answer")
    assert dealer.recv_multipart() == [b"tag", b"", b"answer"]
    dealer.send(b"no envelope")
    dealer.send_multipart([b"", b"next"])
    assert rep.recv() == b"next"
    assert rep._pattern.drops == {"no_envelope": 1}


def test_a_proxy_of_router_and_dealer(context):
    front, back = context.socket(ROUTER), context.socket(DEALER)
    front.bind(TCP)
    back.bind(TCP)
    rep = context.socket(REP)
    rep.connect(back.last_endpoint)
    back.wait_for_peers(1, 10)
    reqs = [context.socket(REQ) for _ in range(3)]
    for number, req in enumerate(reqs):
        req.req_correlate = number == 2
        req.connect(front.last_endpoint)
        req.send(b"%d" % number)
    for _ in reqs:
        back.send_multipart(front.recv_multipart())
        rep.send(b"re:" + rep.recv())
        front.send_multipart(back.recv_multipart())
    assert [req.recv() for req in reqs] == [b"re:0", b"re:1", b"re:2"]


def test_unknown_identities_are_dropped_or_refused(context):
    router, _dealer = pair_of(context, ROUTER, DEALER)
    router.send_multipart([b"nobody", b"x"])
    assert router._pattern.drops == {"unroutable": 1}
    router.router_mandatory = True
    with pytest.raises(Unroutable):
        router.send_multipart([b"nobody", b"x"])


def test_the_same_identity_again_replaces_the_old_connection(context):
    router = context.socket(ROUTER, router_handover=True)
    router.bind(TCP)
    first = context.socket(DEALER, routing_id=b"same", reconnect_ivl=-1)
    first.connect(router.last_endpoint)
    first.wait_for_peers(1, 10)
    second = context.socket(DEALER, routing_id=b"same")
    second.connect(router.last_endpoint)
    second.wait_for_peers(1, 10)
    assert eventually(lambda: len(router.peers()) == 1)
    second.send(b"new")
    while (message := router.recv_multipart()) != [b"same", b"new"]:
        assert message
    router.send_multipart([b"same", b"answer"])
    assert second.recv() == b"answer"


def test_router_to_router(context):
    one = context.socket(ROUTER, routing_id=b"one")
    two = context.socket(ROUTER, routing_id=b"two", router_mandatory=True)
    one.bind(TCP)
    two.connect(one.last_endpoint)
    two.wait_for_peers(1, 10)
    two.send_multipart([b"one", b"hi"])
    assert one.recv_multipart() == [b"two", b"hi"]


def test_dealers_talk_to_each_other(context):
    one, other = pair_of(context, DEALER, DEALER)
    answer = Thread(other.recv)
    one.send(b"x")
    assert answer.finish() == b"x"


def test_two_that_claim_one_identity_do_not_push_each_other_out_for_ever(context):
    router = context.socket(ROUTER, router_handover=True)
    router.bind(TCP)
    first = context.socket(DEALER, routing_id=b"same", reconnect_ivl=1)
    monitor = first.get_monitor()
    first.connect(router.last_endpoint)
    first.wait_for_peers(1, 10)
    second = context.socket(DEALER, routing_id=b"same", reconnect_ivl=1)
    second.connect(router.last_endpoint)
    second.wait_for_peers(1, 10)
    while (event := monitor.recv(10)).kind != "refused":
        assert event.kind != "closed"
    assert event.reason == "replaced"
    assert eventually(lambda: not first.peers())
    connected = router._links.state.counts["connected"]
    assert not eventually(lambda: router._links.state.counts["connected"] != connected, 0.3)


def test_a_polled_router_does_not_wait_for_room_that_its_message_is_too_large_for(context):
    """There is some room, but not for the message: it is refused at once, and not tried for ever."""
    router, dealer = pair_of(context, ROUTER, DEALER, sndhwm_bytes=1 << 20)
    router.router_mandatory = True
    dealer.send(b"here")
    poller = Poller()
    poller.register(router, POLLIN)
    assert poller.poll(5000)
    identity, _ = router.recv_multipart()
    router.sndtimeo = 0
    large = bytes(700_000)
    refused = False
    for _ in range(200):  # the kernel takes some
        try:
            router.send_multipart([identity, large])
        except Again:
            refused = True
    # Over shared memory references to them wait, which are small.
    assert refused or router.peers()[0].transport == "local"


def test_dicts_of_tensors_go_by_identity(context):
    np = pytest.importorskip("numpy", reason="pip install tensor-transfer[numpy]")
    router, dealer = pair_of(context, ROUTER, DEALER)
    sent = {"x": np.arange(40_000, dtype=np.float32).reshape(-1, 4), "y": np.arange(3)}
    dealer.send_tensors(sent, meta={"ask": 1})
    identity, arrived, meta = router.recv_tensors_from()
    assert meta == {"ask": 1} and all(np.array_equal(arrived[name], sent[name]) for name in sent)
    tracker = router.send_tensors_to(identity, arrived, meta={"answer": 2}, copy=False)
    back, meta = dealer.recv_tensors()
    assert meta == {"answer": 2} and all(np.array_equal(back[name], sent[name]) for name in sent)
    tracker.wait(10)
    dealer.send(b"no tensors")
    with pytest.raises(TensorMismatch):
        router.recv_tensors_from()
    assert router.recv_multipart() == [identity, b"no tensors"]
    with pytest.raises(NotSupported, match="send_tensors"):
        dealer.send_tensors_to(identity, sent)
    with pytest.raises(NotSupported, match="recv_tensors"):
        dealer.recv_tensors_from(1)
