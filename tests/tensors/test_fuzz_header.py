"""Tensor headers by seed: a short run of the fuzzer. Bad ones by name are in test_header and test_bundle."""

from __future__ import annotations

import tracemalloc

import pytest

from tests.tensors import fuzz_header


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
