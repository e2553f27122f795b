"""Which segments may go."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, strategies as st

from transfer.log import Log
from transfer.log.retention import (
    NANOSECONDS,
    SEGMENT_BYTES,
    SMALLEST_LOG,
    Retention,
    removable,
    segment_size,
)
from transfer.transports.errors import OptionError


@dataclass
class Facts:
    first: int
    disk_bytes: int = 100
    newest: int = 0
    ends: dict[int, int] = field(default_factory=dict)
    pins: int = 0


def go(segments, retention, *, now=0, done=None, wanted=0):
    return removable(segments, retention, now, (done or {}).get, wanted=wanted)


def some(count):
    return [Facts(number * 10) for number in range(count)]


def test_without_a_limit_nothing_goes():
    assert go(some(5), Retention(), now=10**18, done={1: 10**9}) == 0


def test_by_bytes():
    assert go(some(5), Retention(bytes=300)) == 2
    assert go(some(5), Retention(bytes=300), wanted=100) == 3
    assert go(some(5), Retention(bytes=0)) == 4  # the last one stays


def test_by_age():
    segments = some(4)
    for number, segment in enumerate(segments):
        segment.newest = number * NANOSECONDS
    assert go(segments, Retention(age=1.5), now=3 * NANOSECONDS) == 2


def test_by_acknowledgement():
    segments = some(4)
    for number, segment in enumerate(segments):
        segment.ends = {1: 10 * (number + 1)}
    assert go(segments, Retention(acknowledged=True), done={1: 25}) == 2
    assert go(segments, Retention(acknowledged=True)) == 0  # no group has read it
    segments[0].ends[2] = 5  # a topic without groups keeps it
    assert go(segments, Retention(acknowledged=True), done={1: 25}) == 0


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3)), min_size=1, max_size=8),
    st.dictionaries(st.integers(0, 3), st.integers(0, 50)),
    st.integers(0, 900),
)
def test_what_a_group_has_not_acknowledged_never_goes(ends, done, limit):
    segments = some(len(ends))
    for segment, (end, topic) in zip(segments, ends, strict=True):
        segment.ends = {topic: end}
    count = go(segments, Retention(bytes=limit, age=0, acknowledged=True), now=1 << 60, done=done)
    assert count < len(segments)
    for segment in segments[:count]:
        assert all(done.get(topic, end) >= end for topic, end in segment.ends.items())


def test_segments_with_blobs_that_are_being_written_stay():
    segments = some(5)
    segments[1].pins = 1
    assert go(segments, Retention(bytes=100)) == 1


def test_segments_follow_the_limit():
    assert segment_size(None) == segment_size(1 << 40) == SEGMENT_BYTES
    assert segment_size(160 << 20) == 10 << 20
    with pytest.raises(OptionError, match="too small") as refused:
        segment_size(SMALLEST_LOG - 1)
    assert str(SMALLEST_LOG) in str(refused.value)


@pytest.mark.parametrize("limit", [SMALLEST_LOG, 10_000_000])
@pytest.mark.parametrize("share", [2, 5, 50, 1000])
def test_a_small_log_takes_any_number_of_blobs(tmp_path, limit, share):
    """A blob may take half of the log; what nobody needs goes for it."""
    blob = bytes(limit // share)
    with Log(tmp_path, retention=Retention(bytes=limit)) as log:
        for _ in range(3 * share):
            log.append("t", blob=blob)
            with log.blob("u", 1 << 30, arriving=True) as arriving:
                arriving.write(blob[: len(blob) // 2])
                arriving.write(blob[: len(blob) // 2])
                arriving.commit()
            assert log.disk_bytes <= limit
        log.commit()
        assert bytes(log.read("u", 3 * share - 1)[0].blob) == blob[: len(blob) // 2] * 2


def test_a_log_with_a_large_segment_of_before_gets_a_small_limit(tmp_path):
    with Log(tmp_path) as log:
        log.append("t", b"old")
        assert log.disk_bytes >= SEGMENT_BYTES
    with Log(tmp_path, retention=Retention(bytes=SMALLEST_LOG)) as log:
        assert log.disk_bytes < SMALLEST_LOG
        assert bytes(log.read("t", 0)[0].body) == b"old"
        log.append("t", blob=bytes(SMALLEST_LOG // 2))
