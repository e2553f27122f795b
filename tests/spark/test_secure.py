"""Executors, the spool, trainers and Spark's readers with mutual TLS and a token, and without them."""

from __future__ import annotations

import threading

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("pyspark.sql.datasource", reason="pip install tensor-transfer[spark]")

from tests.spark.spools import expected, frame_of, rows_in  # noqa: E402
from transfer.certificates import Authority  # noqa: E402
from transfer.spark import register, write  # noqa: E402
from transfer.spool import Spool  # noqa: E402
from transfer.transports.config import security  # noqa: E402
from transfer.transports.errors import Again  # noqa: E402

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

ROWS = 1200


@pytest.fixture
def variables(tmp_path):
    """Those that all have who belong here."""
    authority = Authority(tmp_path)
    peer = authority.issue()
    token = tmp_path / "token"
    token.write_text("6e2f90c41b7d4a5f8c03d1e69ab7254f\n")
    return {
        "TRANSFER_TLS_CERT": peer.certificate,
        "TRANSFER_TLS_KEY": peer.key,
        "TRANSFER_TLS_CA": authority.path,
        "TRANSFER_TOKEN_FILE": str(token),
    }


@pytest.fixture
def spool(tmp_path, variables):
    with Spool(tmp_path / "spool", security=security(variables)) as spool:
        yield spool


@pytest.fixture
def session(spark):
    """Of this test alone: Spark keeps executors' variables as they were when the format was registered."""
    yield spark.newSession()
    register(spark)  # which is the thread's session again


@pytest.fixture
def driver(monkeypatch, variables):
    """The driver has them."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def executors(monkeypatch, session, variables):
    """They have them by `spark.executorEnv.NAME`, which Spark keeps there."""
    for name, value in variables.items():
        monkeypatch.setitem(session.sparkContext.environment, name, value)


def test_rows_go_from_executors_into_the_spool_and_back(session, spool, driver, executors):
    url = spool.url("numbers")
    assert write(frame_of(session, ROWS), url, ragged="r") == "numbers"
    assert rows_in(url) == ("sealed", expected(range(ROWS)))
    assert session.read.format("transfer").load(url).count() == ROWS


def test_rows_go_from_executors_straight_to_a_trainer(session, driver, executors):
    pytest.importorskip("torch", reason="pip install tensor-transfer[torch]")
    from transfer.torch import StreamDataset

    df = session.range(ROWS)
    with StreamDataset(batch_size=100, columns=("id",), timeout=60) as dataset:
        job = threading.Thread(target=write, args=(df, dataset.endpoint), kwargs={"delivery": "eager"})
        job.start()
        found = np.concatenate([ids.numpy() for (ids,) in dataset])
        job.join()
    assert sorted(found) == list(range(ROWS))


def test_a_driver_without_them_is_told_before_any_task_begins(session, spool):
    with pytest.raises(Again, match="the connection ended in the handshake") as caught:
        write(frame_of(session, ROWS), spool.url("numbers"), ragged="r", connect_timeout=2)
    assert "TRANSFER_TLS_CA" in caught.value.hint


def test_executors_without_them_fail_with_the_reason(session, spool, driver):
    with pytest.raises(Exception, match="TRANSFER_TLS_CA"):
        write(frame_of(session, ROWS), spool.url("numbers"), ragged="r", connect_timeout=2)
