"""`transfer.spark.write`: sends a DataFrame's rows to a spool or a trainer, on PySpark 4.1 to 4.3 and 3.5."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from transfer.spark.job import EagerWrite, SpoolWrite, Task, Write
from transfer.spark.options import WriteOptions, parse_options
from transfer.spark.producer import Receipt
from transfer.spool.format.protocol import raised, refusal
from transfer.spool.format.rows import list_of_names
from transfer.spool.format.run_messages import Winner
from transfer.transports.arguments import sequence, text, wrong
from transfer.transports.errors import NotATensor, NotSupported, TransferError, UsageError

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame, SparkSession

_registered: WeakSet[Any] = WeakSet()
#: a task yields one row: a `Receipt`, or the `cause` for which its rows cannot travel
_NUMBERS = ("partition", "attempt", "frames", "rows", "nbytes", "crc")
_RECEIPT = ", ".join(f"{name} long" for name in _NUMBERS) + (
    ", seconds double, transport string, cause array<string>"
)
#: the line of a Python traceback in Spark's error that has a task's refusal
_REFUSAL = re.compile(r"^transfer\.transports\.errors\.NotATensor: (.*)(?:\n  hint: (.*))?", re.MULTILINE)


def _has_data_sources() -> bool:
    """Whether this PySpark has Arrow writers of data sources in Python: 4.1 and newer."""
    if importlib.util.find_spec("pyspark.sql.datasource") is None:
        return False
    from pyspark.sql import datasource

    return hasattr(datasource, "DataSourceStreamArrowWriter")


def register(spark: SparkSession) -> None:
    """Registers `format("transfer")` in a session and in the calling thread. Repeating it is harmless.

    Needed if `pyspark_transfer` is not a top-level module of Spark's Python, and in threads of the program:
    Spark looks up a Python data source in the thread's active session, and a thread that did not start Spark
    has none ("Failed to find the data source").

    Args:
        spark: the SparkSession.

    Raises:
        NotSupported: this PySpark has no such data sources.
    """
    if not _has_data_sources():
        raise NotSupported(
            'this PySpark has no format("transfer")', hint="use transfer.spark.write, or PySpark 4.1 to 4.3"
        )
    from transfer.spark.source import TransferDataSource

    if not hasattr(spark, "createDataFrame"):
        raise wrong("spark", spark, "a SparkSession")
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
    delivery: str = "committed",
    ragged: Sequence[str] | str | None = None,
    nulls: str | None = None,
    if_complete: str | None = None,
    **options: Any,
) -> str:
    """Sends a DataFrame's rows to a run of a spool, and returns the run's name.

    It blocks until all rows are stored, or consumed. Options, schema and spool are checked before Spark
    starts. If the job fails, the receivers are informed.

    Args:
        df: the DataFrame.
        endpoint: `run://HOST:PORT/NAME`; with delivery="eager" the endpoint of a data set, or of several.
        columns: the columns to send, selected first, so that Spark computes no others; None sends all.
        run: the run's name, if the endpoint has none.
        delivery: "committed" (all or nothing), "partition" or "eager"; see docs/spark.md.
        ragged: array columns whose rows have different lengths ("*": all arrays).
        nulls: "refuse", "fill" or "mask".
        if_complete: if another job has completed the run: "refuse" (UsageError) or "skip" (send nothing).
        **options: further options of `WriteOptions`.

    Raises:
        OptionError, AddressError: an option or the endpoint is not valid.
        NotATensor: a column or a value cannot travel.
        UsageError: the run is complete.
        Again: no spool answers.
        Exception: Spark's own error for any later failure, with the cause in its text.
    """
    given = {name: str(value) for name, value in options.items() if value is not None}
    words = {"delivery": delivery, "run": run, "nulls": nulls, "if_complete": if_complete}
    given |= {name: text(word, name) for name, word in words.items() if word is not None}
    given |= _listed(endpoint, columns, ragged) | {"job": uuid.uuid4().hex}
    if not hasattr(df, "schema"):
        raise wrong("df", df, "a DataFrame of Spark")
    parsed = parse_options(given)
    given["run"] = parsed.run or given["job"]
    parsed = dataclasses.replace(parsed, run=given["run"])
    _run(df, parsed, given, columns)
    return parsed.run


def _listed(
    endpoint: str | Sequence[str], columns: Sequence[str] | None, ragged: Sequence[str] | str | None
) -> dict[str, str]:
    """The options that take lists, as texts. Raises ArgumentError."""
    endpoints = [endpoint] if isinstance(endpoint, str) else sequence(endpoint, "endpoint", "endpoints")
    given = {"endpoint": ",".join(text(one, "endpoint") for one in endpoints)}
    if columns is not None:
        given["columns"] = json.dumps(list_of_names("columns", columns))
    if ragged is not None:
        given["ragged"] = ragged if isinstance(ragged, str) else json.dumps(list_of_names("ragged", ragged))
    return given


def _run(df: DataFrame, parsed: WriteOptions, given: dict[str, str], columns: Sequence[str] | None) -> None:
    """Runs the job. parsed: `given`, read. columns: what is selected first. Raises as `write`."""
    kind = EagerWrite if parsed.delivery == "eager" else SpoolWrite
    plan: Write = kind(parsed, (), parsed.run, parsed.job)
    declared = False
    try:
        plan = dataclasses.replace(plan, columns=parsed.columns_of(df.schema))
        plan.check()
        declared = True
        if columns is not None:
            df = df.select(*(f"`{name.replace('`', '``')}`" for name in columns))
        if _has_data_sources():
            register(df.sparkSession)
            df.write.format("transfer").mode("append").options(**given).save()
        else:
            _write_by_map(df, dataclasses.replace(plan, columns=parsed.columns_of(df.schema)))
    except BaseException as error:
        # Spark informs the receivers only of jobs that reached a writer. Without this a trainer would wait
        # for its timeout. A second time does no harm.
        plan.abort(declared=declared)
        refused = _REFUSAL.search(str(error))
        if refused is None or isinstance(error, TransferError):
            raise
        raise NotATensor(refused[1], hint=refused[2] or "") from error


def _write_by_map(df: DataFrame, plan: Write) -> None:
    """Writes without data sources: `mapInArrow` sends each partition and yields its receipt.

    A retried task yields the receipt of the successful attempt, as a data source's task does.
    """

    def send(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        import pyarrow
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            raise UsageError("rows are sent inside a Spark task only")
        task = Task(context.partitionId(), context.taskAttemptId(), context.attemptNumber())
        row: dict[str, Any] | None = None
        try:
            receipt = plan.send(batches, task)
        except NotATensor as error:  # a retry would find the same rows
            row = {"cause": refusal(error)}
        else:
            if receipt is not None:
                also = {"seconds": receipt.seconds, "transport": receipt.transport}
                row = dataclasses.asdict(receipt.winner) | also
        if row is not None:
            types = {"seconds": pyarrow.float64(), "transport": pyarrow.string()}
            fields = {name: pyarrow.int64() for name in _NUMBERS} | types
            fields["cause"] = pyarrow.list_(pyarrow.string())
            yield pyarrow.RecordBatch.from_pylist([row], pyarrow.schema(list(fields.items())))

    receipts = []
    for row in df.mapInArrow(send, _RECEIPT).collect():
        given = row.asDict()
        transport, seconds, cause = given.pop("transport"), given.pop("seconds"), given.pop("cause")
        if cause is not None:
            raise raised(cause)
        receipts.append(Receipt(Winner(**given), transport, seconds))
    plan.commit(receipts)
