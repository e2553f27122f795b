"""Executors that are processes of their own, one of which is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numpy")
pyspark = pytest.importorskip("pyspark")
pytest.importorskip("pyspark.sql.datasource", reason="pip install tensor-transfer[spark]")

from tests.spark.faulty import fault, happened  # noqa: E402
from tests.spark.spools import ROOT, expected, inspected, rows_in  # noqa: E402
from transfer.spool.server import Spool  # noqa: E402

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

ROWS = 1200

_DRIVER = """
import json, sys
from pyspark.sql import SparkSession
from tests.spark.faulty import FaultySource
from tests.spark.spools import frame_of

settings, options = json.loads(sys.argv[1]), json.loads(sys.argv[2])
builder = SparkSession.builder.master("local-cluster[2,1,1024]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.dataSource.register(FaultySource)
frame_of(spark, 1200).write.format("transfer_faulty").mode("append").options(ragged="r", **options).save()
spark.stop()
"""


@pytest.fixture
def home(tmp_path):
    """Spark's home as symbolic links: its executors make their folders there."""
    home = tmp_path / "home"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    return home


@pytest.mark.parametrize("delivery", ["committed", "partition"])
def test_a_killed_executor_costs_no_row_and_doubles_none(home, tmp_path, delivery):
    """Java, its daemon and the Python worker under it, in the middle of a partition."""
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(tmp_path / "local"),
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    }
    environment = os.environ | {
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }
    harm = tmp_path / "harm"
    harm.mkdir()
    with Spool(tmp_path / "spool") as spool:
        options = fault(harm, kind="executor", partition=1, frame=2) | {
            "endpoint": spool.url("run"),
            "delivery": delivery,
        }
        command = [sys.executable, "-c", _DRIVER, json.dumps(settings), json.dumps(options)]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert happened(harm) == 1
        assert rows_in(spool.url("run")) == ("sealed", expected(range(ROWS)))
        assert inspected(spool, "run")["staged_rows"] == 0
