"""REQ and REP: lock-step, correlation, dead peers, late replies."""

from __future__ import annotations

import pytest

import transfer
from transfer import REP, REQ
from transfer.transports.errors import Again, Broken, StateError

from .helpers import TCP, Thread, eventually, pair_of


def test_requests_and_replies(context, endpoint):
    rep, req = pair_of(context, REP, REQ, endpoint)
    for i in range(200):
        req.send(b"q%d" % i)
        assert rep.recv() == b"q%d" % i
        rep.send(b"a%d" % i)
        assert req.recv() == b"a%d" % i


def test_parts(context):
    rep, req = pair_of(context, REP, REQ)
    req.send_multipart([b"a", b"", b"c"])
    assert rep.recv_multipart() == [b"a", b"", b"c"]
    rep.send_multipart([b"", b"x"])
    assert req.recv_multipart() == [b"", b"x"]


def test_the_order_of_calls_is_kept(context):
    rep, req = pair_of(context, REP, REQ)
    with pytest.raises(StateError):
        req.recv()
    with pytest.raises(StateError):
        rep.send(b"x")
    req.send(b"x")
    with pytest.raises(StateError, match="req_relaxed"):
        req.send(b"again")
    assert rep.recv() == b"x"
    with pytest.raises(StateError):
        rep.recv()
    rep.send(b"y")
    assert req.recv() == b"y"


def test_each_requester_gets_its_own_reply(context):
    rep = context.socket(REP)
    rep.bind(TCP)
    reqs = [context.socket(REQ) for _ in range(4)]
    for number, req in enumerate(reqs):
        req.connect(rep.last_endpoint)
        req.send(b"%d" % number)
    for _ in reqs:
        rep.send(rep.recv() * 2)
    assert [req.recv() for req in reqs] == [b"%d" % n * 2 for n in range(4)]


def test_a_late_reply_is_dropped_and_counted(context):
    rep, req = pair_of(context, REP, REQ, rcvtimeo=100)
    req.req_relaxed = True
    req.send(b"first")
    assert rep.recv() == b"first"
    with pytest.raises(Again, match="no reply within"):
        req.recv()
    req.send(b"second")
    rep.send(b"reply to first")
    assert eventually(lambda: rep.poll(100))
    assert rep.recv() == b"second"
    rep.send(b"reply to second")
    req.receive_timeout = 5000
    assert req.recv() == b"reply to second"
    assert req._pattern.drops == {"late_reply": 1}


def test_the_death_of_the_peer_fails_the_request(context):
    rep, req = pair_of(context, REP, REQ)
    req.send(b"x")
    assert rep.recv() == b"x"
    waiting = Thread(req.recv)
    rep.close(0)
    with pytest.raises(Broken, match="before it replied"):
        waiting.finish()
    assert req.poll(0, transfer.POLLIN) == 0


def test_a_poll_sees_that_the_peer_is_dead(context):
    rep, req = pair_of(context, REP, REQ)
    req.send(b"x")
    assert rep.recv() == b"x"
    rep.close(0)
    assert req.poll(10_000) == transfer.POLLIN
    with pytest.raises(Broken):
        req.recv()


def test_after_the_failure_the_socket_goes_on(context):
    rep, req = pair_of(context, REP, REQ, reconnect_ivl=10)
    endpoint = rep.last_endpoint
    req.send(b"x")
    rep.recv()
    rep.close(0)
    with pytest.raises(Broken):
        req.recv()
    other = context.socket(REP)
    other.bind(endpoint)
    req.wait_for_peers(1, 10)
    req.send(b"y")
    other.send(other.recv())
    assert req.recv() == b"y"


def test_with_resend_another_peer_answers(context):
    req = context.socket(REQ, resend=True)
    req.bind(TCP)
    reps = [context.socket(REP) for _ in range(2)]
    for rep in reps:
        rep.connect(req.last_endpoint)
    req.wait_for_peers(2, 10)
    req.send(b"work")
    first, second = reps if reps[0].poll(500) else reversed(reps)
    assert first.recv() == b"work"
    first.close(0)
    assert second.recv() == b"work"
    second.send(b"done")
    assert req.recv() == b"done"


def test_a_reply_to_a_peer_that_left_is_dropped_and_counted(context):
    rep, req = pair_of(context, REP, REQ)
    req.send(b"x")
    assert rep.recv() == b"x"
    req.close(0)
    assert eventually(lambda: not rep.peers())
    rep.send(b"to nobody")
    assert rep._pattern.drops == {"requester_gone": 1}
    other = context.socket(REQ)
    other.connect(rep.last_endpoint)
    other.send(b"next")
    rep.send(rep.recv())
    assert other.recv() == b"next"


def test_a_reply_has_a_time_limit_by_default(context):
    assert context.socket(REQ).rcvtimeo == 30_000
    assert context.socket(REP).rcvtimeo == -1


def test_frames_of_a_reply(context):
    rep, req = pair_of(context, REP, REQ)
    req.send(b"x")
    frame = rep.recv(copy=False)
    assert frame.bytes == b"x"
    rep.send(frame.buffer)
    assert req.recv(copy=False).bytes == b"x"
