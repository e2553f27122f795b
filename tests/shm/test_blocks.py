"""Blocks: what `Context.empty` gives out, who may see it meanwhile, and what comes back."""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tests.conftest import descriptors
from tests.sockets.conftest import core_module
from transfer.transports.shm import blocks as module
from transfer.transports.shm.blocks import Blocks
from transfer.transports.shm.segments import PAGE


def test_a_block_is_reused_when_its_array_is_dead(core):
    blocks = Blocks(core)
    region = blocks.allocate(10_000)
    address = core.address_of(region)
    assert address % PAGE == 0 and region.nbytes == 10_000 and blocks.nbytes == 3 * PAGE
    view = memoryview(region)
    del region
    other = blocks.allocate(10_000)
    assert core.address_of(other) != address
    del view
    gc.collect()
    again = blocks.allocate(9_000)
    assert core.address_of(again) == address
    del other, again
    blocks.close()


def test_a_block_is_not_reused_while_a_peer_sees_it(core):
    blocks = Blocks(core)
    region = blocks.allocate(PAGE)
    address = core.address_of(region)
    loan = blocks.lend(region, PAGE, private=False)
    del region
    gc.collect()
    other = blocks.allocate(PAGE)
    assert core.address_of(other) != address
    blocks.give_back(loan)
    again = blocks.allocate(PAGE)
    assert core.address_of(again) == address
    del other, again
    blocks.close()


def test_find_tells_what_lies_whole_in_a_block(core):
    blocks = Blocks(core)
    regions = [blocks.allocate(PAGE * 2) for _ in range(5)]
    for region in regions:
        begin = core.address_of(region)
        block, offset = blocks.find(begin + 100, 200)
        assert block.address == begin and offset == 100
        assert blocks.find(begin, PAGE * 2 + 1) is None
        assert blocks.holds(memoryview(region)[5:9])
    assert blocks.find(min(map(core.address_of, regions)) - 1, 1) is None
    assert not blocks.holds(bytearray(10)) and not blocks.holds(b"abc")
    del region, regions, block
    blocks.close()


@pytest.mark.parametrize(
    ("first", "second", "allowed"),
    [
        ((0, 100, False), (100, 100, False), True),
        ((100, 100, False), (0, 100, False), True),
        ((0, 101, False), (100, 100, False), False),
        ((0, 100, False), (0, 100, True), False),
        ((0, 100, True), (50, 10, False), False),
        ((0, 100, True), (50, 100, True), True),
    ],
)
def test_memory_that_one_peer_may_write_is_shown_to_no_other(core, first, second, allowed):
    blocks = Blocks(core)
    whole = memoryview(blocks.allocate(PAGE))

    def lend(offset, nbytes, private):
        return blocks.lend(whole[offset : offset + nbytes], nbytes, private=private)

    loan = lend(*first)
    assert (lend(*second) is not None) is allowed
    blocks.give_back(loan)
    assert allowed or lend(*second) is not None
    whole.release()
    blocks.close()


def test_idle_memory_beyond_the_limit_goes_back_to_the_system(core, monkeypatch):
    monkeypatch.setattr(module, "KEPT", 10 * PAGE)
    blocks = Blocks(core)
    regions = [blocks.allocate(4 * PAGE) for _ in range(5)]
    told = []
    for block in blocks._blocks:
        block.watchers["test"] = told.append
    assert blocks.nbytes == 20 * PAGE
    del regions, block
    gc.collect()
    assert blocks.nbytes == 8 * PAGE and len(told) == 3
    blocks.close()
    assert len(told) == 5 and blocks.nbytes == 0


def test_an_array_that_dies_inside_a_change_disturbs_nothing(core, monkeypatch):
    """As if the collector ran inside `allocate`."""
    monkeypatch.setattr(module, "KEPT", 0)
    blocks = Blocks(core)
    dying = [blocks.allocate(PAGE)]
    surplus = module._surplus

    def surplus_and_death(found):
        dying.clear()
        return surplus(found)

    monkeypatch.setattr(module, "_surplus", surplus_and_death)
    region = blocks.allocate(PAGE * 2)
    assert blocks.find(core.address_of(region), 1) is not None
    assert blocks.nbytes == PAGE * 2
    del region
    blocks.close()


def test_closing_leaves_arrays_alone(core):
    blocks = Blocks(core)
    before = descriptors()
    region = blocks.allocate(PAGE)
    blocks.close()
    memoryview(region)[:3] = b"abc"
    assert blocks.lend(region, 3, private=True) is None
    assert bytes(memoryview(region)[:3]) == b"abc"
    del region
    gc.collect()
    assert descriptors().keys() == before.keys()


def test_a_forked_child_gives_nothing_back(core):
    blocks = Blocks(core)
    region = blocks.allocate(PAGE)
    block = blocks._blocks[0]
    child = os.fork()
    if not child:
        del region
        gc.collect()
        os._exit(0 if block.owned else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert block.owned
    del region
    assert not block.owned
    del block
    blocks.close()


class Model(RuleBasedStateMachine):
    """Blocks beside what is known of each array and each loan."""

    core = core_module("pure")
    arrays = Bundle("arrays")
    loans = Bundle("loans")

    def __init__(self):
        super().__init__()
        self.blocks = Blocks(self.core)
        self.alive = {}
        self.lent = {}
        self.count = 0

    @rule(target=arrays, pages=st.integers(1, 4))
    def allocate(self, pages):
        region = self.blocks.allocate(pages * PAGE)
        begin = self.core.address_of(region)
        for other, size in self.ranges():
            assert begin + pages * PAGE <= other or other + size <= begin, "two arrays in one place"
        self.count += 1
        self.alive[self.count] = region
        return self.count

    def ranges(self):
        """All that must not be given out again."""
        yield from ((self.core.address_of(r), r.nbytes) for r in self.alive.values())
        yield from ((loan.block.address, loan.block.size) for loan in self.lent.values())

    @rule(key=consumes(arrays))
    def drop(self, key):
        self.alive.pop(key, None)

    @rule(target=loans, key=arrays, private=st.booleans(), part=st.sampled_from([(0, 1), (1, 2), (0, 2)]))
    def lend(self, key, private, part):
        region = self.alive.get(key)
        if region is None:
            return None
        begin, end = (edge * PAGE // 2 for edge in part)
        block = self.blocks.find(self.core.address_of(region), 1)[0]
        overlapping = [
            loan for loan in self.lent.values()
            if loan.block is block and loan.offset < end and begin < loan.offset + loan.nbytes
        ]  # fmt: skip
        loan = self.blocks.lend(memoryview(region)[begin:end], end - begin, private=private)
        assert (loan is not None) == all(private and other.private for other in overlapping)
        if loan is None:
            return None
        self.count += 1
        self.lent[self.count] = loan
        return self.count

    @rule(key=consumes(loans))
    def give_back(self, key):
        if key in self.lent:
            self.blocks.give_back(self.lent.pop(key))

    @invariant()
    def sorted_and_whole(self):
        found = self.blocks._blocks
        assert [b.address for b in found] == sorted(b.address for b in found)
        assert self.blocks.nbytes == sum(b.size for b in found)

    def teardown(self):
        self.alive.clear()
        self.blocks.close()


class NativeModel(Model):
    core = core_module("native")


Model.TestCase.settings = NativeModel.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None
)
TestTwin = Model.TestCase
TestNative = NativeModel.TestCase
