"""A data source whose tasks and commits come to harm. Spark's workers import it by this name."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from transfer.spark.job import Task
from transfer.spark.source import TransferDataSource, TransferStreamWriter, TransferWriter, current_task

#: places of a harm behind the last frame: before the `end` is sent; when the spool has it
BEFORE_END, AFTER_END = -1, -2
#: the number of an attempt that Spark does not know of
COPY = 1_000_000


@dataclass(frozen=True)
class Fault:
    """What goes wrong. frame: before which one, in that partition. times: how often. folder: where that is
    counted.

    kind, in a task: "kill" (its worker, -9), "executor" (the Java above it, -9), "raise", "wait" (for ever),
    "copy" (another attempt sends all of it first, and Spark never hears of that), "none" (only the attempts
    are counted: see `attempts`), "slow" (each frame takes `frame` milliseconds more). At the commit:
    "repeat", "late" (an attempt goes on after it), "spool" (the process whose id is in the folder is killed
    before it), "lost" (it raises when all is done).
    """

    folder: str
    kind: str
    partition: int = 1
    frame: int = 3
    times: int = 1

    def due(self) -> bool:
        """Whether it is to happen now. Any process."""
        for number in range(self.times):
            try:
                os.close(os.open(f"{self.folder}/happened-{number}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            return True
        return False

    def harm(self, frame: int, partition: int) -> None:
        if (
            self.kind in ("kill", "executor", "raise", "wait")
            and (frame, partition) == (self.frame, self.partition)
            and self.due()
        ):
            if self.kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.kind == "executor":  # worker, daemon, Java
                above = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]
                os.kill(int(above), signal.SIGKILL)
                time.sleep(600)
            if self.kind == "wait":
                time.sleep(600)
            raise ValueError("this attempt fails on purpose")


def fault(folder, **values):
    """As options of a write with a `FaultySource`."""
    return {"fault": json.dumps(asdict(Fault(str(folder), **values)))}


def happened(folder):
    """How often it did."""
    return len([*Path(folder).glob("happened-*")])


def attempts(folder):
    """How many attempts of tasks a job's writer has seen."""
    return len([*Path(folder).glob("attempt-*")])


def harmed(iterator, fault, partition):
    frame = 0
    for frame, batch in enumerate(iterator):
        if fault.kind == "slow":
            time.sleep(fault.frame / 1000)
        fault.harm(frame, partition)
        yield batch
    fault.harm(BEFORE_END, partition)


class FaultyWriter(TransferWriter):
    def __init__(self, plan, fault):
        super().__init__(plan)
        self._fault = fault

    def write(self, iterator):
        task, _ = current_task()
        if self._fault.kind == "none":
            Path(self._fault.folder, f"attempt-{task.partition}-{task.attempt}").touch()
        if self._fault.kind == "copy":
            batches = [*iterator]
            self.plan.send(iter(batches), Task(task.partition, COPY + task.attempt, 1))
            iterator = iter(batches)
        sent = super().write(harmed(iterator, self._fault, task.partition))
        self._fault.harm(AFTER_END, task.partition)
        return sent

    def commit(self, messages):
        kind = self._fault.kind
        if kind == "late":
            self._commit_before_a_loser_ends(messages)
            return
        if kind == "spool" and self._fault.due():
            os.kill(int(Path(self._fault.folder, "pid").read_text()), signal.SIGKILL)
        super().commit(messages)
        if kind == "repeat" and self._fault.due():
            super().commit(messages)
            super().commit(messages)
        if kind == "lost" and self._fault.due():
            raise ValueError("nobody hears of this commit")

    def _commit_before_a_loser_ends(self, messages):
        import pyarrow as pa

        schema = pa.schema([("id", pa.int64()), ("x", pa.list_(pa.float32()))])
        batch = pa.RecordBatch.from_pydict({"id": [-1, -2], "x": [[0.0, 0.0], [0.0, 0.0]]}, schema=schema)

        def batches():
            yield batch
            super(FaultyWriter, self).commit(messages)
            yield batch

        try:
            self.plan.send(batches(), Task(self._fault.partition, COPY, 1))
        except Exception as error:  # noqa: BLE001 - the test looks at it
            Path(self._fault.folder, "loser").write_text(f"{type(error).__name__}: {error}")


class FaultyStreamWriter(TransferStreamWriter):
    def __init__(self, plan, fault):
        super().__init__(plan)
        self._fault = fault

    def write(self, iterator):
        return super().write(harmed(iterator, self._fault, current_task()[0].partition))

    def commit(self, messages, batchId):
        super().commit(messages, batchId)
        if self._fault.kind == "lost" and self._fault.due():
            raise ValueError("nobody hears of this commit")


class FaultySource(TransferDataSource):
    @classmethod
    def name(cls):
        return "transfer_faulty"

    def writer(self, schema, overwrite):
        found = Fault(**json.loads(self.options.pop("fault")))
        return FaultyWriter(super().writer(schema, overwrite).plan, found)

    def streamWriter(self, schema, overwrite):
        found = Fault(**json.loads(self.options.pop("fault")))
        return FaultyStreamWriter(super().streamWriter(schema, overwrite)._plan, found)
