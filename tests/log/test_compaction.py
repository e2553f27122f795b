"""Compaction: what is needed is there once, the same and in order, whenever a crash comes; the rest goes."""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from transfer.log import Log, Retention, compaction, log as log_module
from transfer.log.segment_files import BLOBS, INDEX, SUFFIX
from transfer.transports.errors import LogDamaged, LogFull, UsageError

SMALL = 4096
TOPICS = ("a", "b", "c")


def tear(path: Path, begin: int, nbytes: int) -> None:
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(bytes(nbytes))


def firsts(log: Log) -> list[int]:
    return [segment.first for segment in log._journal.segments]


class Model:
    """topics: of each its messages (body, blob, time, discarded); done: what its group has acknowledged."""

    def __init__(self):
        self.topics = {name: [] for name in TOPICS}
        self.done = dict.fromkeys(TOPICS, 0)

    def check(self, log):
        """All that is needed is there; what else is there is what was written."""
        log.commit()
        for name, messages in self.topics.items():
            begin, end = log.range(name)
            assert begin <= self.done[name] and end == len(messages)
            found = [one for at in range(begin, end) for one in log.read(name, at, limit=1)]
            assert [one.offset for one in found] == list(range(begin, end))
            for one in found:
                body, blob, time, discarded = messages[one.offset]
                discarded |= one.discarded and blob is not None and one.offset < self.done[name]
                assert (bytes(one.body), one.time, one.discarded) == (body, time, discarded)
                assert (one.blob if one.blob is None else bytes(one.blob)) == (None if discarded else blob)


class Machine(RuleBasedStateMachine):
    @initialize(fsync=st.sampled_from(["always", "never"]), acknowledged=st.booleans())
    def begin(self, fsync, acknowledged):
        retention = Retention(acknowledged=acknowledged)
        self.now = 0
        self.options = {
            "fsync": fsync, "segment_bytes": SMALL, "retention": retention, "clock": self.clock,
        }  # fmt: skip
        self.folder = Path(tempfile.mkdtemp(prefix="log"))
        self.log = Log(self.folder, **self.options)
        self.model = Model()
        self.writers = []
        self.count = 0
        for name in TOPICS[:2]:  # the third one has no group
            self.log.acknowledge(name, "g", 0)

    def clock(self):
        self.now += 1
        return self.now

    @rule(name=st.sampled_from(TOPICS), many=st.integers(1, 12), size=st.integers(0, 600), blob=st.booleans())
    def append(self, name, many, size, blob):
        for _ in range(many):
            self.count += 1
            body = b"%d;" % self.count + bytes(size)
            payload = b"%d;" % self.count * (size * 3) if blob else None
            self.log.append(name, body, blob=payload)
            self.model.topics[name].append((body, payload, self.log._appender._time, False))

    @rule(name=st.sampled_from(TOPICS))
    def begin_blob(self, name):
        """Its record will lie in a later segment, perhaps."""
        self.count += 1
        payload = b"%d." % self.count * 2000
        self.writers.append((name, payload, self.log.blob(name, len(payload))))

    @precondition(lambda self: hasattr(self, "log") and self.writers)
    @rule(commit=st.booleans())
    def end_blob(self, commit):
        name, payload, writer = self.writers.pop(0)
        if commit:
            writer.write(payload)
            assert writer.commit(b"late")[1] == len(self.model.topics[name])
            self.model.topics[name].append((b"late", payload, self.log._appender._time, False))
        else:
            writer.abandon()

    @rule(name=st.sampled_from(TOPICS[:2]), share=st.floats(0, 1))
    def acknowledge(self, name, share):
        offset = max(self.model.done[name], round(share * len(self.model.topics[name])))
        self.log.acknowledge(name, "g", offset)
        self.model.done[name] = offset

    @rule(name=st.sampled_from(TOPICS), one=st.floats(0, 1), other=st.floats(0, 1))
    def discard(self, name, one, other):
        messages = self.model.topics[name]
        begin, end = sorted((round(one * len(messages)), round(other * len(messages))))
        self.log.discard(name, begin, end)
        for at in range(begin, end):
            body, blob, time, discarded = messages[at]
            messages[at] = (body, blob, time, discarded or blob is not None)

    @rule(name=st.sampled_from(TOPICS))
    def drop(self, name):
        if any(one[0] == name for one in self.writers):
            return
        self.log.drop(name)
        self.model.topics[name], self.model.done[name] = [], 0
        if name in TOPICS[:2]:
            self.log.acknowledge(name, "g", 0)

    @rule(share=st.sampled_from([0.2, 0.7, 1.0]))
    def compact(self, share):
        before = firsts(self.log)
        count = self.log.compact(share)
        after = firsts(self.log)
        assert len(set(before) - set(after)) >= count
        if share == 1.0 and not self.writers:
            assert after[0] >= before[-1]
        self.model.check(self.log)
        assert self.log.verify().damages == []

    @rule()
    def collect(self):
        self.log.commit()
        self.log.collect()
        self.model.check(self.log)

    @rule()
    def reopen(self):
        self.writers.clear()
        self.log.close()
        self.log = Log(self.folder, **self.options)
        assert self.log.cut == 0
        self.model.check(self.log)

    @rule(share=st.sampled_from([0.5, 1.0]), data=st.data())
    def crash(self, share, data):
        """The machine stops in a compaction: what it appended is there, or not, or in part."""
        self.writers.clear()
        self.log.close()  # a copy of what is synced
        self.log = Log(self.folder, **self.options)
        crashed = Path(tempfile.mkdtemp(prefix="log"))
        when = data.draw(st.sampled_from(["appended", "synced"]))
        real = compaction.Compaction._move
        journal = self.log._journal
        place = journal.kept_at

        def copied(_, plan):
            if not (crashed / "LOCK").exists():
                shutil.copytree(self.folder, crashed, dirs_exist_ok=True)
            return real(_, plan)

        compaction.Compaction._move = copied
        try:
            count = self.log.compact(share)
        finally:
            compaction.Compaction._move = real
        self.model.check(self.log)
        if not (crashed / "LOCK").exists():
            shutil.rmtree(crashed)
            return
        assert count <= len(list(crashed.glob(f"*{SUFFIX}")))
        last = max(crashed.glob(f"*{SUFFIX}"))
        begin = place[1] if int(last.stem) == place[0] else 0
        used = len(last.read_bytes().rstrip(b"\0"))
        if when == "appended" and begin and used > begin:
            at = data.draw(st.integers(begin, used - 1))
            tear(last, at, data.draw(st.integers(1, used - at)))
        self.log.close()
        shutil.rmtree(self.folder)
        self.folder = crashed
        self.log = Log(self.folder, **self.options)
        self.model.check(self.log)
        assert self.log.verify().damages == []

    @invariant()
    def ends(self):
        if hasattr(self, "log"):
            for name in TOPICS:
                assert self.log.range(name)[1] == len(self.model.topics[name])

    def teardown(self):
        if hasattr(self, "log"):
            self.log.close()
            shutil.rmtree(self.folder)


Machine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
test_against_a_model = Machine.TestCase


def held(log: Log, count: int = 300) -> None:
    """An old message that a slow group holds, and many that nobody needs."""
    log.acknowledge("slow", "g", 0)
    log.acknowledge("fast", "g", 0)
    log.append("slow", b"held", blob=b"its blob" * 1000)
    for number in range(count):
        log.append("fast", b"%d" % number * 20)
    log.acknowledge("fast", "g", count)
    log.commit()


def test_a_message_that_a_slow_group_holds_pins_nothing(tmp_path):
    with Log(tmp_path, segment_bytes=SMALL, retention=Retention(acknowledged=True)) as log:
        held(log)
        before, (kept,) = log.disk_bytes, log.read("slow", 0)
        assert log.collect() == 0
        assert log.compact() > 5 and len(firsts(log)) <= 2 and log.disk_bytes < before / 3
        (message,) = log.read("slow", 0)
        assert message == kept and message.time == kept.time and log.verify().whole
        assert log.range("fast")[0] == 300 or log.range("fast")[0] > 250
        for number in range(300):  # and again, with the one that was carried
            log.append("fast", b"%d" % number * 20)
        log.acknowledge("fast", "g", 600)
        assert log.compact() > 5 and log.compact() == 0
        assert log.read("slow", 0) == [kept]
        log.append("slow", b"the next one")
        log.commit()
        assert [bytes(one.body) for one in log.read("slow", 0)] == [b"held", b"the next one"]
    for _ in range(2):
        with Log(tmp_path, segment_bytes=SMALL, retention=Retention(acknowledged=True)) as log:
            assert [bytes(one.body) for one in log.read("slow", 0)] == [b"held", b"the next one"]
            assert log.read("slow", 0, limit=1)[0].blob == b"its blob" * 1000
            assert log.offset_at("slow", kept.time) == 0 and log.offset_at("slow", kept.time + 1) == 1
            for path in tmp_path.glob(f"*{INDEX}"):
                path.unlink()
    with Log(tmp_path, segment_bytes=SMALL, retention=Retention(acknowledged=True)) as log:
        log.acknowledge("slow", "g", 2)
        log.acknowledge("fast", "g", log.range("fast")[1])
        log.commit()
        log.collect()
        assert len(firsts(log)) == 1
    assert kept.blob == b"its blob" * 1000


def test_what_is_needed_most_stays_where_it_is(tmp_path):
    with Log(tmp_path, segment_bytes=SMALL) as log:
        held(log)
        log.acknowledge("fast", "g", 200)
        assert log.compact(0.25) > 0 and log.range("fast")[0] <= 200
        assert log.compact(0.0) == 0
        assert bytes(log.read("fast", 200, limit=1)[0].body) == b"200" * 20
        with pytest.raises(UsageError):
            log.read("fast", 301)


def test_a_group_that_comes_meanwhile_keeps_the_segment(tmp_path, monkeypatch):
    with Log(tmp_path, segment_bytes=SMALL) as log:
        held(log)
        real = compaction.Compaction._move

        def joined(self, plan):
            log.acknowledge("fast", "new", 0)
            return real(self, plan)

        monkeypatch.setattr(compaction.Compaction, "_move", joined)
        assert log.compact() == 0
        assert bytes(log.read("fast", 0, limit=1)[0].body) == b"0" * 20
        assert bytes(log.read("slow", 0)[0].body) == b"held"


def test_who_reads_while_it_is_carried_reads_it(tmp_path, monkeypatch):
    with Log(tmp_path, segment_bytes=SMALL) as log:
        held(log)
        gone = []
        real = log_module.messages_at

        def late(*said):
            if not gone:
                gone.append(log.compact())
            return real(*said)

        monkeypatch.setattr(log_module, "messages_at", late)
        (message,) = log.read("slow", 0)
        assert gone[0] > 0 and message.blob == b"its blob" * 1000 and not message.discarded


def test_a_message_that_is_damaged_is_not_carried(tmp_path):
    with Log(tmp_path, segment_bytes=SMALL) as log:
        held(log)
    path = min(tmp_path.glob(f"*{BLOBS}"))
    tear(path, 100, 10)
    with Log(tmp_path, segment_bytes=SMALL) as log:
        count = len(firsts(log))
        with pytest.raises(LogDamaged):
            log.compact()
        assert len(firsts(log)) == count
        log.append("fast", b"goes on")
        assert log.collect() == 0


def test_without_room_nothing_is_lost(tmp_path, monkeypatch):
    def full(fd, begin, nbytes):
        raise LogFull("no room on the disk")

    with Log(tmp_path, segment_bytes=SMALL) as log:
        held(log)
        for _ in range(3):
            log.append("slow", bytes(1500))
        log.commit()
        count = len(firsts(log))
        with monkeypatch.context() as patch:
            patch.setattr("transfer.log.segment.reserve", full)
            with pytest.raises(LogFull):
                log.compact()
        assert len(firsts(log)) == count and len(log.read("slow", 0, nbytes=1 << 20)) == 4
        assert log.compact() > 0 and len(log.read("slow", 0, nbytes=1 << 20)) == 4


def test_others_append_and_read_while_one_compacts(tmp_path):
    stop = threading.Event()
    errors, rounds = [], []

    def work(log):
        at = 0
        try:
            while not stop.is_set():
                for number in range(20):
                    log.append("fast", b"%d" % number * 20)
                    log.append("many", b"%d" % at, blob=b"%d" % at * 100)
                    at += 1
                log.commit()
                log.acknowledge("fast", "g", log.range("fast")[1])
                log.acknowledge("many", "g", max(0, at - 40))
                found = log.read("many", max(0, at - 40), nbytes=1 << 24)
                assert [bytes(one.body) for one in found] == [b"%d" % n for n in range(max(0, at - 40), at)]
                assert all(one.blob == bytes(one.body) * 100 for one in found)
                rounds.append(at)
        except BaseException as error:  # noqa: BLE001 - told by the test
            errors.append(error)

    with Log(tmp_path, segment_bytes=SMALL) as log:
        held(log)
        log.acknowledge("many", "g", 0)
        thread = threading.Thread(target=work, args=(log,))
        thread.start()
        gone = 0
        try:
            while gone < 60 and thread.is_alive():
                gone += log.compact(0.9)
        finally:
            stop.set()
            thread.join(30)
        assert not errors and rounds and gone >= 60 and log.verify().whole
        assert bytes(log.read("slow", 0)[0].body) == b"held"
        assert len(firsts(log)) < gone


@pytest.mark.parametrize("limit", [{"bytes": 1 << 20}, {"age": 50.0}])
@pytest.mark.parametrize("blob", [None, bytes(10_000)])
def test_a_held_message_is_carried_from_what_retention_takes(tmp_path, limit, blob):
    """Of topics without groups nothing is carried; what a group has not acknowledged stays."""
    now = [0]
    options = {"segment_bytes": 1 << 16, "retention": Retention(**limit), "clock": lambda: now[0]}
    with Log(tmp_path, **options) as log:
        log.acknowledge("jobs", "workers", 0)
        log.append("jobs", b"held", blob=blob)
        for number in range(10_000):
            now[0] += 10**9
            try:
                log.append("metrics", b"%d" % number + bytes(1000))
            except LogFull:
                assert log.full.is_set() and log.compact() > 0
                log.append("metrics", b"%d" % number + bytes(1000))
            if "age" in limit and number % 500 == 0:
                log.commit()
                log.compact()
        assert 0 < log.range("metrics")[0] < 10_000 == log.range("metrics")[1]
        assert log.range("jobs") == (0, 1)
    with Log(tmp_path, **options) as log:
        (found,) = log.read("jobs", 0)
        assert bytes(found.body) == b"held"
        assert found.blob is None if blob is None else bytes(found.blob) == blob


def test_what_groups_hold_more_than_half_of_is_not_carried(tmp_path):
    with Log(tmp_path, segment_bytes=1 << 16, retention=Retention(bytes=1 << 20)) as log:
        log.acknowledge("jobs", "workers", 0)
        with pytest.raises(LogFull):
            for _ in range(5000):
                log.append("jobs", bytes(1000))
                log.append("metrics", bytes(500))
        assert log.compact() == 0
        assert log.range("metrics")[0] == log.range("jobs")[0] == 0
