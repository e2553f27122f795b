"""Distributors and subscriptions against plain models, by hypothesis."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, strategies as st

from tests.patterns.distribution_model import FairQueue, FanOut, RoundRobin
from transfer.patterns import Requester
from transfer.patterns.subscriptions import Subscriptions
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import Broken, StateError

prefixes = st.binary(max_size=3)


@given(st.lists(st.tuples(st.booleans(), prefixes)), st.binary(max_size=5))
def test_subscriptions_are_a_multiset_of_prefixes(steps, topic):
    known, model = Subscriptions(), Counter()
    for add, prefix in steps:
        if add:
            known.add(prefix)
            model[prefix] += 1
        else:
            assert known.remove(prefix) == (model[prefix] > 0)
            model[prefix] = max(0, model[prefix] - 1)
    assert Counter(known) == +model
    assert len(known) == sum(model.values())
    assert known.matches(topic) == any(map(topic.startswith, +model))


@given(st.lists(st.one_of(st.integers(0, 5), st.frozensets(st.integers(0, 5)))))
def test_round_robin_is_fair_to_all_with_room(steps):
    """An integer attaches or detaches that peer; a set is a pick while those peers are full."""
    turn, peers, waited = RoundRobin(), [], {}
    for step in steps:
        if isinstance(step, int):
            if step in peers:
                peers.remove(step)
                waited.pop(step)
                turn.detach(step)
            else:
                peers.append(step)
                waited[step] = 0
                turn.attach(step)
            continue
        chosen = turn.pick(lambda peer, full=step: peer not in full)
        free = [peer for peer in peers if peer not in step]
        assert (chosen is None) == (not free)
        if chosen is not None:
            assert chosen in free
            for peer in free:
                waited[peer] += 1
            waited[chosen] = 0
            assert all(waited[peer] <= 2 * len(peers) + 6 for peer in free)
        assert len(turn) == len(peers)


@given(st.integers(1, 6), st.integers(1, 60))
def test_round_robin_gives_equal_shares(count, messages):
    turn = RoundRobin(range(count))
    shares = Counter(turn.pick() for _ in range(messages))
    assert max(shares.values()) - min(shares.get(peer, 0) for peer in range(count)) <= 1


@given(st.dictionaries(st.integers(0, 5), prefixes), st.binary(max_size=4), st.frozensets(st.integers(0, 5)))
def test_fan_out_counts_who_missed_what(filters, topic, full):
    fan = FanOut()
    for peer, prefix in filters.items():
        fan.attach(peer, lambda t, p=prefix: t.startswith(p))
    chosen = fan.pick(topic, lambda peer: peer not in full)
    wanted = {peer for peer, prefix in filters.items() if topic.startswith(prefix)}
    assert set(chosen) == wanted - full
    assert {peer for peer, count in fan.dropped.items() if count} == wanted & full
    assert fan.dropped_no_peer == (0 if wanted else 1)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=5))
def test_a_fair_queue_takes_all_and_favours_nobody(waiting):
    queue, left, taken = FairQueue(), dict(enumerate(waiting)), []
    for peer in left:
        queue.attach(peer)
    for peer in queue.drain(lambda p: left[p] > 0):
        left[peer] -= 1
        taken.append(peer)
    assert Counter(taken) == Counter({peer: n for peer, n in enumerate(waiting) if n})
    busy = [peer for peer, n in enumerate(waiting) if n]
    assert sorted(taken[: len(busy)]) == busy


@given(st.lists(st.sampled_from(["send", "reply", "late", "lost", "recv", "taken by nobody"])), st.booleans())
def test_a_requester_never_accepts_a_reply_that_is_not_its_own(steps, relaxed):
    req = Requester()
    req.relaxed = relaxed
    req.attach("p", SocketType.REP)
    waiting, last, failed = 0, 0, False
    for step in steps:
        if step in ("send", "taken by nobody"):
            try:
                number = req.route([(0, 0, None, None, b"")])[1][0][1]
            except StateError:
                assert waiting
                assert not relaxed
                continue
            assert number > last
            last = number
            if step == "send":
                req.sent("p")
                waiting, failed = number, False
        elif step == "reply" and not failed:
            accepted = req.admit("p", [_Frame(waiting)])
            assert (accepted is not None) == (waiting != 0)
            waiting = 0
        elif step == "late":
            assert req.admit("p", [_Frame(last + 1000)]) is None
        elif step == "lost":
            assert req.fail("p", Broken("x")) == bool(waiting)
            failed = bool(waiting)
        elif step == "recv":
            try:
                req.expect()
                assert waiting
                assert not failed
            except StateError:
                assert not waiting
            except Broken:
                assert failed
                waiting, failed = 0, False


class _Frame:
    data = b""
    topic = None

    def __init__(self, sequence):
        self.sequence = sequence
