"""The books of one run, against a model that says what should be visible."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from transfer.spool.format.row_source import FAILED, OPEN, SEALED
from transfer.spool.format.rows import Layout
from transfer.spool.format.run_messages import RowsFrame, TaskBegin, TaskEnd, Winner, chain
from transfer.spool.server.ledger import REMEMBERED_JOBS, Run
from transfer.transports.errors import NotATensor, ProtocolError, UsageError

LAYOUTS = (Layout("id", "dense", "int64"),)
OTHERS = (Layout("id", "dense", "int32"),)


class Try:
    """An attempt as the model knows it: frames as (offset, rows), in order."""

    def __init__(self):
        self.frames = []
        self.crc = 0
        self.ended = None
        self.gone = False  # its frames were told not to be needed


class Books:
    """Feeds events to a run, and keeps them to feed them to another."""

    def __init__(self, delivery, kind):
        self.run = Run("run", delivery, kind)
        self.events = []
        self.unneeded = []

    def tell(self, name, *arguments):
        found = getattr(self.run, name)(*arguments)
        self.events.append((name, arguments))
        if isinstance(found, list):
            self.unneeded += found
        return found


def told(run):
    """All that the books say."""
    visible = {name: list(column) for name, column in run.visible.columns().items()}
    jobs = {name: job.attempts for name, job in run.jobs.items()}
    return run.state, run.layouts, visible, jobs, run.done, run.names


class Machine(RuleBasedStateMachine):
    """Jobs, attempts, retries and copies in any order. The model knows attempts by job, partition, number."""

    attempts = Bundle("attempts")

    @initialize(
        delivery=st.sampled_from(["committed", "partition"]), kind=st.sampled_from(["batch", "stream"])
    )
    def begin_run(self, delivery, kind):
        self.books = Books(delivery, kind)
        self.delivery, self.kind = delivery, kind
        self.offsets = itertools.count()
        self.open = {}  # job -> {(partition, number): Try}
        self.over = set()  # jobs that were committed
        self.visible = []  # (offset, rows, job, partition, number, sequence)
        self.taken = {}  # place -> (rows, crc) of whose rows are visible
        self.unneeded = set()
        self.state = OPEN

    @rule(job=st.sampled_from("abcd"))
    def declare(self, job):
        if self.state == SEALED and job not in self.over:
            with pytest.raises(UsageError, match="complete"):
                self.books.run.declare(job, self.delivery, self.kind)
        wanted = self.books.tell("declare", job, self.delivery, self.kind, "skip")
        assert wanted == (self.state != SEALED and job not in self.over)
        if wanted:
            self.open.setdefault(job, {})
            self.state = OPEN

    @rule(target=attempts, job=st.sampled_from("abcd"), partition=st.integers(0, 2), number=st.integers(0, 2))
    def begin(self, job, partition, number):
        known = self.open.get(job)
        message = TaskBegin("run", job, partition, number)
        if known is not None and (partition, number) in known:
            with pytest.raises(ProtocolError):
                self.books.run.begin(message, LAYOUTS)
        else:
            assert self.books.tell("begin", message, LAYOUTS) == (known is not None)
            if known is not None:
                known[partition, number] = Try()
        return job, partition, number

    def _try(self, key):
        job, *rest = key
        return self.open.get(job, {}).get(tuple(rest))

    @rule(key=attempts, rows=st.integers(0, 3), skip=st.sampled_from([0, 0, 0, 1]))
    def rows(self, key, rows, skip):
        one = self._try(key)
        sequence = len(one.frames) + skip if one else 0
        message = RowsFrame("run", *key, sequence, rows, crc=10 * key[1] + key[2] // 2)
        if one is None:
            assert not self.books.run.wants(message)
            # It was wanted when it was written, and its job ended meanwhile.
            assert not self.books.tell("rows", message, next(self.offsets))
        elif one.ended is not None or skip:
            with pytest.raises(ProtocolError):
                self.books.run.wants(message)
        else:
            assert self.books.run.wants(message)
            offset = next(self.offsets)
            assert self.books.tell("rows", message, offset)
            one.frames.append((offset, rows))
            one.crc = chain(one.crc, sequence, rows, message.crc)

    @rule(key=attempts, wrong=st.sampled_from([None, None, None, "frames", "rows", "crc"]))
    def end(self, key, wrong):
        one = self._try(key)
        if one is not None and one.ended is not None:
            return
        facts = {"frames": 0, "rows": 0, "crc": 0}
        if one is not None:
            facts = {"frames": len(one.frames), "rows": sum(rows for _, rows in one.frames), "crc": one.crc}
        message = TaskEnd("run", *key, **facts)
        if one is not None and wrong:
            with pytest.raises(ProtocolError):
                self.books.run.check_end(TaskEnd("run", *key, **{**facts, wrong: facts[wrong] + 1}))
        place = (key[0] if self.kind == "stream" else "", key[1])
        cut = message.rows, message.crc if message.rows else 0
        if one is not None and self.taken.get(place, cut) != cut:
            with pytest.raises(ProtocolError, match="recut"):
                self.books.run.check_end(message)
            return
        assert self.books.run.check_end(message) == (one is not None)
        self.books.tell("end", message)
        if one is None:
            return
        one.ended = message
        if self.delivery == "partition":
            later = self.kind == "batch" and self.visible and self.visible[-1][2] != key[0]
            if place in self.taken:
                self._forget(one)
            elif not later:
                self.taken[place] = cut
                self._show(key, one)

    def _show(self, key, one):
        self.visible += [
            (offset, rows, *key, sequence) for sequence, (offset, rows) in enumerate(one.frames) if rows
        ]
        one.gone = True

    def _forget(self, one):
        if not one.gone:
            self.unneeded.update(offset for offset, _ in one.frames)
            one.gone = True

    @rule(job=st.sampled_from("abcd"), data=st.data())
    def commit(self, job, data):
        """As Spark does: of each partition one attempt that ended, if all have one."""
        attempts = self.open.get(job, {})
        by_partition = {}
        for (partition, number), one in attempts.items():
            if one.ended is not None:
                by_partition.setdefault(partition, []).append(number)
        winners = []
        for partition, numbers in by_partition.items():
            number = data.draw(st.sampled_from(numbers))
            ended = attempts[partition, number].ended
            winners.append(Winner(partition, number, ended.frames, ended.rows, 0, ended.crc))
        winners = data.draw(st.permutations(winners))
        wanted = self.state != SEALED and job not in self.over
        whose = job if self.kind == "stream" else ""
        left = {partition for (of, partition), (rows, _) in self.taken.items() if of == whose and rows}
        if wanted and left - {winner.partition for winner in winners}:
            with pytest.raises(ProtocolError, match="recut"):
                self.books.run.check_commit(job, winners)
            return
        if self.state == SEALED and job not in self.over:
            with pytest.raises(UsageError, match="complete"):
                self.books.run.check_commit(job, winners)
        assert self.books.run.check_commit(job, winners, "skip") == wanted
        if not wanted:
            return
        self.books.tell("commit", job, tuple(winners))
        self.over.add(job)
        self.open.pop(job, None)
        for winner in sorted(winners, key=lambda one: one.partition):
            if (whose, winner.partition) not in self.taken:
                self._show(
                    (job, winner.partition, winner.attempt), attempts[winner.partition, winner.attempt]
                )
        for one in attempts.values():
            self._forget(one)
        if self.kind == "batch":
            for others in self.open.values():
                for one in others.values():
                    self._forget(one)
            self.open.clear()
            self.state = SEALED

    @precondition(lambda self: self.state != SEALED)
    @rule(key=attempts, change=st.sampled_from(["rows", "crc", "partition", "attempt", "twice"]))
    def commit_what_is_not_there(self, key, change):
        job, partition, number = key
        one = self._try(key)
        ended = one.ended if one else None
        facts = (ended.frames, ended.rows, 0, ended.crc) if ended else (1, 1, 0, 1)
        good = Winner(partition, number, *facts)
        if change == "partition":
            winners = [Winner(7, number, *facts)]
        elif change == "attempt":
            winners = [Winner(partition, 7, *facts)]
        elif change == "twice":
            winners = [good, good]
        else:
            frames, rows, nbytes, crc = facts
            winners = [
                Winner(partition, number, frames, rows + (change == "rows"), nbytes, crc + (change == "crc"))
            ]
        place = (job if self.kind == "stream" else "", partition)
        if job in self.over or (place in self.taken and change == "attempt"):
            return  # another attempt of the same rows is as good
        if place in self.taken and self.taken[place][0] == 0 and change == "crc" and ended and not ended.rows:
            return  # no rows have no order
        before = told(self.books.run)
        with pytest.raises(ProtocolError):
            self.books.run.check_commit(job, winners)
        assert told(self.books.run) == before

    @rule(job=st.sampled_from("abcd"))
    def abort(self, job):
        self.books.tell("abort", job)
        attempts = self.open.pop(job, None)
        if attempts is None:
            return
        for one in attempts.values():
            self._forget(one)
        if self.kind == "batch" and not self.open and self.state == OPEN:
            self.state = FAILED

    @rule()
    def declare_otherwise(self):
        other = {"batch": "stream", "stream": "batch"}
        with pytest.raises(UsageError):
            self.books.run.declare("a", self.delivery, other[self.kind])

    @invariant()
    def shows_what_the_model_shows(self):
        run, visible = self.books.run, self.books.run.visible
        found = [
            (offset, end - before, run.names[job], partition, number, sequence)
            for offset, before, end, job, partition, number, sequence in zip(
                visible.offsets,
                [0, *visible.ends],
                visible.ends,
                visible.jobs,
                visible.partitions,
                visible.attempts,
                visible.sequences,
                strict=False,
            )
        ]
        assert found == self.visible
        assert run.state == self.state
        assert visible.rows == sum(rows for _, rows, *_ in self.visible)
        assert set(run.jobs) == set(self.open)
        assert set(run.done) == self.over

    @invariant()
    def nothing_is_doubled(self):
        assert len({offset for offset, *_ in self.visible}) == len(self.visible)
        for _, attempts in itertools.groupby(sorted({one[2:5] for one in self.visible}), lambda key: key[:2]):
            assert len([*attempts]) == 1
        if self.kind == "batch":
            assert len({one[3] for one in self.visible}) == len({one[2:5] for one in self.visible})

    @invariant()
    def unneeded_are_those_that_nobody_will_see(self):
        assert len(self.books.unneeded) == len(set(self.books.unneeded))
        assert set(self.books.unneeded) == self.unneeded
        staged = {offset for job in self.books.run.jobs.values() for offset in job.offsets}
        shown = {offset for offset, *_ in self.visible}
        assert not self.unneeded & (staged | shown)

    def teardown(self):
        if not hasattr(self, "books"):
            return
        again = Books(self.delivery, self.kind)
        for name, arguments in self.books.events:
            again.tell(name, *arguments)
        assert told(again.run) == told(self.books.run)
        assert again.unneeded == self.books.unneeded


Machine.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
test_the_books = Machine.TestCase


def _send(run, key, frames, offsets, layouts=LAYOUTS):
    """An attempt from its beginning to its end; the Winner, and what `end` told."""
    run.begin(TaskBegin("run", *key), layouts)
    crc = 0
    for sequence, rows in enumerate(frames):
        message = RowsFrame("run", *key, sequence, rows, 5)
        assert run.wants(message)
        run.rows(message, next(offsets))
        crc = chain(crc, sequence, rows, 5)
    end = TaskEnd("run", *key, len(frames), sum(frames), crc)
    assert run.check_end(end)
    unneeded = run.end(end)
    return Winner(key[1], key[2], len(frames), sum(frames), 0, crc), unneeded


def test_other_columns_are_refused_once_an_attempt_has_ended():
    run, offsets = Run("run", "committed", "batch"), itertools.count()
    run.declare("a", "committed", "batch")
    run.begin(TaskBegin("run", "a", 5, 5), OTHERS)  # nobody has ended yet
    _send(run, ("a", 0, 0), [], offsets, ())  # without rows it has no columns either
    _send(run, ("a", 1, 1), [2], offsets)
    with pytest.raises(NotATensor, match="int32"):
        run.begin(TaskBegin("run", "a", 2, 2), OTHERS)
    with pytest.raises(NotATensor, match="int32"):
        run.check_end(TaskEnd("run", "a", 5, 5, 0, 0, 0))
    _send(run, ("a", 3, 3), [2], offsets)


def test_a_streams_later_jobs_have_the_columns_of_the_first():
    run, offsets = Run("run", "committed", "stream"), itertools.count()
    run.declare("a", "committed", "stream")
    winner, _ = _send(run, ("a", 0, 0), [2], offsets)
    run.commit("a", [winner])
    run.declare("b", "committed", "stream")
    with pytest.raises(NotATensor):
        run.begin(TaskBegin("run", "b", 0, 0), OTHERS)


def test_a_stream_remembers_its_last_jobs():
    run, offsets = Run("run", "partition", "stream"), itertools.count()
    for number in range(REMEMBERED_JOBS + 5):
        job = str(number)
        assert run.declare(job, "partition", "stream")
        winner, _ = _send(run, (job, 0, 0), [1], offsets)
        assert run.commit(job, [winner]) == []
    assert run.visible.rows == REMEMBERED_JOBS + 5
    assert len(run.done) == REMEMBERED_JOBS
    assert not run.declare(str(REMEMBERED_JOBS + 4), "partition", "stream")
    assert not run.declare("5", "partition", "stream")
    assert len(run._taken) == 0


def test_attempts_of_the_same_columns_share_their_description():
    run = Run("run", "committed", "batch")
    run.declare("a", "committed", "batch")
    for partition in range(3):
        run.begin(TaskBegin("run", "a", partition, 0), (Layout("id", "dense", "int64"),))
    assert len({id(attempt.layouts) for attempt in run.jobs["a"].attempts.values()}) == 1
