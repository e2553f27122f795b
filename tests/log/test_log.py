"""The log against a model: what was committed is there after every crash, in order, and nothing else is."""

from __future__ import annotations

import gc
import os
import shutil
import threading
import time
from pathlib import Path

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from transfer.log import Log, Retention
from transfer.log.record import HEADER_SIZE
from transfer.log.segment_files import INDEX, SUFFIX
from transfer.transports.errors import (
    Closed,
    ForkedError,
    InDoubt,
    InternalError,
    LogDamaged,
    LogFull,
    LogInUse,
    OptionError,
    UsageError,
)

SMALL = 4096
TOPICS = ("a", "b", "c")


def bodies(log, topic, offset=0, **limits):
    return [bytes(message.body) for message in log.read(topic, offset, **limits)]


def everything(log, topic):
    """All that can be read, with offsets; in small steps."""
    found, at = [], log.range(topic)[0]
    while messages := log.read(topic, at, limit=7, nbytes=300):
        found += [(one.offset, bytes(one.body), one.blob and bytes(one.blob)) for one in messages]
        at = found[-1][0] + 1
    return found


class Machine(RuleBasedStateMachine):
    """Appends, commits, crashes and comes back. A crash keeps what was committed, then a prefix."""

    @initialize(fsync=st.sampled_from(["always", "never"]))
    def begin(self, fsync):
        import tempfile

        self.folder = Path(tempfile.mkdtemp(prefix="log"))
        self.fsync = fsync
        self.log = Log(self.folder, fsync=fsync, segment_bytes=SMALL)
        self.messages = {topic: [] for topic in TOPICS}
        self.state: dict[bytes, bytes] = {}
        self.kept = (dict.fromkeys(TOPICS, 0), {})

    @rule(topic=st.sampled_from(TOPICS), body=st.binary(max_size=300), blob=st.booleans())
    def append(self, topic, body, blob):
        payload = body * 20 if blob else None
        _, offset = self.log.append(topic, body, blob=payload)
        assert offset == len(self.messages[topic])
        self.messages[topic].append((offset, body, payload))

    @rule(key=st.sampled_from([b"k", b"l"]), value=st.none() | st.binary(max_size=50))
    def put(self, key, value):
        if value is None:
            self.log.remove(key)
            self.state.pop(key, None)
        else:
            self.log.put(key, value)
            self.state[key] = value
        assert self.log.get(key) == self.state.get(key)

    @rule()
    def commit(self):
        self.log.commit()
        self.kept = ({topic: len(said) for topic, said in self.messages.items()}, dict(self.state))
        for topic in TOPICS:
            assert everything(self.log, topic) == self.messages[topic]

    @rule()
    def reopen(self):
        self.log.close()
        self.log = Log(self.folder, fsync=self.fsync, segment_bytes=SMALL)
        assert self.log.cut == 0
        self.commit()

    @precondition(lambda self: self.fsync == "always")
    @rule(data=st.data())
    def crash(self, data):
        """The machine stops: of what was written behind the last sync anything may be missing."""
        self.log._journal.commit(None, 10)
        full = {path.name: path.read_bytes() for path in self.folder.iterdir() if path.name != "LOCK"}
        self.kept = ({topic: len(said) for topic, said in self.messages.items()}, dict(self.state))
        journal = self.log._journal
        segment = journal.segments[-1]
        end, first = segment.end, segment.first
        extra = data.draw(st.lists(st.binary(max_size=100), max_size=5))
        for body in extra:
            self.log.append("a", body)
        with journal.lock:
            if journal.segments[-1].first == first:
                journal._flush(sync=False)
                journal._synced = journal._written  # closing must not sync more
        written = segment.path.read_bytes() if segment.path.exists() else b""
        self.log.close()
        torn = bytearray(written)
        if end < len(torn):
            for at in data.draw(st.lists(st.integers(end, min(end + 700, len(torn) - 1)), max_size=3)):
                lost = min(data.draw(st.integers(1, 300)), len(torn) - at)
                torn[at : at + lost] = bytes(lost)
        for path in self.folder.iterdir():
            if path.name != "LOCK" and path.name not in full:
                path.unlink()
        for name, content in full.items():
            (self.folder / name).write_bytes(content)
        segment.path.write_bytes(torn)
        self.log = Log(self.folder, fsync=self.fsync, segment_bytes=SMALL)
        said = everything(self.log, "a")
        kept = self.kept[0]["a"]
        assert said[:kept] == self.messages["a"][:kept]
        assert [body for _, body, _ in said[kept:]] == extra[: len(said) - kept]
        self.messages["a"] = said
        for topic in TOPICS[1:]:
            assert everything(self.log, topic) == self.messages[topic]
        assert {key: self.log.get(key) for key in (b"k", b"l")} == {
            key: self.state.get(key) for key in (b"k", b"l")
        }

    @invariant()
    def ranges(self):
        if hasattr(self, "log"):
            for topic in TOPICS:
                assert self.log.range(topic) == (0, len(self.messages[topic]))

    def teardown(self):
        if hasattr(self, "log"):
            self.log.close()
            shutil.rmtree(self.folder)


Machine.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
test_against_a_model = Machine.TestCase


@pytest.mark.parametrize("fsync", ["always", "interval", "never"])
def test_what_was_committed_is_read_and_the_rest_is_not_yet(tmp_path, fsync):
    with Log(tmp_path, fsync=fsync, interval=0.01) as log:
        sequence, offset = log.append("t", b"one")
        assert offset == 0
        if fsync == "always":
            assert log.read("t", 0) == []
        log.commit(sequence)
        log.append("t", b"two")
        log.commit()
        assert bodies(log, "t") == [b"one", b"two"]
        assert bodies(log, "t", 1) == [b"two"]
        assert log.read("t", 2) == []
        with pytest.raises(UsageError):
            log.read("t", 3)
        assert log.read("never heard of", 0) == [] and log.range("never heard of") == (0, 0)
        assert log.topics == ("t",)


def test_a_sync_is_shared_by_all_who_wait(tmp_path, monkeypatch):
    synced = []
    real = os.fdatasync
    with Log(tmp_path) as log:
        monkeypatch.setattr(os, "fdatasync", lambda fd: (synced.append(fd), real(fd)))

        def work(name):
            for number in range(50):
                log.commit(log.append("t", b"%s %d" % (name, number))[0])

        threads = [threading.Thread(target=work, args=(b"%d" % number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        said = bodies(log, "t", limit=1000)
        assert len(said) == 400 and len(synced) < 400
        for number in range(8):
            mine = [one for one in said if one.startswith(b"%d " % number)]
            assert mine == [b"%d %d" % (number, turn) for turn in range(50)]


def test_an_interval_is_kept_however_many_wait(tmp_path, monkeypatch):
    synced = []
    real = os.fdatasync
    with Log(tmp_path, fsync="interval", interval=0.2) as log:
        monkeypatch.setattr(os, "fdatasync", lambda fd: (synced.append(fd), real(fd)))
        stop = threading.Event()
        begin = time.monotonic()

        def work():
            while not stop.is_set():
                log.commit(log.append("t", b"x")[0])

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        stop.wait(1.0)
        stop.set()
        for thread in threads:
            thread.join()
        # Every commit of a thread waits for a sync of its own, and the threads share them.
        assert 1 <= len(synced) <= (time.monotonic() - begin) / 0.2 + 1
        assert log.range("t")[1] <= 4 * (len(synced) + 1)


def test_closing_waits_for_a_blob_that_is_being_written(tmp_path, monkeypatch):
    writing, go_on = threading.Event(), threading.Event()
    real = os.pwrite

    def slow(fd, data, position):
        if len(data) == 100_000:
            writing.set()
            go_on.wait(10)
        return real(fd, data, position)

    log = Log(tmp_path)
    monkeypatch.setattr(os, "pwrite", slow)
    appender = threading.Thread(target=lambda: log.append("t", b"head", blob=bytes(100_000)))
    appender.start()
    assert writing.wait(10)
    closer = threading.Thread(target=log.close)
    closer.start()
    closer.join(0.2)
    assert closer.is_alive()
    go_on.set()
    appender.join(10)
    closer.join(10)
    with Log(tmp_path) as log:
        assert bodies(log, "t") == [b"head"]


def test_an_empty_file_is_a_segment_that_was_not_begun(tmp_path):
    (tmp_path / f"{0:020d}{SUFFIX}").touch()
    with Log(tmp_path, segment_bytes=SMALL) as log:
        log.append("t", b"one")
    following = log._journal.sequence
    (tmp_path / f"{following:020d}{SUFFIX}").touch()
    with Log(tmp_path, segment_bytes=SMALL) as log:
        assert bodies(log, "t") == [b"one"]


def test_groups_have_offsets_that_are_kept_and_can_go_back(tmp_path):
    with Log(tmp_path, segment_bytes=SMALL) as log:
        for number in range(200):
            log.append("t", b"%d" % number)
        log.acknowledge("t", "g", 150)
        log.acknowledge("t", "h", 20)
        log.commit()
        with pytest.raises(UsageError):
            log.acknowledge("t", "g", 201)
    with Log(tmp_path, segment_bytes=SMALL) as log:
        assert log.groups("t") == {"g": 150, "h": 20}
        assert bodies(log, "t", 150, limit=2) == [b"150", b"151"]
        log.acknowledge("t", "g", 3)
        assert log.leave("t", "h") is not None and log.leave("t", "h") is None
        log.commit()
    with Log(tmp_path) as log:
        assert log.groups("t") == {"g": 3} and log.groups("u") == {}


def test_nothing_that_is_not_acknowledged_goes_and_the_producer_is_pushed_back(tmp_path):
    limit = Retention(bytes=8 * SMALL)
    with Log(tmp_path, segment_bytes=SMALL, retention=limit) as log:
        log.acknowledge("t", "g", 0)
        with pytest.raises(LogFull) as full:
            for number in range(10_000):
                log.append("t", b"%d" % number * 20)
        assert full.value.hint
        begin, end = log.range("t")
        assert begin == 0
        log.commit()
        assert bodies(log, "t", 0, limit=1) == [b"0" * 20]
        log.acknowledge("t", "g", end)
        for _ in range(100):
            log.append("t", b"goes on" * 10)
        log.commit()
        assert log.range("t")[0] > 0
        assert log.disk_bytes <= 8 * SMALL
        assert bodies(log, "t", end) == [b"goes on" * 10] * 100
        # Older ones are asked for: the oldest that is there comes.
        assert log.read("t", 0, limit=1)[0].offset == log.range("t")[0]
    with Log(tmp_path, segment_bytes=SMALL, retention=limit) as log:
        assert bodies(log, "t", end) == [b"goes on" * 10] * 100 and log.groups("t") == {"g": end}


def test_retention_by_age_and_the_time_index(tmp_path):
    now = [0]
    with Log(tmp_path, segment_bytes=SMALL, retention=Retention(age=1.0), clock=lambda: now[0]) as log:
        for number in range(100):
            now[0] = number * 100_000_000
            log.append("t", b"%d" % number * 200)
        log.commit()
        begin, end = log.range("t")
        assert begin > 0 and end == 100
        assert log.offset_at("t", 95 * 100_000_000) == 95
        assert log.offset_at("t", 95 * 100_000_000 + 1) == 96
        assert log.offset_at("t", 0) == begin and log.offset_at("t", 10**18) == 100
        now[0] = 10**12
        assert log.collect() > 0
        log.append("u", b"another topic keeps its offsets")
    with Log(tmp_path, segment_bytes=SMALL) as log:
        assert log.range("t")[1] == 100 and log.range("u") == (0, 1)


def test_blobs_are_written_from_where_they_lie_and_read_without_a_copy(tmp_path):
    large = bytearray(os.urandom(1 << 20))
    with Log(tmp_path, segment_bytes=SMALL, retention=Retention(acknowledged=True)) as log:
        log.append("t", b"head", blob=large)
        log.append("t", b"empty", blob=b"")
        log.commit()
        (first, second) = log.read("t", 0, nbytes=4 << 20)
        assert bytes(first.body) == b"head" and first.blob == large and first.blob.readonly
        assert bytes(second.body) == b"empty" and bytes(second.blob) == b""
        for number in range(100):
            log.append("t", b"%d" % number * 100)
        log.acknowledge("t", "g", 102)
        log.commit()
        assert log.collect() > 0 and log.range("t")[0] > 1
        gc.collect()
        assert first.blob == large  # gone from the disk, not from who reads it
    assert first.blob == large


def test_a_blob_of_many_buffers_is_one_blob(tmp_path, monkeypatch):
    parts = [os.urandom(size) for size in (100_000, 0, 1, 4096)] + [b"%d;" % number for number in range(3000)]
    written = []
    real = os.pwritev

    def short(fd, buffers, position):
        """Some of it, as the system may."""
        size = real(fd, [b"".join(buffers)[:30_011]], position)
        written.append(len(buffers))
        return size

    with Log(tmp_path, segment_bytes=SMALL) as log:
        log.append("t", b"list", blob=parts)
        log.append("t", b"none", blob=[])
        log.append("t", b"one", blob=(parts[0],))
        monkeypatch.setattr(os, "pwritev", short)
        log.append("t", b"short", blob=tuple(map(memoryview, parts)))
        log.commit()
        whole = b"".join(parts)
        said = log.read("t", 0, nbytes=1 << 24)
        assert [bytes(one.blob) for one in said] == [whole, b"", parts[0], whole]
        assert len(written) > 3 and max(written) <= os.sysconf("SC_IOV_MAX")
    with Log(tmp_path) as log:
        assert [bytes(one.blob) for one in log.read("t", 0, nbytes=1 << 24)] == [whole, b"", parts[0], whole]


def test_a_torn_blob_is_a_torn_tail(tmp_path):
    with Log(tmp_path) as log:
        log.append("t", b"whole", blob=b"a" * 100_000)
        log.commit()
        log.append("t", b"torn", blob=b"b" * 100_000)
        log._journal._flush(sync=False)
        copy = tmp_path.with_name("copy")
        shutil.copytree(tmp_path, copy)
    (path,) = copy.glob("*.blobs")
    content = bytearray(path.read_bytes())
    content[150_000:150_100] = bytes(100)
    path.write_bytes(content)
    with Log(copy) as log:
        assert log.cut and bodies(log, "t") == [b"whole"]
        log.append("t", b"again", blob=b"c" * 1000)
        log.commit()
        assert bodies(log, "t") == [b"whole", b"again"]


def damaged(tmp_path, count, what):
    """A log of so many messages, all of them synced, with two bits of it changed."""
    with Log(tmp_path, segment_bytes=SMALL) as log:
        for number in range(count):
            log.commit(log.append("t", b"%03d" % number * 30)[0])
    path = min(tmp_path.glob(f"*{SUFFIX}"))
    content = bytearray(path.read_bytes())
    content[what(content)] ^= 3
    path.write_bytes(content)
    return path, content


@pytest.mark.parametrize("index", [False, True])
@pytest.mark.parametrize(("count", "bad"), [(10, 5), (10, 9), (60, 5)])
def test_a_damaged_message_is_told_when_it_is_read_and_the_rest_is_served(
    tmp_path, caplog, count, bad, index
):
    damaged(tmp_path, count, lambda content: content.index(b"%03d" % bad * 30))
    if not index:
        for path in tmp_path.glob(f"*{INDEX}"):
            path.unlink()
        if bad + 1 == count:
            return  # nobody says then that it was synced: it is a torn tail
    for _ in range(2):
        with Log(tmp_path, segment_bytes=SMALL) as log:
            assert log.cut == 0
            assert len(bodies(log, "t", 0, limit=bad)) == bad
            with pytest.raises(LogDamaged):
                log.read("t", bad)
            assert len(bodies(log, "t", bad + 1, limit=100)) == log.range("t")[1] - bad - 1
            assert len(log.verify().damages) == 1
            log.commit(log.append("t", b"goes on")[0])
    assert count == 60 or "though synced: that message is lost" in caplog.text


@pytest.mark.parametrize("what", ["length", "sequence", "state"])
def test_other_damage_is_told_at_the_start_and_cut_only_when_asked(tmp_path, what):
    def place(content):
        if what == "state":
            return content.index(b"topic") if b"topic" in content else 60
        begin = content.index(b"005" * 30) - HEADER_SIZE
        return begin + (8 if what == "length" else 16)

    path, content = damaged(tmp_path, 10, place)
    with pytest.raises(LogDamaged, match=r"synced|damaged") as damage:
        Log(tmp_path)
    assert "repair" in damage.value.hint
    assert path.read_bytes() == content
    with Log(tmp_path, repair=True) as log:
        if what != "state":
            assert bodies(log, "t") == [b"%03d" % number * 30 for number in range(5)]
        log.append("t", b"goes on")


def test_a_missing_segment_is_told(tmp_path):
    with Log(tmp_path, segment_bytes=SMALL) as log:
        for number in range(200):
            log.append("t", b"%03d" % number * 30)
        log.acknowledge("t", "g", 150)
    paths = sorted(tmp_path.glob(f"*{SUFFIX}"))
    assert len(paths) > 3
    paths[1].unlink()
    with pytest.raises(LogDamaged, match="missing"):
        Log(tmp_path)
    with Log(tmp_path, repair=True) as log:
        end = log.range("t")[1]
        assert 0 < end < 100 and log.groups("t") in ({}, {"g": end})
        log.commit(log.append("t", b"goes on")[0])
        assert bodies(log, "t", end) == [b"goes on"]


def test_a_segment_that_was_not_begun_is_no_damage(tmp_path):
    with Log(tmp_path, segment_bytes=SMALL) as log:
        for number in range(10):
            log.append("t", b"%d" % number)
        log.put(b"key", b"value")
        log.commit()
        following = log._journal.sequence
    (tmp_path / f"{following:020d}{SUFFIX}").write_bytes(bytes(SMALL))
    with Log(tmp_path, segment_bytes=SMALL) as log:
        assert len(bodies(log, "t")) == 10 and log.get(b"key") == b"value"
        assert len(list(tmp_path.glob(f"*{SUFFIX}"))) == 1


def test_a_failed_sync_ends_the_log_and_what_was_committed_is_there(tmp_path, monkeypatch):
    log = Log(tmp_path)
    log.commit(log.append("t", b"kept")[0])
    log.append("t", b"in doubt")

    def fails(fd):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fails)
        with pytest.raises(InDoubt, match="Input/output error"):
            log.commit()
    with pytest.raises(InternalError, match="failed") as refused:
        log.append("t", b"more")
    assert not isinstance(refused.value, InDoubt)
    with pytest.raises(InternalError):
        log.commit()
    log.close()
    with Log(tmp_path) as log:
        assert bodies(log, "t")[0] == b"kept"


def test_one_at_a_time(tmp_path):
    with Log(tmp_path), pytest.raises(LogInUse):
        Log(tmp_path)
    log = Log(tmp_path)
    log.close()
    log.close()
    for call in (
        log.commit,
        lambda: log.append("t", b""),
        lambda: log.read("t", 0),
        lambda: log.put(b"k", b""),
    ):
        with pytest.raises(Closed):
            call()


def test_a_child_of_fork_is_refused(tmp_path):
    with Log(tmp_path) as log:
        log.append("t", b"parent's")
        child = os.fork()
        if not child:
            code = 1
            try:
                log.append("t", b"child's")
            except ForkedError:
                code = 42
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
        log.commit()
        assert bodies(log, "t") == [b"parent's"]


def test_bad_arguments(tmp_path):
    for options in ({"fsync": "sometimes"}, {"segment_bytes": 10}, {"segment_bytes": 1 << 33}):
        with pytest.raises(OptionError):
            Log(tmp_path, **options)
    with Log(tmp_path) as log:
        for call in (
            lambda: log.append("", b""), lambda: log.append("t" * 2000, b""), lambda: log.put(b"", b""),
            lambda: log.put(b"\0own", b""),
            lambda: log.acknowledge("t", "", 0), lambda: log.acknowledge("t", "g", 1),
        ):  # fmt: skip
            with pytest.raises(UsageError):
                call()


def test_a_folder_of_other_files_is_left_as_it_is(tmp_path):
    """A log takes other users' permissions away from all that is in its folder."""
    (tmp_path / "program").touch(0o755)
    before = (tmp_path / "program").stat().st_mode
    with pytest.raises(UsageError, match=r"'program' for instance\n  hint: name a new folder"):
        Log(tmp_path)
    assert (tmp_path / "program").stat().st_mode == before
    assert os.listdir(tmp_path) == ["program"]
