from __future__ import annotations

import os

import pytest

from transfer.transports.errors import NotSupported

# A test's Java lives for seconds or minutes: its second compiler and its parallel collector cost more
# than half of that, and no job here is long enough to win it back. Every Spark that a test starts is told,
# those in processes of their own too. `SPARK_SUBMIT_OPTS=` (empty) runs them as users do.
_SHORT_LIVED_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
for _name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(_name, _SHORT_LIVED_JAVA)


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """One session for the whole run: starting it costs many seconds."""
    pytest.importorskip("pyspark", reason="pip install tensor-transfer[spark]")
    from transfer.spark.session import local_session

    folder = tmp_path_factory.mktemp("spark")
    conf = {
        "spark.log.level": "OFF",
        "spark.python.daemon.module": "tests.spark.daemon",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    }
    try:
        session = local_session(2, task_failures=2, name="tests", conf=conf)
    except NotSupported as error:
        pytest.skip(str(error))
    yield session
    session.stop()
