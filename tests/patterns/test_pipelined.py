"""Many open requests: the pattern against a plain model, by hypothesis, and case by case."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from tests.patterns.test_patterns import In, out, texts
from transfer.patterns import PipelinedReplier, PipelinedRequester
from transfer.patterns.req_rep import CORRELATED
from transfer.transports.core.wire import SocketType as S
from transfer.transports.errors import Broken, HandshakeError, StateError

PEERS = ("a", "b", "c")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from(PEERS)),
        st.tuples(st.just("reply"), st.sampled_from(PEERS), st.integers(1, 12)),
        st.tuples(st.just("lose"), st.sampled_from(PEERS), st.sets(st.integers(1, 12))),
        st.tuples(st.just("move"), st.sampled_from(PEERS), st.integers(1, 12)),
        st.tuples(st.just("forget"), st.integers(1, 12)),
    )
)


def with_peers(peers=PEERS, kind=S.REP):
    pattern = PipelinedRequester()
    for peer in peers:
        pattern.attach(peer, kind)
    return pattern


@given(STEPS)
def test_each_request_ends_once_by_its_reply_its_peers_end_or_its_own(steps):
    """The model: who has each open request, "" if it is on its way to another peer."""
    pattern, model, ended, count = with_peers(), {}, {}, 0
    for what, *given_ in steps:
        if what == "send":
            count += 1
            assert pattern.begin() == count | CORRELATED
            assert pattern.route(out(b"x"))[1][0][1] == count | CORRELATED
            pattern.sent(given_[0])
            model[count] = given_[0]
        elif what == "reply":
            peer, number = given_
            right = model.get(number) in (peer, "")
            assert (pattern.admit(peer, [In(b"y", number | CORRELATED)]) is not None) == right
            if right:
                ended[number] = model.pop(number)
        elif what == "lose":
            peer, moved = given_
            lost = {number for number, holder in model.items() if holder == peer}
            pattern.fail(peer, Broken("gone"), {number | CORRELATED for number in moved})
            for number in moved & set(model):
                model[number] = ""
            for number in lost - moved:
                ended[number] = model.pop(number)
                assert isinstance(pattern.failed.pop(number | CORRELATED), Broken)
            assert pattern.failure is None
            pattern.detach(peer)
            pattern.attach(peer, S.REP)  # it comes again
        elif what == "move":
            peer, number = given_
            if model.get(number) == "":
                pattern.moved(peer, [(0, number | CORRELATED, None, None, b"x")])
                model[number] = peer
        else:
            assert pattern.forget(given_[0] | CORRELATED) == (model.pop(given_[0], None) is not None)
        assert {n & ~CORRELATED: holder or "" for n, holder in pattern.open.items()} == model


@given(st.lists(st.sampled_from(PEERS), max_size=30))
def test_the_peer_with_the_fewest_open_requests_is_preferred(answered):
    pattern = with_peers()
    load = dict.fromkeys(PEERS, 0)
    for peer in answered:
        best = next(iter(pattern.preferred()))
        assert load[best] == min(load.values())
        pattern.begin()
        pattern.sent(best)
        load[best] += 1
        if load[peer]:
            number = next(n for n, holder in pattern.open.items() if holder == peer)
            assert pattern.admit(peer, [In(b"", number)])
            load[peer] -= 1
        assert all(pattern.has_open(peer) == bool(load[peer]) for peer in PEERS)


def test_there_is_room_for_so_many_with_each_peer():
    pattern = with_peers(("a", "b"))
    assert list(with_peers(("a",)).preferred()) == []  # the core has no choice either
    for _ in range(4):
        assert pattern.has_room(2)
        pattern.begin()
    assert not pattern.has_room(2) and pattern.has_room(3) and pattern.has_room(0)


def test_what_a_lost_peer_left_is_read_before_its_requests_fail():
    pattern = with_peers(("a",))
    one, other = pattern.begin(), None
    pattern.sent("a")
    other = pattern.begin()
    pattern.sent("a")
    pattern.inherit("rest", "a")
    pattern.detach("a")
    assert not pattern.fail("a", Broken("gone"))
    assert pattern.admit("rest", [In(b"the reply", one)])
    assert pattern.fail("rest", Broken("gone"))
    assert list(pattern.failed) == [other]


def test_a_peer_that_goes_before_it_is_noted_fails_the_request():
    pattern = with_peers(("a",))
    number = pattern.begin()
    pattern.detach("a")
    pattern.sent("a")
    assert list(pattern.failed) == [number] and not pattern.open


def test_a_late_reply_is_dropped_and_counted():
    pattern = with_peers(("a", "b"))
    number = pattern.begin()
    pattern.sent("a")
    assert pattern.admit("b", [In(b"", number)]) is None
    assert pattern.forget(number) and not pattern.forget(number)
    assert pattern.admit("a", [In(b"", number)]) is None
    assert pattern.drops == {"late_reply": 2}


def test_answers_go_to_who_asked_in_any_order():
    pattern = PipelinedReplier()
    pattern.attach("req", S.REQ)
    pattern.attach("dealer", S.DEALER)
    assert not pattern.may_send()
    assert pattern.admit("req", [In(b"first", 7)])
    first = pattern.current.number
    assert [part.data for part in pattern.admit("dealer", [In(b"id"), In(b""), In(b"second")])] == [b"second"]
    second = pattern.current.number
    assert pattern.admit("dealer", [In(b"no envelope")]) is None and pattern.drops == {"no_envelope": 1}
    pattern.current.number = second
    peer, frames = pattern.route(out(b"2"))
    assert (peer, texts(frames)) == ("dealer", [b"id", b"", b"2"])
    pattern.sent(peer)
    pattern.current.number = first
    assert pattern.route(out(b"1")) == ("req", [(0, 7, None, None, b"1")])
    pattern.sent("req")
    with pytest.raises(StateError):
        pattern.route(out(b"twice"))
    assert not pattern.open


def test_an_answer_for_one_who_has_gone_is_dropped():
    pattern = PipelinedReplier()
    pattern.attach("req", S.REQ)
    pattern.admit("req", [In(b"first", 7)])
    pattern.detach("req")
    assert pattern.route(out(b"1"))[0] is None
    assert pattern.drops == {"requester_gone": 1} and not pattern.open
    pattern.gone()
    assert pattern.drops == {"requester_gone": 1}


def test_they_have_the_peers_of_their_types():
    with pytest.raises(HandshakeError):
        PipelinedRequester().attach("x", S.PUB)
    with pytest.raises(HandshakeError):
        PipelinedReplier().attach("x", S.REP)
