"""The store on a real folder: after a crash its books are those of the last word that was kept."""

from __future__ import annotations

import shutil
import tempfile
import threading
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from transfer.log import Log
from transfer.spool.format.row_source import FAILED, OPEN, SEALED
from transfer.spool.format.rows import cut, join
from transfer.spool.format.run_messages import Commit, RowsFrame, TaskEnd, from_meta
from transfer.spool.format.stored_arrays import metadata
from transfer.spool.server import store as stores
from transfer.spool.server.run_log import RunLog
from transfer.spool.server.store import SpoolStore
from transfer.transports.errors import LogFull, OptionError, ProtocolError, UsageError

from .task_sender import SMALL, WIDE, Task, agrees


@pytest.fixture(autouse=True)
def small_segments(monkeypatch):
    """Folders that are copied fast."""
    monkeypatch.setattr(stores, "Log", partial(Log, segment_bytes=1 << 20))


def sync(store):
    """As the keeper does."""
    sequence = store.log.put(b"test", b"")
    store.log.commit(sequence)
    store.kept(sequence)


def crashed(store, folder):
    """A store on a copy of the folder, as it is on the disk now."""
    shutil.copytree(store.log.folder, folder)
    return SpoolStore(folder)


def told(store):
    """All that the books say and a crash must not change."""
    found = {}
    for name, entry in store.entries.items():
        run = entry.run
        jobs = {
            job: {
                key: (one.layouts, tuple(one.places), one.rows, one.crc, one.ended)
                for key, one in known.attempts.items()
            }
            for job, known in run.jobs.items()
            if known.attempts
        }
        # That a job only declared itself is forgotten.
        state = OPEN if run.state == FAILED and not jobs else run.state
        found[name] = {
            "about": (entry.number, run.delivery, run.kind, run.layouts, [*run.done], [*run.names], state),
            "visible": {column: list(values) for column, values in run.visible.columns().items()},
            "jobs": jobs,
            "rows": (entry.rows, entry.first, entry.nbytes),
            "groups": {group: (one.acknowledged, one.delivered) for group, one in entry.groups.items()},
            "lineage": {group: store.lineage(entry, group) for group in entry.groups},
        }
    return found


def needed(entry):
    """Offsets of frames that readers may see, or may come to see."""
    visible = entry.run.visible
    shown = {offset for offset, end in zip(visible.offsets, visible.ends, strict=True) if end > entry.first}
    return shown | {offset for job in entry.run.jobs.values() for offset in job.offsets}


def check_rows(store, sent):
    """Every frame is what was sent, and what nobody needs takes no room. sent: frames by their attempts."""
    for entry in store.entries.values():
        visible = entry.run.visible
        for number, end in enumerate(visible.ends):
            if end <= entry.first or end > entry.rows:
                continue
            job = entry.run.names[visible.jobs[number]]
            key = (entry.number, job, visible.partitions[number], visible.attempts[number])
            wanted = sent[key][visible.sequences[number]]
            assert agrees(store.frame(entry, number), WIDE) == wanted["id"].tolist()
        for message in store._runs.messages(entry.topic):
            meta = metadata(message.body)
            if meta.get("kind") == "rows" and isinstance(from_meta(meta), RowsFrame):
                assert message.discarded == (message.offset not in needed(entry))


class Machine(RuleBasedStateMachine):
    """Runs that are written and read, in a store that crashes."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.count = 0
        self.store = SpoolStore(self.folder / "0")
        self.tasks = {}  # (number of the run, job, partition, attempt) -> the messages that are left
        self.sent = {}
        self.winners = {}
        self.ids = 0
        self.attempt = 0
        self.last = {}
        sync(self.store)

    def teardown(self):
        self.store.close()
        shutil.rmtree(self.folder)

    @initialize(delivery=st.sampled_from(["committed", "partition"]))
    def choose(self, delivery):
        self.delivery = delivery

    @contextmanager
    def another_cut(self):
        """Attempts of this machine have rows of their own, so those of one partition are cut differently."""
        try:
            yield
        except ProtocolError as error:
            if (error.reason, self.delivery) != ("recut", "partition"):
                raise

    def _kind(self, run):
        return "stream" if run == "s" else "batch"

    @rule(run=st.sampled_from("bs"), job=st.sampled_from("jk"))
    def declare(self, run, job):
        self.store.declare(run, job, self.delivery, self._kind(run), "skip")

    @rule(
        run=st.sampled_from("bs"),
        job=st.sampled_from("jk"),
        partition=st.integers(0, 1),
        frames=st.integers(0, 2),
    )
    def begin(self, run, job, partition, frames):
        self.attempt += 1
        entry = self.store.entries.get(run)
        task = Task(run, job, partition, self.attempt, self.ids, [8] * frames, WIDE)
        self.ids += 8 * frames
        if self.store.receive(*task.messages[0]) is None:
            assert entry is None or job not in entry.run.jobs
            return
        key = (entry.number, job, partition, self.attempt)
        self.tasks[key] = task, task.messages[1:]
        self.sent[key] = [arrays for message, arrays in task.messages[1:-1]]

    @precondition(lambda self: self.tasks)
    @rule(data=st.data(), whole=st.booleans())
    def send(self, data, whole):
        key = data.draw(st.sampled_from([*self.tasks]))
        task, left = self.tasks[key]
        while left:
            message, arrays = left.pop(0)
            with self.another_cut():
                kept = False
                kept = self.store.receive(message, arrays) is not None
            if isinstance(message, TaskEnd) and kept:
                self.winners[key] = task.winner
            if not whole:
                break
        if not left:
            del self.tasks[key]

    @rule(run=st.sampled_from("bs"), job=st.sampled_from("jk"))
    def commit(self, run, job):
        entry = self.store.entries.get(run)
        if entry is None:
            return
        best = {}
        for key, winner in self.winners.items():
            if key[:2] == (entry.number, job) and winner.attempt not in best:
                attempt = entry.run.jobs.get(job) and entry.run.jobs[job].attempts.get(key[2:])
                if attempt and attempt.ended:
                    best[winner.partition] = winner
        with self.another_cut():
            self.store.commit(run, job, [*best.values()], "skip")

    @rule(run=st.sampled_from("bs"), job=st.sampled_from("jk"))
    def abort(self, run, job):
        self.store.abort(run, job)

    @rule(run=st.sampled_from("bs"), group=st.sampled_from(["g", "h/i", "\0"]), part=st.floats(0, 1))
    def acknowledge(self, run, group, part):
        entry = self.store.entries.get(run)
        if entry is not None:
            row = int(entry.rows * part)
            self.store.acknowledge(run, group, (0, row), [[row, 1, 2]])

    @rule(run=st.sampled_from("bs"))
    def delete(self, run):
        if run in self.store.entries:
            self.store.delete(run)

    @rule()
    def sync(self):
        sync(self.store)
        self.last = told(self.store)
        check_rows(self.store, self.sent)

    @rule(close=st.booleans())
    def crash(self, close):
        self.count += 1
        if close:
            sync(self.store)
            self.last = told(self.store)
        before = self.store
        self.store = crashed(before, self.folder / str(self.count))
        before.close()
        assert told(self.store) == self.last
        check_rows(self.store, self.sent)
        for entry in self.store.entries.values():
            assert (entry.rows, entry.state) == (entry.run.visible.rows, entry.run.state)
        # What had begun goes on only if all of it was kept so far.
        self.tasks = {}
        self.winners = {
            key: winner
            for key, winner in self.winners.items()
            for entry in self.store.entries.values()
            if entry.number == key[0]
        }


Machine.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
test_crashes = Machine.TestCase


def send(store, task):
    for message, arrays in task.messages:
        store.receive(message, arrays)
    return task.winner


def make(store, run, frames, *, partitions=2, layouts=WIDE, kind="batch", delivery="committed", job="job"):
    """A run that is committed: partitions of so many frames of eight rows."""
    store.declare(run, job, delivery, kind)
    first = store.entry(run).run.visible.rows
    winners = []
    for partition in range(partitions):
        task = Task(run, job, partition, partition, first, [8] * frames, layouts)
        winners.append(send(store, task))
        first += 8 * frames
    store.commit(run, job, winners)
    sync(store)
    return store.entry(run)


def ids(store, entry):
    pieces = [store.frame(entry, number) for number in range(len(entry.run.visible.ends))]
    return agrees(join(pieces, WIDE), WIDE)


def test_a_sealed_index_says_what_all_events_say(tmp_path):
    store = SpoolStore(tmp_path / "a")
    store.declare("run", "lost", "committed", "batch")
    send(store, Task("run", "lost", 0, 9, 1000, [8], WIDE))
    make(store, "run", 3)
    sync(store)
    indexed = crashed(store, tmp_path / "b")
    assert indexed.entries["run"].index >= 0
    assert not indexed.entries["run"].run.jobs
    store.entries["run"].index = -1  # as if the word had not been kept
    store._runs.put(store.entries["run"])
    sync(store)
    replayed = crashed(store, tmp_path / "c")
    assert told(indexed) == told(replayed) == told(store)
    assert replayed.entries["run"].index > indexed.entries["run"].index  # made anew
    for one in (store, indexed, replayed):
        assert ids(one, one.entries["run"]) == list(range(48))
        one.close()


def test_an_index_whose_word_was_not_kept_is_no_event(tmp_path, monkeypatch):
    """The log syncs for somebody else between the index and the state that names it; then the spool ends."""
    store = SpoolStore(tmp_path / "a")
    keep = RunLog.keep_index

    def keep_and_copy(self, entry):
        keep(self, entry)
        self.log.commit()
        shutil.copytree(self.log.folder, tmp_path / "b")

    monkeypatch.setattr(RunLog, "keep_index", keep_and_copy)
    make(store, "run", 2)
    monkeypatch.setattr(RunLog, "keep_index", keep)
    found = SpoolStore(tmp_path / "b")
    assert found.entries["run"].state == SEALED
    assert ids(found, found.entries["run"]) == list(range(32))
    found.close()
    store.close()


def test_what_is_not_on_the_disk_is_not_visible(tmp_path):
    store = SpoolStore(tmp_path)
    store.declare("run", "job", "partition", "batch")
    entry = store.entry("run")
    task = Task("run", "job", 0, 0, 0, [8], WIDE)
    for message, arrays in task.messages:
        sequence = store.receive(message, arrays)
    later = Task("run", "job", 1, 1, 8, [8], WIDE)
    send(store, later)
    store.log.commit(sequence)
    store.kept(sequence)
    assert entry.run.visible.rows == 16
    assert entry.rows == 8
    sealed, before = store.commit("run", "job", [task.winner, later.winner])
    assert not before
    assert (entry.rows, entry.state) == (8, OPEN)
    store.log.commit(sealed)
    store.kept(sealed)
    assert (entry.rows, entry.state) == (16, SEALED)
    assert store.commit("run", "job", [])[1]
    store.close()


def test_a_commit_that_is_repeated_waits_for_the_same_record(tmp_path):
    store = SpoolStore(tmp_path)
    store.declare("run", "job", "committed", "batch")
    winner = send(store, Task("run", "job", 0, 0, 0, [8], WIDE))
    sequence, _ = store.commit("run", "job", [winner])
    assert store.commit("run", "job", [winner]) == (sequence, True)
    store.close()


def disk(store):
    store.log.commit(store.log.put(b"test", b""))
    store.log.collect()
    return sum(path.stat().st_blocks * 512 for path in store.log.folder.iterdir())


def test_what_nobody_needs_gives_its_room_back(tmp_path):
    store = SpoolStore(tmp_path / "a")
    store.declare("run", "copy", "committed", "batch")
    empty = disk(store)
    send(store, Task("run", "copy", 0, 0, 0, [64] * 8, WIDE))
    full = disk(store)
    assert full - empty >= 4 << 20
    make(store, "run", 1, partitions=1)  # seals the run
    assert disk(store) <= empty + (2 << 20)
    store.delete("run")
    assert disk(store) <= empty + (2 << 20)
    assert not store.entries
    with pytest.raises(OptionError):
        store.entry("run")
    found = crashed(store, tmp_path / "b")
    assert not found.entries
    assert not found.log.topics
    found.close()
    store.close()


def test_a_crash_before_room_was_given_back_gives_it_back_later(tmp_path):
    store = SpoolStore(tmp_path / "a")
    store.declare("run", "copy", "committed", "batch")
    send(store, Task("run", "copy", 0, 0, 0, [8] * 4, WIDE))
    store.declare("run", "job", "committed", "batch")
    winner = send(store, Task("run", "job", 0, 1, 0, [8], WIDE))
    sequence, _ = store.commit("run", "job", [winner])
    store.log.commit(sequence)  # and nobody told the store
    found = crashed(store, tmp_path / "b")
    sent = {
        (found.entries["run"].number, "job", 0, 1): [Task("run", "job", 0, 1, 0, [8], WIDE).messages[1][1]]
    }
    check_rows(found, sent)
    assert found.entries["run"].rows == 8
    found.close()
    store.close()


def test_a_streams_frames_go_when_all_groups_have_them(tmp_path):
    store = SpoolStore(tmp_path / "a")
    for job in "abc":
        make(store, "run", 2, kind="stream", job=job)
    entry = store.entry("run")
    store.acknowledge("run", "one", (0, 40), [])
    assert entry.first == 40
    store.acknowledge("run", "two", (0, 4), [])  # it came too late for these
    assert entry.first == 40
    assert store.group(entry, "three").acknowledged == (0, 40)
    store.acknowledge("run", "one", (0, 96), [])
    assert entry.first == 40
    store.acknowledge("run", "two", (0, 95), [])
    store.acknowledge("run", "three", (0, 95), [])
    assert entry.first == 88
    sync(store)
    found = crashed(store, tmp_path / "b")
    assert found.entries["run"].first == 88
    assert found.entries["run"].groups["one"].acknowledged == (0, 96)
    assert agrees(found.frame(found.entries["run"], 11), WIDE) == list(range(88, 96))
    found.close()
    store.close()


def test_a_name_can_be_used_again(tmp_path):
    store = SpoolStore(tmp_path / "a")
    old = make(store, "run", 2)
    store.acknowledge("run", "group", (0, 5), [[1]])
    ids(store, old)  # its frames are at hand
    store.delete("run")
    new = make(store, "run", 1, job="other")
    assert new.topic != old.topic
    assert not new.groups
    store.group(new, "group")
    assert store.lineage(store.entry("run"), "group") == []
    assert ids(store, new) == list(range(16))
    sync(store)
    found = crashed(store, tmp_path / "b")
    assert ids(found, found.entries["run"]) == list(range(16))
    found.close()
    store.close()


@pytest.mark.parametrize("again", [False, True])
def test_a_frame_for_a_run_that_is_deleted_meanwhile(tmp_path, monkeypatch, again):
    """While it is written, the run goes, and maybe another one of its name comes."""
    store = SpoolStore(tmp_path / "a")
    store.declare("run", "job", "committed", "batch")
    task = Task("run", "job", 0, 0, 0, [8, 8], WIDE)
    for message, arrays in task.messages[:2]:
        assert store.receive(message, arrays) is not None
    append = RunLog.append_rows

    def append_late(self, entry, message, arrays):
        if isinstance(message, RowsFrame):
            monkeypatch.setattr(RunLog, "append_rows", append)
            store.delete("run")
            if again:
                make(store, "run", 1)
        return append(self, entry, message, arrays)

    monkeypatch.setattr(RunLog, "append_rows", append_late)
    assert store.receive(*task.messages[2]) is None
    assert store.receive(*task.messages[3]) is None
    sync(store)
    found = crashed(store, tmp_path / "b")
    for one in (store, found):
        assert set(one.entries) == ({"run"} if again else set())
        if again:
            assert ids(one, one.entries["run"]) == list(range(16))
        assert len(one.log.topics) == again
        one.close()


@pytest.mark.parametrize("how", ["commit", "abort"])
def test_a_frame_whose_job_ends_meanwhile(tmp_path, monkeypatch, how):
    """It stands in the log behind the job's end, behind the index even."""
    store = SpoolStore(tmp_path / "a")
    store.declare("run", "job", "committed", "batch")
    winner = send(store, Task("run", "job", 0, 0, 0, [8], WIDE))
    task = Task("run", "job", 0, 1, 0, [8, 8], WIDE)
    store.receive(*task.messages[0])
    append = RunLog.append_rows

    def append_late(self, entry, message, arrays):
        if isinstance(message, RowsFrame):
            monkeypatch.setattr(RunLog, "append_rows", append)
            if how == "commit":
                store.commit("run", "job", [winner])
            else:
                store.abort("run", "job")
        return append(self, entry, message, arrays)

    monkeypatch.setattr(RunLog, "append_rows", append_late)
    assert store.receive(*task.messages[1]) is None
    sync(store)
    found = crashed(store, tmp_path / "b")
    assert told(found) == told(store)
    assert found.entries["run"].state == (SEALED if how == "commit" else FAILED)
    assert not found.entries["run"].run.jobs
    found.close()
    store.close()


@pytest.mark.parametrize("full", [False, True])
def test_a_job_that_fails_before_a_task_begins_fails_the_run_after_a_crash_too(tmp_path, monkeypatch, full):
    store = SpoolStore(tmp_path / "a")
    for run, jobs in (("one", "j"), ("two", "jk"), ("again", "j")):
        for job in jobs:
            store.declare(run, job, "committed", "batch")
    with Full(monkeypatch, store) if full else nullcontext():
        for run in ("one", "two", "again"):
            assert store.abort(run, "j") is not None
    store.declare("again", "later", "committed", "batch")
    sync(store)
    found = crashed(store, tmp_path / "b")
    for one in (store, found):
        assert {name: entry.state for name, entry in one.entries.items()} == {
            "one": FAILED,
            "two": OPEN,  # its other job may still send
            "again": OPEN,
        }
        one.close()


def test_a_crash_while_a_run_is_made_leaves_nothing(tmp_path, monkeypatch):
    store = SpoolStore(tmp_path / "a")
    monkeypatch.setattr(RunLog, "put", lambda self, entry: None)
    store.declare("run", "job", "committed", "batch")
    monkeypatch.undo()
    sync(store)
    assert store.log.topics
    found = SpoolStore(shutil.copytree(tmp_path / "a", tmp_path / "b"))
    assert not found.entries
    assert not found.log.topics
    found.close()
    store.close()


class Full:
    """A log that takes nothing more but state, as a full one."""

    def __init__(self, monkeypatch, store):
        self.monkeypatch = monkeypatch
        self.log = store.log

    def __enter__(self):
        def append(topic, body=b"", *, blob=None):
            raise LogFull("the log is full")

        self.context = self.monkeypatch.context()
        self.context.__enter__().setattr(self.log, "append", append)

    def __exit__(self, *exc):
        self.context.__exit__(*exc)


def test_a_full_disk_changes_nothing_and_can_be_tried_again(tmp_path, monkeypatch):
    store = SpoolStore(tmp_path)
    store.declare("run", "job", "partition", "batch")
    task = Task("run", "job", 0, 0, 0, [8], WIDE)
    for message, arrays in task.messages:
        before = told(store)
        with Full(monkeypatch, store), pytest.raises(LogFull):
            store.receive(message, arrays)
        assert told(store) == before
        assert store.receive(message, arrays) is not None
    with Full(monkeypatch, store), pytest.raises(LogFull):
        store.commit("run", "job", [task.winner])
    assert not store.commit("run", "job", [task.winner])[1]
    sync(store)
    assert store.entry("run").state == SEALED
    store.close()


def test_a_full_disk_takes_an_abort_and_an_acknowledgement(tmp_path, monkeypatch):
    """Both make room: who could not tell them could never make any."""
    store = SpoolStore(tmp_path / "a")
    make(store, "stream", 1, kind="stream")
    store.declare("run", "job", "committed", "batch")
    send(store, Task("run", "job", 0, 0, 0, [8, 8], WIDE))
    with Full(monkeypatch, store):
        assert store.abort("run", "job") is not None
        store.acknowledge("stream", "group", (0, 16), [[1, 2, 3]])
    sync(store)
    assert store.entry("run").state == FAILED
    found = crashed(store, tmp_path / "b")
    for one in (store, found):
        assert not one.entry("run").run.jobs
        assert one.entry("stream").first == 16
        check_rows(one, {(one.entry("stream").number, "job", p, p): [None] for p in range(2)})
        # The job may come again.
        assert one.declare("run", "job", "committed", "batch")
        winner = send(one, Task("run", "job", 0, 7, 0, [8], WIDE))
        one.commit("run", "job", [winner])
        sync(one)
        assert ids(one, one.entry("run")) == list(range(8))
    third = crashed(found, tmp_path / "c")
    assert ids(third, third.entry("run")) == list(range(8))
    for one in (store, found, third):
        one.close()


def test_frames_that_no_run_or_attempt_waits_for_are_dropped(tmp_path):
    store = SpoolStore(tmp_path)
    task = Task("run", "job", 0, 0, 0, [8], WIDE)
    assert [store.receive(*message) for message in task.messages] == [None] * 3
    store.declare("run", "other", "committed", "batch")
    assert [store.receive(*message) for message in task.messages] == [None] * 3
    store.declare("run", "job", "committed", "batch")
    assert store.receive(*task.messages[1]) is None
    assert store.entry("run").run.strays == 2
    store.receive(*task.messages[0])
    with pytest.raises(ProtocolError):
        store.receive(*task.messages[0])
    with pytest.raises(ProtocolError):
        store.receive(task.messages[1][0], {"id": task.messages[1][1]["id"]})
    store.close()


def test_what_a_spool_keeps_is_limited(tmp_path, monkeypatch):
    for limit in ("MAX_RUNS", "MAX_JOBS", "MAX_GROUPS"):
        monkeypatch.setattr(stores, limit, 2)
    store = SpoolStore(tmp_path)
    for job in "ab":
        store.declare("run", job, "committed", "batch")
        store.acknowledge("run", job, (0, 0), [])
    with pytest.raises(UsageError):
        store.declare("run", "c", "committed", "batch")
    with pytest.raises(UsageError):
        store.acknowledge("run", "c", (0, 0), [])
    store.declare("other", "a", "committed", "batch")
    with pytest.raises(UsageError):
        store.declare("third", "a", "committed", "batch")
    store.close()


def test_readers_may_look_while_rows_come(tmp_path):
    """The columns of the visible frames grow in one thread and are read in another."""
    from transfer.spool.format.protocol import Fetch
    from transfer.spool.server.answer_queue import whole
    from transfer.spool.server.answers import Answers

    store = SpoolStore(tmp_path)
    store.declare("run", "job", "partition", "batch")
    entry = store.entry("run")
    answers = Answers(store, None)
    failed, over = [], threading.Event()

    def look():
        try:
            while not over.is_set():
                seen = entry.seen
                rows = seen.rows
                fetch = Fetch(epoch=0, seed=None, begin=max(0, rows - 1), rows=1, stride=0, times=1, need=0)
                arrays, count = whole(answers.rows(entry, fetch, seen))
                assert count == min(rows, 1)
                assert agrees(arrays) == [rows - 1] if count else arrays == {}
        except BaseException as error:  # noqa: BLE001 - the test's thread looks
            failed.append(error)

    reader = threading.Thread(target=look)
    reader.start()
    for partition in range(100):
        send(store, Task("run", "job", partition, partition, partition, [1], SMALL))
        if not partition % 10:
            sync(store)
    over.set()
    reader.join()
    assert not failed
    store.close()


def test_a_cut_of_a_frame_is_a_view(tmp_path):
    store = SpoolStore(tmp_path)
    entry = make(store, "run", 1)
    arrays = store.frame(entry, 1)
    assert store.frame(entry, 1) is arrays
    assert agrees(cut(arrays, WIDE, 2, 5), WIDE) == [10, 11, 12]
    with pytest.raises(ValueError, match="read-only"):
        arrays["wide"][0] = 1
    store.close()


def test_the_commits_table_is_read_again_however_large(tmp_path, monkeypatch):
    """A table of many partitions is a blob."""
    monkeypatch.setattr("transfer.tensors.bundle.LARGE", 1024)
    store = SpoolStore(tmp_path / "a")
    store.declare("run", "job", "committed", "stream")
    winners = []
    for partition in range(200):
        task = Task("run", "job", partition, partition, 0, [], ())
        winners.append(send(store, task))
    store.commit("run", "job", winners)
    sync(store)
    found = crashed(store, tmp_path / "b")
    assert found.entries["run"].run.done == {"job": None}
    assert any(
        isinstance(from_meta(metadata(message.body)), Commit) and message.blob
        for message in found._runs.messages(found.entries["run"].topic)
    )
    found.close()
    store.close()
