"""What a write does on the driver, without Spark, against real spools."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("numpy")
pytest.importorskip("msgspec")

from tests.spool.task_sender import push
from transfer.spark.job import SpoolWrite
from transfer.spark.options import parse_options
from transfer.spool import Spool
from transfer.spool.format.row_source import FAILED


def plan_of(url, **options):
    return SpoolWrite(parse_options({"endpoint": url} | options), (), "run", "job")


def test_an_abort_reaches_the_spool_that_comes_back(tmp_path):
    """It was tried for two seconds, and the rows stayed for ever."""
    with Spool(tmp_path) as spool:
        endpoint = spool.endpoint
        plan = plan_of(spool.url("run"))
        plan.check()
        push(endpoint, "run", "job", 0, 0, 0, [4])
    aborting = threading.Thread(target=plan.abort)
    aborting.start()
    aborting.join(2.6)
    with Spool(tmp_path, endpoint) as spool:
        aborting.join(30.0)
        assert not aborting.is_alive()
        run = spool.store.entry("run").run
        assert (run.state, run.jobs) == (FAILED, {})


def test_an_abort_ends_where_no_spool_comes_back(caplog):
    with caplog.at_level("WARNING", "transfer.spark"):
        plan_of("run://127.0.0.1:9/run", abort_timeout="0.1").abort()
    assert "keeps its rows" in caplog.text


def test_a_job_that_sent_nothing_leaves_no_rows(caplog):
    with caplog.at_level("INFO", "transfer.spark"):
        plan_of("run://127.0.0.1:9/run", abort_timeout="0.1").abort(declared=False)
    (record,) = caplog.records
    assert record.levelname == "INFO" and "has no rows of it" in record.getMessage()
