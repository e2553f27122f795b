"""What the readers tell Spark, asked without Spark: ranges, offsets, limits, and what is refused."""

from __future__ import annotations

import pickle
from contextlib import closing

import pytest

pytest.importorskip("pyarrow", reason="pip install tensor-transfer[spark]")
pytest.importorskip("pyspark.sql.datasource", reason="pip install tensor-transfer[spark]")

from pyspark.sql.types import StructType

from tests.spark.job_sender import SCHEMA, job, push, send
from transfer.spark import run_reader
from transfer.spark.options import ReadOptions, parse_read_options
from transfer.spark.run_reader import PlannedRun, RunStream, SparkRunReader, ranges, read_schema
from transfer.spool import Spool
from transfer.spool.client.connection import ReconnectingClient
from transfer.spool.client.run_client import RunClient
from transfer.spool.format.protocol import Acknowledge, DeleteRun, OpenRun, Release
from transfer.transports.errors import Again, Broken, NotSupported, OptionError, UsageError

HERE = "run://127.0.0.1:5570/digits"


@pytest.fixture
def spool(tmp_path):
    with Spool(tmp_path / "spool") as spool:
        yield spool


def options(spool, run="run", **more):
    return parse_read_options({"endpoint": spool.url(run), "group": "spark", "connect_timeout": "5"} | more)


@pytest.fixture
def stream_of(spool):
    """Makes streams that end with the test."""
    made = []

    def make(run="run", **more):
        made.append(RunStream(options(spool, run, **more), SCHEMA))
        return made[-1]

    yield make
    for stream in made:
        stream.stop()


def ids(reader, parts):
    return [i for part in parts for batch in reader.read(part) for i in batch.column("id").to_pylist()]


def drop(spool, run="run"):
    link = ReconnectingClient(spool.endpoint)
    link.ask(DeleteRun(run=run, force=True))
    link.close()


def acknowledge(spool, group, row, run="run"):
    link = ReconnectingClient(spool.endpoint)
    link.ask(OpenRun(run=run, group=group, shard=0, shards=1, token="token"))
    run_id = spool.store.entries[run].run_id
    link.ask(Acknowledge(run=run, run_id=run_id, group=group, shard=0, shards=1, epoch=0, row=row, steps=[]))
    link.ask(Release())
    link.close()


def acknowledged(spool, run="run", group="spark"):
    return spool.store.entries[run].groups[group].acknowledged


# --- options ------------------------------------------------------------------------------------


def test_options_in_either_spelling():
    assert parse_read_options({"path": HERE}) == ReadOptions("tcp://127.0.0.1:5570", "digits")
    camel = {
        "endpoint": "run://10.0.0.1",
        "run": "digits",
        "partitions": "3",
        "open": "TRUE",
        "connectTimeout": "2.5",
        "group": "g",
        "startingOffset": "Latest",
        "maxRowsPerTrigger": "100",
    }
    wanted = ReadOptions("tcp://10.0.0.1:5570", "digits", 3, True, 2.5, "g", "latest", 100)
    assert parse_read_options(camel) == wanted
    snake = {"connect_timeout": "2.5", "starting_offset": "latest", "max_rows_per_trigger": "100"}
    lower = {key.lower(): value for key, value in camel.items()}  # as Spark hands them on
    assert parse_read_options(lower) == wanted
    plain = {key: value for key, value in camel.items() if key.islower()}
    assert parse_read_options(plain | snake) == wanted


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "reading needs a run of a spool$"),
        ({"endpoint": "tcp://10.0.0.1:5"}, "'tcp://10.0.0.1:5' is none"),
        ({"endpoint": "run://10.0.0.1:5570"}, "names no run"),
        ({"endpoint": HERE, "run": "letters"}, "the endpoint names run 'digits', and the option 'run'"),
        ({"endpoint": HERE, "maxRowsPerTriger": "1"}, "Did you mean 'max_rows_per_trigger'"),
        ({"endpoint": HERE, "nulls": "fill"}, "unknown option 'nulls'"),
        ({"endpoint": HERE, "open": "perhaps"}, "'open' is true or false"),
        ({"endpoint": HERE, "partitions": "-1"}, "'partitions' is a whole number"),
        ({"endpoint": HERE, "startingOffset": "5"}, "starting_offset is one of earliest, latest"),
        ({"endpoint": HERE, "max_rows_per_trigger": "1", "maxRowsPerTrigger": "2"}, "given twice"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_options_that_are_refused(given, text):
    with pytest.raises(OptionError) as caught:
        parse_read_options(given)
    assert caught.match(text.rstrip("$"))


# --- batches ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("begin", "end"), [(0, 0), (3, 4), (5, 105), (7, 8192)])
@pytest.mark.parametrize("partitions", [0, 1, 3, 200])
@pytest.mark.parametrize("row_bytes", [1, run_reader.PARTITION_BYTES // 10, 2 * run_reader.PARTITION_BYTES])
def test_ranges_are_whole_even_and_none_is_empty(begin, end, partitions, row_bytes):
    seen = PlannedRun("sealed", "batch", begin, end, 1.0, (), row_bytes, frozenset())
    found = ranges(seen, begin, end, partitions)
    assert [row for part in found for row in range(part.begin, part.end)] == list(range(begin, end))
    lengths = [part.end - part.begin for part in found] or [1]
    assert min(lengths) > 0 and max(lengths) - min(lengths) <= 1
    if partitions:
        assert len(found) == min(partitions, end - begin)
    else:
        assert max(lengths) * row_bytes <= max(run_reader.PARTITION_BYTES, row_bytes)


def test_a_run_is_read_whole_and_nobody_holds_it(spool):
    push(spool, "run", 0, 1234, kind="batch")
    assert read_schema(options(spool)) == SCHEMA
    reader = SparkRunReader(options(spool, partitions="3"), SCHEMA)
    parts = pickle.loads(pickle.dumps(reader.partitions()))
    assert len(parts) == 3
    assert ids(pickle.loads(pickle.dumps(reader)), parts) == list(range(1234))
    assert spool.store.entries["run"].groups == {}


def test_rows_are_asked_for_in_pieces_by_their_length(spool, monkeypatch):
    push(spool, "run", 0, 3000, kind="batch")
    monkeypatch.setattr(run_reader, "FETCH_BYTES", 4000)
    reader = SparkRunReader(options(spool), SCHEMA)
    (part,) = reader.partitions()
    sent = [batch.num_rows for batch in reader.read(part)]
    assert sum(sent) == 3000 and sent[0] == 64
    # a row has 8 bytes of number, 8 of offset, 5 to 8 of text
    assert all(4000 // 24 - 2 <= rows <= 4000 // 21 for rows in sent[1:-1])


def test_an_empty_run_has_no_rows_and_no_columns(spool):
    plan = job(spool, "run", "one", "batch")
    plan.check()
    plan.commit([])
    with pytest.raises(UsageError, match="run run is sealed without rows, and so without columns"):
        read_schema(options(spool))
    reader = SparkRunReader(options(spool), SCHEMA)
    (part,) = reader.partitions()
    assert ids(reader, [part]) == []


def test_a_query_that_names_a_column_that_is_not_there_has_made_no_group(spool):
    push(spool, "grows", 0, 20)
    stream = RunStream(options(spool, "grows", group="g"), StructType().add("other", "long"))
    with pytest.raises(OptionError, match="no column 'other'"):
        stream.initialOffset()
    stream.stop()
    assert spool.store.entries["grows"].groups == {}


def test_a_run_that_is_not_complete_is_refused_unless_that_is_meant(spool):
    push(spool, "grows", 0, 20)
    job(spool, "open", "one", "batch").check()
    job(spool, "failed", "one", "batch").check()
    job(spool, "failed", "one", "batch").abort()
    for run, text in (("grows", "a stream, which is never"), ("open", "is open"), ("failed", "is failed")):
        with pytest.raises(UsageError, match=text) as caught:
            SparkRunReader(options(spool, run), SCHEMA).partitions()
        assert "open=true" in str(caught.value)
    for run, there in (("grows", 20), ("open", 0), ("failed", 0)):
        reader = SparkRunReader(options(spool, run, open="true"), SCHEMA)
        assert ids(reader, reader.partitions()) == list(range(there))


def test_runs_and_spools_that_are_not_there(spool):
    push(spool, "run", 0, 20)
    for ask in (lambda o: read_schema(o), lambda o: SparkRunReader(o, SCHEMA).partitions()):
        with pytest.raises(OptionError, match="there is no run 'other'"):
            ask(options(spool, "other"))
        nobody = parse_read_options({"endpoint": "run://127.0.0.1:9/x", "connect_timeout": "0.2"})
        with pytest.raises(Again, match="no spool answers"):
            ask(nobody)


def test_a_run_that_is_written_again_meanwhile_is_not_mixed(spool):
    push(spool, "run", 0, 20, kind="batch")
    reader = SparkRunReader(options(spool), SCHEMA)
    parts = reader.partitions()
    drop(spool)
    push(spool, "run", 100, 120, kind="batch")
    with pytest.raises(Broken, match="was deleted: run is"):
        ids(reader, parts)


def test_rows_that_went_meanwhile_are_told_at_once(spool):
    push(spool, "run", 0, 20)
    push(spool, "run", 20, 40)
    reader = SparkRunReader(options(spool, open="true"), SCHEMA)
    parts = reader.partitions()
    acknowledge(spool, "trainer", 20)
    with pytest.raises(Broken, match="are not kept any more"):
        ids(reader, parts)
    assert ids(reader, reader.partitions()) == list(range(20, 40))


# --- streams ------------------------------------------------------------------------------------


def test_a_stream_needs_a_group(spool):
    with pytest.raises(OptionError, match="needs the option 'group'"):
        RunStream(parse_read_options({"endpoint": HERE}), SCHEMA)


def test_a_stream_reads_what_becomes_visible(spool, stream_of):
    push(spool, "run", 0, 20)
    stream = stream_of()
    start = stream.initialOffset()
    assert (
        start == {"row": 0, "run_id": spool.store.entries["run"].run_id}
        and stream.partitions(start, start) == []
    )
    limit = stream.getDefaultReadLimit()
    end = stream.latestOffset(start, limit)
    assert end == stream.reportLatestOffset() == start | {"row": 20}
    assert ids(stream, stream.partitions(start, end)) == list(range(20))
    assert stream.latestOffset(end, limit) == end
    push(spool, "run", 20, 35)
    later = stream.latestOffset(end, limit)
    assert ids(stream, stream.partitions(end, later)) == list(range(20, 35))
    assert ids(stream, stream.partitions(start, later)) == list(range(35))  # nothing was committed yet
    assert acknowledged(spool) == (0, 0)
    stream.commit(end)
    assert acknowledged(spool) == (0, 20) and spool.store.entries["run"].first == 20
    assert ids(stream, stream.partitions(end, later)) == list(range(20, 35))


def test_rows_are_kept_from_where_a_new_query_begins(spool, stream_of):
    push(spool, "run", 0, 20)
    push(spool, "run", 20, 40)
    acknowledge(spool, "trainer", 20)
    assert stream_of().initialOffset()["row"] == 20
    acknowledge(spool, "trainer", 40)  # the query has not
    assert spool.store.entries["run"].first == 20
    late = stream_of(group="late", startingOffset="latest")
    assert late.initialOffset()["row"] == 40
    assert late.latestOffset({"row": 40})["row"] == 40


def test_rows_that_go_while_a_query_begins_are_not_begun_with(spool, stream_of, monkeypatch):
    push(spool, "run", 0, 20)
    push(spool, "run", 20, 40)
    acknowledge(spool, "trainer", 0)
    acknowledge(spool, "spark", 20)  # an earlier query's, whose checkpoint is gone
    stream = stream_of()
    look, told = stream._visible_end, []

    def slow():
        told.append(look())
        if len(told) == 1:
            acknowledge(spool, "trainer", 20)
        return told[-1]

    monkeypatch.setattr(stream, "_visible_end", slow)
    assert stream.initialOffset()["row"] == 20
    assert acknowledged(spool) == (0, 20)


def test_a_group_that_a_trainer_reads_for_is_no_querys(spool, stream_of):
    push(spool, "run", 0, 20)
    with closing(RunClient(spool.url("run"), timeout=5)) as trainer:
        trainer.open("spark")
        with pytest.raises(UsageError, match="group 'spark' of run run is being read"):
            stream_of(connect_timeout="0.5").initialOffset()
    stream = stream_of(group="other")
    stream.initialOffset()
    with closing(RunClient(spool.url("run"), timeout=5)) as trainer:
        assert trainer.open("other").acknowledged == (0, 0)  # no query holds a lease


@pytest.mark.skipif(not run_reader.HAS_LIMITS, reason="needs PySpark 4.2")
def test_limits_and_the_end_of_available_now(spool, stream_of):
    datasource = pytest.importorskip("pyspark.sql.streaming.datasource")
    push(spool, "run", 0, 25)
    stream = stream_of(maxRowsPerTrigger="10")
    start = stream.initialOffset()
    limit = stream.getDefaultReadLimit()
    assert limit == datasource.ReadMaxRows(10)
    stream.prepareForTriggerAvailableNow()
    push(spool, "run", 25, 50)
    ends = [start]
    while (end := stream.latestOffset(ends[-1], limit)) != ends[-1]:
        ends.append(end)
    assert [end["row"] for end in ends] == [0, 10, 20, 25]
    assert stream.latestOffset(ends[-1], datasource.ReadAllAvailable())["row"] == 25
    assert stream_of().getDefaultReadLimit() == datasource.ReadAllAvailable()
    fresh = stream_of()
    assert fresh.latestOffset({"row": 25}, datasource.ReadAllAvailable())["row"] == 50
    with pytest.raises(NotSupported, match="ReadMaxFiles"):
        fresh.latestOffset({"row": 25}, datasource.ReadMaxFiles(1))


def test_without_limits_all_that_is_there_is_the_next_batch(spool, stream_of, monkeypatch):
    """As PySpark 4.1 has it."""
    push(spool, "run", 0, 25)
    monkeypatch.setattr(run_reader, "HAS_LIMITS", False)
    stream = stream_of()
    assert stream.initialOffset()["row"] == 0 and stream.latestOffset()["row"] == 25
    with pytest.raises(NotSupported, match="no read limits"):
        stream_of(maxRowsPerTrigger="10")


def test_a_query_goes_on_at_its_checkpoint_and_only_with_its_run(spool, stream_of):
    push(spool, "run", 0, 20)
    push(spool, "run", 20, 40)
    first = stream_of()
    first.initialOffset()
    first.stop()
    again = stream_of()
    assert ids(again, again.partitions({"row": 10}, {"row": 40})) == list(range(10, 40))
    with pytest.raises(Broken, match="'other' never read") as caught:
        stream_of(group="other").partitions({"row": 10}, {"row": 40})
    assert "new checkpoint" in str(caught.value)
    drop(spool)
    push(spool, "run", 0, 60)
    with pytest.raises(Broken, match="was deleted: run is"):
        again.latestOffset({"row": 40})
    with pytest.raises(Broken, match="'spark' never read"):
        stream_of().latestOffset({"row": 40})
    assert stream_of().latestOffset({"row": 0})["row"] == 60  # it had read nothing of the other
    acknowledge(spool, "spark", 40)
    with pytest.raises(Broken, match="which has fewer rows"):
        stream_of().partitions({"row": 40}, {"row": 80})
    drop(spool)
    with pytest.raises(OptionError, match="there is no run"):
        stream_of().latestOffset({"row": 40})


def test_a_stream_of_a_sealed_run_has_its_rows_and_no_more(spool, stream_of):
    push(spool, "run", 0, 20, kind="batch")
    stream = stream_of()
    start = stream.initialOffset()
    end = stream.latestOffset(start)
    assert ids(stream, stream.partitions(start, end)) == list(range(20))
    assert stream.latestOffset(end) == end == start | {"row": 20}


def test_a_stream_may_begin_before_its_first_rows(spool, stream_of):
    plan = job(spool, "run", "one")
    plan.check()
    stream = stream_of()
    start = stream.initialOffset()
    assert start == stream.latestOffset(start) and start["row"] == 0
    plan.commit([send(plan, 0, 10)])
    assert ids(stream, stream.partitions(start, stream.latestOffset(start))) == list(range(10))


def test_a_stream_goes_on_when_the_spool_is_back(tmp_path, stream_of):
    with Spool(tmp_path / "again") as spool:
        push(spool, "run", 0, 20)
        endpoint = spool.endpoint
        stream = RunStream(options(spool), SCHEMA)
        start = stream.initialOffset()
        parts = stream.partitions(start, {"row": 20})
    try:
        with Spool(tmp_path / "again", endpoint) as spool:
            push(spool, "run", 20, 40)
            assert ids(stream, parts) == list(range(20))
            end = stream.latestOffset({"row": 20})
            assert ids(stream, stream.partitions({"row": 20}, end)) == list(range(20, 40))
            stream.commit({"row": 20})
            assert acknowledged(spool) == (0, 20)
    finally:
        stream.stop()


def test_an_offset_says_which_of_the_runs_of_its_name_it_is_of(spool, stream_of):
    """The group is there in the new run too, and it has as many rows."""
    push(spool, "run", 0, 20)
    start = stream_of().initialOffset()
    push(spool, "run", 20, 40)
    end = stream_of().latestOffset(start)
    drop(spool)
    push(spool, "run", 100, 140)
    now = stream_of().initialOffset()["run_id"]
    for use in (
        lambda stream: stream.latestOffset(end),
        lambda stream: stream.partitions(start, end),
        lambda stream: stream.partitions(start, end | {"run_id": now}),  # as PySpark 4.1 plans
        lambda stream: stream.commit(end),
    ):
        with pytest.raises(Broken) as caught:
            use(stream_of())
        assert start["run_id"] in str(caught.value) and now in str(caught.value)
