"""Real Spark reads runs back, whole and as streams."""

from __future__ import annotations

import pytest

pytest.importorskip("numpy")
pytest.importorskip("pyspark.sql.datasource", reason="pip install tensor-transfer[spark]")
functions = pytest.importorskip("pyspark.sql.functions")

from tests.spark.job_sender import job, push, send  # noqa: E402
from transfer.spark import write  # noqa: E402
from transfer.spark.run_reader import HAS_LIMITS  # noqa: E402
from transfer.spool import Spool  # noqa: E402
from transfer.spool.client.connection import ReconnectingClient  # noqa: E402
from transfer.spool.format.protocol import DeleteRun  # noqa: E402

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

ROWS = 400


@pytest.fixture(scope="module")
def spool(tmp_path_factory):
    with Spool(tmp_path_factory.mktemp("spool")) as spool:
        yield spool


def ids_of(df):
    return sorted(row.id for row in df.select("id").collect())


def read(spark, spool, run, **options):
    return spark.read.format("transfer").options(**options).load(spool.url(run))


# --- whole runs ---------------------------------------------------------------------------------


def test_every_kind_of_column_comes_back_as_it_was(spark, spool):
    array_to_vector = pytest.importorskip("pyspark.ml.functions").array_to_vector
    df = spark.range(0, ROWS, 1, 2).selectExpr(
        "id", "array(double(id), id + 0.5D) v", "if(id % 7 = 1, null, id) maybe", "id % 2 = 0 even",
        "concat('ä', id) s",
        "if(id % 3 = 0, null, 'set') maybe_s", "cast(concat('b', id) as binary) b", "sequence(0, id % 5) r",
        "if(id % 3 = 0, null, transform(sequence(1, id % 4), i -> array(i, id))) t",
        "array(array(id, 1), array(2, 3)) m", "array(double(id)) d", "cast(id % 100 as byte) k",
        "cast(id as short) h", "cast(id as int) i", "cast(id as float) f", "array(id % 2 = 0) flags",
        "if(id % 5 = 0, null, id % 2 = 0) maybe_even", "if(id % 5 = 4, null, array(id, id)) maybe_m",
    )  # fmt: skip
    write(df.withColumn("v", array_to_vector("v")), spool.url("kinds"), ragged=["r", "t"], nulls="mask")
    back = read(spark, spool, "kinds", partitions="3")
    assert [(f.name, f.dataType.simpleString()) for f in back.schema] == [
        (f.name, f.dataType.simpleString()) for f in df.schema
    ]
    assert not back.schema["r"].dataType.containsNull
    rows = back.withColumn("part", functions.spark_partition_id()).collect()
    assert {row.part for row in rows} == {0, 1, 2}
    assert sorted(tuple(row)[:-1] for row in rows) == [tuple(row) for row in df.collect()]
    assert spool.store.entries["kinds"].groups == {}  # nobody's position moved


def test_columns_of_the_users_choice(spark, spool):
    push(spool, "some", 0, ROWS, kind="batch")
    reader = spark.read.format("transfer").option("endpoint", spool.url("some"))
    assert ids_of(reader.schema("id long").load()) == list(range(ROWS))
    rows = reader.schema("s string, id long").load().where("id >= 390").orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(f"row {i}", i) for i in range(390, ROWS)]
    assert reader.load().limit(3).count() == 3


@pytest.mark.parametrize(
    ("run", "options", "schema", "text"),
    [
        ("whole", {}, "id int", "column 'id' of the run is bigint, and the schema has int"),
        ("whole", {"nulls": "fill"}, None, "unknown option 'nulls'"),
        ("nothing", {}, None, "there is no run 'nothing'"),
        ("staged", {}, None, "run staged has no rows yet"),
        ("grows", {}, None, "run grows is a stream, which is never complete"),
        ("staged", {}, "id long", "run staged is open, and only a sealed run can be read completely"),
    ],
    ids=["schema", "option", "run", "columns", "stream", "open"],
)
def test_what_cannot_be_read_is_refused_before_any_task(spark, spool, run, options, schema, text):
    push(spool, "whole", 0, 10, kind="batch")
    push(spool, "grows", 0, 10)
    send(job(spool, "staged", "one", "batch"), 0, 10)
    reader = spark.read.format("transfer").options(**options)
    with pytest.raises(Exception, match=text):
        (reader.schema(schema) if schema else reader).load(spool.url(run)).collect()


def test_what_is_visible_of_an_open_run(spark, spool):
    push(spool, "grows", 0, 10)
    df = read(spark, spool, "grows", open="true")
    assert ids_of(df) == list(range(10))
    staged = job(spool, "staged 2", "one", "batch")
    send(staged, 0, 10)
    reader = spark.read.format("transfer").option("open", "true").schema("id long")
    assert reader.load(spool.url("staged 2")).count() == 0


# --- streams ------------------------------------------------------------------------------------


@pytest.fixture
def stream(spark, spool, tmp_path):
    """Starts queries from one run into another, with a checkpoint, and stops them."""
    started = []

    def start(run, into, trigger=None, change=None, **options):
        df = spark.readStream.format("transfer").options(group="copy", **options).load(spool.url(run))
        writer = (change(df) if change else df).writeStream.format("transfer")
        if trigger:
            writer = writer.trigger(**trigger)
        options = {"endpoint": spool.url(into), "checkpointLocation": str(tmp_path / "checkpoint")}
        started.append(writer.options(**options).start())
        return started[-1]

    yield start
    for query in started:
        query.stop()


def sizes(query):
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def position(spool, run):
    return spool.store.entries[run].groups["copy"].acknowledged


def test_a_query_follows_a_run_and_lets_its_rows_go(spark, spool, stream):
    push(spool, "follow", 0, 100)
    query = stream("follow", "followed", partitions="2")
    query.processAllAvailable()
    assert position(spool, "follow") == (0, 0)  # Spark tells it with the next batch
    push(spool, "follow", 100, 150)
    query.processAllAvailable()
    assert position(spool, "follow") == (0, 100) and spool.store.entries["follow"].first == 100
    assert ids_of(read(spark, spool, "followed", open="true")) == list(range(150))
    assert sizes(query) == [100, 50]


@pytest.mark.skipif(not HAS_LIMITS, reason="needs PySpark 4.2")
def test_what_is_available_now_in_batches_of_a_limit(spark, spool, stream):
    push(spool, "limited", 0, 100)
    now = {"availableNow": True}
    query = stream("limited", "copied", now, maxRowsPerTrigger="30")
    assert query.awaitTermination(120)
    assert sizes(query) == [30, 30, 30, 10]
    push(spool, "limited", 100, 120)
    query = stream("limited", "copied", now, maxRowsPerTrigger="30")
    assert query.awaitTermination(120)
    assert sizes(query) == [20]
    query = stream("limited", "copied", now, maxRowsPerTrigger="30")
    assert query.awaitTermination(120)
    assert sizes(query) == []
    assert ids_of(read(spark, spool, "copied", open="true")) == list(range(120))


@pytest.mark.skipif(not HAS_LIMITS, reason="needs PySpark 4.2")
def test_a_batch_that_failed_is_read_again_after_the_restart(spark, spool, stream, tmp_path):
    """Exactly once: the batch has the same rows, though its query ended in the middle of it."""
    push(spool, "source", 0, 100)
    allowed = str(tmp_path / "allowed")

    def stumbling(df):
        def work(number):
            import os

            if number == 45 and not os.path.exists(allowed):
                raise ValueError("not yet")
            return number

        return df.withColumn("id", functions.udf(work, "long", useArrow=False)("id"))

    now = {"availableNow": True}
    query = stream("source", "sink", now, stumbling, maxRowsPerTrigger="30")
    with pytest.raises(Exception, match="not yet"):
        query.awaitTermination(120)
    assert ids_of(read(spark, spool, "sink", open="true")) == list(range(30))
    push(spool, "source", 100, 110)
    with open(allowed, "w"):
        pass
    query = stream("source", "sink", now, stumbling, maxRowsPerTrigger="50")
    assert query.awaitTermination(120)
    # the batch is what it was to be; the limit is for those after it
    assert sizes(query) == [30, 50]
    assert ids_of(read(spark, spool, "sink", open="true")) == list(range(110))


def test_a_checkpoint_is_of_one_run_alone(spark, spool, stream):
    push(spool, "again", 0, 50)
    query = stream("again", "again too")
    query.processAllAvailable()
    query.stop()
    link = ReconnectingClient(spool.endpoint)
    link.ask(DeleteRun(run="again", force=True))
    link.close()
    push(spool, "again", 0, 60)
    query = stream("again", "again too")
    with pytest.raises(Exception, match=r"was deleted|is of two runs named again"):
        query.awaitTermination(120)


def test_a_stream_without_a_group_is_refused(spark, spool, tmp_path):
    push(spool, "alone", 0, 10)
    df = spark.readStream.format("transfer").load(spool.url("alone"))
    writer = df.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.start()
    with pytest.raises(Exception, match="needs the option 'group'"):
        query.awaitTermination(120)
