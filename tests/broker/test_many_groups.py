"""Many groups, and one program with many consumers: they are looked at in turns of the loop, and limited."""

from __future__ import annotations

import pytest

from tests.broker.in_process_broker import running
from tests.broker.native_peers import wait_for
from tests.broker.native_programs import program
from tests.broker.stepped_hub import stepped_hub
from tests.broker.test_groups import Taker as _Taker
from transfer.broker import turns as in_turns
from transfer.broker.delivery import groups
from transfer.broker.fronts import native_consumers, native_requests
from transfer.broker.protocols.native import Join, Op, encode, encode_join
from transfer.broker.protocols.native_batch import encode_several
from transfer.broker.turns import InTurns
from transfer.transports.errors import UsageError


class Taker(_Taker):
    def removed(self, error):
        pass


@pytest.fixture
def five_at_once(monkeypatch):
    monkeypatch.setattr(groups, "_GROUPS_AT_ONCE", 5)


def with_groups(stepped, count):
    takers = []
    for number in range(count):
        takers.append(Taker())
        stepped.hub.groups.join(takers[-1], stepped.hub.groups.served_for("t", f"g{number}"), 10)
    return takers


def counted(monkeypatch, at_once):
    """For how many things it is done in each turn, of those that are done for so many at once."""
    counts = []
    do_some = InTurns._do_some

    def note(things):
        before = len(things)
        do_some(things)
        if before and things._at_once == at_once:
            counts.append(before - len(things))

    monkeypatch.setattr(InTurns, "_do_some", note)
    return counts


def test_groups_are_given_what_came_some_in_each_turn(tmp_path, five_at_once, monkeypatch):
    with stepped_hub(tmp_path) as stepped:
        takers = with_groups(stepped, 23)
        stepped.until(lambda: not stepped.hub.groups._to_pump)
        looked_at = counted(monkeypatch, 5)
        stepped.publish("t", b"1")
        stepped.until(lambda: all(taker.got for taker in takers))
    assert max(looked_at) == 5 and sum(looked_at) == 23
    assert [taker.got for taker in takers] == [[(0, 1, b"1")]] * 23


def test_what_groups_have_done_is_noted_for_some_in_each_tick_and_for_all_in_the_end(tmp_path, five_at_once):
    with stepped_hub(tmp_path) as stepped:
        takers = with_groups(stepped, 23)
        stepped.publish("t", b"1")
        stepped.until(lambda: all(taker.got for taker in takers))
        for taker, served in zip(takers, stepped.hub.groups.served, strict=True):
            stepped.hub.groups.ack(taker, served, [(0, 1)])

        def noted():
            stepped.hub.groups.tick()
            log = stepped.store.log
            return sum(log.acknowledged("topic/t", f"g{number}") == 1 for number in range(23))

        assert [noted() for _ in range(5)] == [5, 10, 15, 20, 23]


def test_one_group_too_many_is_refused(tmp_path):
    with stepped_hub(tmp_path) as stepped:
        stepped.hub.groups._most = 3
        with_groups(stepped, 3)
        with pytest.raises(UsageError, match="one more than the 3") as told:
            with_groups(stepped, 4)
        assert "hint" in str(told.value)
        stepped.hub.groups.remove("t", "g1", "is not needed")
        assert stepped.hub.groups.served_for("t", "h").named.number == 4, "a number is not used twice"


def test_one_consumer_too_many_is_refused_and_those_of_a_program_that_goes_leave_in_turns(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(native_consumers, "MOST_CONSUMERS", 7)
    monkeypatch.setattr(native_requests, "_LEAVE_AT_ONCE", 2)
    monkeypatch.setattr(in_turns, "TURN_SECONDS", 60.0)  # else a turn of a busy machine may end after one
    with running(tmp_path) as broker:
        with program(broker.endpoints["requests"]) as one:
            for number in range(7):
                one.join("t", f"g{number}", number)
            one.say(encode(Op.JOIN, 7, encode_join(Join("t", "g7"))))
            assert "one more than the 7 consumers" in one.refused()[1]
            one.join("t", "another", 6)  # instead of the one that had this number
            members = [served.group for served in broker.hub.groups.served]
            assert sum(group.consumers for group in members) == 7 and len(members) == 8
            left = counted(monkeypatch, 2)
        wait_for(lambda: not any(group.consumers for group in members))
    assert left == [2, 2, 2, 1]


def test_many_words_in_one_message_are_taken_in_turns_and_in_their_order(tmp_path, monkeypatch):
    monkeypatch.setattr(in_turns, "TURN_SECONDS", 0.0)
    turns = []
    take = native_requests.NativeRequests._take_words

    def note(requests, identity, words, begin=0):
        turns.append((begin, len(words)))
        take(requests, identity, words, begin)

    monkeypatch.setattr(native_requests.NativeRequests, "_take_words", note)
    with running(tmp_path) as broker, program(broker.endpoints["requests"]) as one:
        joins = [encode(Op.JOIN, number, encode_join(Join("t", f"g{number}"))) for number in range(5)]
        publish, leave = encode(Op.PUBLISH, 9, b"t"), encode(Op.LEAVE, 2)
        words = [*((join, 0) for join in joins), (publish, 1), (publish, 1), (leave, 0)]
        one.say(encode_several(Op.SEVERAL, words), b"x", b"y")
        one.say(encode(Op.LEAVE, 3))
        assert [one.hear(Op.JOINED)[0].number for _ in range(5)] == [0, 1, 2, 3, 4]
        wait_for(lambda: sum(served.group.consumers for served in broker.hub.groups.served) == 3)
        assert turns == [(0, 8), (1, 8), (2, 8), (3, 8), (4, 8), (5, 8), (7, 8), (0, 1)]


class Later:
    """A loop that is stepped by hand."""

    def __init__(self):
        self.calls = []

    def call_soon(self, call):
        self.calls.append(call)

    def step(self):
        calls, self.calls = self.calls, []
        for call in calls:
            call()


def test_one_that_fails_does_not_keep_the_others_waiting():
    later, done = Later(), []

    def do(number):
        if number == 1:
            raise KeyError(number)
        done.append(number)

    things = InTurns(later, 3, do)
    with pytest.raises(KeyError):
        things.add(range(6))
    assert done == [0] and len(things) == 4 and len(later.calls) == 1
    things.add([4, 7])
    assert done == [0] and len(later.calls) == 1, "they have their turn"
    for _ in range(in_turns.OTHERS):
        assert done == [0]
        later.step()
    later.step()
    assert done == [0, 2, 3, 4] and len(things) == 2
    things.clear()
    later.step()
    for _ in range(in_turns.OTHERS):
        later.step()
    assert not later.calls and done == [0, 2, 3, 4]


def test_what_is_added_meanwhile_waits_for_its_turn():
    """It was done within the one before, as deep as there was more."""
    later, done = Later(), []

    def do(number):
        done.append(number)
        if number < 20:
            things.add([number + 1])

    things = InTurns(later, 3, do)
    things.add([0])
    assert done == [0]
    while later.calls:
        later.step()
    assert done == list(range(21))


def test_a_turn_is_over_when_its_time_is(monkeypatch):
    monkeypatch.setattr(in_turns, "TURN_SECONDS", 0.0)
    later, done = Later(), []
    things = InTurns(later, 100, done.append)
    things.add(range(3))
    for turn in range(1, 4):
        assert done == list(range(turn))
        for _ in range(in_turns.OTHERS + 1):
            later.step()
