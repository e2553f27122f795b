"""Tensor headers by seed: a short run of the fuzzer. Bad ones by name are in test_header and test_bundle."""

from __future__ import annotations

import struct
import tracemalloc

import pytest

pytest.importorskip("torch", reason="pip install torch")  # the headers of test_bundle are among the fuzzer's

from tests.tensors import fuzz_header

#: what the fuzzer found, with what becomes of it now
KEPT = {
    "a sub-array as the whole dtype, and axes in another order": (
        bytes.fromhex("3f000000 01 00 04 02 01 00 0000 08000000")
        + struct.pack("<4q", 33, 0, 3, 2)
        + bytes([1, 2, 0, 3])
        + b'["<f4",[2]]',
        {"tensor": "good", "bundle": "tensor", "array": "dtype"},
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept_headers(name: str) -> None:
    header, expected = KEPT[name]
    assert fuzz_header.judge(header) == expected


@pytest.mark.parametrize("first", range(0, 3000, 500))
def test_fresh_headers(first: int) -> None:
    results = [fuzz_header.judge(fuzz_header.case(seed)) for seed in range(first, first + 500)]
    seen = {(part, word) for result in results for part, word in result.items()}
    assert {("tensor", "good"), ("tensor", "shape"), ("bundle", "good"), ("array", "built")} <= seen


def test_reading_takes_little_memory() -> None:
    tracemalloc.start()
    try:
        for seed in range(3000, 3200):
            fuzz_header.judge(fuzz_header.case(seed))
    finally:
        tracemalloc.stop()
