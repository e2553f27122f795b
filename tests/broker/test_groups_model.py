"""The books of a group against a model that is as simple as it can be."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from transfer.broker.core.groups import MOST_LOST, Change, Delivery, DeliveryOutcome, Group, GroupEventKind
from transfer.broker.core.offsets import Offsets

NAMES = st.sampled_from("abc")
#: attempts that the model's messages get
MOST = 4


def delay(attempt):
    return None if attempt >= MOST else 0.5 * attempt


class GroupMachine(RuleBasedStateMachine):
    """The model: for each offset how often it was sent, who holds it since when, whether it is done."""

    @initialize(begin=st.integers(0, 5))
    def start(self, begin):
        self.begin = self.end = begin
        self.now = 0.0
        self.group = Group(begin, delay)
        self.journal: list[Change] = []
        self.sent: dict[int, int] = {}
        self.done: set[int] = set()
        self.dead: set[int] = set()
        self.holds: dict[int, tuple[str, int, float | None]] = {}
        self.windows: dict[str, tuple[int, float | None]] = {}
        self.paused: set[str] = set()
        self.wait_until: dict[int, float] = {}
        self.old: list[tuple[str, int, int]] = []

    def flush(self):
        self.journal += self.group.changes
        self.group.changes = []

    @rule(count=st.integers(1, 6))
    def messages_come(self, count):
        self.end += count

    @rule(name=NAMES, window=st.integers(1, 4), timeout=st.sampled_from([None, 1.0, 3.0]))
    def joins(self, name, window, timeout):
        self.group.join(name, window, timeout)
        self.windows[name] = (window, timeout)

    @rule(name=NAMES)
    def leaves(self, name):
        held = {offset: hold for offset, hold in self.holds.items() if hold[0] == name}
        returned = self.group.leave(name, self.now)
        assert {one.offset: one.attempt for one, _ in returned} == {o: h[1] for o, h in held.items()}
        assert all(outcome is DeliveryOutcome.AGAIN for _, outcome in returned)  # MOST_LOST is far away here
        for offset in held:
            self._gone(offset, self.now)
        self.windows.pop(name, None)
        self.paused.discard(name)

    @rule(name=NAMES, paused=st.booleans())
    def pauses(self, name, paused):
        self.group.pause(name, paused)
        if name in self.windows:
            (self.paused.add if paused else self.paused.discard)(name)

    @rule(limit=st.integers(1, 10), kept=st.integers(0, 9), seconds=st.sampled_from([0.0, 1.0]))
    def takes_what_cannot_be_sent(self, limit, kept, seconds):
        """All but the first ones go back: they were never sent."""
        held = dict(self.holds)
        self.takes(limit)
        back = [o for o in self.holds if o not in held][kept:]
        self.group.untake([Delivery(self.holds[o][0], o, self.holds[o][1]) for o in back], self.now + seconds)
        for offset in back:
            self.old.remove((self.holds[offset][0], offset, self.holds[offset][1]))
            self.sent[offset] -= 1
            self._gone(offset, self.now + seconds)

    @rule(limit=st.integers(1, 10))
    def takes(self, limit):
        taken = self.group.take(self.end, self.now, limit)
        assert len(taken) <= limit
        for consumer, offset, attempt in taken:
            assert offset < self.end
            assert offset not in self.done
            assert offset not in self.holds, "two hold it"
            assert offset not in self.dead, "a dead letter came again"
            assert self.wait_until.get(offset, 0.0) <= self.now, "too early"
            assert attempt == self.sent.get(offset, 0) + 1
            self.sent[offset] = attempt
            self.wait_until.pop(offset, None)
            timeout = self.windows[consumer][1]
            self.holds[offset] = (consumer, attempt, None if timeout is None else self.now + timeout)
            self.old.append((consumer, offset, attempt))
        assert not self.paused & {one.consumer for one in taken}
        for name in {one.consumer for one in taken}:
            assert sum(hold[0] == name for hold in self.holds.values()) <= self.windows[name][0]
        if len(taken) < limit:  # nothing is left that could go out
            assert not self._room() or not self._ready()

    @precondition(lambda self: self.old)
    @rule(data=st.data(), name=st.none() | NAMES)
    def acknowledges(self, data, name):
        consumer, offset, attempt = data.draw(st.sampled_from(self.old))
        consumer = name or consumer
        outcome = self.group.ack(consumer, offset, attempt)
        if self.holds.get(offset, ())[:2] == (consumer, attempt):
            assert outcome is DeliveryOutcome.DONE
            del self.holds[offset]
            self.done.add(offset)
        else:
            assert outcome is (DeliveryOutcome.REPEATED if offset in self.done else DeliveryOutcome.STALE)

    @precondition(lambda self: self.old)
    @rule(data=st.data(), name=NAMES)
    def acknowledges_several(self, data, name):
        deliveries = [one[1:] for one in data.draw(st.lists(st.sampled_from(self.old), max_size=8))]
        stale = []
        for offset, attempt in deliveries:
            if self.holds.get(offset, ())[:2] == (name, attempt):
                del self.holds[offset]
                self.done.add(offset)
            elif offset not in self.done:
                stale.append((offset, attempt))
        assert self.group.ack_many(name, deliveries) == stale

    @precondition(lambda self: self.old)
    @rule(data=st.data(), retry=st.booleans())
    def gives_back(self, data, retry):
        consumer, offset, attempt = data.draw(st.sampled_from(self.old))
        outcome = self.group.nack(consumer, offset, attempt, self.now, retry=retry)
        if self.holds.get(offset, ())[:2] != (consumer, attempt):
            assert outcome is (DeliveryOutcome.REPEATED if offset in self.done else DeliveryOutcome.STALE)
            return
        self._given_back(offset, attempt, outcome, retry=retry)

    @precondition(lambda self: self.dead)
    @rule(data=st.data())
    def buries(self, data):
        offset = data.draw(st.sampled_from(sorted(self.dead)))
        self.group.mark_dead_lettered(offset)
        self.group.mark_dead_lettered(offset)  # harmless
        self.dead.discard(offset)
        self.done.add(offset)

    @rule()
    def comes_for_another_group(self):
        self.group.mark_dead_lettered(self.end)
        self.done.add(self.end)
        self.end += 1

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 4.0]))
    def time_passes(self, seconds):
        self.now += seconds
        late = self.group.expire(self.now)
        expected = {o for o, h in self.holds.items() if h[2] is not None and h[2] <= self.now}
        assert {delivery.offset for delivery, _ in late} == expected
        for delivery, outcome in late:
            assert self.holds[delivery.offset][:2] == (delivery.consumer, delivery.attempt)
            self._given_back(delivery.offset, delivery.attempt, outcome)

    @rule()
    def crashes(self):
        self.flush()
        self.group = Group(self.begin, delay)
        for change in self.journal:
            self.group.apply(change)
        self._after_crash()

    @rule()
    def is_summarized_and_crashes(self):
        self.flush()
        summary, cursor = self.group.summary(), self.group.cursor
        self.group = Group(cursor, delay)
        for change in summary:
            self.group.apply(change)
        assert self.group.summary() == summary
        self.begin, self.journal = cursor, summary
        self._after_crash()

    def _after_crash(self):
        self.group.ready(self.now)
        self.holds.clear()
        self.wait_until.clear()
        self.dead.clear()  # they have no dead letters yet: they come again
        self.windows.clear()
        self.paused.clear()

    def _given_back(self, offset, attempt, outcome, *, retry=True):
        pause = delay(attempt) if retry else None
        assert outcome is (DeliveryOutcome.DEAD if pause is None else DeliveryOutcome.AGAIN)
        if pause is None:
            del self.holds[offset]
            self.dead.add(offset)
        else:
            self._gone(offset, self.now + pause)

    def _gone(self, offset, due):
        del self.holds[offset]
        self.wait_until[offset] = due

    def _room(self):
        return any(
            sum(hold[0] == name for hold in self.holds.values()) < window
            for name, (window, _) in self.windows.items()
            if name not in self.paused
        )

    def _ready(self):
        return [
            offset
            for offset in range(self.begin, self.end)
            if offset not in self.done | self.dead | self.holds.keys()
            and self.wait_until.get(offset, 0.0) <= self.now
        ]

    @invariant()
    def books_agree(self):
        group = self.group
        assert group.cursor == next(n for n in range(self.begin, self.end + 1) if n not in self.done)
        assert group.lag(self.end) == self.end - self.begin - sum(n >= self.begin for n in self.done)
        assert group.held == len(self.holds)

    @invariant()
    def alarm_is_right(self):
        """Neither too late nor for nothing: it would wake the broker over and over."""
        deadlines = [hold[2] for hold in self.holds.values() if hold[2] is not None]
        again = [self.wait_until.get(n, 0.0) for n in self.sent if self._comes_again(n)]
        due = self.group.due()
        expected = min(deadlines + (again if self._room() else []), default=None)
        if expected is None:
            assert due is None
        else:
            assert due is not None and max(due, self.now) == max(expected, self.now)

    def _comes_again(self, offset):
        return offset not in self.done | self.dead | self.holds.keys() and offset >= self.begin


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.lists(st.integers(0, 60), max_size=80))
@settings(max_examples=100, deadline=None)
def test_offsets_are_a_set(added):
    offsets, model = Offsets(), set()
    for offset in added:
        offsets.add(offset)
        model.add(offset)
        assert len(offsets) == len(model)
        assert (offset + 1 in offsets) == (offset + 1 in model)
    ranges = list(offsets)
    assert {n for begin, end in ranges for n in range(begin, end)} == model
    assert all(one[1] < two[0] for one, two in pairwise(ranges)), "they touch"
    free = offsets.behind(0)
    assert free == next(n for n in range(62) if n not in model)
    offsets.drop_before(free)
    assert len(offsets) == len({n for n in model if n >= free})


def test_single_consumer_has_them_in_order():
    group = Group(0, delay)
    group.join("a", 7)
    seen = []
    while len(seen) < 100:
        for delivery in group.take(100, 0.0):
            seen.append(delivery.offset)
            assert group.ack("a", delivery.offset, delivery.attempt) is DeliveryOutcome.DONE
    assert seen == list(range(100))
    assert group.cursor == 100


def test_alarm_is_not_set_while_nobody_can_take():
    """A message that comes again, and no consumer: the broker must not wake up for it all the time."""
    group = Group(0, delay)
    group.join("a", 1)
    group.take(1, 0.0)
    group.leave("a", 1.0)
    assert group.due() is None
    group.join("b", 1)
    assert group.due() == 1.0
    assert [one.consumer for one in group.take(1, 1.0)] == ["b"]
    assert group.due() is None


def test_memory_stays_small_behind_one_that_is_held():
    """One message is never acknowledged, all behind it are, with time-outs that do not come."""
    group = Group(0, delay)
    group.join("slow", 1, 1e6)
    first = group.take(1, 0.0)[0]
    group.join("quick", 50, 1e6)
    end = 50_000
    while taken := group.take(end, 0.0, 50):
        for consumer, offset, attempt in taken:
            group.ack(consumer, offset, attempt)
        group.changes.clear()
    assert (group.cursor, group.lag(end)) == (0, 1)
    assert group.summary() == [Change(GroupEventKind.DONE, 1, end), Change(GroupEventKind.SENT, 0, 1, 1)]
    assert len(group._deadlines) < 1000
    assert len(group._attempts) == 1
    assert group.ack("slow", first.offset, first.attempt) is DeliveryOutcome.DONE
    assert (group.cursor, group.summary()) == (end, [])


@pytest.mark.parametrize("step", [1, 2, 3])
def test_neighbours_are_one_change(step):
    group = Group(0, delay)
    group.join("a", 30)
    taken = group.take(30, 0.0)
    assert group.changes == [Change(GroupEventKind.SENT, 0, 30, 1)]
    for delivery in taken[::step]:
        group.ack("a", delivery.offset, 1)
    assert len(group.changes) == 1 + (1 if step == 1 else len(taken[::step]))
    copy = Group(0, delay)
    for change in group.changes:
        copy.apply(change)
    assert (copy.cursor, copy.summary()) == (group.cursor, group.summary())


def test_what_makes_consumers_go_is_given_up():
    group = Group(0, delay)
    for attempt in range(1, MOST_LOST + 1):
        group.join("a", 1)
        assert group.take(1, 0.0) == [Delivery("a", 0, attempt)]
        outcome = DeliveryOutcome.DEAD if attempt == MOST_LOST else DeliveryOutcome.AGAIN
        assert group.leave("a", 0.0) == [(Delivery("a", 0, attempt), outcome)]
    group.mark_dead_lettered(0)
    assert group.cursor == 1
