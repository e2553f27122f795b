"""Blocks of slabs: sizes, reuse, what waits until its last use is done, what is dropped."""

from __future__ import annotations

import time
import weakref

import pytest
from hypothesis import given, strategies as st

from transfer.transports.errors import Closed
from transfer.transports.slab_pool import SLAB, SlabPool


class Slab:
    def __init__(self, made, size):
        self.memory = self.region = None
        self.size, self.address = size, 1 << 40 | len(made) << 32
        self.closed = 0
        made.append(self)

    def close(self):
        self.closed += 1


def pool(**more):
    """As on a GPU: a block is returned with a list, and its use is done when that has something."""
    made = []
    return SlabPool(lambda size: Slab(made, size), begin_wait=lambda used: lambda: bool(used), **more), made


def test_a_block_waits_for_its_last_use():
    blocks, made = pool()
    first = blocks.take(SLAB)
    done = []
    blocks.returning(first)(done)
    second = blocks.take(SLAB)
    assert second.slab is not first.slab and blocks.in_use == 2 * SLAB
    done.append(True)
    assert blocks.take(SLAB) is first and first.is_done is None and len(made) == 2


def test_a_refused_slab_leaves_the_pool_as_it_was():
    blocks, _ = pool()
    made, blocks._make = blocks._make, None
    with pytest.raises(TypeError):
        blocks.take(100)
    blocks._make = made
    assert blocks.in_use == blocks.registered == 0
    assert blocks.take(100).nbytes == 100


def test_free_slabs_beyond_the_limit_are_closed():
    blocks, made = pool(kept=3 * SLAB)
    for block in [blocks.take(2 * SLAB), blocks.take(2 * SLAB)]:
        blocks.give_back(block)
    blocks.take(4 * SLAB)
    assert [slab.closed for slab in made] == [1, 1, 0] and blocks.registered == made[2].size


def test_what_was_free_for_a_while_is_closed():
    blocks, made = pool()
    used, free, small = blocks.take(2 * SLAB), blocks.take(SLAB), blocks.take(10)
    blocks.give_back(free)
    blocks.give_back(small)
    assert blocks.drop_free(before=0.0) and not any(slab.closed for slab in made)
    assert blocks.drop_free(before=time.monotonic())
    assert [slab.closed for slab in made] == [0, 1, 1], "all of a small block's slab was free"
    blocks.give_back(used)
    assert not blocks.drop_free(before=time.monotonic() + 1)
    assert blocks.registered == 0


def test_a_slab_stays_while_one_of_its_blocks_is_used():
    blocks, made = pool()
    taken = [blocks.take(SLAB // 4) for _ in range(9)]
    for block in taken[:7]:
        blocks.give_back(block)
    assert blocks.drop_free(before=time.monotonic() + 1)
    assert [slab.closed for slab in made] == [1, 0, 0]
    again = [blocks.take(SLAB // 4) for _ in range(6)]
    assert len(made) == 3 and len({(id(one.slab), one.offset) for one in again + taken[7:]}) == 8
    for block in again + taken[7:]:
        blocks.give_back(block)
    assert not blocks.drop_free(before=time.monotonic() + 1) and blocks.registered == blocks.in_use == 0


def test_the_end():
    blocks, made = pool()
    blocks.take(10), blocks.take(SLAB)
    blocks.close()
    blocks.close()
    assert [slab.closed for slab in made] == [1, 1]
    with pytest.raises(Closed):
        blocks.take(10)


def test_blocks_that_return_after_the_end_keep_nothing():
    blocks, made = pool()
    kept = [blocks.take(SLAB) for _ in range(3)]
    returns = [blocks.returning(block) for block in kept]
    slabs = [weakref.ref(block.slab) for block in kept]
    blocks.close()
    made.clear()
    del kept
    made_last = returns.pop()
    for one in returns:
        one([])
    del one, returns
    assert [slab() is None for slab in slabs] == [True, True, False]
    made_last()


@given(st.lists(st.tuples(st.integers(1, 3 * SLAB), st.booleans(), st.integers(0, 3)), max_size=40))
def test_no_two_blocks_in_use_overlap(steps):
    """In use: taken, or given back and not unused yet."""
    blocks, _ = pool()
    held, late = [], []
    for nbytes, at_once, index in steps:
        block = blocks.take(nbytes)
        begin, end = block.address, block.address + nbytes
        assert block.nbytes == nbytes and block.slab.address <= begin
        assert end <= block.slab.address + block.slab.size
        for one, other in [entry[:2] for entry in held + [gone for gone, _ in late]]:
            assert end <= one or other <= begin
        held.append((begin, end, block))
        if index >= len(held):
            continue
        gone = held.pop(index)
        if at_once:
            blocks.give_back(gone[2])
            continue
        done = []
        blocks.returning(gone[2])(done)
        late.append((gone, done))
        if len(late) > 3:
            late.pop(0)[1].append(True)
