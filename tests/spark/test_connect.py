"""Spark Connect: a client without Java writes to a spool and reads from it, through a server on loopback."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from contextlib import contextmanager

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("msgspec")

from tests.spark.spark35 import named_by  # noqa: E402
from tests.spark.spools import ROOT, expected, read, rows_in, runs_of  # noqa: E402
from transfer.spool import Spool  # noqa: E402

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def python():
    return named_by("TRANSFER_TEST_SPARK_CONNECT", "4.3[connect]")


@pytest.fixture(scope="module")
def spool(tmp_path_factory):
    with Spool(tmp_path_factory.mktemp("spool")) as spool:
        yield spool


@pytest.fixture(scope="module")
def job_report(python, spool, tmp_path_factory):
    """What each write and read returned or raised."""
    folder = tmp_path_factory.mktemp("connect")
    with _server(python, folder) as address:
        done = subprocess.run(
            [python, "-m", "tests.spark.connect_job", address, spool.url(), str(folder)],
            cwd=ROOT,
            env=_environment(python) | {"JAVA_HOME": str(folder / "none")},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def _environment(python):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": python}
    for name in ("SPARK_HOME", "PYSPARK_DRIVER_PYTHON", "PYTHONHOME", "SPARK_REMOTE"):
        environment.pop(name, None)
    return environment


@contextmanager
def _server(python, folder):
    """A Spark Connect server with two tasks at a time, tried twice; its address."""
    code = "import os, pyspark; print(os.path.dirname(pyspark.__file__))"
    home = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    home = home.stdout.strip()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    }
    options = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    log = folder / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [f"{home}/sbin/start-connect-server.sh", "--wait", "--master", "local[2,2]", *options],
            cwd=folder,
            env=_environment(python)
            | {"SPARK_HOME": home, "SPARK_LOG_DIR": str(folder), "SPARK_PID_DIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 90
        while not _answers(port):
            assert server.poll() is None and time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(0.2)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(30)


def _answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def test_it_is_a_client_of_spark_connect(job_report):
    assert job_report["session"] == "pyspark.sql.connect.session"


@pytest.mark.parametrize("run", ["format", "write", "thread", "raised"])
def test_all_rows_are_there_once(job_report, spool, run):
    """By format("transfer") and transfer.spark.write, from a thread, and with a task that is tried again."""
    assert job_report[run] == run
    assert rows_in(spool.url(run)) == ("sealed", expected(range(1200)))


def test_columns_are_selected(job_report, spool):
    assert job_report["columns"] == "columns"
    state, arrays, rows = read(spool.url("columns"))
    assert (state, rows, [*arrays]) == ("sealed", 1200, ["x", "id"])


def test_a_run_is_read(job_report):
    assert job_report["read"] == [
        {"id": 0, "x": [0.0, 0.0], "s": "row 0", "r": [0]},
        {"id": 1, "x": [1.0, 2.0], "s": "row 1", "r": [0, 1]},
    ]
    assert job_report["count"] == 1200


def test_a_stream_is_read_and_written(job_report, spool):
    assert job_report["stream"] is True
    assert rows_in(spool.url("stream")) == ("open", expected(range(1200)))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("other rows", "UsageError: run write is complete, with 1,200 rows of another job"),
        ("cut", "NotATensor: column 'x' has arrays of different lengths: 1 to 2 values, 1 unlike"),
        ("no spool", "Again: no spool answers at tcp://127.0.0.1:9"),
        # Spark's own exceptions, with ours in the text
        (
            "cut format",
            "transfer.transports.errors.NotATensor: column 'x' has arrays of different lengths: 1 to 2",
        ),
        ("option", "transfer.transports.errors.OptionError: unknown option 'frames' for format('transfer')"),
        ("no run", "transfer.transports.errors.OptionError: there is no run 'missing'"),
    ],
)
def test_what_is_refused_says_why_and_nothing_is_seen(job_report, spool, name, text):
    assert text in job_report[name]
    run = runs_of(spool).get(name.replace(" ", "-"))
    assert run is None or (run["state"], run["rows"], run["staged_rows"]) == ("failed", 0, 0)
