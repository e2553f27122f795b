"""`Order`: every row at one position, for ever the same, and well shuffled."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given, strategies as st

from transfer.spool.format.order import KEPT_WINDOWS, Order, Piece, by_frame, permutation

FRAMES = st.lists(st.integers(0, 40), max_size=12)
SEEDS = st.one_of(st.none(), st.integers(0, 2**63 - 1))
#: from one row in a block to all of a frame
ROW_BYTES = st.sampled_from([0, 4096, 8192, 20_000, 65_536, 1 << 20])


def placed(order, begin=0, end=1 << 60):
    """(frame, row) at each position."""
    frames, rows = order.gather(begin, end)
    return list(zip(frames.tolist(), rows.tolist(), strict=True))


def all_rows(frame_rows):
    return [(frame, row) for frame, rows in enumerate(frame_rows) for row in range(rows)]


@given(FRAMES, SEEDS, st.integers(0, 5), ROW_BYTES)
def test_every_row_stands_at_one_position(frame_rows, seed, epoch, row_bytes):
    order = Order(frame_rows, seed, epoch, row_bytes=row_bytes)
    assert order.rows == sum(frame_rows)
    assert sorted(placed(order)) == all_rows(frame_rows)
    if seed is None:
        assert placed(order) == all_rows(frame_rows)


@given(FRAMES, SEEDS, ROW_BYTES, st.lists(st.tuples(st.integers(-5, 500), st.integers(0, 60)), max_size=6))
def test_any_range_is_what_the_whole_has_there(frame_rows, seed, row_bytes, spans):
    whole = placed(Order(frame_rows, seed, 1, row_bytes=row_bytes))
    order = Order(frame_rows, seed, 1, row_bytes=row_bytes)
    ranges = [(begin, begin + length) for begin, length in spans]
    expected = []
    for begin, end in ranges:
        part = whole[max(0, begin) : max(0, end)]
        assert placed(order, begin, end) == part
        expected += part
    result = [None] * len(expected)
    frames = []
    parts = [order.gather(begin, end) for begin, end in ranges]
    joined = [np.concatenate([part[side] for part in parts]) for side in (0, 1)] if parts else None
    for group in by_frame(*joined) if joined else ():
        frames.append(group.frame)
        assert (np.diff(group.places) > 0).all() and len(group.rows) == len(group.places) > 0
        for place, row in zip(group.places.tolist(), group.rows.tolist(), strict=True):
            assert result[place] is None
            result[place] = (group.frame, row)
    assert result == expected
    assert frames == sorted(set(frames))


@given(FRAMES, st.integers(-3, 500), st.integers(0, 500))
def test_pieces_are_the_same_rows_as_ranges_of_frames(frame_rows, begin, length):
    order = Order(frame_rows, None, 0, row_bytes=8)
    pieces = order.pieces(begin, begin + length)
    assert all(piece.start < piece.stop for piece in pieces)
    assert len({piece.frame for piece in pieces}) == len(pieces)
    rows = [(piece.frame, row) for piece in pieces for row in range(piece.start, piece.stop)]
    assert rows == all_rows(frame_rows)[max(0, begin) : max(0, begin + length)]


def test_pieces_step_over_empty_frames():
    order = Order([0, 3, 0, 0, 2, 0], None, 0, row_bytes=8)
    assert order.pieces(1, 9) == [Piece(1, 1, 3), Piece(4, 0, 2, 2)]
    assert order.pieces(5, 9) == []
    assert Order([], None, 0, row_bytes=8).pieces(0, 1) == []


def test_windows_that_were_forgotten_are_made_again():
    # One row a block: 256 rows a window.
    order = Order([3000], 3, 0, row_bytes=1 << 20)
    whole = placed(order)
    for begin in (0, 2900, 300, 1024, 2000, 0, 600):
        assert placed(order, begin, begin + 100) == whole[begin : begin + 100]
        assert len(order._windows) <= KEPT_WINDOWS


@given(st.integers(0, 2**64 - 1), st.integers(0, 300))
def test_a_permutation_has_each_number_once(key, count):
    numbers = permutation(key, count)
    assert numbers.dtype == np.int64 and sorted(numbers.tolist()) == list(range(count))


def test_epochs_and_seeds_differ():
    def order(seed, epoch):
        return placed(Order([500, 500], seed, epoch, row_bytes=1000))

    assert order(7, 0) == order(7, 0)
    different = [order(seed, epoch) for seed in (0, 7, 8, 2**62) for epoch in range(4)]
    for number, one in enumerate(different):
        for other in different[number + 1 :]:
            # As many rows in the same place as chance has it: one on the average.
            assert sum(a == b for a, b in zip(one, other, strict=True)) < 12


# --- golden: these never change, or checkpoints of earlier releases go on with other rows -----------------


@pytest.mark.parametrize(
    ("key", "numbers"),
    [
        (0, [2, 4, 6, 8, 5, 1, 7, 0, 9, 3]),
        (12345, [2, 6, 0, 3, 10, 1, 5, 11, 15, 7, 8, 4, 12, 16, 9, 13, 14]),
    ],
)
def test_golden_permutations(key, numbers):
    assert permutation(key, len(numbers)).tolist() == numbers


@pytest.mark.parametrize(
    ("seed", "epoch", "rows"),
    [
        (1, 0, [34, 30, 31, 1, 4, 35, 3, 21, 22, 33, 32, 0, 20, 2, 36]),
        (1, 1, [0, 20, 35, 31, 22, 3, 21, 36, 33, 1, 30, 4, 32, 34, 2]),
        (2, 0, [33, 2, 4, 3, 20, 35, 0, 1, 32, 30, 22, 34, 21, 36, 31]),
    ],
)
def test_golden_orders(seed, epoch, rows):
    order = Order([5, 0, 3, 7], seed, epoch, row_bytes=20_000)
    assert [10 * frame + row for frame, row in placed(order)] == rows


@pytest.mark.parametrize(
    ("frame_rows", "seed", "epoch", "row_bytes", "sum_of_all"),
    [
        ([100_000] * 7 + [1, 0, 12_345], 7, 3, 100, 692_099_242),
        ([9] * 2000, 2**62, 0, 3_000_000, 2_486_041_805),
        ([300_000], 0, 0, 1, 3_351_767_579),
    ],
    ids=["many windows", "one row a block", "small rows"],
)
def test_golden_sums_of_larger_orders(frame_rows, seed, epoch, row_bytes, sum_of_all):
    order = Order(frame_rows, seed, epoch, row_bytes=row_bytes)
    assert zlib.crc32(np.stack(order.gather(0, order.rows)).astype("<i8").tobytes()) == sum_of_all


def test_keys_are_those_of_splitmix64():
    """Its first outputs for the seed 0, as published: the permutation is their order."""
    outputs = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]
    assert permutation(0, 4).tolist() == sorted(range(4), key=outputs.__getitem__)


# --- how well it is shuffled: 1,000 frames, 655 rows a block ----------------------------------------------


@pytest.fixture(scope="module")
def shuffled():
    """For each position of a run of 2,000,000 rows of 100 bytes the number that row has in visible order."""
    order = Order([2000] * 1000, 11, 0, row_bytes=100)
    frames, rows = order.gather(0, order.rows)
    return frames * 2000 + rows


def test_rows_go_anywhere(shuffled):
    # Two random places are a third of the length apart on the average.
    moved = np.abs(shuffled - np.arange(len(shuffled))).mean() / len(shuffled)
    assert 0.30 < moved < 0.37
    assert abs(np.corrcoef(shuffled, np.arange(len(shuffled)))[0, 1]) < 0.05


def test_a_batch_has_rows_of_many_blocks_from_all_of_the_run(shuffled):
    batches = shuffled[: len(shuffled) // 256 * 256].reshape(-1, 256)
    # 256 draws from 256 blocks hit 256 * (1 - 1/e) = 162 of them; here a frame has three and a short one.
    block = batches // 2000 * 4 + batches % 2000 // 655
    counts = np.array([len(np.unique(batch)) for batch in block])
    assert counts.min() > 100 and 130 < counts.mean() < 165
    # The mean of each batch is near that of the run: no part of it prevails.
    assert np.abs(batches.mean(axis=1) / len(shuffled) - 0.5).max() < 0.12


def test_neighbours_do_not_stay_together(shuffled):
    assert np.mean(np.abs(np.diff(shuffled)) == 1) < 1e-4
    place = np.empty_like(shuffled)
    place[shuffled] = np.arange(len(shuffled))
    apart = np.abs(np.diff(place))
    # In a window of about 125,000 rows two places are 42,000 apart on the average.
    assert 30_000 < np.median(apart) < 60_000


def test_a_run_of_one_window_is_shuffled_wholly():
    """What stands first is any row, equally often: chi-square over 2,000 seeds, 16 rows."""
    counts = np.zeros(16)
    for seed in range(2000):
        frame, row = placed(Order([10, 6], seed, 0, row_bytes=30_000), 0, 1)[0]
        counts[frame * 10 + row] += 1
    assert ((counts - 125) ** 2 / 125).sum() < 37.7  # one in a thousand, for 15 degrees of freedom
