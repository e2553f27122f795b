"""Lets Spark find `format("transfer")` without an import.

PySpark imports every top-level module whose name begins with `pyspark_` and registers its `DefaultSource`. So
this module must never fail to import where PySpark is installed.
"""

import logging

from transfer.transports.errors import MissingLibrary

try:
    from transfer.spark.source import TransferDataSource as DefaultSource
except MissingLibrary as error:  # raising would end every query of every program of this installation
    logging.getLogger("transfer").warning('format("transfer") is not available: %s', error)

__all__ = ["DefaultSource"]
