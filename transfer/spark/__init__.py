"""Writes DataFrames for training: `df.write.format("transfer")`, through a spool or directly to a trainer.

Everything is imported on first use; `tensor-transfer[spark]` installs PySpark and pyarrow.

batches     converts a run's rows to Arrow record batches, for Spark to read: the reverse of `columns.py`
columns     converts Arrow record batches to numpy arrays, without a copy where Arrow's layout allows it
job         the steps of a write, without Spark's interfaces
lineage     writes which training step consumed which rows as a Parquet file, for Spark and others
options     the options of `format("transfer")`, parsed and checked on the driver
processes   ends the processes that Spark starts for a session of this process: Java and its Python workers
producer    the sending side of one task attempt: begin, numbered frames, end; then it waits for confirmation
run_reader  `spark.read` and `spark.readStream.format("transfer")`
schema      decides on the driver, from the schema alone, which columns of a DataFrame can travel, and how
session     a Spark session on this machine, for the demo and the tests
source      the data source that Spark calls, on the driver and in its tasks
writer      `transfer.spark.write`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transfer.transports.lazy import exports

if TYPE_CHECKING:
    from transfer.spark.session import local_session
    from transfer.spark.source import TransferDataSource
    from transfer.spark.writer import register, write

__all__ = ["TransferDataSource", "local_session", "register", "write"]

exports(
    __name__,
    {
        "session": "local_session",
        "source": "TransferDataSource",
        "writer": "register write",
    },
    extra="spark",
)
