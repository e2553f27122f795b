"""Inputs that ended a stream in each known way, kept; and fresh ones, the same on both cores."""

from __future__ import annotations

import gc
import importlib
from pathlib import Path

import pytest

from tests.core import fuzz

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.bin"))


@pytest.fixture
def bench(core):
    made = fuzz.Bench(core)
    yield made
    made.close()
    gc.collect()
    assert made.pool.in_use == 0


def test_there_is_a_corpus():
    assert len({path.name.split("-")[0] for path in CORPUS}) >= 10


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_kept_inputs(bench, path):
    expected = path.stem.split("-")[0]
    data = path.read_bytes()
    outcomes = [bench.run(data, piece) for piece in (1 << 16, 100, 7)]
    assert [end for _, end in outcomes] == [expected] * 3
    assert all(messages == outcomes[0][0] for messages, _ in outcomes)


@pytest.mark.parametrize("first", range(0, 600, 100))
def test_fresh_inputs_end_in_an_error_of_ours(bench, first):
    for seed in range(first, first + 100):
        bench.run(fuzz.case(seed)[0])


def test_both_cores_see_the_same():
    try:
        native = fuzz.Bench(importlib.import_module("transports.native"))
    except (ImportError, AttributeError) as error:
        pytest.skip(f"the native core is not built: {error}")
    twin = fuzz.Bench(importlib.import_module("transports.twin"))
    for seed in range(1000, 1500):
        data, _ = fuzz.case(seed)
        one, other = twin.run(data), native.run(data, 100)
        assert one[0] == other[0], f"seed {seed}"
        assert (one[1] == "end") == (other[1] == "end"), f"seed {seed}"
    twin.close()
    native.close()
