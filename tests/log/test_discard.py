"""Blobs that are given back, topics that go: nothing of others, nothing under who reads, at any crash."""

from __future__ import annotations

import copy
import gc
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from transfer.log import Log, Retention, holes
from transfer.log.ranges import Ranges
from transfer.log.record import BLOB, RecordFlag, scan
from transfer.log.segment_files import BLOBS, SUFFIX
from transfer.transports.errors import UsageError

SMALL = 4096
TOPICS = ("a", "b")
LARGE = 1 << 20


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=12))
def test_ranges_are_a_set_of_offsets(pairs):
    ranges, said = Ranges(), set()
    for begin, end in pairs:
        missing = {one for low, high in ranges.missing(begin, end) for one in range(low, high)}
        assert missing == set(range(begin, end)) - said
        ranges = ranges.joined(begin, end)
        said |= set(range(begin, end))
        assert {one for one in range(31) if one in ranges} == said
        bounds = [bound for pair in ranges for bound in pair]
        assert bounds == sorted(set(bounds)) and len(ranges) * 2 == len(bounds)  # none touches another


class Model:
    """What a log holds. topics: of each its messages (body, blob, discarded), and its group's offset."""

    def __init__(self) -> None:
        self.topics: dict[str, tuple[list[tuple[bytes, bytes | None, bool]], list[int]]] = {}

    def topic(self, name):
        return self.topics.setdefault(name, ([], []))

    def is_like(self, log):
        """True if the log says the same; what the group has acknowledged may be gone."""
        for name in TOPICS:
            messages, group = self.topics.get(name, ([], []))
            begin, end = log.range(name)
            if end != len(messages) or list(log.groups(name).values()) != group:
                return False
            if begin > (group[0] if group else 0):
                return False
            at = begin
            while at < end:
                for one in log.read(name, at, limit=5):
                    body, blob, discarded = messages[at]
                    # Retention may let a blob go a little before the record.
                    discarded |= one.discarded and at < (group[0] if group else 0) and blob is not None
                    if (one.offset, bytes(one.body), one.discarded) != (at, body, discarded):
                        return False
                    if (one.blob and bytes(one.blob)) != (None if discarded else blob):
                        return False
                    at += 1
        return True


OPERATIONS = st.tuples(
    st.sampled_from(["append", "append", "append", "discard", "discard", "drop", "acknowledge"]),
    st.sampled_from(TOPICS),
    st.none() | st.sampled_from([0, 1, 100, 4096, 9000, 20_000]),
    st.integers(0, 300),
    st.integers(0, 300),
)


class Machine(RuleBasedStateMachine):
    """Appends, discards, drops, reads; crashes keep a prefix of it, and at least what was synced."""

    @initialize(fsync=st.sampled_from(["always", "never"]))
    def begin(self, fsync):
        self.options = {"fsync": fsync, "segment_bytes": SMALL, "retention": Retention(acknowledged=True)}
        self.folder = Path(tempfile.mkdtemp(prefix="log"))
        self.log = Log(self.folder, **self.options)
        self.model = Model()
        self.held = []
        self.count = 0

    def do(self, operation):
        what, name, size, one, other = operation
        messages, group = self.model.topics.get(name, ([], []))
        if what == "append":
            self.count += 1
            body = b"%d" % self.count * (1 + one // 10)
            blob = None if size is None else (b"%d;" % self.count * size)[:size]
            parts = blob if blob is None or other % 2 else [blob[:one], blob[one:]]
            assert self.log.append(name, body, blob=parts)[1] == len(messages)
            self.model.topic(name)[0].append((body, blob, False))
        elif what == "discard":
            begin, end = sorted((one % (len(messages) + 1), other % (len(messages) + 1)))
            self.log.discard(name, begin, end)
            for at in range(begin, end):
                body, blob, discarded = messages[at]
                messages[at] = (body, blob, discarded or blob is not None)
        elif what == "drop":
            assert (self.log.drop(name) is None) == (name not in self.model.topics)
            self.model.topics.pop(name, None)
        else:
            offset = max(one % (len(messages) + 1), *group, 0)
            self.log.acknowledge(name, "g", offset)
            self.model.topic(name)[1][:] = [offset]

    @rule(operation=OPERATIONS)
    def operate(self, operation):
        self.do(operation)

    @rule(collect=st.booleans())
    def commit(self, collect):
        self.log.commit()
        if collect:
            self.log.collect()
        assert self.model.is_like(self.log)
        assert sorted(self.log.topics) == sorted(self.model.topics)
        assert self.log.disk_bytes >= 0

    @rule(name=st.sampled_from(TOPICS))
    def hold(self, name):
        self.log.commit()
        for one in self.log.read(name, 0, limit=100):
            if one.blob is not None:
                self.held.append((one.blob, self.model.topics[name][0][one.offset][1]))

    @rule()
    def let_go(self):
        self.held.clear()

    @rule()
    def reopen(self):
        self.held.clear()
        self.log.close()
        self.log = Log(self.folder, **self.options)
        assert self.log.cut == 0 and self.model.is_like(self.log)

    @precondition(lambda self: self.options["fsync"] == "always")
    @rule(data=st.data(), more=st.lists(OPERATIONS, max_size=8))
    def crash(self, data, more):
        """The machine stops: of what was written behind the last sync anything may be missing."""
        self.log.commit()
        journal = self.log._journal
        states = [(journal.sequence, copy.deepcopy(self.model))]
        for operation in more:
            self.do(operation)
            states.append((journal.sequence, copy.deepcopy(self.model)))
        first, position = journal.kept_at
        synced = journal.synced
        with journal.lock:
            journal._flush(sync=False)
            segment = journal.segments[-1]
            assert segment.first == first
            records = [one for one in scan(segment.memory, first) if one.sequence >= synced]
            end = segment.end
        places = [BLOB.unpack_from(one.body) for one in records if one.flags & RecordFlag.HAS_BLOB]
        crashed = Path(tempfile.mkdtemp(prefix="log"))
        shutil.copytree(self.folder, crashed, dirs_exist_ok=True)
        for first_, begin, nbytes, _ in places:
            if nbytes and data.draw(st.booleans()):
                tear(crashed / f"{first_:020d}{BLOBS}", begin + nbytes // 3, max(1, nbytes // 2))
        if end > position and data.draw(st.booleans()):
            at = data.draw(st.integers(position, end - 1))
            tear(crashed / f"{first:020d}{SUFFIX}", at, min(end - at, data.draw(st.integers(1, 300))))
        self.held.clear()
        self.log.close()
        shutil.rmtree(self.folder)
        self.folder = crashed
        self.log = Log(self.folder, **self.options)
        least = max(at for at, (sequence, _) in enumerate(states) if sequence <= synced)
        found = [model for _, model in states[least:] if model.is_like(self.log)]
        assert found
        self.model = found[-1]
        for name in self.log.topics:
            self.model.topic(name)  # it may be there without the message that it was made for

    @invariant()
    def what_is_viewed_stays(self):
        if hasattr(self, "log"):
            assert all(view == blob for view, blob in self.held)

    def teardown(self):
        if hasattr(self, "log"):
            self.held.clear()
            self.log.close()
            shutil.rmtree(self.folder)


def tear(path: Path, begin: int, nbytes: int) -> None:
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(bytes(nbytes))


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_against_a_model = Machine.TestCase


def blocks(folder: Path) -> int:
    """Bytes that the files of blobs take on the disk."""
    return sum(path.stat().st_blocks * 512 for path in folder.glob(f"*{BLOBS}"))


@pytest.fixture
def punching(tmp_path):
    """Skips where the file system cannot make holes."""
    path = tmp_path / "hole"
    path.write_bytes(bytes(1 << 16))
    try:
        with path.open("r+b") as file:
            holes.punch(file.fileno(), 0, 1 << 16)
    except OSError as error:
        pytest.skip(f"holes in files: {error}")


def blob(number: int) -> bytes:
    return b"%07d;" % number * (LARGE // 8 + number % 3)


def fill(log: Log, topic: str = "t", count: int = 10) -> None:
    for number in range(count):
        log.append(topic, b"%d" % number, blob=blob(number))
    log.commit()


@pytest.mark.parametrize("fsync", ["always", "interval", "never"])
def test_the_room_of_what_is_discarded_is_given_back_in_the_middle_too(tmp_path, punching, fsync):
    with Log(tmp_path / "log", fsync=fsync, interval=0.01, segment_bytes=LARGE) as log:
        fill(log)
        full, told = blocks(log.folder), log.disk_bytes
        log.commit(log.discard("t", 3, 7))
        assert log.discard("t", 4, 6) is None
        assert full - blocks(log.folder) >= 4 * LARGE - (1 << 16)
        assert 4 * LARGE - (1 << 16) <= told - log.disk_bytes <= 4 * LARGE + 100
        for _ in range(2):
            messages = log.read("t", 0, nbytes=1 << 30)
            assert [bytes(one.body) for one in messages] == [b"%d" % number for number in range(10)]
            for number, one in enumerate(messages):
                assert one.discarded == (3 <= number < 7)
                assert one.blob == (None if one.discarded else blob(number))
            del messages, one
        given = log.disk_bytes
    with Log(tmp_path / "log", fsync=fsync) as log:
        # Not what was reserved. A file in many extents takes a block more on a disk with many writers.
        assert log.disk_bytes <= given + (1 << 16)
        assert [one.discarded for one in log.read("t", 0, nbytes=1 << 30)].count(True) == 4
        log.commit(log.drop("t"))
        assert blocks(log.folder) <= 1 << 16


def test_what_is_viewed_is_given_back_when_nobody_views_it(tmp_path, punching):
    with Log(tmp_path / "log", segment_bytes=LARGE) as log:
        fill(log)
        full = blocks(log.folder)
        view = memoryview(log.read("t", 4, limit=1)[0].blob)[100:]
        log.commit(log.discard("t", 0, 10))
        one_left = blocks(log.folder)
        assert LARGE <= one_left < full - 8 * LARGE
        log.collect()
        assert view == blob(4)[100:] and log.read("t", 4)[0].discarded
        del view
        gc.collect()
        log.collect()
        assert blocks(log.folder) < one_left - LARGE + (1 << 16)
        fill(log, "u", 3)
        assert log.read("u", 2)[0].blob == blob(2)


def test_where_the_file_system_cannot_it_is_remembered(tmp_path, monkeypatch):
    def cannot(fd, begin, nbytes):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(holes, "punch", cannot)
    for _ in range(2):
        with Log(tmp_path) as log:
            if not log.range("t")[1]:
                fill(log)
                log.commit(log.discard("t", 0, 5))
            assert [one.discarded for one in log.read("t", 0, nbytes=1 << 30)] == [True] * 5 + [False] * 5


def test_a_hole_waits_for_the_sync_of_what_tells_it_and_is_made_after_a_crash(tmp_path, punching):
    with Log(tmp_path / "log", segment_bytes=LARGE) as log:
        fill(log)
        full = blocks(log.folder)
        log.discard("t", 0, 5)
        log.collect()
        assert blocks(log.folder) == full
        with log._journal.lock:
            log._journal._flush(sync=True)  # and then the process is killed
        shutil.copytree(log.folder, tmp_path / "crashed")
    with Log(tmp_path / "crashed", segment_bytes=LARGE) as log:
        assert blocks(log.folder) <= 5 * LARGE + (1 << 16)
        assert [one.discarded for one in log.read("t", 0, nbytes=1 << 30)] == [True] * 5 + [False] * 5


def test_a_dropped_topics_blobs_are_given_back_after_a_crash(tmp_path, punching):
    with Log(tmp_path / "log", segment_bytes=LARGE) as log:
        fill(log)
        log.drop("t")
        with log._journal.lock:
            log._journal._flush(sync=True)  # and then the process is killed
        shutil.copytree(log.folder, tmp_path / "crashed")
    with Log(tmp_path / "crashed", segment_bytes=LARGE) as log:
        assert blocks(log.folder) <= 1 << 16 and log.topics == ()


@pytest.mark.parametrize("other", [False, True])
def test_a_torn_blob_counts_only_if_its_discard_does(tmp_path, other):
    with Log(tmp_path / "log") as log:
        log.commit(log.append("t", b"first")[0])
        log.append("t", b"torn", blob=b"a" * 10_000)
        log.append("t", b"torn or whole", blob=b"b" * 10_000)
        log.discard("t", 1, 2)
        with log._journal.lock:
            log._journal._flush(sync=False)
        shutil.copytree(log.folder, tmp_path / "crashed")
    (path,) = (tmp_path / "crashed").glob(f"*{BLOBS}")
    tear(path, 5000, 10_000 if other else 100)
    with Log(tmp_path / "crashed") as log:
        said = [(bytes(one.body), one.discarded) for one in log.read("t", 0)]
        rest = [] if other else [(b"torn", True), (b"torn or whole", False)]
        assert said == [(b"first", False), *rest]


def test_few_records_tell_many_discards(tmp_path):
    with Log(tmp_path, segment_bytes=SMALL) as log:
        for number in range(300):
            log.append("t", b"", blob=b"%d" % number)
        for number in (*range(0, 300, 2), *range(1, 300, 2)):
            log.discard("t", number, number + 1)
        assert len([key for key in log.state if key.startswith(b"\0d")]) == 1
    with Log(tmp_path, segment_bytes=SMALL) as log:
        assert len([key for key in log.state if key.startswith(b"\0d")]) == 1
        assert all(one.discarded for one in log.read("t", 0))


def test_a_topic_that_is_dropped_is_gone_and_its_name_is_new(tmp_path):
    with Log(tmp_path, segment_bytes=SMALL) as log:
        log.append("other", b"stays", blob=b"blob")
        fill(log, "t", 3)
        log.acknowledge("t", "g", 1)
        log.discard("t", 0, 1)
        (kept,) = log.read("t", 1, limit=1)
        assert log.drop("t") is not None and log.drop("t") is None
        assert log.topics == ("other",) and log.range("t") == (0, 0) and log.groups("t") == {}
        assert log.read("t", 0) == []
        assert log.append("t", b"new")[1] == 0
        log.drop("t")
        log.commit()
        assert kept.blob == blob(1)
    for _ in range(2):
        with Log(tmp_path, segment_bytes=SMALL) as log:
            assert log.topics == ("other",) and log.read("other", 0)[0].blob == b"blob"
            assert log.groups("t") == {}
    with Log(tmp_path, segment_bytes=SMALL) as log:
        log.append("t", b"newer")
        assert log._topics.named["t"].number == 4  # numbers are not used again
        log.commit()
        assert [bytes(one.body) for one in log.read("t", 0)] == [b"newer"]


def test_blobs_at_the_ends_of_segments_do_not_keep_them(tmp_path):
    """A record may lie in the segment after its blob's; so it is at nearly every end of one here."""
    with Log(tmp_path, segment_bytes=SMALL, retention=Retention(acknowledged=True)) as log:
        log.acknowledge("t", "g", 0)
        for number in range(300):
            log.append("t", b"%d" % number * 50, blob=b"%d" % number)
            log.acknowledge("t", "g", max(0, number - 30))
        log.commit()
        begin, end = log.range("t")
        assert 150 < begin <= 270
    with Log(tmp_path, segment_bytes=SMALL, retention=Retention(acknowledged=True)) as log:
        assert log.cut == 0 and log.range("t") == (begin, end)
        for message in log.read("t", begin):
            kept = message.blob == b"%d" % message.offset and not message.discarded
            assert kept or (message.discarded and message.offset < 269)
        log.acknowledge("t", "g", end)
        log.collect()
        assert len(list(tmp_path.glob(f"*{SUFFIX}"))) == 1


def test_a_topic_is_held_by_a_group_and_lets_go_when_it_moves_on_or_is_dropped(tmp_path):
    with Log(tmp_path, segment_bytes=SMALL, retention=Retention(acknowledged=True)) as log:
        log.acknowledge("run", "spool", 0)
        log.acknowledge("long", "spool", 0)
        log.append("long", b"one small old message")
        for number in range(200):
            log.append("run", b"%d" % number * 50, blob=b"x")
        log.commit()
        assert log.collect() == 0 and log.range("run") == (0, 200)
        log.acknowledge("run", "spool", 200)
        assert log.collect() == 0  # the other run holds the oldest segment, and so all
        log.acknowledge("long", "spool", 1)
        assert log.collect() > 0 and log.range("run")[0] > 100
        for number in range(200):
            log.append("long", b"%d" % number * 50)
        log.commit()
        assert log.collect() == 0
        log.drop("long")
        assert log.collect() > 0
        assert len(list(tmp_path.glob(f"*{SUFFIX}"))) == 1
        log.commit()
    with Log(tmp_path, segment_bytes=SMALL) as log:
        assert log.topics == ("run",) and log.groups("run") == {"spool": 200}


def test_the_disk_is_bounded_by_what_is_wanted_though_an_old_message_is_held(tmp_path, punching):
    most = 0
    with Log(tmp_path / "log", segment_bytes=1 << 16, retention=Retention(acknowledged=True)) as log:
        log.acknowledge("old", "spool", 0)
        log.append("old", b"held")
        for number in range(100):
            _, offset = log.append("run", b"", blob=blob(number))
            log.commit(log.discard("run", 0, max(0, offset - 3)))
            most = max(most, blocks(log.folder))
        assert most <= 8 * LARGE
        assert log.range("run") == (0, 100)


def test_what_cannot_be_discarded(tmp_path):
    with Log(tmp_path) as log:
        log.append("t", b"no blob")
        for begin, end in ((-1, 0), (1, 0), (0, 2)):
            with pytest.raises(UsageError):
                log.discard("t", begin, end)
        with pytest.raises(UsageError):
            log.discard("unknown", 0, 1)
        assert log.discard("unknown", 0, 0) is None and log.discard("t", 0, 0) is None
        log.commit(log.discard("t", 0, 1))
        (one,) = log.read("t", 0)
        assert one.blob is None and not one.discarded  # it had none
    assert os.path.exists(tmp_path / "LOCK")
