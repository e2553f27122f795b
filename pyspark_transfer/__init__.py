"""Lets Spark find `format("transfer")` without an import.

PySpark imports every top-level module whose name begins with `pyspark_` and registers its
`DefaultSource`. So this module must never fail to import where PySpark is installed.
"""

from transfer.spark.source import TransferDataSource as DefaultSource

__all__ = ["DefaultSource"]
