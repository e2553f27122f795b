from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st

from transfer.torch.slicer import Slicer


def frame(start: int, rows: int):
    ids = torch.arange(start, start + rows)
    return {"id": ids, "x": torch.stack([ids, -ids], dim=1).float()}


@given(st.lists(st.integers(1, 50), max_size=20), st.integers(1, 40))
def test_rows_come_out_once_in_order_and_in_full_batches(lengths, size):
    slicer = Slicer(size)
    out, start = [], 0
    for rows in lengths:
        slicer.push(frame(start, rows))
        start += rows
        while (batch := slicer.take()) is not None:
            assert len(batch["id"]) == len(batch["x"]) == size
            out.append(batch)
        assert slicer.held < size
    rest = slicer.rest()
    if rest is not None:
        assert 0 < len(rest["id"]) < size
        out.append(rest)
    ids = torch.cat([b["id"] for b in out]) if out else torch.arange(0)
    assert torch.equal(ids, torch.arange(start))
    for batch in out:
        assert torch.equal(batch["x"][:, 1], -batch["id"].float())
    assert slicer.rest() is None and slicer.take() is None


def test_a_batch_inside_a_frame_is_no_copy():
    slicer, source = Slicer(4), frame(0, 10)
    slicer.push(source)
    first, second = slicer.take(), slicer.take()
    assert first["x"].data_ptr() == source["x"].data_ptr()
    assert second["id"].data_ptr() == source["id"][4:].data_ptr()


def test_clear_forgets_everything():
    slicer = Slicer(2)
    slicer.push(frame(0, 5))
    slicer.take()
    slicer.clear()
    assert slicer.held == 0 and slicer.take() is None
    slicer.push(frame(7, 2))
    assert slicer.take()["id"].tolist() == [7, 8]


@pytest.mark.parametrize("size", [1, 3])
def test_frames_of_one_row(size):
    slicer = Slicer(size)
    for start in range(6):
        slicer.push(frame(start, 1))
    batches = []
    while (batch := slicer.take()) is not None:
        batches += batch["id"].tolist()
    assert batches == list(range(6))
