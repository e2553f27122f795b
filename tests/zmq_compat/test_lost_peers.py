"""REQ and ROUTER whose peer is lost, or whose message no peer can take: they wait, or drop it."""

from __future__ import annotations

import pytest

from .conftest import PATIENCE

pytestmark = pytest.mark.timeout(30)
#: ms in which nothing may happen
MOMENT = 200


def drops(sock):
    """The drops that `transfer.zmq` counts, by reason; they are in `transfer_drops_total`, too."""
    return sock._links.state.pattern.drops


def asked(zmq, ctx, **options):
    """A REQ whose REP received the request and is gone, and the endpoint."""
    req, rep = ctx.socket(zmq.REQ), ctx.socket(zmq.REP)
    for name, value in options.items():
        setattr(req, name, value)
    rep.bind("tcp://127.0.0.1:*")
    endpoint = rep.last_endpoint.decode()
    req.connect(endpoint)
    req.send(b"lost")
    assert rep.recv() == b"lost"
    watch = req.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    rep.close(linger=0)
    assert watch.poll(PATIENCE)
    req.disable_monitor()
    return req, endpoint


def test_a_request_of_a_lost_server_waits(zmq, ctx, ours):
    req, _ = asked(zmq, ctx)
    assert not req.poll(MOMENT)
    assert not req.poll(MOMENT, zmq.POLLOUT)
    poller = zmq.Poller()
    poller.register(req, zmq.POLLIN)
    assert poller.poll(MOMENT) == []
    with pytest.raises(zmq.Again):
        req.recv(zmq.DONTWAIT)
    req.rcvtimeo = MOMENT
    with pytest.raises(zmq.Again):
        req.recv()
    with pytest.raises(zmq.ZMQError) as caught:
        req.send(b"too early")
    assert caught.value.errno == zmq.EFSM
    if ours:
        assert drops(req) == {"peer_gone": 1}


def test_a_server_that_comes_back_does_not_get_the_request_again(zmq, ctx):
    req, endpoint = asked(zmq, ctx)
    rep = ctx.socket(zmq.REP)
    rep.bind(endpoint)
    assert not rep.poll(5 * MOMENT)
    assert not req.poll(MOMENT)


def test_a_relaxed_request_is_asked_again(zmq, ctx):
    req, endpoint = asked(zmq, ctx, req_relaxed=1, req_correlate=1)
    rep = ctx.socket(zmq.REP)
    rep.bind(endpoint)
    req.send(b"again")
    assert rep.recv() == b"again"
    rep.send(b"answer")
    assert req.recv() == b"answer"


def test_a_client_that_polls_and_takes_a_new_socket(zmq, ctx):
    """The guide's "Lazy Pirate"."""
    req, endpoint = asked(zmq, ctx)
    assert not req.poll(MOMENT)
    req.close(linger=0)
    rep, req = ctx.socket(zmq.REP), ctx.socket(zmq.REQ)
    rep.bind(endpoint)
    req.connect(endpoint)
    req.send(b"again")
    assert rep.recv() == b"again"
    rep.send(b"answer")
    assert req.poll(PATIENCE) == zmq.POLLIN
    assert req.recv() == b"answer"


@pytest.mark.parametrize("mandatory", [0, 1])
def test_only_an_identity(zmq, link, ours, mandatory):
    router, dealer = link(zmq.ROUTER, zmq.DEALER, linger=0)
    router.router_mandatory = mandatory
    dealer.send(b"hello")
    identity = router.recv_multipart()[0]
    router.send(identity)
    router.send_multipart([identity])
    router.send_multipart([identity, b"first"])
    assert dealer.recv_multipart() == [b"first"]
    if ours:
        assert drops(router) == {"malformed": 2}


@pytest.mark.parametrize("correlate", [0, 1])
def test_an_answer_without_the_empty_part(zmq, link, ours, correlate):
    router, req = link(zmq.ROUTER, zmq.REQ, linger=0)
    req.req_correlate = correlate
    req.send(b"question")
    *envelope, question = router.recv_multipart()
    assert question == b"question"
    router.send_multipart([envelope[0], b"answer"])
    router.send_multipart([envelope[0], b"an", b"swer"])
    router.send_multipart([envelope[0], b""])
    assert not req.poll(MOMENT)
    if ours:  # libzmq's REQ ends the connection, so that no answer can follow
        assert drops(router) == {"malformed": 3}
        router.send_multipart([*envelope, b"answer"])
        assert req.recv_multipart() == [b"answer"]
