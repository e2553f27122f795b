"""Who is followed, and when is asked again: decided without a clock, a socket or a name server."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from transfer.transports.address import Address
from transfer.transports.discovery.directory import Listing
from transfer.transports.discovery.liveness import is_silent
from transfer.transports.discovery.membership import MOST, Membership, MemberState, Polling

MEMBERS = [Address("tcp", f"10.0.0.{number}", 5590) for number in range(1, 6)]
SETS = st.frozensets(st.sampled_from(MEMBERS))


def listing(*numbers, **more):
    return Listing(frozenset(MEMBERS[number] for number in numbers), **more)


def test_who_comes_and_who_goes():
    membership = Membership()
    assert membership.update(listing(0, 1)).added == MEMBERS[:2]
    changes = membership.update(listing(1, 2))
    assert (changes.added, changes.retired) == ([MEMBERS[2]], [MEMBERS[0]])
    assert membership.state(MEMBERS[0]) is MemberState.RETIRED
    assert membership.update(listing(0, 1, 2)).restored == [MEMBERS[0]]


def test_an_empty_answer_drops_nobody():
    membership = Membership()
    membership.update(listing(0, 1))
    changes = membership.update(listing(complete=False))
    assert (changes.held, changes.retired) == (MEMBERS[:2], [])
    assert not membership.ended(MEMBERS[0]), "who has gone meanwhile is not tried again"
    assert membership.state(MEMBERS[0]) is None
    assert membership.update(listing(1)).kept == [MEMBERS[1]]


def test_who_has_gone_for_certain_goes_although_others_are_not_known():
    membership = Membership()
    membership.update(listing(0, 1, 2))
    changes = membership.update(listing(2, complete=False, gone=frozenset(MEMBERS[:1])))
    assert (changes.retired, changes.held) == (MEMBERS[:1], [MEMBERS[1]])


def test_not_more_than_can_be_followed():
    many = frozenset(Address("tcp", f"10.{n >> 8}.{n & 255}.1", 1) for n in range(MOST + 50))
    membership = Membership()
    assert len(membership.update(Listing(many)).added) == MOST
    assert not any(membership.update(Listing(many))), "and always the same ones"


def test_who_is_followed_stays_when_there_are_more_than_can_be():
    membership = Membership()
    membership.update(listing(3))
    changes = membership.update(listing(0, 1, 2, 3), 2)
    assert (changes.added, changes.retired) == (MEMBERS[:1], [])


class Model(RuleBasedStateMachine):
    """Against sets: what is listed, and who has a connection."""

    def __init__(self):
        super().__init__()
        self.membership = Membership()
        self.connected = set()  # as whoever follows would have it: connected at once
        self.last = frozenset()
        self.states = {}

    @rule(there=SETS, gone=SETS, complete=st.booleans())
    def hears(self, there, gone, complete):
        before = dict(self.states)
        changes = self.membership.update(Listing(there, complete=complete, gone=gone))
        for member in there:
            self.states[member] = "listed"
        for member in before.keys() - there:
            if complete or member in gone:
                self.states[member] = "retired"
            elif before[member] == "listed":
                self.states[member] = "held"
        assert set(changes.added) == there - before.keys()
        for name, were in (("restored", "retired"), ("kept", "held")):
            assert set(getattr(changes, name)) == {m for m in there if before.get(m) == were}
        for name in ("held", "retired"):
            fresh = {m for m, state in self.states.items() if state == name and before.get(m) != name}
            assert set(getattr(changes, name)) == fresh
        self.last = there

    @rule(member=st.sampled_from(MEMBERS))
    def ends(self, member):
        again = self.membership.ended(member)
        assert again == (self.states.get(member) == "listed")
        if not again:
            self.states.pop(member, None)

    @invariant()
    def agrees(self):
        for member in MEMBERS:
            state = self.membership.state(member)
            assert (state.value if state else None) == self.states.get(member)
        assert self.membership.listed == len(self.last)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


@given(ttl=st.floats(0, 1e6), draw=st.floats(0, 1))
def test_a_ttl_is_kept_and_not_waited_out_for_long(ttl, draw):
    pause = Polling(draw=lambda: draw).answered(ttl)
    if ttl <= 0:
        assert 0.75 <= pause <= 1.25
    else:
        assert min(max(ttl, 0.5), 300) <= pause <= min(max(ttl, 0.5), 300) + 1.0


def test_pauses_are_spread():
    draws = iter([0.0, 1.0])
    polling = Polling(draw=lambda: next(draws))
    assert [polling.answered(30), polling.answered(30)] == [30.0, 31.0]


def test_failures_make_pauses_longer_up_to_a_limit():
    polling = Polling(draw=lambda: 1.0)
    assert [polling.failed() for _ in range(6)] == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    polling.answered(1)
    assert polling.failed() == 0.5
    assert Polling(draw=lambda: 1.0).answered(None) == 0.0


def test_who_answers_slowly_is_not_silent():
    def told(retransmits, probes, age):
        return (1, 0, retransmits, probes, 0, 0, 0, 0, *[0] * 12, age)

    assert not is_silent(told(0, 0, 100_000)), "idle, and nobody asked"
    assert not is_silent(told(1, 1, 400)), "asked a moment ago"
    assert not is_silent(told(1, 0, 2000)), "one packet was lost"
    assert is_silent(told(3, 0, 2000))
    assert is_silent(told(0, 2, 2000))
