"""Spark in processes of its own: real speculation, an executor killed, a streaming driver killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("numpy")
pyspark = pytest.importorskip("pyspark")
pytest.importorskip("pyspark.sql.datasource", reason="pip install tensor-transfer[spark]")

from tests.spark.faulty_source import fault, happened  # noqa: E402
from tests.spark.spools import ROOT, expected, inspected, rows_in  # noqa: E402
from transfer.spark.session import check_java  # noqa: E402
from transfer.spool import Spool  # noqa: E402
from transfer.transports.errors import NotSupported  # noqa: E402

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]

ROWS = 1200
#: Spark starts a copy of a task on another host only, and knows hosts by their names
HOSTS = ("127.0.0.1", "127.0.0.2")

_DRIVER = """
import json, sys
from pyspark.sql import SparkSession
from tests.spark.faulty_source import FaultySource
from tests.spark.spools import frame_of

settings, writes = json.loads(sys.argv[1]), json.loads(sys.argv[2])
builder = SparkSession.builder
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.dataSource.register(FaultySource)
for options in writes:
    df = frame_of(spark, 1200, 6)
    df.write.format("transfer_faulty").mode("append").options(ragged="r", **options).save()
spark.stop()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A master and a worker on each host: the master's address."""
    try:
        check_java()
    except NotSupported as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("cluster")
    home = Path(pyspark.__file__).parent
    environment = os.environ | {"SPARK_HOME": str(home), "SPARK_LOCAL_DIRS": str(folder)}
    running = []

    def start(name, *arguments):
        log = open(folder / f"{name}.log", "w")  # noqa: SIM115 - as long as the process
        command = [str(home / "bin" / "spark-class"), *arguments]
        # A session of its own: bash and Java end together.
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, cwd=folder, start_new_session=True
        )
        log.close()
        running.append(process)

    def wait_for(name, words, seconds=60):
        deadline = time.monotonic() + seconds
        while True:
            text = (folder / f"{name}.log").read_text()
            found = [line for line in text.splitlines() if words in line]
            if found:
                return found[0]
            assert time.monotonic() < deadline, text[-3000:]
            time.sleep(0.1)

    try:
        start(
            "master",
            *(
                "org.apache.spark.deploy.master.Master",
                "--host",
                HOSTS[0],
                "--port",
                "0",
                "--webui-port",
                "0",
            ),
        )
        address = wait_for("master", "Starting Spark master at").rpartition(" ")[2]
        for host in HOSTS:
            start(
                host,
                *("org.apache.spark.deploy.worker.Worker", "--host", host, "--webui-port", "0"),
                *("--cores", "1", "--memory", "1g", "--work-dir", str(folder / host), address),
            )
            wait_for(host, "Successfully registered with master")
        yield address
    finally:
        for process in running:
            os.killpg(process.pid, 9)
            process.wait(20)


def settings_for(cluster, *, speculation):
    return {
        "spark.master": cluster,
        "spark.driver.host": HOSTS[0],
        "spark.driver.bindAddress": HOSTS[0],
        "spark.ui.enabled": "false",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
        "spark.speculation": str(speculation).lower(),
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.5",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "500ms",
        "spark.speculation.efficiency.enabled": "false",
    }


@pytest.mark.parametrize("kind", ["wait", "executor"])
def test_every_row_is_there_once(cluster, tmp_path, kind):
    """wait: an attempt stands still until the copy that Spark starts on the other host has won.
    executor: Java, its daemon and the Python worker are killed in the middle of a partition."""
    environment = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }
    settings = settings_for(cluster, speculation=kind == "wait")
    with Spool(tmp_path / "spool") as spool:
        writes = []
        for delivery in ("committed", "partition"):
            (tmp_path / delivery).mkdir()
            harm = fault(tmp_path / delivery, kind=kind, partition=4, frame=2)
            writes.append(harm | {"endpoint": spool.url(delivery), "delivery": delivery})
        command = [sys.executable, "-c", _DRIVER, json.dumps(settings), json.dumps(writes)]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=150, check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]
        for delivery in ("committed", "partition"):
            assert happened(tmp_path / delivery) == 1
            assert rows_in(spool.url(delivery)) == ("sealed", expected(range(ROWS)))
            assert inspected(spool, delivery)["staged_rows"] == 0


_STREAM = """
import json, sys
from tests.spark.faulty_source import FaultySource
from transfer.spark.session import running_session

url, folder, harm = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
with running_session(2, conf={"spark.sql.execution.arrow.maxRecordsPerBatch": "20"}) as spark:
    spark.dataSource.register(FaultySource)
    rows = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(f"{folder}/in")
    rows = rows.selectExpr(
        "id", "array(float(id), float(id * 2)) as x", "concat('row ', id) as s", "sequence(0, id % 3) as r"
    )
    query = (
        rows.writeStream.format("transfer_faulty").options(endpoint=url, ragged="r", **harm)
        .option("checkpointLocation", f"{folder}/query").trigger(availableNow=True).start()
    )
    query.awaitTermination(100)
"""


@pytest.mark.parametrize("delivery", ["committed", "partition"])
def test_a_streaming_driver_killed_in_mid_batch(tmp_path, delivery):
    """Twice: the next process repeats that batch, by its checkpoint and with the same attempt numbers."""
    try:
        check_java()
    except NotSupported as error:
        pytest.skip(str(error))
    (tmp_path / "in").mkdir()
    for number in range(4):
        lines = [json.dumps({"id": n}) for n in range(100 * number, 100 * number + 100)]
        (tmp_path / "in" / f"{number}.json").write_text("\n".join(lines))
    (tmp_path / "harm").mkdir()
    harm = fault(tmp_path / "harm", kind="executor", partition=0, frame=3, times=2) | {"delivery": delivery}
    with Spool(tmp_path / "spool") as spool:
        command = [sys.executable, "-c", _STREAM, spool.url("run"), str(tmp_path)]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        ended = []
        for _ in range(3):
            done = subprocess.run(
                [*command, json.dumps(harm)],
                cwd=ROOT, env=environment, capture_output=True, text=True, timeout=150, check=False,
            )  # fmt: skip
            ended.append(done.returncode)
        assert happened(tmp_path / "harm") == 2
        assert ended[0] and ended[1] and not ended[2], done.stderr[-3000:]
        assert rows_in(spool.url("run")) == ("open", expected(range(400)))
