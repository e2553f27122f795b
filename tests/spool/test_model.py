"""The whole spool against a model: whatever writers, readers and crashes do, each rank has its rows, once."""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from transfer.log import Log
from transfer.spool import RowStream
from transfer.spool.client.run_client import RunClient
from transfer.spool.format.protocol import AbortJob, CommitJob, Declare, DeleteRun, Read
from transfer.spool.format.run_messages import to_table
from transfer.spool.server import store
from transfer.transports.errors import Again, Broken, OptionError, ProtocolError, UsageError

from . import socketless_spool
from .model import BATCH, Run, Try
from .model_groups import Group
from .socketless_spool import SocketlessClient, SocketlessSpool
from .task_sender import Task

#: where the folders are: the disk is not what is tested here
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
SIZES = st.lists(st.integers(1, 12), max_size=3)
NAMES, EPOCHS = ("a", "b"), 2
#: the checkpoint that a reader acknowledges: its last one, one before that, or none
ACKNOWLEDGED = st.sampled_from([None, None, 0, 0, 1, 2])


class Reader:
    """A rank that trains. at: where its next step begins. began: where it began. took: whether it asked for
    rows. saved: (position, state) of its checkpoints, the last one first. told: the last position that it
    acknowledged. back: one of them was before the one before."""

    def __repr__(self):
        return f"rank {self.rank} of {self.name}, {self.run}, at {self.at}"

    def __init__(self, run, group, rank, stream, seed):
        self.run, self.name, self.rank, self.stream, self.seed = run, group, rank, stream, seed
        self.at = self.began = position_of(stream)
        self.link = stream._source._link
        self.took = self.back = False
        self.confirmed = None
        self.saved = []

    @property
    def group(self):
        return self.run.groups[self.name]


def position_of(stream):
    state = stream.state_dict()
    return state["epoch"], state["row"]


class Machine(RuleBasedStateMachine):
    """Two names, whose runs are written, read, deleted and written again."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY))
        self.spool = SocketlessClient.spool = SocketlessSpool(self.folder)
        self.runs = {}
        self.late = []  # attempts whose jobs are over, with messages that did not come yet
        self.readers = []
        self.number = 0  # of jobs, attempts and rows

    def teardown(self):
        for reader in self.readers:
            reader.stream.close()
        self.spool.close()
        shutil.rmtree(self.folder)

    def next(self, count=1):
        self.number += count
        return self.number

    # -- writers -----------------------------------------------------------------------------------------

    def _declare(self, run, job):
        request = Declare(run=run.name, job=job, delivery=run.delivery, kind=run.kind)
        return self.spool.ask(request)[1]["done"]

    @rule(
        name=st.sampled_from(NAMES),
        kind=st.sampled_from(["batch", "stream"]),
        delivery=st.sampled_from(["committed", "partition"]),
        partitions=st.lists(SIZES, min_size=1, max_size=3),
        commit=st.booleans(),
    )
    def write(self, name, kind, delivery, partitions, commit):
        """A job with a task for each partition, which is through, or has a while to go."""
        job = self._begin_job(name, kind, delivery)
        if job is None:
            return
        run = self.runs[name]
        for partition, sizes in enumerate(partitions):
            self._push_all(self._begin_task(run, job, partition, sizes))
        if commit:
            winners = {one.partition: one for one in run.tries[job] if one.ended}
            self._commit(run, job, winners, crash=False)

    def _begin_job(self, name, kind, delivery):
        """None: another job has completed the run."""
        run = self.runs.get(name)
        job = f"job {self.next()}"
        if run is None:
            run = Run(name, kind, delivery, "")
            assert not self._declare(run, job)
            run.run_id = self.spool.ask(Read(run=name, begin=0, end=0))[1]["run_id"]
            self.runs[name] = run
        elif run.state == "sealed":
            with pytest.raises(UsageError, match="is complete"):
                self._declare(run, job)
            return None
        else:
            assert not self._declare(run, job)
        self.spool.sync()  # else a crash takes what is told of at once: that there is such a job, or run
        run.state = "open"
        run.tries[job] = []
        return job

    def _jobs(self):
        return [(run, job) for run in self.runs.values() for job in run.tries]

    @precondition(lambda self: self._jobs())
    @rule(data=st.data(), partition=st.integers(0, 2), sizes=SIZES, messages=st.sampled_from([1, 2, 9, 9]))
    def try_again(self, data, partition, sizes, messages):
        """Other rows than the tries before had, or the same ones, cut alike or otherwise."""
        run, job = data.draw(st.sampled_from(self._jobs()))
        before = [one for tries in run.tries.values() for one in tries if one.partition == partition]
        before += [one for key, one in run.taken.items() if key == run.key(job, partition)]
        if before and data.draw(st.booleans(), "of the same rows"):
            again = data.draw(st.sampled_from(before))
            first, sizes = again.task.ids[0] if again.task.ids else 0, [*again.sizes]
            if sizes and data.draw(st.booleans(), "cut otherwise"):
                sizes = [sum(sizes)]
            one = self._begin_task(run, job, partition, sizes, first)
        else:
            one = self._begin_task(run, job, partition, sizes)
        self._push_all(one, messages)

    def _begin_task(self, run, job, partition, sizes, first=None):
        number = self.next()
        first = self.next(sum(sizes) + 1) if first is None else first
        assert not self._declare(run, job)
        one = Try(run, job, partition, Task(run.name, job, partition, number, first, sizes), tuple(sizes))
        run.tries[job].append(one)
        self._push(one, 1)
        return one

    def _push(self, one, messages):
        """So many messages more; False: its end was refused."""
        for message, arrays in one.task.messages[one.sent : one.sent + messages]:
            self.spool.receive(message, arrays)
            one.sent += 1

    def _unfinished(self):
        return [one for run, job in self._jobs() for one in run.tries[job] if self._left(one)]

    @staticmethod
    def _left(one):
        return len(one.task.messages) - one.sent

    @precondition(lambda self: self._unfinished())
    @rule(data=st.data(), messages=st.sampled_from([1, 2, 9, 9]))
    def send(self, data, messages):
        self._push_all(data.draw(st.sampled_from(self._unfinished())), messages)

    def _push_all(self, one, messages=9):
        self._push(one, messages)
        self.spool.committer.flush()
        if not self._left(one):
            key = one.run.name, one.job, one.partition, one.task.key[3]
            one.run.ends(one)
            assert (self.spool.request_handler.attempts._ends[key] is None) == one.ended

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def send_late(self, data):
        """Of a job that is over: it comes for nobody."""
        one = data.draw(st.sampled_from(self.late))
        self.late.remove(one)
        self._push(one, 9)

    @precondition(lambda self: self._jobs())
    @rule(data=st.data(), crash=st.booleans())
    def commit(self, data, crash):
        run, job = data.draw(st.sampled_from(self._jobs()))
        tries = data.draw(st.permutations([one for one in run.tries[job] if one.ended]))
        self._commit(run, job, {one.partition: one for one in tries}, crash=crash)

    def _commit(self, run, job, winners, *, crash):
        if not winners:
            return
        table = to_table([one.task.winner for one in winners.values()])
        arrays = {name: np.array(column, np.int64) for name, column in table.items()}
        request = CommitJob(run=run.name, job=job)
        if not run.may_commit(job, list(winners.values())):
            with pytest.raises(ProtocolError, match="recut"):
                self.spool.ask(request, arrays)
            return
        if crash:
            assert self.spool.ask(request, arrays, commit=False) is None
            look = Read(run=run.name, begin=0, end=0)
            seen = self.spool.ask(look, commit=False)[1]
            assert (seen["visible"], seen["state"]) == (run.rows, run.state), "a crash would take it back"
            self.spool.restart(crash=True)
            if self._declare(run, job):  # a full segment of the log was synced, and so it was kept
                self._committed(run, job, winners)
            self._come_back(crash=True)
            if job not in run.tries:
                return
        for _ in range(2):  # its answer may be lost
            rows = self.spool.ask(request, arrays)[1]["rows"]
        self._committed(run, job, winners)
        assert rows == run.rows

    def _committed(self, run, job, winners):
        self._over(run.tries[job])
        if run.kind == "batch":
            self._over([one for tries in run.tries.values() for one in tries])
        run.commits(job, list(winners.values()))

    @precondition(lambda self: self._jobs())
    @rule(data=st.data())
    def abort(self, data):
        run, job = data.draw(st.sampled_from(self._jobs()))
        self.spool.ask(AbortJob(run=run.name, job=job))
        self._over(run.tries[job])
        run.aborts(job)

    def _over(self, tries):
        self.late += [one for one in tries if self._left(one) and one not in self.late]

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def delete(self, data):
        name = data.draw(st.sampled_from([*self.runs]))
        run = self.runs.pop(name)
        busy = run.tries or any(reader.run is run for reader in self.readers)
        if busy:
            with pytest.raises(UsageError, match="readers and"):
                self.spool.ask(DeleteRun(run=name))
        assert self.spool.ask(DeleteRun(run=name, force=True))[1]["rows"] == run.rows
        for tries in run.tries.values():
            self._over(tries)

    # -- the machine -------------------------------------------------------------------------------------

    @rule(crash=st.booleans())
    def restart(self, crash):
        self.spool.restart(crash=crash)
        self._come_back(crash)

    def _come_back(self, crash):
        """All that had connections."""
        for run, job in self._jobs():  # tasks whose connections broke are tried again
            run.tries[job] = [one for one in run.tries[job] if one.ended]
            assert not self._declare(run, job)
        self.late = []
        for run in self.runs.values():  # that a job without tasks failed is forgotten
            if run.state == "failed":
                run.state = self.spool.ask(Read(run=run.name, begin=0, end=0))[1]["state"]
                assert run.state in ("failed", "open")
        for group in self._groups() if crash else ():
            group.crash()
        for reader in [*self.readers]:
            reader.link.disconnect()
            try:
                reader.stream._source._reconnect(None)
            except Broken:
                assert self.runs.get(reader.run.name) is not reader.run
                self._leave(reader, closed=False)

    def _groups(self):
        return [group for run in self.runs.values() for group in run.groups.values()]

    # -- readers -----------------------------------------------------------------------------------------

    @precondition(lambda self: any(run.rows for run in self.runs.values()))
    @rule(
        data=st.data(),
        group=st.sampled_from(["g", "h"]),
        world=st.sampled_from([1, 2, 2, 3]),
        resume=st.booleans(),
        steps=st.integers(0, 6),
        acknowledge=ACKNOWLEDGED,
        leave=st.sampled_from([None, None, False, True]),
    )
    def train(self, data, group, world, resume, steps, acknowledge, leave):
        """A rank comes, and maybe goes."""
        run = data.draw(st.sampled_from([run for run in self.runs.values() if run.rows]))
        reader = self._open(data, run, group, world, resume=resume)
        if reader is None or not self._read(reader, steps):
            return
        if steps or acknowledge == 0:
            self._save(reader, acknowledge)
        if leave is not None:
            self._leave(reader, closed=leave)

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), steps=st.integers(0, 6), acknowledge=ACKNOWLEDGED)
    def train_on(self, data, steps, acknowledge):
        reader = data.draw(st.sampled_from(self.readers))
        if self._read(reader, steps):
            self._save(reader, acknowledge)

    def _open(self, data, run, group, world, *, resume):
        """None: the lease is another's."""
        mates = [one for one in self.readers if (one.run.name, one.name) == (run.name, group)]
        if mates and mates[0].run is run:
            world = run.groups[group].world
        rank = data.draw(st.integers(0, world - 1))
        seed = 7 if run.state == "sealed" and group == "h" else None
        client = RunClient(f"run://127.0.0.1:1/{run.name}", timeout=0.0)
        make = partial(
            RowStream,
            client,
            BATCH,
            group=group,
            epochs=EPOCHS,
            shuffle=seed,
            rank=rank,
            world_size=world,
            timeout=0.0,
        )
        if any(one.run is not run or one.rank == rank for one in mates):
            with pytest.raises(UsageError, match="is being read"):
                make()
            return None
        stream = make()
        assert stream.info.run_id == run.run_id
        now, start = stream.info.acknowledged or (0, 0), position_of(stream)
        known = run.groups.get(group)
        if known is None:
            known = run.groups[group] = Group(world, now, begun=now)
            assert now == (0, self.spool.store.entry(run.name).first)
        known.open(rank, world, now, alone=not mates)
        assert start >= now and not any(run.share(now, start, one, world) for one in range(world))
        states = [
            state
            for position, state in known.states
            if state["seed"] == seed
            and self._fits(run, position, start, world)
            and self._fits(run, position, known.origin, world)
            and all(self._fits(run, position, one.began, world) for one in mates)
        ]
        if resume and states:
            stream.load_state_dict(data.draw(st.sampled_from(states)))
        self.readers.append(Reader(run, group, rank, stream, seed))
        return self.readers[-1]

    @staticmethod
    def _fits(run, one, other, world):
        """Whether steps from these positions on are the same steps."""
        rows = (one[1] - other[1]) if one[0] == other[0] else one[1]
        return rows % (world * BATCH) == 0 and (one[0] == other[0] or other[1] % (world * BATCH) == 0)

    def _read(self, reader, steps):
        """False: the run is gone, or has failed, and so has the reader."""
        run, stream, world = reader.run, reader.stream, reader.group.world
        for _ in range(steps):
            step = run.step(reader.at, reader.rank, world)
            if step is not None and step[0][0] >= EPOCHS:
                step = None
            try:
                reader.took |= not stream.finished
                batch = None if stream.finished else next(iter(stream), None)
            except Again:
                batch = None
            except Broken:
                gone = self.runs.get(run.name) is not run
                assert gone or run.failed or not self._kept(run, reader.at)
                self._leave(reader, closed=True)
                return False
            if batch is None:
                assert step is None
                return True
            assert step is not None
            position, (begin, end), reader.at = step
            assert batch["id"].tolist() == run.order(reader.seed, position[0])[begin:end]
        return True

    def _kept(self, run, position):
        return position >= (0, self.spool.store.entry(run.name).first)

    def _save(self, reader, acknowledge):
        """A checkpoint. The group acknowledges so many before it, or none."""
        run, group = reader.run, reader.group
        saved = position_of(reader.stream), reader.stream.state_dict()
        group.states.append(saved)
        reader.saved.insert(0, saved)
        if acknowledge is None:
            return
        position, state = reader.saved[min(acknowledge, len(reader.saved) - 1)]
        if self.runs.get(run.name) is not run:
            with pytest.raises(Broken, match=run.run_id):
                reader.stream.acknowledge(state)
            return
        first = self.spool.store.entry(run.name).first
        reader.stream.acknowledge(state)
        mates = {one.rank: one for one in self.readers if one.run is run and one.name == reader.name}
        if run.kind == "stream":  # which does not go back to rows that are gone
            position = max(position, (0, first))
        group.acknowledge([reader.rank], position, mates)

    def _leave(self, reader, *, closed):
        self.readers.remove(reader)
        if not closed:
            reader.stream._source._closed.set()  # it cannot say that it goes
            reader.link.disconnect()
        reader.group.leave(reader, closed=closed)
        reader.stream.close()
        self.spool.tick()

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), closed=st.booleans())
    def leave(self, data, closed):
        self._leave(data.draw(st.sampled_from(self.readers)), closed=closed)

    # -- always ------------------------------------------------------------------------------------------

    @invariant()
    def visible_rows_are_those_of_the_model(self):
        for name in NAMES:
            run = self.runs.get(name)
            if run is None:
                with pytest.raises(OptionError, match="there is no run"):
                    self.spool.ask(Read(run=name, begin=0, end=0))
                continue
            meta = self.spool.ask(Read(run=name, run_id=run.run_id, begin=0, end=0))[1]
            assert (meta["visible"], meta["state"]) == (run.rows, run.state)
            first = meta["first"]
            if first < run.rows:
                arrays, _ = self.spool.ask(Read(run=name, run_id=run.run_id, begin=first, end=run.rows))
                assert arrays["id"].tolist() == run.ids[first:]

    @invariant()
    def groups_are_where_their_readers_are(self):
        for run in self.runs.values():
            entry = self.spool.store.entry(run.name)
            assert entry.groups.keys() == run.groups.keys()
            for name, group in run.groups.items():
                now = entry.groups[name].acknowledged or (0, 0)
                group.check(run, now)
                assert run.kind == "batch" or now >= (0, entry.first)


@pytest.fixture(autouse=True)
def directly(monkeypatch):
    socketless_spool.use(monkeypatch)
    monkeypatch.setattr(store, "Log", partial(Log, segment_bytes=1 << 16))


def check(examples, steps, *, slow=False):
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=not slow,  # `make test` is the same each time; the long one looks further
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )


@pytest.mark.timeout(180)
def test_each_rank_has_its_rows_once():
    check(25, 40)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_rank_has_its_rows_once_long():
    check(1000, 60, slow=True)
