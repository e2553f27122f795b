"""Slots and the arena: nothing is handed out twice, limits hold, what is dropped is told."""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tests.sockets.conftest import core_module
from transfer.transports.shm import segments
from transfer.transports.shm.memory import make_memfd
from transfer.transports.shm.segments import MOST_SLOTS, PAGE, Arena, Budget, slot_size, slots_of


@pytest.fixture
def make(core):
    """Makes three slots; the test alone holds them, since the twin's mapping keeps a descriptor."""

    def make():
        fd = make_memfd(PAGE * 4)
        try:
            return core.Slots(core.Mapping(fd, PAGE * 4), PAGE, PAGE, 3)
        finally:
            os.close(fd)

    return make


def test_slots_are_taken_in_order_and_free_again(make):
    slots = make()
    assert slots.idle
    assert [slots.take() for _ in range(4)] == [0, 1, 2, -1]
    assert not slots.idle
    slots.free(1)
    assert slots.take() == 1
    for index in range(3):
        slots.free(index)
    assert slots.idle


def test_a_lent_slot_is_free_when_its_last_view_dies(make):
    slots = make()
    index = slots.take()
    assert slots.fill(index, b"abc") == 3
    region = slots.lend(index, 3)
    assert len(region) == region.nbytes == 3
    view = memoryview(region)[1:]
    assert slots.lend(index, 3) is None
    del region
    assert bytes(view) == b"bc" and not view.readonly
    assert not slots.idle
    del view
    gc.collect()
    assert slots.idle


def test_a_lent_slot_in_a_cycle_is_free_too(make):
    slots = make()

    class Holder:
        pass

    holder = Holder()
    holder.me, holder.pair = holder, (slots.lend(slots.take(), 5), Holder())
    assert not slots.idle
    del holder
    gc.collect()
    assert slots.idle


def test_slots_outlive_who_made_them(make):
    slots = make()
    region = slots.lend(slots.take(), PAGE)
    view = memoryview(region)
    del slots, region
    gc.collect()
    view[:] = b"x" * PAGE
    assert bytes(view) == b"x" * PAGE


@pytest.mark.parametrize(("index", "size"), [(-1, 1), (3, 1), (0, 0), (0, PAGE + 1), (0, -1)])
def test_what_is_no_slot_is_refused(make, index, size):
    slots = make()
    with pytest.raises(ValueError):
        slots.lend(index, size)
    slots.free(index) if index else None
    with pytest.raises(BufferError):
        slots.fill(index if index else 3, b"")
    assert slots.idle


def test_too_much_for_a_slot_is_refused(make):
    slots = make()
    with pytest.raises(BufferError):
        slots.fill(0, bytes(PAGE + 1))


@pytest.mark.parametrize(
    ("start", "size", "count"),
    [(PAGE, PAGE, 0), (PAGE, PAGE, 65), (PAGE, PAGE, 5), (PAGE, 0, 1), (2, PAGE, 3), (PAGE * 5, 1, 1),
     (PAGE, 1 << 62, 4), (0, PAGE, 1)],
)  # fmt: skip
def test_slots_that_do_not_fit_are_refused(core, start, size, count):
    fd = make_memfd(PAGE * 4)
    mapping = core.Mapping(fd, PAGE * 4)
    os.close(fd)
    with pytest.raises(ValueError):
        core.Slots(mapping, start, size, count)


def test_a_forked_child_frees_nothing(make):
    slots = make()
    index = slots.take()
    region = slots.lend(index, 10)
    child = os.fork()
    if not child:
        del region
        gc.collect()
        slots.free(index)
        os._exit(0 if not slots.idle else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not slots.idle
    del region
    assert slots.idle


@pytest.mark.parametrize("nbytes", [1, PAGE, PAGE + 1, 65536, 65537, 1 << 20, (1 << 20) + 1, 10**8 + 7])
def test_slots_are_pages_and_at_most_a_quarter_too_large(nbytes):
    size = slot_size(nbytes)
    assert size % PAGE == 0 and nbytes <= size
    assert size - nbytes <= max(PAGE, nbytes // 4)
    assert 1 <= slots_of(size) <= MOST_SLOTS


class Model(RuleBasedStateMachine):
    """An arena beside a set of what is in use."""

    core = core_module("pure")
    limit = 24 << 16
    taken = Bundle("taken")

    def __init__(self):
        super().__init__()
        self.arena = Arena(self.core, self.limit)
        self.used = {}
        self.living = {}

    @rule(target=taken, nbytes=st.sampled_from([1, 5_000, 20_000, 3 << 16, 9 << 16, 20 << 16, 25 << 16]))
    def take(self, nbytes):
        found = self.arena.take(nbytes)
        for number in self.arena.dropped:
            segment = self.living.pop(number)
            assert not any(owner is segment for owner, _ in self.used.values())
        self.arena.dropped.clear()
        if isinstance(found, str):
            assert found == ("too_large" if nbytes > self.limit else "full")
            if found == "full":
                self.nothing_fits(nbytes)
            return None
        segment, index = found
        segment.announced = True
        self.living[segment.number] = segment
        key = segment.number, index
        assert key not in self.used, "handed out twice"
        assert 0 <= index < segment.slots.count and segment.slot >= nbytes
        assert self.arena.find(segment.number, PAGE + index * segment.slot) == (segment.slots, index)
        self.used[key] = found
        return key

    def nothing_fits(self, nbytes):
        """No slot of that size is free, and no idle segment of another could have made room."""
        size = slot_size(nbytes)
        held = sum(s.size for s in self.living.values() if s.slot == size or not s.slots.idle)
        planned = PAGE + slots_of(size) * size
        assert held + planned > max(self.limit, segments.FEWEST * planned)

    @rule(key=consumes(taken))
    def give_back(self, key):
        if key in self.used:
            segment, index = self.used.pop(key)
            segment.slots.free(index)

    @invariant()
    def totals_agree(self):
        total = sum(segment.size for segment in self.arena._segments.values())
        assert self.arena.total == total
        largest = max((segment.size for segment in self.arena._segments.values()), default=0)
        assert total <= max(self.limit, segments.FEWEST * largest)

    def teardown(self):
        self.arena.close()
        assert self.arena.total == 0


@pytest.fixture(scope="module", autouse=True)
def small_segments():
    """The models make and fill many."""
    before, segments.SEGMENT = segments.SEGMENT, segments.SEGMENT >> 4
    yield
    segments.SEGMENT = before


class NativeModel(Model):
    core = core_module("native")


Model.TestCase.settings = NativeModel.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None
)
TestTwin = Model.TestCase
TestNative = NativeModel.TestCase


def test_without_memory_the_connection_has_to_do_it(core, monkeypatch):
    def none_left(fd, offset, length):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", none_left)
    arena = Arena(core, 1 << 24)
    assert arena.take(100_000) == "no_memory"
    assert arena.total == 0
    arena.close()


def test_closing_leaves_no_descriptor_and_views_stay(core):
    arena = Arena(core, 1 << 24)
    segment, index = arena.take(100_000)
    assert segment.fd >= 0
    region = segment.slots.lend(index, 100_000)
    arena.close()
    assert segment.fd == -1
    memoryview(region)[-1:] = b"z"
    assert arena.find(1, PAGE) is None


# --- what the connections of one context share ------------------------------------------------------


def test_connections_together_stay_in_the_budget(core):
    budget = Budget(5 << 17)
    arenas = [Arena(core, 1 << 30, budget) for _ in range(5)]
    taken = [arena.take(100_000) for arena in arenas]
    assert [type(each) for each in taken] == [tuple, tuple, str, str, str] and taken[2] == "crowded"
    assert budget.total == sum(arena.total for arena in arenas) <= 5 << 17
    arenas[0].close()
    arenas[0].close()
    assert budget.total == arenas[1].total
    segments._LOOK_AGAIN, before = 0.0, segments._LOOK_AGAIN
    try:
        assert isinstance(arenas[2].take(100_000), tuple)
    finally:
        segments._LOOK_AGAIN = before
    for arena in arenas:
        arena.close()
    assert budget.total == 0


def test_what_one_connection_does_not_use_goes_to_the_next(core, monkeypatch):
    monkeypatch.setattr(segments, "_LOOK_AGAIN", 0.0)
    spared = []
    budget = Budget(5 << 17)
    arenas = [Arena(core, 1 << 30, budget, lambda number=n: spared.append(number)) for n in range(4)]
    for turn in range(3):
        for arena in arenas:
            segment, index = arena.take(100_000)
            segment.announced = True
            segment.slots.free(index)
            assert budget.total <= 5 << 17, turn
    assert len(spared) >= 4  # whose, nobody knows
    held = [arena.take(100_000) for arena in arenas]
    assert sum(isinstance(each, tuple) for each in held) == 2  # what is in use is nobody else's
    for arena in arenas:
        arena.close()


def test_no_memory_costs_nothing_of_the_budget(core, monkeypatch):
    monkeypatch.setattr(segments, "make_memfd", lambda nbytes: (_ for _ in ()).throw(OSError(12, "none")))
    budget = Budget()
    arena = Arena(core, 1 << 30, budget)
    assert arena.take(100_000) == "no_memory" and budget.total == 0
    arena.close()


def test_what_rests_is_given_back(core):
    arena = Arena(core, 1 << 30)
    held, index = arena.take(50_000)
    other = arena.take(8 << 20)
    other[0].slots.free(other[1])
    arena.rest()  # something was taken since
    assert arena.total == held.size + other[0].size
    arena.rest()
    assert arena.total == held.size
    held.slots.free(index)
    arena.rest()
    assert arena.total == 0
    arena.close()
