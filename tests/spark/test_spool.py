"""Real Spark jobs and queries into a real spool."""

from __future__ import annotations

import os
import threading

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("pyspark.sql.datasource", reason="pip install tensor-transfer[spark]")
functions = pytest.importorskip("pyspark.sql.functions")

from tests.spark.spools import expected, frame_of, inspected, read, rows_in, runs_of  # noqa: E402
from transfer.spark import write  # noqa: E402
from transfer.spool import Spool  # noqa: E402
from transfer.spool.format.rows import blobs, strings  # noqa: E402
from transfer.transports.errors import Again, NotATensor, OptionError, UsageError  # noqa: E402

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

ROWS = 1200


@pytest.fixture(scope="module")
def spool(tmp_path_factory):
    with Spool(tmp_path_factory.mktemp("spool")) as spool:
        yield spool


def counting(spark, df):
    """The same rows, and how many of them tasks have computed."""
    computed = spark.sparkContext.accumulator(0)

    @functions.udf("long", useArrow=False)
    def count(number):
        computed.add(1)
        return number

    return df.withColumn("id", functions.coalesce(count("id"), functions.lit(-1))), computed


# --- what arrives -------------------------------------------------------------------------------


def test_the_format_is_found_and_all_rows_are_there_once(spark, spool):
    url = spool.url("found")
    frame_of(spark, ROWS).write.format("transfer").mode("append").option("ragged", "r").save(url)
    assert rows_in(url) == ("sealed", expected(range(ROWS)))
    run = runs_of(spool)["found"]
    assert (run["kind"], run["delivery"], run["partitions"], run["frames"]) == ("batch", "committed", 3, 12)
    assert (run["staged_rows"], run["stray_frames"]) == (0, 0)


def test_by_partition_too(spark, spool):
    url = spool.url("by partition")
    assert write(frame_of(spark, ROWS), url, ragged="r", delivery="partition") == "by partition"
    assert rows_in(url) == ("sealed", expected(range(ROWS)))


def test_every_kind_of_column(spark, spool):
    linalg = pytest.importorskip("pyspark.ml.linalg")
    vectors = spark.createDataFrame(
        [(i, linalg.Vectors.dense([i, i + 0.5])) for i in range(300)], ["id", "v"]
    )
    df = vectors.selectExpr(
        "id", "v", "if(id % 7 = 1, null, id) maybe", "id % 2 = 0 even", "concat('ä', id) s",
        "if(id % 3 = 0, null, 'set') maybe_s", "cast(concat('b', id) as binary) b", "sequence(0, id % 5) r",
        "transform(sequence(1, id % 4), i -> array(i, id)) t", "array(array(id, 1), array(2, 3)) m",
        "array(double(id)) d", "cast(id % 100 as byte) k",
    )  # fmt: skip
    url = spool.url("kinds")
    write(df, url, ragged=["r", "t"], nulls="mask", frame_rows=40)
    state, arrays, rows = read(url)
    order = np.argsort(arrays["id"], kind="stable")
    assert (state, rows) == ("sealed", 300)
    assert arrays["id"][order].tolist() == list(range(300))

    def column(name):
        """By id."""
        if name + ".offsets" not in arrays:
            return arrays[name][order].tolist()
        ends = arrays[name + ".offsets"]
        return [arrays[name][ends[row] : ends[row + 1]].tolist() for row in order]

    def by_id(values):
        return [values[row] for row in order]

    assert column("v") == [[i, i + 0.5] for i in range(300)] and arrays["v"].dtype == "float64"
    assert column("maybe") == [0 if i % 7 == 1 else i for i in range(300)]
    assert column("maybe.valid") == [i % 7 != 1 for i in range(300)]
    assert column("even") == [i % 2 == 0 for i in range(300)]
    assert by_id(strings(arrays, "s")) == [f"ä{i}" for i in range(300)]
    assert by_id(strings(arrays, "maybe_s")) == ["" if i % 3 == 0 else "set" for i in range(300)]
    assert column("maybe_s.valid") == [i % 3 != 0 for i in range(300)]
    assert by_id(blobs(arrays, "b")) == [b"b%d" % i for i in range(300)]
    assert column("r") == [list(range(i % 5 + 1)) for i in range(300)]
    # sequence(1, 0) counts down in Spark
    assert column("t") == [
        [[k, i] for k in ([1, 0] if i % 4 == 0 else range(1, i % 4 + 1))] for i in range(300)
    ]
    assert column("m") == [[[i, 1], [2, 3]] for i in range(300)]
    assert column("d") == [[i] for i in range(300)]
    assert column("k") == [i % 100 for i in range(300)] and arrays["k"].dtype == "int8"


@pytest.mark.parametrize("delivery", ["committed", "partition"])
def test_a_complete_run_takes_no_other_rows(spark, spool, delivery):
    url = spool.url(f"again {delivery}")
    write(frame_of(spark, 300), url, ragged="r", delivery=delivery)
    before = runs_of(spool)[f"again {delivery}"]
    df, computed = counting(spark, frame_of(spark, 200))
    with pytest.raises(UsageError, match="is complete, with 300 rows of another job") as caught:
        write(df, url, ragged="r", delivery=delivery)
    assert "if_complete=skip" in caught.value.hint
    writer = df.write.format("transfer").mode("append").option("ragged", "r").option("delivery", delivery)
    with pytest.raises(Exception, match="is complete, with 300 rows"):
        writer.save(url)
    assert computed.value == 0
    assert write(df, url, ragged="r", delivery=delivery, if_complete="skip") == f"again {delivery}"
    writer.option("if_complete", "skip").save(url)
    assert runs_of(spool)[f"again {delivery}"] | {"idle": 0} == before | {"idle": 0}
    assert rows_in(url) == ("sealed", expected(range(300)))
    # Spark computes a first batch ahead for each task; what it does not compute was not sent.
    assert computed.value <= 400


def test_a_run_without_a_name_has_a_fresh_one(spark, spool):
    names = [write(frame_of(spark, 30, 1), spool.url(), ragged="r") for _ in range(2)]
    assert len({*names}) == 2
    for name in names:
        assert rows_in(spool.url(name)) == ("sealed", expected(range(30)))


def test_a_name_with_all_that_names_may_have(spark, spool):
    name = "täglich / 2024-01 #1?"
    assert write(frame_of(spark, 30, 1), spool.url(), run=name, ragged="r") == name
    assert rows_in(spool.url(name)) == ("sealed", expected(range(30)))


def test_runs_side_by_side(spark, spool):
    failures = []

    def work(number):
        try:
            write(frame_of(spark, ROWS).where(f"id % 3 = {number}"), spool.url(f"side {number}"), ragged="r")
        except Exception as error:  # noqa: BLE001 - handed to the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert failures == [] and not any(thread.is_alive() for thread in threads)
    for number in range(3):
        assert rows_in(spool.url(f"side {number}")) == ("sealed", expected(range(number, ROWS, 3)))


def test_two_jobs_write_one_run_and_one_of_them_counts(spark, spool):
    url, failures = spool.url("both"), []

    def work():
        try:
            write(frame_of(spark, ROWS), url, ragged="r")
        except Exception as error:  # noqa: BLE001 - handed to the test
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(150)
    (refused,) = failures
    assert "is complete" in str(refused), refused
    assert rows_in(url) == ("sealed", expected(range(ROWS)))


@pytest.mark.parametrize("delivery", ["committed", "partition"])
def test_no_rows_are_a_run_too(spark, spool, delivery):
    write(
        frame_of(spark, ROWS).where("id < 0"), spool.url(f"empty {delivery}"), ragged="r", delivery=delivery
    )
    assert rows_in(spool.url(f"empty {delivery}")) == ("sealed", expected([]))
    # Some partitions have none.
    write(frame_of(spark, ROWS).where("id < 5"), spool.url(f"few {delivery}"), ragged="r", delivery=delivery)
    assert rows_in(spool.url(f"few {delivery}")) == ("sealed", expected(range(5)))


def test_checksums_and_compression_of_the_socket(spark, spool):
    pytest.importorskip("lz4")
    url = spool.url("checked")
    write(frame_of(spark, 300), url, ragged="r", checksum=True, compression="lz4")
    assert rows_in(url) == ("sealed", expected(range(300)))


# --- what is refused ----------------------------------------------------------------------------


def test_refused_on_the_driver_before_any_task(spark, spool):
    df, computed = counting(spark, frame_of(spark, 30))
    dated = df.selectExpr("id", "current_date() as day")
    for frame, options, error, text in [
        (dated, {}, NotATensor, "column 'day' is date"),
        (df, {"columns": ["id", "nothing"]}, OptionError, "no column 'nothing'"),
        (df, {"ragged": ["s"]}, OptionError, "'ragged' names 's'"),
        (df, {"nulls": "keep"}, OptionError, "nulls is one of"),
        (df, {"delivery": "eager"}, OptionError, "without a spool"),
    ]:
        with pytest.raises(error, match=text):
            write(frame, spool.url("refused"), **options)
    with pytest.raises(Again, match=r"no spool answers at tcp://127.0.0.1:9"):
        write(df.select("id"), "run://127.0.0.1:9/x", connect_timeout=0.3)
    writer = dated.write.format("transfer").mode("append")
    with pytest.raises(Exception, match="column 'day' is date"):
        writer.save(spool.url("refused"))
    with pytest.raises(Exception, match="no spool answers at"):
        df.write.format("transfer").mode("append").options(connect_timeout=0.3, ragged="r").save(
            "run://127.0.0.1:9/x"
        )
    assert computed.value == 0 and "refused" not in runs_of(spool)


def test_a_spool_whose_port_for_rows_cannot_be_reached(spark, tmp_path):
    with Spool(tmp_path / "spool") as spool:
        spool._handler.writers._port = 9
        with pytest.raises(Exception, match=r"its port for rows does not: tcp://127.0.0.1:9"):
            write(frame_of(spark, 10, 1), spool.url("one"), ragged="r", connect_timeout=3)
        assert runs_of(spool)["one"]["state"] == "failed"


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("overwrite", r'no past to overwrite[\s\S]*mode\("append"\)'),
        ("error", '"Append"'),
        ("ignore", '"Append"'),
    ],
)
def test_other_save_modes_are_refused(spark, spool, mode, text):
    writer = frame_of(spark, 10, 1).write.format("transfer").mode(mode).option("ragged", "r")
    with pytest.raises(Exception, match=text):
        writer.save(spool.url("modes"))
    assert "modes" not in runs_of(spool)


def test_a_run_has_one_delivery_and_one_kind(spark, spool, tmp_path):
    write(frame_of(spark, 30), spool.url("one kind"), ragged="r")
    with pytest.raises(UsageError, match=r"is a batch with delivery committed, not a batch"):
        write(frame_of(spark, 30), spool.url("one kind"), ragged="r", delivery="partition")
    with pytest.raises(Exception, match=r"is a batch with delivery committed, not a stream"):
        feed(spark, tmp_path, 1)
        run_query(spark, tmp_path, spool.url("one kind"))
    assert rows_in(spool.url("one kind")) == ("sealed", expected(range(30)))


# --- streams ------------------------------------------------------------------------------------

BATCH = 60


def feed(spark, folder, count, first=0):
    """Files for a stream: each of them a batch of 60 rows."""
    for number in range(first, first + count):
        ids = ",".join(f'{{"id":{n}}}' for n in range(number * BATCH, (number + 1) * BATCH)).replace(
            "},{", "}\n{"
        )
        (folder / "feed").mkdir(exist_ok=True)
        (folder / "feed" / f".{number:03}").write_text(ids + "\n")
        os.utime(
            folder / "feed" / f".{number:03}", (1e9 + number, 1e9 + number)
        )  # Spark takes the oldest first
        (folder / "feed" / f".{number:03}").rename(folder / "feed" / f"{number:03}.json")


def query(spark, folder, url, source="transfer", **options):
    rows = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(folder / "feed"))
    df = rows.repartition(2).selectExpr(
        "id", "array(float(id), float(id * 2)) as x", "concat('row ', id) as s", "sequence(0, id % 3) as r"
    )
    writer = df.writeStream.format(source).option("checkpointLocation", str(folder / "checkpoint"))
    return writer.options(**{"endpoint": url, "ragged": "r"} | options)


def run_query(spark, folder, url, **options):
    """All batches that are there."""
    running = query(spark, folder, url, **options).trigger(availableNow=True).start()
    try:
        assert running.awaitTermination(120)
    finally:
        running.stop()


def test_batches_become_visible_one_by_one(spark, spool, tmp_path):
    url = spool.url("stream")
    feed(spark, tmp_path, 1)
    running = query(spark, tmp_path, url).start()
    try:
        for number in range(1, 4):
            running.processAllAvailable()
            assert rows_in(url) == ("open", expected(range(number * BATCH)))
            feed(spark, tmp_path, 1, number)
    finally:
        running.stop()
    run = runs_of(spool)["stream"]
    assert (run["kind"], run["state"]) == ("stream", "open")


@pytest.mark.parametrize("delivery", ["committed", "partition"])
def test_a_query_that_starts_again_repeats_its_last_batch_and_nothing_is_doubled(
    spark, spool, tmp_path, delivery
):
    url = spool.url(f"replay {delivery}")
    feed(spark, tmp_path, 2)
    run_query(spark, tmp_path, url, delivery=delivery)
    assert rows_in(url) == ("open", expected(range(2 * BATCH)))
    # As if it had ended between our commit and the word of it in the checkpoint.
    for place in (tmp_path / "checkpoint" / "commits").glob("*1*"):
        place.unlink()
    feed(spark, tmp_path, 1, 2)
    run_query(spark, tmp_path, url, delivery=delivery)
    assert rows_in(url) == ("open", expected(range(3 * BATCH)))


def test_a_commit_that_spark_does_not_hear_of_is_not_doubled(spark, spool, tmp_path):
    from tests.spark.faulty_source import FaultySource, fault, happened

    spark.dataSource.register(FaultySource)
    url, options = spool.url("unheard"), fault(tmp_path, kind="lost")
    feed(spark, tmp_path, 2)
    with pytest.raises(Exception, match="nobody hears of this commit"):
        run_query(spark, tmp_path, url, source="transfer_faulty", **options)
    assert rows_in(url) == ("open", expected(range(BATCH)))
    run_query(spark, tmp_path, url, source="transfer_faulty", **options)
    assert rows_in(url) == ("open", expected(range(2 * BATCH))) and happened(tmp_path) == 1


@pytest.mark.parametrize("delivery", ["committed", "partition"])
def test_a_batch_that_fails_is_dropped_and_tried_again(spark, spool, tmp_path, delivery):
    from tests.spark.faulty_source import BEFORE_END, FaultySource, fault, happened

    spark.dataSource.register(FaultySource)
    url = spool.url(f"failing {delivery}")
    options = fault(tmp_path, kind="raise", frame=BEFORE_END, times=2) | {"delivery": delivery}
    feed(spark, tmp_path, 2)
    with pytest.raises(Exception, match="fails on purpose"):
        run_query(spark, tmp_path, url, source="transfer_faulty", **options)
    state, found = rows_in(url)
    assert state == "open" and found <= expected(range(BATCH))
    assert sum(found.values()) in ((0,) if delivery == "committed" else (0, BATCH // 2))
    run_query(spark, tmp_path, url, source="transfer_faulty", **options)
    assert rows_in(url) == ("open", expected(range(2 * BATCH))) and happened(tmp_path) == 2
    assert inspected(spool, f"failing {delivery}")["staged_rows"] == 0


def test_a_stream_needs_a_spool_and_a_name(spark, spool, tmp_path):
    feed(spark, tmp_path, 1)
    for url, options, text in [
        (spool.url(), {}, "needs a name for its run"),
        ("tcp://127.0.0.1:9", {"delivery": "eager"}, "eager delivery does not support streams"),
        (spool.url("x"), {"ragged": "nothing"}, "'ragged' names 'nothing'"),
    ]:
        with pytest.raises(Exception, match=text):
            query(spark, tmp_path, url, **options).start().processAllAvailable()
    assert "x" not in runs_of(spool)
