"""Rows into a spool as Spark's tasks send them, without Spark: one job a call."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types

from transfer.spark.job import SpoolWrite, Task
from transfer.spark.options import parse_options
from transfer.spark.schema import check_schema

SCHEMA = types.StructType(
    [
        types.StructField("id", types.LongType(), False),
        types.StructField("s", types.StringType(), False),
    ]
)


def job(spool, run, name, kind="stream"):
    """What such a job does."""
    options = parse_options({"endpoint": spool.url(run)})
    return SpoolWrite(options, check_schema(SCHEMA), run, name, kind)


def send(plan, begin, end, partition=0, frame=10):
    """The rows with these ids, in frames of 10, as one attempt; the receipt, if they are wanted."""
    ids = [list(range(start, min(start + frame, end))) for start in range(begin, end, frame)]
    found = [pa.RecordBatch.from_pydict({"id": part, "s": [f"row {i}" for i in part]}) for part in ids]
    return plan.send(iter(found), Task(partition, partition, 0))


def push(spool, run, begin, end, kind="stream"):
    """The rows with these ids, committed; if they are there already nothing."""
    plan = job(spool, run, f"{begin}-{end}", kind)
    plan.commit([receipt for receipt in [send(plan, begin, end)] if receipt is not None])
