"""Real Spark jobs over real sockets into a StreamDataset."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import contextmanager
from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="pip install tensor-transfer[torch]")
pytest.importorskip("pyspark", reason="pip install tensor-transfer[spark]")
functions = pytest.importorskip("pyspark.sql.functions")

from transfer.spark import write as write_to  # noqa: E402
from transfer.torch import StreamDataset  # noqa: E402
from transfer.transports.errors import Broken, NotATensor, OptionError  # noqa: E402

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

ROWS = 3000
write = partial(write_to, delivery="eager")


@pytest.fixture
def dataset():
    with StreamDataset(batch_size=256, timeout=90) as dataset:
        yield dataset


@contextmanager
def reading(*datasets):
    """Reads one run from each data set on a thread, so that this thread is free for Spark."""
    found = [[] for _ in datasets]

    def work(dataset, batches):
        try:
            batches.extend(dataset)
        except Exception as error:  # noqa: BLE001 - handed to the test, which looks at it
            batches.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(datasets, found, strict=True)]
    for thread in threads:
        thread.start()
    try:
        yield found
    except BaseException:
        for dataset in datasets:
            dataset.close()
        raise
    finally:
        for thread in threads:
            thread.join(100)
    assert not any(thread.is_alive() for thread in threads)


def frame_of(spark, rows=ROWS, partitions=3):
    return spark.range(0, rows, 1, partitions).selectExpr(
        "id", "array(float(id), float(id * 2)) as x", "id % 2 = 0 as even", "'text' as s"
    )


def ids_of(batches):
    for batch in batches:
        if isinstance(batch, Exception):
            raise batch
    return sorted(int(i) for batch in batches for i in batch["id"])


def test_rows_arrive_once_and_the_format_is_found_without_an_import(spark, dataset):
    with reading(dataset) as (batches,):
        (
            frame_of(spark)
            .write.format("transfer")
            .mode("append")
            .option("endpoint", dataset.endpoint)
            .option("delivery", "eager")
            .option("columns", "id,x,even")
            .save()
        )
    assert ids_of(batches) == list(range(ROWS))
    for batch in batches:
        assert set(batch) == {"id", "x", "even"}
        assert (batch["x"].dtype, batch["even"].dtype) == (torch.float32, torch.bool)
        assert torch.equal(batch["x"], torch.stack([batch["id"], 2 * batch["id"]], dim=1).float())
        assert torch.equal(batch["even"], batch["id"] % 2 == 0)
    (run,) = dataset.runs
    assert (run.rows, run.sent_rows, run.partitions, run.frames) == (ROWS, ROWS, 3, 30)
    assert run.transports == "tcp" and set(run.peers.values()) == {"tcp"}


def test_write_from_a_thread_of_the_users(spark, dataset):
    names = []

    def work():
        names.append(write(frame_of(spark), dataset.endpoint, columns=["x", "id"], run="first"))
        # the same run again is done at once and changes nothing
        names.append(write(frame_of(spark), dataset.endpoint, columns=["x", "id"], run="first"))
        names.append(write(frame_of(spark, 10), dataset.endpoint, columns=["x", "id"], frame_rows=3))

    thread = threading.Thread(target=work)
    thread.start()
    first, second = list(dataset), list(dataset)
    thread.join(100)
    assert not thread.is_alive()
    assert ids_of(first) == list(range(ROWS))
    assert ids_of(second) == list(range(10))
    assert names[:2] == ["first", "first"]
    assert [run.run for run in dataset.runs] == ["first", names[2]]
    assert dataset.runs[1].frames == 4  # partitions of 3, 3 and 4 rows, cut into threes


def test_an_empty_frame_is_an_empty_run(spark, dataset):
    with reading(dataset) as (batches,):
        write(frame_of(spark).where("id < 0"), dataset.endpoint, columns=["id"])
    assert batches == []
    assert dataset.runs[0].sent_rows == 0


def test_two_trainers_share_the_partitions(spark):
    with StreamDataset(timeout=90) as one, StreamDataset(timeout=90) as two:
        with reading(one, two) as (first, second):
            write(frame_of(spark, partitions=4), [one.endpoint, two.endpoint], columns=["id"])
        assert ids_of(first + second) == list(range(ROWS))
        assert one.runs[0].partitions == two.runs[0].partitions == 2


# --- what goes wrong ----------------------------------------------------------------------------


def test_schema_and_options_are_refused_before_any_task(spark):
    with pytest.raises(NotATensor, match="column 's' needs several tensors"):
        write(frame_of(spark), "tcp://127.0.0.1:1", connect_timeout=0.1)
    with pytest.raises(OptionError, match="no column 'y'"):
        write(frame_of(spark), "tcp://127.0.0.1:1", columns=["y"], connect_timeout=0.1)
    with pytest.raises(OptionError, match="a list of names, not 'id'"):
        write(frame_of(spark), "tcp://127.0.0.1:1", columns="id", connect_timeout=0.1)
    writer = frame_of(spark).write.format("transfer").option("endpoint", "tcp://127.0.0.1:1")
    writer = writer.option("delivery", "eager")
    with pytest.raises(Exception, match="column 's' needs several tensors"):
        writer.mode("append").save()
    with pytest.raises(Exception, match="no past to overwrite"):
        writer.mode("overwrite").save()


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("if(id = 2999, null, float(id)) as x", "column 'x' has 1 null value"),
        ("if(id = 0, null, float(id)) as x", "column 'x' has 1 null value"),
        ("if(id = 2999, array(1.0f), array(1.0f, 2.0f)) as x", "column 'x' has arrays of different lengths"),
    ],
    ids=["null", "null while others send", "ragged"],
)
def test_nulls_and_ragged_arrays_fail_the_job_and_the_iteration(spark, dataset, expression, text):
    with reading(dataset) as (batches,):
        with pytest.raises(Exception, match=text):
            write(spark.range(0, ROWS, 1, 3).selectExpr(expression), dataset.endpoint)
    assert isinstance(batches[-1], Broken) and "failed in Spark" in str(batches[-1])


@pytest.mark.parametrize("kill", [False, True], ids=["failing once", "worker killed"])
def test_a_retried_task_gives_no_row_twice(spark, dataset, tmp_path, kill):
    from tests.spark.faulty_source import FaultySource, fault, happened

    spark.dataSource.register(FaultySource)
    writer = frame_of(spark).select("id", "x").write.format("transfer_faulty").mode("append")
    with reading(dataset) as (batches,):
        writer = writer.option("endpoint", dataset.endpoint).option("delivery", "eager")
        writer.options(**fault(tmp_path, kind="kill" if kill else "raise", partition=1, frame=3)).save()
    assert happened(tmp_path) == 1
    assert ids_of(batches) == list(range(ROWS))
    (run,) = dataset.runs
    assert run.attempts == 4
    # What the first attempt had sent came again; how much of it had arrived is up to the kill.
    assert run.duplicate_rows <= 300 and run.duplicate_rows % 100 == 0
    if not kill:
        assert run.duplicate_rows > 0


def test_a_job_that_never_starts_ends_the_iteration_too(spark, dataset):
    with reading(dataset) as (batches,):
        with pytest.raises(NotATensor):
            write(frame_of(spark), dataset.endpoint)
    assert isinstance(batches[-1], Broken)


def test_nobody_listening_fails_the_job_with_what_to_do(spark):
    with pytest.raises(Exception, match=r"no peer listens at tcp://127.0.0.1:9") as caught:
        write(frame_of(spark, 10, 1), "tcp://127.0.0.1:9", columns=["id"], connect_timeout=0.2)
    assert "Start the training process first" in str(caught.value)


_DYING_TRAINER = """
import os, signal, sys
from transfer.torch import StreamDataset
dataset = StreamDataset(batch_size=64, timeout=60)
print(dataset.endpoint, flush=True)
for number, batch in enumerate(dataset):
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_trainer_fails_the_job(spark):
    with subprocess.Popen(
        [sys.executable, "-c", _DYING_TRAINER], stdout=subprocess.PIPE, text=True
    ) as trainer:
        try:
            endpoint = trainer.stdout.readline().strip()
            with pytest.raises(Exception, match=r"receiver went away|no peer listens"):
                write(frame_of(spark, 100_000), endpoint, columns=["id"], connect_timeout=0.5, ack_timeout=30)
        finally:
            trainer.kill()
