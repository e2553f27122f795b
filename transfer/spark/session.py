"""A Spark session on this machine, for the demo and the tests, and a clear error when Java is missing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from transfer.spark.processes import end, java_processes, uninterrupted
from transfer.transports.arguments import members, text, whole
from transfer.transports.errors import NotSupported, missing_library

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MIN_JAVA = 17
_INSTALL = (
    "Install Java 17 or newer, for instance: apt install openjdk-17-jre-headless "
    "(conda: openjdk=17), or set JAVA_HOME to one."
)
#: the command of Spark's launcher, so that it is the same Java. Without `exec` only the shell would be killed
#: when Java hangs, and Java would keep the pipes open
_JAVA_VERSION = 'exec "${JAVA_HOME:+$JAVA_HOME/bin/}java" -version'


def check_java(timeout: float = 30.0) -> int:
    """Returns the major version of Spark's Java. Raises NotSupported with an installation hint."""
    try:
        answer = subprocess.run(
            ["/bin/sh", "-c", _JAVA_VERSION], capture_output=True, text=True, timeout=timeout, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotSupported("Spark needs Java, which could not be started", hint=_INSTALL) from error
    if answer.returncode:
        raise NotSupported("Spark needs Java, and there is none", hint=_INSTALL)
    return parse_java_version(answer.stderr + answer.stdout)


def parse_java_version(text: str) -> int:
    """Parses `openjdk version "17.0.15"` -> 17; 1.8 counts as 8. Raises NotSupported below 17."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    if found is None:
        raise NotSupported(f"Java did not report its version: {text.strip()[:200]!r}", hint=_INSTALL)
    major = int(found[1])
    if major < _MIN_JAVA:
        raise NotSupported(f"Spark needs Java {_MIN_JAVA}, and this one is {major}", hint=_INSTALL)
    return major


def local_session(
    workers: int = 2, *, task_failures: int = 4, name: str = "transfer", conf: dict[str, str] | None = None
) -> SparkSession:
    """Starts Spark in this process with `workers` parallel tasks, each in a separate Python process.

    A task is tried `task_failures` times. Everything listens on loopback. The caller stops the session. It
    takes some seconds; Ctrl-C ends that, with the Java process. Raises NotSupported if Java or PySpark is
    missing.
    """
    whole(workers, "workers", 1), whole(task_failures, "task_failures", 1)
    text(name, "name"), members(conf, "conf")
    check_java()
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise missing_library("a Spark session", error, "spark") from error

    # Spark starts its Python workers with this variable, or with the first `python3` of the path.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{workers},{task_failures}]").appName(name)
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[2]),
        "spark.sql.shuffle.partitions": str(2 * workers),
        # Small inputs would end up in one task, and the demo shows several.
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
    }
    for key, value in (settings | (conf or {})).items():
        builder = builder.config(key, value)
    with _complete_start():
        return builder.getOrCreate()


@contextmanager
def running_session(
    workers: int = 2, *, task_failures: int = 4, name: str = "transfer", conf: dict[str, str] | None = None
) -> Iterator[SparkSession]:
    """A `local_session` for a block. All its processes have ended when the block is left in any way.

    It must be the only session of this process: a later one starts a new Java.
    """
    before = java_processes()
    spark = local_session(workers, task_failures=task_failures, name=name, conf=conf)
    try:
        yield spark
        spark.stop()
    finally:
        # After an error or Ctrl-C nothing stops the session: Java does so at its end, within a deadline.
        _end_java(before)


@contextmanager
def _complete_start() -> Iterator[None]:
    """Starts Spark completely or not at all, and keeps the program's Ctrl-C handler.

    Spark's handler talks to Java in the middle of whatever the main thread is doing.
    """
    before = java_processes()
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except BaseException:
        _end_java(before)
        raise
    finally:
        if main and handler is not None:
            signal.signal(signal.SIGINT, handler)


def _end_java(before: set[int]) -> None:
    """Ends the Java that started after `before`, and lets PySpark start a new one."""
    with uninterrupted():
        started = java_processes() - before
        if not started:
            return
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        server = getattr(SparkContext._active_spark_context, "_accumulatorServer", None)
        if server is not None:  # it would print a traceback when Java ends first, so it is silenced
            server.handle_error = lambda request, client: None
        end(started)
        if server is not None:
            server.shutdown()  # after Java, or it might wait for the rest of a message of Java
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None
