from __future__ import annotations

import pytest

from transports.errors import NotSupported


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """One session for the whole run: starting it costs many seconds."""
    pytest.importorskip("pyspark", reason="pip install tensor-transfer[spark]")
    from transfer.spark.session import local_session

    folder = tmp_path_factory.mktemp("spark")
    conf = {
        "spark.log.level": "OFF",
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
