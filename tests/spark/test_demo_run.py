"""The demo as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("pyspark", reason="pip install tensor-transfer[demo]")
pytest.importorskip("sklearn", reason="pip install tensor-transfer[demo]")
pytest.importorskip("torch", reason="pip install tensor-transfer[demo]")

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


def run_demo(*arguments):
    from transfer.spark.session import check_java
    from transfer.transports.errors import NotSupported

    try:
        check_java()
    except NotSupported as error:
        pytest.skip(str(error))
    return subprocess.run(
        [sys.executable, "-m", "examples.spark_to_torch", *arguments],
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_the_demo_trains_from_spark(tmp_path):
    plot = tmp_path / "plot.png"
    done = run_demo("--json", "--epochs", "6", "--output", str(plot))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["ok"] and result["accuracy"] >= 0.95
    assert result["rows_sent"] == 1437 and result["rows_received"] == 6 * 1437
    assert result["url"].startswith("run://127.0.0.1:") and result["run"]["state"] == "sealed"
    assert result["run"]["partitions"] == 4
    assert [epoch["epoch"] for epoch in result["epochs"]] == list(range(1, 7))
    assert all(epoch["rows_received"] == 1437 for epoch in result["epochs"])
    assert plot.read_bytes().startswith(b"\x89PNG")
