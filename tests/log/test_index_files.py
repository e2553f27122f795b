"""The index files beside sealed segments: a start with them finds what one without them does."""

from __future__ import annotations

import shutil
import struct
import tempfile
from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from transfer.log import Log, Retention, recovery
from transfer.log.contents import Contents, decode_index, encode, follow, read_headers
from transfer.log.index import LogTopic, OffsetRun, Use
from transfer.log.record import RecordFlag, RecordKind, encode as parts_of
from transfer.log.segment_files import BLOBS, INDEX, REMOVED, SUFFIX
from transfer.transports.errors import LogDamaged

SMALL = 4096
NUMBERS = st.integers(0, (1 << 32) - 1)
WORDS = st.integers(0, (1 << 64) - 1)


def record_of(*said):
    return b"".join(parts_of(*said))


@pytest.fixture
def read(monkeypatch):
    """The first sequences of the segments whose headers are read when a log is opened."""
    firsts = []
    real = recovery.read_headers

    def noted(memory, first, **more):
        firsts.append(first)
        return real(memory, first, **more)

    monkeypatch.setattr(recovery, "read_headers", noted)
    return firsts


def fill(log: Log, count: int = 300) -> None:
    log.acknowledge("a", "g", 0)
    for number in range(count):
        blob = b"%d;" % number * 50 if number % 7 == 0 else None
        log.append("ab"[number % 2], b"%d" % number * 20, blob=blob)
        if number % 50 == 25:
            log.discard("b", 0, number // 4)
            log.put(b"at", b"%d" % number)
        if number == 200:
            log.append("gone", b"", blob=b"x" * 10_000)
            log.drop("gone")
    log.commit()


def all_of(log: Log) -> object:
    """All that a log says."""
    messages = {
        topic: [
            (one.offset, one.time, bytes(one.body), one.blob and bytes(one.blob), one.discarded)
            for at in range(*log.range(topic))
            for one in log.read(topic, at, limit=1)
        ]
        for topic in log.topics
    }
    ranges = {topic: log.range(topic) for topic in log.topics}
    groups = {topic: log.groups(topic) for topic in log.topics}
    there = log._topics.numbered  # nobody wants anything of a topic that was dropped: it may be told or not
    facts = [
        (
            one.first,
            one.end,
            one.newest,
            {number: end for number, end in one.ends.items() if number in there},
            one.blob_end,
            one.uses,
        )
        for one in log._journal.segments
    ]
    return messages, ranges, groups, dict(log.state), facts


runs = st.builds(
    lambda topic, first, positions: OffsetRun(topic, 7, first, array("I", positions)),
    NUMBERS, WORDS, st.lists(NUMBERS, min_size=1, max_size=20),
)  # fmt: skip


@given(
    st.lists(runs, max_size=5),
    st.dictionaries(st.tuples(WORDS, NUMBERS), st.builds(Use, WORDS, WORDS, WORDS), max_size=5),
    st.lists(WORDS, min_size=4, max_size=4), NUMBERS, st.data(),
)  # fmt: skip
def test_an_index_says_what_was_written_or_nothing(runs, uses, words, carried, data):
    contents = Contents(7, *words, carried, runs, uses)
    whole = encode(contents)
    found = decode_index(memoryview(whole))
    told = lambda one: [(run.topic, run.segment, run.first, list(run.positions)) for run in one.runs]  # noqa: E731
    assert told(found) == told(contents)
    assert (found.first, found.following, found.end, found.last, found.newest) == (7, *words)
    assert found.uses == uses and found.carried == carried
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = bytearray(whole)
    changed[at] ^= data.draw(st.integers(1, 255))
    assert decode_index(memoryview(changed)) is None
    assert decode_index(memoryview(whole)[:at]) is None


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 40), st.integers(1, 20)), max_size=12))
def test_of_an_offset_that_several_runs_have_the_last_one_counts(said):
    places: dict[int, dict[int, tuple[int, int]]] = {1: {}, 2: {}, 3: {}}
    runs: dict[int, list[OffsetRun]] = {1: [], 2: [], 3: []}
    for segment, (number, first, count) in enumerate(said):
        runs[number].append(OffsetRun(number, segment, first, array("I", range(count))))
        places[number].update({first + at: (segment, at) for at in range(count)})
    for number, where in places.items():
        topic = LogTopic("t", number)
        topic.place(runs[number])
        end = max(where, default=-1) + 1
        begin = end
        while begin - 1 in where:
            begin -= 1
        assert (topic.begin, topic.end) == (begin, end)
        for offset in range(begin, end):
            assert topic.find(offset) == where[offset]
        middle = (begin + end) // 2
        parts = [(run.segment, at) for run in topic.parts(middle, end) for at in run.positions]
        assert parts == [where[offset] for offset in range(middle, end)]


def test_a_start_reads_the_last_segment_only(tmp_path, read):
    with Log(tmp_path, segment_bytes=SMALL) as log:
        fill(log)
        said, last = all_of(log), log._journal.segments[-1].first
    for _ in range(2):
        with Log(tmp_path, segment_bytes=SMALL) as log:
            assert read == [last] and all_of(log) == said and log.verify().whole
        read.clear()


@pytest.mark.parametrize("how", ["missing", "empty", "changed", "another's"])
def test_an_index_that_is_no_use_is_made_again(tmp_path, read, how):
    with Log(tmp_path, segment_bytes=SMALL) as log:
        fill(log)
        said, firsts = all_of(log), [segment.first for segment in log._journal.segments]
    paths = sorted(tmp_path.glob(f"*{INDEX}"))
    contents = [path.read_bytes() for path in paths]
    assert len(paths) == len(firsts) > 5
    for path, content, other in zip(paths, contents, contents[1:] + contents[:1], strict=True):
        if how == "missing":
            path.unlink()
        else:
            damaged = content[:50] + bytes([content[50] ^ 1]) + content[51:]
            path.write_bytes({"empty": b"", "changed": damaged, "another's": other}[how])
    with Log(tmp_path, segment_bytes=SMALL) as log:
        assert read == firsts and all_of(log) == said
    assert [path.read_bytes() for path in sorted(tmp_path.glob(f"*{INDEX}"))] == contents
    read.clear()
    with Log(tmp_path, segment_bytes=SMALL) as log:
        assert read == firsts[-1:] and all_of(log) == said


def test_an_index_of_a_segment_that_is_another_now_is_no_use(tmp_path, read):
    """As a copy that was restored in part would have it: the last record is not the one it names."""
    for name in ("one", "three"):
        with Log(tmp_path / name, segment_bytes=SMALL) as log:
            for number in range(100):
                log.append("t", b"%s %d" % (name.encode(), number))
            log.commit()
    for path in (tmp_path / "one").glob(f"*{INDEX}"):
        if (tmp_path / "three" / path.name).exists():
            shutil.copy(path, tmp_path / "three" / path.name)
    with Log(tmp_path / "three", segment_bytes=SMALL) as log:
        assert len(read) > 1
        assert [bytes(one.body) for one in log.read("t", 0)] == [
            b"three %d" % number for number in range(100)
        ]


def test_the_index_of_an_earlier_clean_end_is_not_that_of_the_sealed_segment(tmp_path):
    """It is there until the new one's name is on the disk, and says less: the segment was cut off by it."""
    with Log(tmp_path, segment_bytes=SMALL) as log:
        log.append("a", b"before")
    (index,) = tmp_path.glob(f"*{INDEX}")
    earlier = index.read_bytes()
    with Log(tmp_path, segment_bytes=SMALL) as log:
        for number in range(100):
            log.append("a", b"%d" % number * 40)
    assert index.read_bytes() != earlier
    for repair in (False, True):
        index.write_bytes(earlier)  # as a crash behind the next segment's beginning leaves it
        with Log(tmp_path, segment_bytes=SMALL, repair=repair) as log:
            assert len(log.read("a", 0)) == 101 and log.verify().whole


def test_without_room_for_an_index_all_goes_on(tmp_path, monkeypatch):
    def full(folder, contents):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("transfer.log.journal.store", full)
        with Log(tmp_path, segment_bytes=SMALL) as log:
            fill(log)
            said = all_of(log)
    assert not list(tmp_path.glob(f"*{INDEX}"))
    with Log(tmp_path, segment_bytes=SMALL) as log:
        assert all_of(log) == said


def test_a_record_that_was_there_when_the_log_was_closed_is_missed(tmp_path):
    with Log(tmp_path, segment_bytes=1 << 20) as log:
        for number in range(10):
            log.append("t", b"%d" % number * 10)
    (path,) = tmp_path.glob(f"*{SUFFIX}")
    content = path.read_bytes()
    at = content.index(b"9" * 10)
    path.write_bytes(content[: at - 20] + bytes(len(content) - at + 20))
    with pytest.raises(LogDamaged, match="though synced"):
        Log(tmp_path, segment_bytes=1 << 20)
    with Log(tmp_path, segment_bytes=1 << 20, repair=True) as log:
        assert log.cut and log.range("t") == (0, 9)
        log.append("t", b"goes on")
    with Log(tmp_path, segment_bytes=1 << 20) as log:
        assert bytes(log.read("t", 9)[0].body) == b"goes on"


def test_a_start_does_not_read_blobs_that_were_synced(tmp_path):
    """Nor does it miss that they are damaged, when they are read."""
    with Log(tmp_path, segment_bytes=1 << 20) as log:
        log.commit(log.append("t", b"one", blob=bytes(100_000))[0])
        log.append("t", b"two", blob=bytes(100_000))
    (path,) = tmp_path.glob(f"*{BLOBS}")
    content = bytearray(path.read_bytes())
    content[5000] = content[150_000] = 1
    path.write_bytes(content)
    with Log(tmp_path, segment_bytes=1 << 20) as log:
        assert log.cut == 0 and log.range("t") == (0, 2)
        for offset in (0, 1):
            with pytest.raises(LogDamaged):
                log.read("t", offset, limit=1)
        verified = log.verify()
        assert not verified.whole and len(verified.damages) == 2 and verified.blobs == 2


def test_what_is_left_of_a_segment_that_is_being_removed_goes(tmp_path):
    with Log(tmp_path, segment_bytes=SMALL, retention=Retention(acknowledged=True)) as log:
        for number in range(100):
            log.append("t", b"%d" % number * 40, blob=b"two")
        log.commit()
    first, second = sorted(path.stem for path in tmp_path.glob(f"*{SUFFIX}"))[:2]
    (tmp_path / (first + SUFFIX)).rename(tmp_path / (first + REMOVED))
    (tmp_path / f"{second}{INDEX}.new").touch()
    (tmp_path / f"notes{BLOBS}").touch()
    with Log(tmp_path, segment_bytes=SMALL) as log:
        assert log.range("t")[0] > 0 and not log.damage
        assert log.read("t", log.range("t")[1] - 1)[0].blob == b"two"
    names = {path.name for path in tmp_path.iterdir()}
    assert not any(name.startswith(first) or name.endswith(".new") for name in names)
    assert f"notes{BLOBS}" in names and "quarantine" not in names


def test_segments_that_go_take_their_index_along(tmp_path):
    with Log(tmp_path, segment_bytes=SMALL, retention=Retention(acknowledged=True)) as log:
        fill(log)
        assert len(list(tmp_path.glob(f"*{INDEX}"))) > 5
        log.drop("b")
        log.acknowledge("a", "g", log.range("a")[1])
        log.commit()
        assert log.collect() > 5
        assert not list(tmp_path.glob(f"*{INDEX}"))


@pytest.mark.parametrize("index", [True, False])
def test_verify_finds_each_byte_that_is_changed(tmp_path, index):
    with Log(tmp_path, segment_bytes=SMALL) as log:
        fill(log)
        told = []
        first = log.verify(told.append)
        assert len(told) > 5 and told == sorted(told) and told[-1] == first.nbytes
        assert first.whole and first.records > 300 and first.blobs > 10
    path = sorted(tmp_path.glob(f"*{SUFFIX}"))[1]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1  # in a body: all of a sealed segment's records are more body than head
    path.write_bytes(content)
    if not index:
        for one in tmp_path.glob(f"*{INDEX}"):
            one.unlink()
    with Log(tmp_path, segment_bytes=SMALL) as log:
        verified = log.verify()
        assert len(verified.damages) == 1 and path.name in verified.damages[0]
        with pytest.raises(LogDamaged):
            all_of(log)


def test_a_log_can_be_verified_while_others_append(tmp_path):
    with Log(tmp_path, segment_bytes=SMALL, retention=Retention(acknowledged=True)) as log:
        fill(log)
        log.append("a", b"not written yet")
        assert log.verify().whole
        view = log._journal.segments[0]
        log.drop("a"), log.drop("b")
        log.commit()
        log.collect()
        assert view.removed and log.verify().whole


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 300), st.booleans()), max_size=120), st.data()
)
def test_with_and_without_any_of_the_index_files_the_same_is_found(messages, data):
    folder = Path(tempfile.mkdtemp(prefix="log"))
    try:
        with Log(folder, segment_bytes=SMALL) as log:
            for topic, size, blob in messages:
                log.append(topic, bytes(size), blob=bytes(size * 10) if blob else None)
                if size % 40 == 0:
                    log.discard(topic, 0, log.range(topic)[1] // 2)
                if size == 299:
                    log.drop(topic)
            log.commit()
            said = all_of(log)
        for path in folder.glob(f"*{INDEX}"):
            if data.draw(st.booleans()):
                path.unlink()
        with Log(folder, segment_bytes=SMALL) as log:
            assert all_of(log) == said
    finally:
        shutil.rmtree(folder)


def test_headers_of_carried_messages_and_what_does_not_follow():
    records = [
        record_of(RecordKind.MESSAGE, 0, 1, 5, 10, 70, 0, b"own"),
        record_of(RecordKind.MESSAGE, RecordFlag.CARRIED, 1, 6, 3, 50, 0, b"carried"),
        record_of(RecordKind.MESSAGE, RecordFlag.CARRIED, 1, 7, 4, 60, 0, b"carried"),
        record_of(RecordKind.MESSAGE, 0, 1, 8, 11, 80, 0, b"own"),
    ]
    memory = memoryview(b"".join(records) + bytes(100))
    found = read_headers(memory, 5)
    assert [(run.first, len(run.positions)) for run in found.runs] == [(10, 1), (3, 2), (11, 1)]
    assert (found.following, found.carried, found.newest) == (9, 2, 80)
    assert found.end == sum(map(len, records)) and struct.unpack_from("<Q", memory, found.last + 16) == (8,)
    assert read_headers(memory, 5, until=7).following == 7
    runs, missing = follow([found, Contents(10)])
    assert len(runs[1]) == 3 and ["records 9 to 9 are missing" in one.text for one in missing] == [True]
