"""The data source: what Spark calls, on the driver and in its tasks.

Spark builds the writer in one process on the driver's side, pickles it, runs `write` in a Python worker
for each task attempt, and `commit` or `abort` in yet another process. So connections are made where
they are used, and the writer holds plain values only.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from transfer.runs import Abort, Commit, to_meta
from transfer.spark.columns import ColumnReader, split
from transfer.spark.options import WriteOptions, parse_options
from transfer.spark.producer import Attempt, Receipt, Sender, SocketSender, send_commit
from transfer.spark.schema import Column, check_schema
from transports.errors import TransferError, UsageError

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_log = logging.getLogger("transfer.spark")

#: an abort is a courtesy to the trainer; Spark's job has failed whatever becomes of it
_ABORT_TIMEOUT = 2.0
_registered: WeakSet[Any] = WeakSet()


@dataclass
class Sent(WriterCommitMessage):
    """What a task tells the commit. A plain dataclass, since Spark pickles it."""

    receipt: Receipt


class TransferWriter(DataSourceArrowWriter):
    """Sends the rows of one job. Made once a job, so its run name is the same in every task."""

    def __init__(self, options: WriteOptions, columns: Sequence[Column]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self.job = options.job or uuid.uuid4().hex
        self.run = options.run or self.job

    def write(self, iterator: Iterator[RecordBatch]) -> Sent:
        """Sends one partition; returns when the receiver has consumed it."""
        from pyspark import TaskContext

        task = TaskContext.get()
        if task is None:
            raise UsageError("a transfer writer runs inside a Spark task only")
        partition = task.partitionId()
        endpoints = self._options.endpoint
        sender = self._open(endpoints[partition % len(endpoints)])
        try:
            attempt = Attempt(
                sender,
                self.run,
                self.job,
                partition,
                task.taskAttemptId(),
                task.attemptNumber(),
                timeout=self._options.ack_timeout,
            )
            reader = ColumnReader(self._columns)
            for batch in iterator:
                for part in split(batch, self._options.frame_rows):
                    attempt.send(reader.read(part))
            return Sent(attempt.finish())
        finally:
            sender.close()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Tells every receiver which partitions there were. If it raises, Spark calls `abort`."""
        receipts = [message.receipt for message in messages if isinstance(message, Sent)]
        winners = [receipt.winner for receipt in receipts]
        transports = ",".join(sorted({receipt.transport for receipt in receipts}))
        endpoints = self._options.endpoint
        for number, endpoint in enumerate(endpoints):
            sender = self._open(endpoint)
            try:
                message = Commit(self.run, self.job, number, len(endpoints), transports)
                send_commit(sender, message, winners, self._options.ack_timeout)
            finally:
                sender.close()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Tells every receiver that can still be reached that the run has failed."""
        _send_abort(self._options, self.run, self.job)

    def _open(self, endpoint: str, timeout: float | None = None) -> Sender:
        return SocketSender(endpoint, self._options, timeout)


class TransferDataSource(DataSource):
    """`format("transfer")`. Options: see `transfer.spark.options.WriteOptions` and docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "transfer"

    def writer(self, schema: StructType, overwrite: bool) -> TransferWriter:
        """Checks options and schema on the driver, before any task starts."""
        if overwrite:
            raise UsageError(
                "a stream of rows has no past to overwrite",
                hint='Write with .mode("append").',
            )
        options = parse_options(self.options)
        return TransferWriter(options, check_schema(schema, options.columns))


def register(spark: SparkSession) -> None:
    """Makes `format("transfer")` known to a session, and to the calling thread.

    Needed where `pyspark_transfer` is not installed as a top-level module for Spark's Python, and in
    threads of your own: Spark looks for a Python data source in the thread's active session, and a
    thread that did not start Spark has none ("Failed to find the data source"). Calling it again does
    no harm.
    """
    # The one public call that makes a session the thread's active one; it computes nothing.
    spark.createDataFrame([], "nothing int")
    if spark not in _registered:
        spark.dataSource.register(TransferDataSource)
        _registered.add(spark)


def write(
    df: DataFrame,
    endpoint: str | Sequence[str],
    *,
    columns: Sequence[str] | None = None,
    run: str | None = None,
    **options: Any,
) -> str:
    """Sends a DataFrame's rows to the data set at `endpoint`, and returns the run's name.

    Blocks until the receiver has consumed all rows. `columns` are selected first, so that Spark
    computes no others. `options` are those of `WriteOptions`. Options and schema are checked before
    Spark is asked for anything: raises OptionError, AddressError, NotATensor, NotSupported; what
    goes wrong later is Spark's own exception with the cause in its text. Whatever goes wrong, the
    receivers are told, and their iteration ends with `Broken`.
    """
    given = {name: str(value) for name, value in options.items() if value is not None}
    given["endpoint"] = endpoint if isinstance(endpoint, str) else ",".join(endpoint)
    given["job"] = uuid.uuid4().hex
    given["run"] = run or given["job"]
    if columns is not None:
        given["columns"] = json.dumps(list(columns))
    parsed = parse_options(given)
    try:
        check_schema(df.schema, parsed.columns)
        if columns is not None:
            df = df.select(*(f"`{name.replace('`', '``')}`" for name in columns))
        register(df.sparkSession)
        df.write.format("transfer").mode("append").options(**given).save()
    except BaseException:
        # Spark tells the receivers only of jobs that got as far as a writer. A trainer that waits for
        # one that did not would wait until its time-out. Told twice does no harm.
        _send_abort(parsed, parsed.run, parsed.job)
        raise
    return parsed.run


def _send_abort(options: WriteOptions, run: str, job: str) -> None:
    timeout = min(_ABORT_TIMEOUT, options.connect_timeout)
    for endpoint in options.endpoint:
        try:
            sender = SocketSender(endpoint, options, timeout)
            try:
                sender.send({}, to_meta(Abort(run, job)))
            finally:
                sender.close(linger=timeout)  # not confirmed: the trainer may be in a long step
        except TransferError as error:
            _log.info("nobody at %s could be told that run %s failed: %s", endpoint, run, error)
