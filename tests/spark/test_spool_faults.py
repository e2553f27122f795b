"""What goes wrong between Spark and the spool, with real processes.

All rows are there once, or the job fails and says why; in mode committed nothing of a failed job is seen.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("pyspark.sql.datasource", reason="pip install tensor-transfer[spark]")

from tests.spark.faulty_source import AFTER_END, BEFORE_END, FaultySource, attempts, fault, happened  # noqa: E402
from tests.spark.spools import (  # noqa: E402
    ROOT,
    SpoolProcess,
    ask,
    expected,
    frame_of,
    ids_in,
    inspected,
    rows_in,
    runs_of,
)
from transfer.log import Log  # noqa: E402
from transfer.spark import write  # noqa: E402
from transfer.spool import Spool  # noqa: E402
from transfer.spool.format.protocol import DeleteRun, ListRuns  # noqa: E402
from transfer.transports.errors import NotATensor  # noqa: E402

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

#: three partitions of four frames each
ROWS = 1200
FRAMES = 4
DELIVERIES = ("committed", "partition")


@pytest.fixture(scope="module")
def spool(tmp_path_factory):
    with Spool(tmp_path_factory.mktemp("spool")) as spool:
        yield spool


@pytest.fixture(autouse=True)
def source(spark):
    spark.dataSource.register(FaultySource)


def write_faulty(df, url, folder, *, kind, delivery="committed", options=None, **values):
    """A job to which this happens; `folder` counts how often."""
    folder.mkdir(exist_ok=True)
    writer = df.write.format("transfer_faulty").mode("append").option("delivery", delivery)
    given = {"endpoint": url, "connect_timeout": "20"} | fault(folder, kind=kind, **values) | (options or {})
    if "r" in df.columns:
        given["ragged"] = "r"
    writer.options(**given).save()


# --- tasks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("frame", [0, FRAMES - 1, AFTER_END])
def test_a_worker_killed_after_each_frame(spark, spool, tmp_path, frame, delivery):
    url = spool.url(f"killed {frame} {delivery}")
    write_faulty(frame_of(spark, ROWS), url, tmp_path, kind="kill", frame=frame, delivery=delivery)
    assert happened(tmp_path) == 1
    assert rows_in(url) == ("sealed", expected(range(ROWS)))
    assert inspected(spool, f"killed {frame} {delivery}")["staged_rows"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("frame", [*range(10), BEFORE_END, AFTER_END])
@pytest.mark.parametrize("partition", [0, 2])
def test_a_worker_killed_anywhere(spark, spool, tmp_path, frame, partition, delivery):
    url = spool.url(f"anywhere {frame} {partition} {delivery}")
    write_faulty(
        frame_of(spark, 3000), url, tmp_path, kind="kill", frame=frame, partition=partition, delivery=delivery
    )
    assert happened(tmp_path) == 1
    assert rows_in(url) == ("sealed", expected(range(3000)))


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_task_that_fails_at_first(spark, spool, tmp_path, delivery):
    url = spool.url(f"fails at first {delivery}")
    write_faulty(frame_of(spark, ROWS), url, tmp_path, kind="raise", frame=2, delivery=delivery)
    assert happened(tmp_path) == 1
    assert rows_in(url) == ("sealed", expected(range(ROWS)))


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_job_that_fails(spark, spool, tmp_path, delivery):
    url = spool.url(f"job fails {delivery}")
    with pytest.raises(Exception, match="fails on purpose"):
        write_faulty(frame_of(spark, ROWS), url, tmp_path, kind="raise", times=2, delivery=delivery)
    check_failed(url, delivery)
    assert runs_of(spool)[f"job fails {delivery}"]["staged_rows"] == 0
    # The same run again, in peace.
    write_faulty(frame_of(spark, ROWS), url, tmp_path, kind="raise", times=2, delivery=delivery)
    assert rows_in(url) == ("sealed", expected(range(ROWS)))


@pytest.mark.parametrize("partitions", [2, 5])
def test_a_second_try_that_cuts_other_partitions_seals_nothing(spark, spool, tmp_path, partitions):
    url = spool.url(f"cut into {partitions}")
    with pytest.raises(Exception, match="fails on purpose"):
        write_faulty(
            frame_of(spark, ROWS), url, tmp_path, kind="raise", partition=2, times=2, delivery="partition"
        )
    with pytest.raises(Exception, match="recut"):
        write(frame_of(spark, ROWS, partitions), url, ragged="r", delivery="partition")
    assert rows_in(url)[0] == "failed"
    ask(spool, DeleteRun(run=f"cut into {partitions}"))
    write(frame_of(spark, ROWS, partitions), url, ragged="r", delivery="partition")
    assert rows_in(url) == ("sealed", expected(range(ROWS)))


def check_failed(url, delivery, rows=ROWS, state="failed"):
    """Committed: nothing is seen. Partition: whole partitions only."""
    found_state, found = rows_in(url)
    assert found_state == state
    assert found <= expected(range(rows))
    if delivery == "committed":
        assert not found
    _, ids = ids_in(url)
    for partition in range(3):
        part = range(rows * partition // 3, rows * (partition + 1) // 3)
        assert [number for number in ids if number in part] in ([], [*part])


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_copy_of_each_task_ends_first_and_spark_never_hears_of_it(spark, spool, tmp_path, delivery):
    """As speculation does it: two attempts of each partition send all of it."""
    url = spool.url(f"copies {delivery}")
    write_faulty(frame_of(spark, ROWS), url, tmp_path, kind="copy", delivery=delivery)
    assert rows_in(url) == ("sealed", expected(range(ROWS)))
    assert inspected(spool, f"copies {delivery}")["staged_rows"] == 0


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_loser_that_goes_on_after_the_commit(spark, spool, tmp_path, delivery):
    url = spool.url(f"late {delivery}")
    write_faulty(frame_of(spark, ROWS).select("id", "x"), url, tmp_path, kind="late", delivery=delivery)
    assert ids_in(url) == ("sealed", [*range(ROWS)])
    assert "is missing" in (tmp_path / "loser").read_text()
    assert runs_of(spool)[f"late {delivery}"]["stray_frames"] > 0


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_wrong_value_fails_the_job_at_its_first_attempt(spark, spool, tmp_path, delivery):
    df = frame_of(spark, ROWS).selectExpr("id", "if(id in (450, 455), null, id) n")
    url = spool.url(f"null {delivery}")
    with pytest.raises(
        Exception, match=r"column 'n' has 2 null value\(s\), first in row 50 of partition 1"
    ) as caught:
        write_faulty(df, url, tmp_path, kind="none", delivery=delivery, options={"ragged": ""})
    assert attempts(tmp_path) == 3
    assert len(str(caught.value).splitlines()) < 15
    run = runs_of(spool)[f"null {delivery}"]
    assert (run["state"], run["staged_rows"]) == ("failed", 0)
    assert delivery == "partition" or run["rows"] == 0


def test_a_wrong_value_is_our_error_in_a_write_of_ours(spark, spool):
    df = frame_of(spark, ROWS).selectExpr("id", "if(id = 450, null, id) n")
    with pytest.raises(
        NotATensor, match=r"^column 'n' has 1 null .* of partition 1\n  hint: Drop or fill"
    ) as caught:
        write(df, spool.url("null"))
    assert len(str(caught.value).splitlines()) == 2
    write(df, spool.url("null"), nulls="fill")
    assert runs_of(spool)["null"]["rows"] == ROWS


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_column_that_turns_ragged_in_the_last_partition(spark, spool, delivery):
    df = frame_of(spark, ROWS).selectExpr("id", "if(id = 1199, array(1f), x) x", "s", "r")
    url = spool.url(f"ragged {delivery}")
    with pytest.raises(Exception, match="column 'x' has arrays of different lengths"):
        write(df, url, ragged="r", delivery=delivery)
    check_failed(url, delivery)


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_partition_whose_arrays_have_another_length(spark, spool, delivery):
    """Each task finds its own rows to be alike."""
    df = frame_of(spark, ROWS).selectExpr("id", "if(id >= 800, array(1f), x) x", "s", "r")
    url = spool.url(f"other length {delivery}")
    with pytest.raises(Exception, match=r"column 'x'[\s\S]*pad or cut arrays to one length"):
        write(df, url, ragged="r", delivery=delivery)
    state, ids = ids_in(url)
    assert state == "failed"
    for partition in range(3):
        part = [*range(ROWS * partition // 3, ROWS * (partition + 1) // 3)]
        assert [number for number in ids if number in part] in ([], part if delivery == "partition" else [])


# --- commits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_commit_that_is_repeated(spark, spool, tmp_path, delivery):
    url = spool.url(f"repeated {delivery}")
    write_faulty(frame_of(spark, ROWS), url, tmp_path, kind="repeat", delivery=delivery)
    assert happened(tmp_path) == 1
    assert rows_in(url) == ("sealed", expected(range(ROWS)))


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_job_that_fails_after_its_commit(spark, spool, tmp_path, delivery):
    """Spark says that it failed, and aborts it; it is complete all the same, and the same run again knows."""
    url = spool.url(f"unheard {delivery}")
    with pytest.raises(Exception, match="nobody hears of this commit"):
        write_faulty(frame_of(spark, ROWS), url, tmp_path, kind="lost", delivery=delivery)
    for _ in range(2):
        assert rows_in(url) == ("sealed", expected(range(ROWS)))
        write(frame_of(spark, ROWS), url, ragged="r", delivery=delivery, if_complete="skip")


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_commit_whose_answer_is_lost(spark, tmp_path, delivery):
    """The spool dies when the commit is on its disk and comes back."""
    with SpoolProcess(tmp_path / "spool", harm="commit") as spool:
        with spool.comes_back():
            write(frame_of(spark, ROWS), spool.url("one"), ragged="r", delivery=delivery, ack_timeout=60)
        assert rows_in(spool.url("one")) == ("sealed", expected(range(ROWS)))


def test_a_commit_whose_answer_is_lost_and_no_spool_comes_back(spark, tmp_path):
    with SpoolProcess(tmp_path / "spool", harm="commit") as spool:
        with pytest.raises(Exception, match=r"which may be complete or not[\s\S]*if_complete=skip"):
            write(frame_of(spark, ROWS), spool.url("one"), ragged="r", ack_timeout=2, abort_timeout=2)
        spool._reap()
        spool.start()
        write(frame_of(spark, ROWS), spool.url("one"), ragged="r", if_complete="skip")
        assert rows_in(spool.url("one")) == ("sealed", expected(range(ROWS)))


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_spool_killed_between_the_last_end_and_the_commit(spark, tmp_path, delivery):
    with SpoolProcess(tmp_path / "spool") as spool:
        (tmp_path / "pid").write_text(str(spool.process.pid))
        with spool.comes_back():
            write_faulty(frame_of(spark, ROWS), spool.url("one"), tmp_path, kind="spool", delivery=delivery)
        assert happened(tmp_path) == 1
        assert rows_in(spool.url("one")) == ("sealed", expected(range(ROWS)))


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_spool_whose_folder_is_deleted_before_the_commit(spark, tmp_path, delivery):
    with SpoolProcess(tmp_path / "spool") as spool:
        (tmp_path / "pid").write_text(str(spool.process.pid))
        with spool.comes_back(empty=True):
            with pytest.raises(Exception, match=r"folder deleted or changed"):
                write_faulty(
                    frame_of(spark, ROWS), spool.url("one"), tmp_path, kind="spool", delivery=delivery
                )
        assert happened(tmp_path) == 1
        assert not runs_of(spool).get("one", {"rows": 0})["rows"]
        # The same run again is a new one.
        write(frame_of(spark, ROWS), spool.url("one"), ragged="r", delivery=delivery)
        assert rows_in(spool.url("one")) == ("sealed", expected(range(ROWS)))


@pytest.mark.parametrize("harm", ["begin:2", "frame:1", "frame:7", "end:2"])
def test_a_spool_killed_while_rows_come(spark, tmp_path, harm):
    """The tasks fail that sent to it, and Spark tries them again; those that had ended are not sent again."""
    with SpoolProcess(tmp_path / "spool", harm=harm) as spool:
        with spool.comes_back():
            write(frame_of(spark, ROWS), spool.url("one"), ragged="r", ack_timeout=60)
        assert rows_in(spool.url("one")) == ("sealed", expected(range(ROWS)))
        assert runs_of(spool)["one"]["staged_rows"] == 0


# --- the driver ---------------------------------------------------------------------------------

_DRIVER = """
    import os, signal, sys
    from tests.spark.faulty_source import FaultySource
    from tests.spark.spools import frame_of
    from transfer.spark import local_session, register

    conf = {"spark.sql.execution.arrow.maxRecordsPerBatch": "100", "spark.log.level": "OFF"}
    spark = local_session(2, conf=conf)
    spark.dataSource.register(FaultySource)
    url, fault, delivery = sys.argv[1:]
    writer = frame_of(spark, 1200).write.format("transfer_faulty").mode("append")
    writer.options(endpoint=url, ragged="r", fault=fault, delivery=delivery).save()
"""


@pytest.mark.parametrize("delivery", ["committed", pytest.param("partition", marks=pytest.mark.slow)])
def test_a_driver_that_is_killed(spark, spool, tmp_path, delivery):
    """Two partitions have ended, the third stands still; then all of Spark is gone at once."""
    name = f"driver {delivery}"
    waits = fault(tmp_path, kind="wait", partition=2, frame=2)["fault"]
    command = [sys.executable, "-c", textwrap.dedent(_DRIVER), spool.url(name), waits, delivery]
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True, stderr=subprocess.DEVNULL) as driver:
        try:
            wait_until(lambda: happened(tmp_path) and ended(spool, name) == 2)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
    check_failed(spool.url(name), delivery, state="open")
    assert runs_of(spool)[name]["staged_rows"] > 0
    write(frame_of(spark, ROWS), spool.url(name), ragged="r", delivery=delivery)
    assert rows_in(spool.url(name)) == ("sealed", expected(range(ROWS)))
    assert runs_of(spool)[name]["staged_rows"] == 0


def ended(spool, name):
    """Attempts of jobs that go on."""
    if name not in runs_of(spool):
        return 0
    return sum(job["ended"] for job in inspected(spool, name)["jobs"].values())


def wait_until(true, seconds=90):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


# --- the disk -----------------------------------------------------------------------------------


@pytest.fixture
def small_spool(tmp_path, monkeypatch):
    """One that may take 8 MB."""
    monkeypatch.setattr(
        "transfer.spool.server.store.Log", lambda *a, **k: Log(*a, segment_bytes=1 << 20, **k)
    )
    with Spool(tmp_path / "small", retention_bytes=8 << 20) as spool:
        yield spool


def wide(spark, rows):
    """4 KB a row."""
    return spark.range(0, rows, 1, 3).selectExpr("id", "array_repeat(double(id), 512) as x")


def test_a_full_disk_holds_the_job_up_until_there_is_room(spark, small_spool):
    write(wide(spark, 1000), small_spool.url("old"))
    failures = []

    def work():
        try:
            write(wide(spark, 1200), small_spool.url("new"), ack_timeout=100)
        except Exception as error:  # noqa: BLE001 - handed to the test
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        wait_until(lambda: full(small_spool) or failures)
        assert failures == [] and ids_in(small_spool.url("new")) == ("open", [])
    finally:
        ask(small_spool, DeleteRun(run="old"))
        thread.join(120)
    assert not thread.is_alive() and failures == []
    assert ids_in(small_spool.url("new")) == ("sealed", [*range(1200)])


def test_a_disk_that_stays_full_fails_the_job_and_says_so(spark, small_spool):
    write(wide(spark, 1000), small_spool.url("old"))
    with pytest.raises(Exception, match=r"(?s)full.*ack_timeout|ack_timeout.*full"):
        write(wide(spark, 1200), small_spool.url("new"), ack_timeout=2)
    run = runs_of(small_spool)["new"]
    assert (run["state"], run["rows"], run["staged_rows"]) == ("failed", 0, 0)
    ask(small_spool, DeleteRun(run="old"))
    write(wide(spark, 1200), small_spool.url("new"))
    assert ids_in(small_spool.url("new")) == ("sealed", [*range(1200)])


def full(spool):
    return ask(spool, ListRuns())["full"]


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="mounting needs root")
def test_a_file_system_without_room(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "transfer.spool.server.store.Log", lambda *a, **k: Log(*a, segment_bytes=1 << 20, **k)
    )
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)], check=False).returncode:
        pytest.skip("this container may not mount")
    try:
        filler = Path(place, "filler")
        with Spool(place / "spool") as spool:
            filler.write_bytes(bytes(4 << 20))
            with pytest.raises(Exception, match=r"(?s)full.*ack_timeout|ack_timeout.*full"):
                write(wide(spark, 1200), spool.url("one"), ack_timeout=2)
            state, ids = ids_in(spool.url("one"))
            assert (state, ids) == ("failed", [])
            filler.unlink()
            write(wide(spark, 1200), spool.url("one"), ack_timeout=30)
            assert ids_in(spool.url("one")) == ("sealed", [*range(1200)])
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
