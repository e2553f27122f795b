"""Which segments may go."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, strategies as st

from transfer.log.retention import NANOSECONDS, Retention, removable


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
