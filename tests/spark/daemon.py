"""Spark's daemon of Python workers, which has imported what its workers will: see conftest.py.

Each worker is a fork of it. Spark's own daemon imports nothing before the fork, so a worker that replaces a
killed or failed one needs a second of processor time before its first row, and many tests here kill theirs
or fail them. A fork must find no other thread, so OpenBLAS and Arrow are kept from starting theirs.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")

import numpy  # noqa: F401
import pyarrow  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark import daemon

import transfer.spark.source  # noqa: F401

if __name__ == "__main__":
    assert len(os.listdir("/proc/self/task")) == 1, "a fork would lose a thread"
    daemon.manager()
