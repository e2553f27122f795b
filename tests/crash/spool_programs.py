"""Programs of the spool: a whole one over its sockets is recorded, its store opens what a crash leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.crash.program import Mark, Program, steps_of
from tests.spool import task_sender
from tests.spool.task_sender import SMALL, WIDE, Task
from transfer.log import Log
from transfer.spool import Spool
from transfer.spool.client.run_client import RunClient
from transfer.spool.format.protocol import AbortJob, DeleteRun
from transfer.spool.format.row_source import SEALED
from transfer.spool.server import store as stores
from transfer.spool.server.store import SpoolStore

_SEGMENT = 1 << 16


@dataclass
class Run:
    """What a run has. ids: of its rows, in order. groups: rows before which each has acknowledged."""

    ids: list[int] = field(default_factory=list)
    sealed: bool = False
    stream: bool = False
    groups: dict[str, int] = field(default_factory=dict)
    lineage: int = 0


@dataclass
class Model:
    """What a spool has after its steps."""

    runs: dict[str, Run] = field(default_factory=dict)
    #: attempts that ended, of jobs that are open
    ended: dict[tuple[str, str, int, int], Any] = field(default_factory=dict)

    def take(self, step: tuple[Any, ...]) -> None:
        kind, name, *rest = step
        if kind == "delete":
            self.runs.pop(name, None)
            self._close(name)
            return
        if kind == "abort":
            self._close(name, rest[0])
            return
        if kind == "end":  # of an attempt; its rows are visible with delivery=partition
            job, winner, ids, visible, stream = rest
            self.ended[name, job, winner.partition, winner.attempt] = winner
            if visible:
                run = self.runs.setdefault(name, Run())
                run.ids += ids
                run.stream = stream
            return
        run = self.runs.setdefault(name, Run())
        if kind == "commit":
            job, ids, run.stream = rest
            run.ids += ids
            run.sealed = not run.stream
            self._close(name, None if run.sealed else job)
        elif kind == "acknowledge":
            group, row = rest
            run.groups[group] = row
            run.lineage += 1

    def _close(self, run: str, job: str | None = None) -> None:
        self.ended = {
            key: winner for key, winner in self.ended.items() if key[0] != run or (job and key[1] != job)
        }


def look(store: SpoolStore, model: Model) -> str:
    """The first difference between a store and a model, or nothing."""
    for name, run in model.runs.items():
        entry = store.entries.get(name)
        if entry is None:
            return f"run {name} is not there"
        if (entry.rows, entry.state == SEALED) != (len(run.ids), run.sealed):
            return f"run {name} has {entry.rows} rows and is {entry.state}, not {len(run.ids)} rows"
        lowest = min(run.groups.values(), default=0) if run.stream else 0
        if entry.first > lowest:
            return f"run {name} begins with row {entry.first}, and {lowest} are acknowledged"
        visible = entry.run.visible
        layouts = entry.run.layouts or SMALL
        ids: list[int] = []
        for number, end in enumerate(visible.ends):
            if entry.first < end:
                ids += task_sender.agrees(store.frame(entry, number), layouts)
        if ids != run.ids[len(run.ids) - len(ids) :] or len(ids) < len(run.ids) - entry.first:
            return f"run {name} has the rows {ids[:5]} ... {ids[-5:]}"
        groups = {group: found.acknowledged[1] for group, found in entry.groups.items() if found.acknowledged}
        for group in groups.keys() - run.groups.keys():  # it has come, and begins at the first row
            if groups[group] == entry.first:
                del groups[group]
        if groups != run.groups:
            return f"groups {groups} of run {name}, not {run.groups}"
        steps = sum(len(store.lineage(entry, group)) for group in groups)
        if not run.lineage <= steps <= run.lineage + 1:  # it is written before its position
            return f"{steps} steps of run {name} are recorded, not {run.lineage}"
    for name, entry in store.entries.items():
        if name not in model.runs and (entry.rows or entry.state == SEALED or entry.groups):
            return f"run {name} is there, with {entry.rows} rows"
    for run, job, *key in model.ended:
        entry = store.entries.get(run)
        known = entry.run.jobs.get(job) if entry is not None else None
        attempt = known.attempts.get((key[0], key[1])) if known is not None else None
        if attempt is None or attempt.ended is None:
            return f"the end of partition {key[0]} of job {job}, run {run}, is not there"
    return ""


def _matching(store: SpoolStore, steps: list[tuple[Any, ...]], acknowledged: int) -> int:
    """Of how many steps the store has what they leave; of all acknowledged ones at least."""
    model, first = Model(), ""
    found = -1
    for count in range(len(steps) + 1):
        if count:
            model.take(steps[count - 1])
        if count >= acknowledged:
            difference = look(store, model)
            if not difference:
                found = count
            first = first or difference
    assert found >= 0, f"{first}, after {acknowledged} of {len(steps)} steps were acknowledged"
    return found


@contextmanager
def small_segments() -> Iterator[None]:
    """Logs of spools that are written fast."""
    real = stores.Log
    stores.Log = partial(Log, segment_bytes=_SEGMENT)  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        stores.Log = real  # type: ignore[misc]


class Driver:
    """Writers, drivers and readers of one spool, one after the other."""

    def __init__(self, spool: Spool, mark: Mark, delivery: str = "committed", kind: str = "batch") -> None:
        self._spool = spool
        self._mark = mark
        self._delivery = delivery
        self._kind = kind

    @contextmanager
    def _step(self, *step: Any) -> Iterator[None]:
        self._mark(("try", step))
        yield
        self._mark(("ack",))

    def task(
        self,
        run: str,
        job: str,
        partition: int,
        attempt: int,
        first: int,
        sizes: list[int],
        layouts: Any = WIDE,
    ) -> Any:
        winner = Task(run, job, partition, attempt, first, sizes, layouts).winner
        ids = list(range(first, first + sum(sizes)))
        visible = self._delivery == "partition"
        with self._step("end", run, job, winner, ids, visible, self._kind == "stream"):
            sent = task_sender.push(
                self._spool.endpoint, run, job, partition, attempt, first, sizes, layouts,
                delivery=self._delivery, kind=self._kind,
            )  # fmt: skip
        return sent, ids

    def commit(self, run: str, job: str, tasks: list[Any]) -> None:
        ids = [] if self._delivery == "partition" else [one for _, its in tasks for one in its]
        with self._step("commit", run, job, ids, self._kind == "stream"):
            task_sender.commit(self._spool.endpoint, run, job, [winner for winner, _ in tasks])

    def abort(self, run: str, job: str) -> None:
        with self._step("abort", run, job):
            task_sender.ask(self._spool.endpoint, AbortJob(run=run, job=job))

    def delete(self, run: str) -> None:
        with self._step("delete", run):
            task_sender.ask(self._spool.endpoint, DeleteRun(run=run, force=True))

    def acknowledge(self, run: str, group: str, *rows: int) -> None:
        client = RunClient(self._spool.url(run), timeout=20.0)
        try:
            client.open(group)
            for row in rows:
                with self._step("acknowledge", run, group, row):
                    client.acknowledge(0, row, [[row, 1, 0, 0, row, 0, 1]])
        finally:
            client.close()


class SpoolProgram(Program):
    """steps: with a spool on the folder, as often as they open it."""

    def __init__(self, name: str, steps: Callable[[Callable[[], Spool], Mark], None]) -> None:
        super().__init__(name)
        self._steps = steps

    def run(self, folder: Path, mark: Mark) -> None:
        with small_segments():
            self._steps(lambda: Spool(folder / "spool"), mark)

    def check(self, folder: Path, marks: list[Any], mark: Mark) -> None:
        steps, acknowledged = steps_of(marks)
        with small_segments():
            store = SpoolStore(folder / "spool")
            try:
                count = _matching(store, steps, acknowledged)
                mark(("seen", count))
                del steps[count:]
                self._go_on(store, steps, mark)
            finally:
                store.close()
            store = SpoolStore(folder / "spool")
            try:
                _matching(store, steps, len(steps))
                found = store.log.verify()
                assert found.whole, found
            finally:
                store.close()

    @staticmethod
    def _go_on(store: SpoolStore, steps: list[tuple[Any, ...]], mark: Mark) -> None:
        """Open jobs that were acknowledged are committed, and another run is written."""
        model = Model()
        for step in steps:
            model.take(step)
        jobs: dict[tuple[str, str], dict[int, Any]] = {}
        for (run, job, partition, _), winner in model.ended.items():
            jobs.setdefault((run, job), {}).setdefault(partition, winner)
        for (run, job), winners in list(jobs.items())[:1]:
            known = {
                (step[3].partition, step[3].attempt): step[4]
                for step in steps
                if step[0] == "end" and step[1:3] == (run, job)
            }
            partitions = sorted(winners)
            entry = store.entries[run]
            ids: list[int] = []
            if entry.run.delivery == "committed":
                ids = [one for key in partitions for one in known[key, winners[key].attempt]]
            steps.append(("commit", run, job, ids, entry.run.kind == "stream"))
            mark(("try", steps[-1]))
            sequence, _ = store.commit(run, job, [winners[key] for key in partitions])
            _keep(store, sequence)
            mark(("ack",))
        number = len(steps)
        task = Task(f"after{number}", "job", 0, 0, 0, [3, 2], SMALL)
        store.declare(f"after{number}", "job", "committed", "batch")
        for message, arrays in task.messages:
            store.receive(message, arrays)
        steps.append(("commit", f"after{number}", "job", task.ids, False))
        mark(("try", steps[-1]))
        sequence, _ = store.commit(f"after{number}", "job", [task.winner])
        _keep(store, sequence)
        mark(("ack",))


def _keep(store: SpoolStore, sequence: int) -> None:
    """As the spool's committer does."""
    store.log.commit(sequence)
    store.kept(sequence)


# -- the programs --------------------------------------------------------------------------------------------


def _jobs(spools: Callable[[], Spool], mark: Mark) -> None:
    """Two attempts of a partition, a commit, an abort, a delete, and the name declared again; restarts."""
    with spools() as spool:
        driver = Driver(spool, mark)
        one = driver.task("run", "a", 0, 0, 0, [4, 3])
        driver.task("run", "a", 1, 1, 7, [5])
        two = driver.task("run", "a", 1, 2, 7, [5])
        driver.commit("run", "a", [one, two])
        driver.task("failed", "b", 0, 3, 100, [6])
        driver.abort("failed", "b")
        driver.task("open", "c", 0, 4, 200, [2, 2])
    with spools() as spool:
        driver = Driver(spool, mark)
        driver.acknowledge("run", "g", 3, 9)
        driver.delete("run")
        three = driver.task("run", "d", 0, 6, 300, [2])
        driver.commit("run", "d", [three])


def _partitions(spools: Callable[[], Spool], mark: Mark) -> None:
    """delivery=partition: each partition is visible at its end."""
    with spools() as spool:
        driver = Driver(spool, mark, "partition")
        tasks = [driver.task("run", "a", number, number, number * 10, [4, 6]) for number in range(4)]
        driver.commit("run", "a", tasks)
        driver.task("other", "b", 0, 9, 0, [3])


def _streams(spools: Callable[[], Spool], mark: Mark) -> None:
    """A stream that grows, and is trimmed as two groups acknowledge."""
    with spools() as spool:
        driver = Driver(spool, mark, kind="stream")
        for number in range(5):
            task = driver.task("stream", f"job{number}", 0, number, number * 8, [4, 4])
            driver.commit("stream", f"job{number}", [task])
            if number == 1:
                driver.acknowledge("stream", "slow", 4)
            if number:
                driver.acknowledge("stream", "fast", number * 8 - 4, number * 8)
        driver.acknowledge("stream", "slow", 20, 36)


def _restarts(spools: Callable[[], Spool], mark: Mark) -> None:
    """Five spools one after the other, with jobs that outlive them."""
    last: list[Any] = []
    for number in range(5):
        with spools() as spool:
            driver = Driver(spool, mark)
            if number:
                driver.commit(f"run{number - 1}", "job", last)
                driver.acknowledge(f"run{number - 1}", "g", number, number + 1)
            last = [driver.task(f"run{number}", "job", part, part, part * 5, [3, 2]) for part in range(2)]


PROGRAMS: dict[str, Callable[[], Program]] = {
    "spool_jobs": lambda: SpoolProgram("spool_jobs", _jobs),
    "spool_partitions": lambda: SpoolProgram("spool_partitions", _partitions),
    "spool_streams": lambda: SpoolProgram("spool_streams", _streams),
    "spool_restarts": lambda: SpoolProgram("spool_restarts", _restarts),
}
