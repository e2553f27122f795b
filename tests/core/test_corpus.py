"""Inputs that ended a stream in each known way, kept; and fresh ones, the same on both cores."""

from __future__ import annotations

import gc
import importlib
import random
from pathlib import Path

import pytest

from tests.core import fuzz
from tests.core.raw_frames import CONTROL, MORE, TOPIC, decode

#: the words that a stream may end with
KNOWN_ENDS = {"end", *(path.name.split("-")[0] for path in (Path(__file__).parent / "corpus").glob("*.bin"))}
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
    ends: dict[str, int] = {}
    for seed in range(first, first + 100):
        messages, end = bench.run(fuzz.case(seed)[0])
        ends[end] = ends.get(end, 0) + 1
        # Nothing is made of bytes that did not come: what was decoded was in the case.
        assert sum(len(frame[-1]) for message in messages for frame in message) <= len(fuzz.case(seed)[0])
    # Whole cases end well, and damaged ones in each of the common ways.
    assert set(ends) <= KNOWN_ENDS
    assert ends["end"] >= 10
    assert {"magic", "truncated"} < set(ends)


def test_undamaged_inputs_are_decoded_whole(bench):
    """The other half: a core that refuses everything would pass what is above."""
    for seed in range(100):
        rng = random.Random(seed)
        frames = [fuzz.frame(rng) for _ in range(5)]
        sent = decode(b"".join(frames))
        messages, end = bench.run(b"".join(frames), 1000)
        arrived = [(flags, topic, data) for message in messages for flags, _, topic, _, data in message]
        # Control frames travel between the parts of a message, and overtake those that wait for the last.
        for control in (True, False):
            expected = [raw for raw in sent if bool(raw.flags & CONTROL) == control]
            while expected and expected[-1].flags & MORE:  # its last part never came
                expected.pop()
            assert [one for one in arrived if bool(one[0] & CONTROL) == control] == [
                (raw.flags, raw.topic if raw.flags & TOPIC else None, raw.data) for raw in expected
            ]
        assert end in ("end", "truncated")


def test_both_cores_see_the_same():
    try:
        native = fuzz.Bench(importlib.import_module("transfer.transports.core.native"))
    except (ImportError, AttributeError) as error:
        pytest.skip(f"the native core is not built: {error}")
    twin = fuzz.Bench(importlib.import_module("transfer.transports.core.pure"))
    for seed in range(1000, 1500):
        data, _ = fuzz.case(seed)
        one, other = twin.run(data), native.run(data, 100)
        assert one[0] == other[0], f"seed {seed}"
        assert (one[1] == "end") == (other[1] == "end"), f"seed {seed}"
    twin.close()
    native.close()
