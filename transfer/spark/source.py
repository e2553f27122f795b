"""The data source that Spark calls, on the driver and in its tasks.

Spark builds the writer in one process on the driver's side, pickles it, runs `write` in a Python worker for
each task attempt, and `commit` or `abort` in another process. It builds a stream's writer again for each
batch and each commit, so a job of a stream is named by its query and batch, which tasks know.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from transfer.spark.job import EagerWrite, SpoolWrite, Task, Write
from transfer.spark.options import WriteOptions, parse_options, parse_read_options
from transfer.spark.producer import Receipt
from transfer.spark.run_reader import RunStream, SparkRunReader, read_schema
from transfer.spool.format.protocol import raised, refusal
from transfer.transports.errors import NotATensor, NotSupported, OptionError, UsageError, comes_with

with comes_with("spark", __name__):
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceArrowWriter,
        DataSourceStreamArrowWriter,
        WriterCommitMessage,
    )

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

#: properties of a stream's task, undocumented by Spark. The last one is new at each start of a query
_BATCH, _QUERY, _START = "streaming.sql.batchId", "sql.streaming.queryId", "spark.jobGroup.id"
#: options of a query that Spark passes to its sink
_OF_QUERIES = ("checkpointlocation", "queryname")


@dataclass
class TaskResult(WriterCommitMessage):
    """The result of a task for the commit. A plain dataclass, since Spark pickles it.

    job: of a stream's batch. cause: why its rows cannot travel. Such a task succeeds for Spark, which would
    only retry it and find the same rows; the commit fails.
    """

    receipt: Receipt | None
    job: str = ""
    cause: list[str] | None = None


class TransferWriter(DataSourceArrowWriter):
    """Sends the rows of one job. Made once for a job, so all tasks have the same run name."""

    def __init__(self, plan: Write) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[RecordBatch]) -> TaskResult:
        """Sends one partition; returns when the receiver has stored or consumed it."""
        return _send_partition(self.plan, iterator, current_task()[0])

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commits the job. If it raises, Spark calls `abort` and fails the job."""
        _check(messages)
        self.plan.commit(_receipts(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Aborts the job. Called when a task has failed for good, or the commit has."""
        self.plan.abort()


class TransferStreamWriter(DataSourceStreamArrowWriter):
    """Sends the batches of one streaming query, each as a separate job."""

    def __init__(self, plan: SpoolWrite) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[RecordBatch]) -> TaskResult:
        """Sends one partition of a batch; returns when the spool has it on its disk."""
        task, job = current_task()
        if not job:
            raise NotSupported(
                "this Spark does not report the streaming query to its tasks", hint="use PySpark 4.1 to 4.3"
            )
        return _send_partition(replace(self._plan, job=job), iterator, task, job)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commits a batch. Spark repeats it after a restart; a committed batch is not committed again."""
        _check(messages)
        for job in _jobs(messages):
            replace(self._plan, job=job).commit(_receipts(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        for job in _jobs(messages):
            replace(self._plan, job=job).abort()


class TransferDataSource(DataSource):
    """`format("transfer")`. Options: see `transfer.spark.options` and docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "transfer"

    def schema(self) -> StructType:
        """Returns the schema of the run to read, if the user gave none."""
        return read_schema(parse_read_options(self.options))

    def reader(self, schema: StructType) -> SparkRunReader:
        return SparkRunReader(parse_read_options(self.options), schema)

    def streamReader(self, schema: StructType) -> RunStream:  # noqa: N802 - Spark's name
        return RunStream(parse_read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> TransferWriter:
        """Checks options, schema and spool on the driver, before any task starts."""
        if overwrite:
            raise UsageError(
                "a stream of rows has no past to overwrite",
                hint='Write with .mode("append").',
            )
        return TransferWriter(_plan_of(parse_options(self.options), schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> TransferStreamWriter:  # noqa: N802 - Spark's name
        """As `writer`, for `df.writeStream`, which needs a spool and a name for its run."""
        if overwrite:
            raise UsageError("a stream of rows is appended", hint='Write with .outputMode("append").')
        options = parse_options({k: v for k, v in self.options.items() if k.lower() not in _OF_QUERIES})
        if options.delivery == "eager":
            raise NotSupported(
                "eager delivery does not support streams: Spark repeats batches after a restart",
                hint="Write it to a spool, endpoint run://HOST:PORT/NAME.",
            )
        if not options.run:
            raise OptionError(
                "a stream needs a name for its run", hint="endpoint run://HOST:PORT/NAME, or option 'run'"
            )
        columns = options.columns_of(schema)
        return TransferStreamWriter(SpoolWrite(options, columns, options.run, "", "stream"))


def _plan_of(options: WriteOptions, schema: Any) -> Write:
    """Plans a write after all checks that the driver can do. Raises as `check_schema` and `Write.check`."""
    columns = options.columns_of(schema)
    job = options.job or uuid.uuid4().hex
    run = options.run or job
    plan = (EagerWrite if options.delivery == "eager" else SpoolWrite)(options, columns, run, job)
    plan.check()
    return plan


def current_task() -> tuple[Task, str]:
    """Returns the current task, and the job of its streaming batch, or ""."""
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is None:
        raise UsageError("a transfer writer runs inside a Spark task only")
    query, batch = task.getLocalProperty(_QUERY), task.getLocalProperty(_BATCH)
    number = task.taskAttemptId()
    if not query or not batch:
        return Task(task.partitionId(), number, task.attemptNumber()), ""
    # A Spark that counts attempts from 0 retries a batch under its name: the query's start differs.
    start = zlib.crc32((task.getLocalProperty(_START) or "").encode()) >> 1
    number = start << 32 | number & 0xFFFFFFFF
    return Task(task.partitionId(), number, task.attemptNumber()), f"{query}/{batch}"


def _send_partition(plan: Write, iterator: Iterator[RecordBatch], task: Task, job: str = "") -> TaskResult:
    try:
        return TaskResult(plan.send(iterator, task), job)
    except NotATensor as error:
        return TaskResult(None, job, refusal(error))


def _check(messages: list[WriterCommitMessage | None]) -> None:
    """Raises the error of the first refused task."""
    for message in messages:
        if isinstance(message, TaskResult) and message.cause is not None:
            raise raised(message.cause)


def _receipts(messages: list[WriterCommitMessage | None]) -> list[Receipt]:
    return [m.receipt for m in messages if isinstance(m, TaskResult) and m.receipt is not None]


def _jobs(messages: list[WriterCommitMessage | None]) -> list[str]:
    """Returns the job of these messages; empty if no task has named one."""
    return list(dict.fromkeys(m.job for m in messages if isinstance(m, TaskResult)))
