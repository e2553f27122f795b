"""`RowStream` over runs in this process."""

from __future__ import annotations

import gc
import json
import threading
from collections import Counter
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.spool.fake_source import FAILED, OPEN, RAGGED, Run, Source, agrees
from transfer.spool import RowStream, merge_states
from transfer.spool.format.order import Order
from transfer.transports.errors import Again, Broken, Closed, OptionError, ProtocolError, UsageError

DATA = Path(__file__).parents[1] / "data/states"


def ids_of(batches):
    return [int(i) for batch in batches for i in batch["id"]]


def read(run, *args, **more):
    """All batches of a stream."""
    with RowStream(Source(run), *args, **more) as stream:
        return list(stream)


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "transfer-prefetch"]


def order_of(run, seed, epoch):
    """The ids of an epoch's order."""
    lengths = [len(one["id"]) for one in run.frames]
    starts = np.cumsum([0, *lengths])
    frames, rows = Order(lengths, seed, epoch, row_bytes=8192).gather(0, run.visible)
    return (starts[frames] + rows).tolist()


def test_batches_in_visible_order():
    run = Run(10, 0, 15, 5)
    with RowStream(Source(run), 8) as stream:
        batches = list(stream)
    assert [len(batch["id"]) for batch in batches] == [8, 8, 8, 6]
    assert ids_of(batches) == list(range(30))
    assert all(agrees(batch) for batch in batches)
    assert (stream.batches, stream.rows, stream.bytes, stream.dropped_rows) == (4, 30, 30 * 16, 0)
    assert stream.waited_seconds > 0


def test_batches_are_writable_views_of_what_was_fetched():
    with RowStream(Source(Run(100)), 10) as stream:
        first, second, *_ = list(stream)
    assert second["x"].base is first["x"].base is not None
    first["x"][0, 0] = 42
    assert first["x"].base[0, 0] == 42


def test_a_shuffled_run_has_another_order_in_each_epoch():
    run = Run(40, 60)
    batches = read(run, 16, epochs=3, shuffle=7)
    expected = [order_of(run, 7, epoch) for epoch in range(3)]
    assert ids_of(batches) == [*chain(*expected)]
    assert all(sorted(order) == list(range(100)) for order in expected) and expected[0] != expected[1]


def test_strings_and_lists_are_cut_with_their_rows():
    assert all(agrees(batch) for batch in read(Run(7, 30, 3, layouts=RAGGED), 6, shuffle=3))
    late = Run(state=OPEN, layouts=RAGGED)
    source = Source(late)
    with RowStream(source, 6) as stream:
        late.add(7, 30, 3, state="sealed")
        batches = list(stream)
    assert stream.info.layouts == () and all(agrees(batch) for batch in batches)
    assert ids_of(batches) == list(range(40))


def test_columns_come_with_what_belongs_to_them():
    (batch,) = read(Run(5, layouts=RAGGED), 8, columns=["tokens", "label"])
    assert list(batch) == ["tokens", "tokens.offsets", "label", "label.valid"]
    with pytest.raises(OptionError, match="no column 'y'"):
        read(Run(5), 8, columns=["y"])


def test_one_name_is_no_list_of_columns():
    with pytest.raises(OptionError, match=r"not 'label'") as refused:
        RowStream("run://127.0.0.1:1/run", 8, columns="label")
    assert "columns=['label']" in str(refused.value)


def test_without_a_batch_size_all_ranks_have_the_same_one():
    run = Run(50_000, 50_000, layouts=(*Run().layouts,))
    with (
        RowStream(Source(run), None, rank=1, world_size=2) as one,
        RowStream(Source(run), None, group="b") as two,
    ):
        assert one.batch_size == two.batch_size == 1 << 16
    behind = Run(100, state=OPEN)
    behind.acknowledged = (0, 30)
    with RowStream(Source(behind), None):
        assert [(fetch.begin, fetch.need) for fetch in behind.fetches] == [(30, 94)]
    few = Run(3)
    assert [len(batch["id"]) for batch in read(few, None)] == [3]
    assert read(Run(), None) == []


@pytest.mark.parametrize(
    "wrong",
    [
        *[{name: 1.5} for name in ("batch_size", "epochs", "shuffle", "rank", "world_size")],
        {"batch_size": "2"},
        *[{"group": group} for group in ("", "g" * 256, 5)],
    ],
    ids=str,
)
def test_arguments_that_cannot_be_are_refused_before_anything_is_opened(wrong):
    run = Run(3)
    with pytest.raises(OptionError, match=f"{next(iter(wrong))} is a"):
        RowStream(Source(run), **({"batch_size": 2} | wrong))
    assert not run.leases


def test_numpys_integers_are_integers():
    assert ids_of(read(Run(3), np.int64(2), epochs=np.int8(1), shuffle=None)) == [0, 1, 2]


# --- ranks, workers, and resuming with others -----------------------------------------------------


@st.composite
def trainings(draw):
    rows = draw(st.integers(0, 60))
    cut = draw(st.integers(0, rows))
    shapes = draw(
        st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(0, 12)), min_size=1, max_size=4)
    )
    return (cut, rows - cut), shapes, draw(st.sampled_from([None, 5])), draw(st.booleans())


@settings(deadline=None, max_examples=60)
@given(trainings())
def test_every_row_once_with_any_ranks_resumed_with_any_others(training):
    """Several jobs one after the other, each with its own ranks and batch size; the last ends the epochs.

    The model: rows from the position on, in the order of the epoch, cut into steps, a step's rest shared.
    """
    frames, shapes, seed, drop_last = training
    run = Run(*frames)
    state, seen, epoch_rows = None, {0: [], 1: []}, {}
    for number, (world, batch, steps) in enumerate(shapes):
        last = number == len(shapes) - 1
        states, counts = [], []
        taken = {}
        for rank in range(world):
            options = {"epochs": 2, "shuffle": seed, "drop_last": drop_last}
            with RowStream(Source(run), batch, rank=rank, world_size=world, **options) as stream:
                if state is not None:
                    stream.load_state_dict(state)
                count = 0
                for one in stream:
                    taken.setdefault(count, []).append((stream.epoch, one["id"].tolist()))
                    count += 1
                    if not last and count >= steps:
                        break
                states.append(stream.state_dict())
                counts.append(count)
                lineage = stream.lineage
        assert len(set(counts)) == 1  # all ranks stop together
        assert all(one == states[0] for one in states)
        first = states[0]["step"] - counts[0]
        for step, parts in sorted(taken.items()):
            sizes = [len(ids) for _, ids in parts]
            assert len(parts) == world and max(sizes) - min(sizes) <= 1 and min(sizes) >= 1
            epoch, begin, end = lineage.rows_of(first + step)
            ids = [*chain(*(ids for _, ids in parts))]
            assert {e for e, _ in parts} == {epoch}
            assert ids == order_of(run, seed, epoch)[begin:end]
            seen[epoch] += ids
            epoch_rows.setdefault(epoch, []).append((begin, end))
        state = states[0]
    for epoch, ids in seen.items():
        assert max(Counter(ids).values(), default=1) == 1
        spans = epoch_rows.get(epoch, [])
        assert all(a[1] == b[0] for a, b in pairwise(spans))
        # What is left out at its end is too little for a step of the job that came there.
        most = max(world * batch if drop_last else world for world, batch, _ in shapes)
        assert run.visible - len(ids) < most


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 50),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 20),
    st.booleans(),
)
def test_workers_in_turn_give_the_exact_order_and_go_on(rows, world, batch, workers, stop, together):
    """Asked in turn, as a DataLoader does; then resumed each with its own state, or with the merged one."""
    run = Run(rows // 2, rows - rows // 2)
    options = {"epochs": 3, "shuffle": 9, "rank": world - 1, "world_size": world}
    alone = [batch["id"].tolist() for batch in read(run, batch, **options)]

    def in_turn(states, turn=0, limit=None):
        streams = [
            RowStream(Source(run), batch, worker=worker, workers=workers, **options)
            for worker in range(workers)
        ]
        for stream, state in zip(streams, states or [], strict=False):
            stream.load_state_dict(state)
        batches, left = [], [iter(stream) for stream in streams]
        states = [stream.state_dict() for stream in streams]
        while any(left) and (limit is None or len(batches) < limit):
            if left[turn] is not None:
                one = next(left[turn], None)
                if one is None:
                    left[turn] = None
                else:
                    batches.append(one["id"].tolist())
                    states[turn] = streams[turn].state_dict()
            turn = (turn + 1) % workers
        for stream in streams:
            stream.close()
        return batches, states, turn

    first, states, turn = in_turn(None, limit=stop)
    assert first == alone[: len(first)]
    merged = merge_states(states)
    assert merged["step"] == len(first)
    assert sum(steps for _, steps, *_ in merged["lineage"]) == len(first)
    if together:
        with RowStream(Source(run), batch, **options) as stream:
            stream.load_state_dict(merged)
            rest = [one["id"].tolist() for one in stream]
    else:
        rest, states, _ = in_turn(states, turn)
        merged = merge_states(states)
        assert sum(steps for _, steps, *_ in merged["lineage"]) == len(alone)
    assert first + rest == alone


# --- epochs -----------------------------------------------------------------------------------------


def test_epoch_by_epoch():
    run = Run(10)
    with RowStream(Source(run), 4, epochs=3, shuffle=1) as stream:
        for epoch in range(3):
            assert stream.epoch == epoch
            batches = []
            for batch in stream.one_epoch():
                assert stream.epoch == epoch
                batches.append(batch)
            assert ids_of(batches) == order_of(run, 1, epoch)
        assert stream.epoch == 3
        with pytest.raises(UsageError, match="all epochs"):
            next(stream.one_epoch())
        with pytest.raises(UsageError, match="all epochs"):
            next(iter(stream))


def test_an_epoch_left_early_goes_on():
    with RowStream(Source(Run(10)), 4, epochs=2) as stream:
        first = [next(stream.one_epoch())]
        assert ids_of(first + list(stream.one_epoch())) == list(range(10))
        assert ids_of(stream.one_epoch()) == list(range(10))


def test_for_ever_and_not_for_a_run_too_small():
    with RowStream(Source(Run(3)), 2, epochs=None) as stream:
        batches = [next(iter(stream)) for _ in range(11)]
    assert ids_of(batches) == [0, 1, 2] * 5 + [0, 1]
    assert read(Run(3), 2, epochs=None, world_size=4) == []


def test_what_is_dropped_is_counted():
    for more, dropped in (({"drop_last": True}, 2), ({"drop_last": False}, 0)):
        with RowStream(Source(Run(18)), 2, rank=1, world_size=2, epochs=3, **more) as stream:
            assert stream.rows == 0
            rows = sum(len(batch["id"]) for batch in stream)
        assert (rows, stream.rows, stream.dropped_rows) == ((18 - dropped) // 2 * 3,) * 2 + (3 * dropped,)
    with RowStream(Source(Run(17)), 2, rank=1, world_size=2) as stream:
        assert len(ids_of(stream)) == 8 and stream.dropped_rows == 1  # too few for each rank


@pytest.mark.parametrize("rows", [0, 1, 2, 5, 8, 9])
@pytest.mark.parametrize(("world", "batch", "drop_last"), [(4, 3, False), (1, 8, True), (2, 2, True)])
@pytest.mark.parametrize("workers", [1, 3])
def test_each_row_of_each_epoch_is_handed_out_or_counted(rows, world, batch, drop_last, workers):
    """Of runs that have too few for any step, too."""
    taken, dropped = 0, set()
    for rank in range(world):
        for worker in range(workers):
            shard = {"rank": rank, "world_size": world, "worker": worker, "workers": workers}
            with RowStream(Source(Run(rows)), batch, epochs=3, drop_last=drop_last, **shard) as stream:
                taken += sum(len(one["id"]) for one in stream)
                dropped.add(stream.dropped_rows)
    assert dropped == {3 * rows - taken}


def test_what_is_dropped_is_counted_once_whatever_is_opened():
    run = Run(5)
    with RowStream(Source(run), 8, drop_last=True, epochs=None) as stream:
        assert not list(stream) and stream.dropped_rows == 5  # of an epoch: there is no end of them
    with RowStream(Source(run), 8, drop_last=True, epochs=3) as stream:
        stream.seek(1)
        assert not list(stream) and stream.dropped_rows == 10
    run.acknowledged = (0, 4)
    with RowStream(Source(run), 2, drop_last=True, epochs=2) as stream:
        assert [len(one["id"]) for one in stream] == [2, 2] and stream.dropped_rows == 2
    late = Run(3, state=OPEN)
    with RowStream(Source(late), 8, drop_last=True, epochs=None) as stream:
        late.add(2, state="sealed")
        assert not list(stream) and stream.dropped_rows == 5


def test_seek_begins_with_another_epoch():
    run = Run(10)
    with RowStream(Source(run), 4, epochs=5, shuffle=2) as stream:
        stream.seek(3)
        assert ids_of(stream.one_epoch()) == order_of(run, 2, 3)
        assert stream.lineage.records == [[9, 2, 3, 0, 4, 1], [11, 1, 3, 8, 2, 1]]
        with pytest.raises(UsageError, match="begun"):
            stream.seek(0)


# --- runs that are still written ------------------------------------------------------------------


def test_steps_of_an_open_run_come_when_all_ranks_have_their_rows():
    run = Run(5, state=OPEN)
    with RowStream(Source(run), 3, rank=0, world_size=2, timeout=0.2) as stream:
        with pytest.raises(Again, match="no rows of run 'run'"):
            next(iter(stream))
        run.add(1)
        assert ids_of([next(iter(stream))]) == [0, 1, 2]
        run.add(7)  # 13 rows: a step more, and one row
        run.add(8, state="sealed")  # 21 rows: three whole ones, and three rows to be shared
        assert ids_of(stream) == [6, 7, 8, 12, 13, 14, 18]


def test_an_open_run_that_ends_goes_on_with_its_next_epoch():
    run = Run(4, state=OPEN)
    with RowStream(Source(run), 4, epochs=2) as stream:
        batches = [next(iter(stream))]
        state = stream.state_dict()
        assert (state["epoch"], state["row"]) == (0, 4)
        run.add(state="sealed")
        assert ids_of(batches + list(stream)) == [0, 1, 2, 3] * 2
    with RowStream(Source(run), 4, epochs=2) as stream:
        stream.load_state_dict(state)
        assert stream.state_dict()["epoch"] == 1 and ids_of(stream) == [0, 1, 2, 3]


@pytest.mark.parametrize("workers", [1, 3])
def test_rows_that_trickle_in(workers):
    run = Run(state=OPEN)

    def write():
        for _ in range(40):
            run.add(3)
        run.add(1, state="sealed")

    writer = threading.Thread(target=write)
    streams = [RowStream(Source(run), 5, worker=n, workers=workers) for n in range(workers)]
    writer.start()
    parts = [list(stream) for stream in streams]
    writer.join(20)
    for stream in streams:
        stream.close()
    assert sorted(ids_of(chain(*parts))) == list(range(121))
    assert ids_of([part[0] for part in parts]) == list(range(5 * workers))


@pytest.mark.parametrize("before", [True, False], ids=["before", "in between"])
def test_a_failed_run_is_broken_after_its_last_whole_step(before):
    run = Run(10, state=FAILED if before else OPEN)
    batches = []
    with RowStream(Source(run), 2, rank=1, world_size=2) as stream:
        if not before:
            batches.append(next(iter(stream)))
            run.add(state=FAILED)
        with pytest.raises(Broken, match=r"run 'run' failed after 10 rows"):
            for batch in stream:
                batches.append(batch)
        assert ids_of(batches) == [2, 3, 6, 7]
        with pytest.raises(Broken):
            next(iter(stream))
        stream.acknowledge()
    assert run.acknowledged == (0, 8)


def test_a_shuffle_needs_all_rows():
    source = Source(Run(4, state=OPEN))
    with pytest.raises(UsageError, match="cannot be shuffled"):
        RowStream(source, 2, shuffle=1)
    assert source.closed
    with pytest.raises(Broken, match="cannot be shuffled"):
        RowStream(Source(Run(4, state=FAILED)), 2, shuffle=1)


# --- position and acknowledgement -------------------------------------------------------------------


def test_what_is_fetched_ahead_is_not_handed_out():
    run = Run(1000)
    with RowStream(Source(run), 10) as stream:
        batches = [next(iter(stream)) for _ in range(3)]
        state = stream.state_dict()
    assert len(batches) == 3 and (state["row"], state["step"]) == (30, 3)
    assert run.delivered > (0, 30)
    with RowStream(Source(run), 10) as stream:
        assert stream.redelivered_rows == run.delivered[1]
        stream.load_state_dict(state)
        assert stream.redelivered_rows == run.delivered[1] - 30
        assert ids_of([next(iter(stream))]) == list(range(30, 40))


def test_acknowledging_tells_position_and_steps_once():
    run = Run(100)
    with RowStream(Source(run), 10, epochs=2) as stream:
        batches = iter(stream)
        for _ in range(3):
            next(batches)
        saved = stream.state_dict()
        next(batches)
        stream.acknowledge(saved)
        assert (run.acknowledged, run.steps) == ((0, 30), [[0, 3, 0, 0, 10, 1]])
        list(batches)
        stream.acknowledge()
    assert run.acknowledged == (2, 0)
    assert run.steps[1:] == [[3, 7, 0, 30, 10, 1], [10, 10, 1, 0, 10, 1]]
    assert stream.lineage.rows_of(13) == (1, 30, 40)


def test_without_a_state_it_begins_where_the_group_is(caplog):
    run = Run(100)
    with RowStream(Source(run), 10, epochs=2) as stream:
        next(iter(stream))
        stream.acknowledge()
    with RowStream(Source(run), 7, epochs=2) as stream:
        assert ids_of([next(iter(stream))]) == list(range(10, 17))
        assert stream.state_dict()["step"] == 3  # behind the two that ten rows would have been
    run.acknowledged = (2, 0)
    assert read(run, 10, epochs=2) == [] and "a new group starts" in caplog.text


@pytest.mark.parametrize(("options", "least"), [({"world_size": 4}, 4), ({"drop_last": True}, 10)])
def test_a_run_that_has_too_few_rows_for_a_step_is_warned_of(caplog, options, least):
    assert read(Run(3), 10, **options) == []
    assert f"has 3 rows, too few for a step of {least}" in caplog.text
    caplog.clear()
    assert read(Run(0), 10, **options) == []
    assert "too few" not in caplog.text


def test_steps_of_a_checkpoint_that_was_not_acknowledged_are_told_later():
    run = Run(100)
    with RowStream(Source(run), 10) as stream:
        batches = iter(stream)
        for _ in range(5):
            next(batches)
            if stream.batches == 2:
                stream.acknowledge()
        state = stream.state_dict()
    assert state["lineage"] == [[2, 3, 0, 20, 10, 1]]
    with RowStream(Source(run), 20) as stream:
        stream.load_state_dict(state)
        list(stream)
        stream.acknowledge()
    assert run.steps == [
        [0, 2, 0, 0, 10, 1],
        [2, 3, 0, 20, 10, 1],
        [5, 2, 0, 50, 20, 1],
        [7, 1, 0, 90, 10, 1],
    ]


def test_states_that_do_not_belong_are_refused():
    run = Run(100)
    with RowStream(Source(run), 10, shuffle=1) as stream:
        state = stream.state_dict()

    def refused(match, more=None, kind=OptionError, **options):
        with RowStream(Source(run), 10, **({"shuffle": 1} | options)) as stream:
            with pytest.raises(kind, match=match):
                stream.load_state_dict(state | (more or {}))

    refused("another run", {"run": "other"})
    refused("another seed", shuffle=2)
    refused("another seed", shuffle=None)
    refused("version 1", {"version": 1})
    refused("no row", {"row": -1})
    refused("not complete", {"lineage": None})
    refused("at row 101 of a run of 100", {"row": 101})
    worker = {"workers": 2, "next": [0, 0, 0, 0], "marked": [0, 0, 0, 0]}
    refused("one of several workers", worker)
    refused("no next", worker | {"next": [1]})
    with RowStream(Source(run), 10, shuffle=1) as stream:
        next(iter(stream))
        with pytest.raises(UsageError, match="begun already"):
            stream.load_state_dict(state)
    with RowStream(Source(run), 10, shuffle=1, workers=2) as stream:
        with pytest.raises(UsageError, match="one of several workers"):
            stream.acknowledge()
    with pytest.raises(OptionError, match="each worker, once"):
        merge_states([state | worker])


@pytest.mark.parametrize(
    "bad",
    [
        {"batch_size": 0},
        {"epochs": 0},
        {"rank": 2, "world_size": 2},
        {"worker": 1},
        {"shuffle": -1},
    ],
    ids=str,
)
def test_bad_numbers(bad):
    with pytest.raises(OptionError):
        RowStream(Source(Run(3)), **({"batch_size": 2} | bad))


# --- the thread -------------------------------------------------------------------------------------


def test_ahead_no_more_than_it_may():
    run = Run(200_000)
    limit = 64 * 1024
    with RowStream(Source(run), 256, prefetch_bytes=limit) as stream:
        for batch in stream:
            held = stream._prefetcher._held
            assert held <= limit and agrees(batch)
            if stream.batches == 50:
                break
        asked = sum(fetch.rows * fetch.times for fetch in run.fetches) * 16
        assert asked <= 50 * 256 * 16 + 2 * limit
        assert max(fetch.times for fetch in run.fetches) == 3  # a quarter of the limit


def test_several_requests_are_under_way():
    run = Run(100_000)
    source = Source(run)
    most = 0
    collect = source.collect

    def counting(timeout):
        nonlocal most
        most = max(most, len(source.asked))
        return collect(timeout)

    source.collect = counting
    with RowStream(source, 100, prefetch_bytes=1 << 18) as stream:
        assert ids_of(stream) == list(range(100_000))
    assert most >= 3


def test_the_thread_ends_with_close_and_when_the_stream_is_dropped():
    source = Source(Run(100))
    stream = RowStream(source, 1, prefetch_bytes=64)
    batches = iter(stream)
    next(batches)
    assert len(threads()) == 1
    del stream, batches
    gc.collect()
    assert threads() == [] and source.closed
    source = Source(Run(100))
    stream = RowStream(source, 1, prefetch_bytes=64)
    next(iter(stream))
    stream.close()
    stream.close()
    assert threads() == [] and source.closed
    with pytest.raises(Closed):
        next(iter(stream))
    source = Source(Run(100))
    RowStream(source, 1)
    gc.collect()
    assert source.closed


def test_close_wakes_an_iteration():
    stream = RowStream(Source(Run(3, state=OPEN)), 4)
    waiting = threading.Event()
    collect = stream._source.collect

    def told(timeout):
        waiting.set()
        return collect(timeout)

    stream._source.collect = told

    def close():
        waiting.wait(20)
        stream.close()

    closer = threading.Thread(target=close)
    closer.start()
    with pytest.raises(Closed):
        next(iter(stream))
    closer.join(20)


def test_what_the_source_raises_comes_after_what_was_read():
    source = Source(Run(40, state=OPEN))
    with RowStream(source, 10) as stream:
        batches = [next(iter(stream)) for _ in range(2)]
        with source.run.changed:
            source.error = Broken("the lease is lost")
            source.run.changed.notify_all()
        with pytest.raises(Broken, match="lease is lost"):
            for batch in stream:
                batches.append(batch)
    assert ids_of(batches) == list(range(40))


def test_an_answer_with_too_few_rows_is_an_error():
    run = Run(40)
    whole = run.rows
    run.rows = lambda fetch: (whole(fetch)[0], whole(fetch)[1] - 1)
    with pytest.raises(ProtocolError, match="gave 39 rows where 40 were due"):
        read(run, 10)


def test_acknowledging_while_it_waits_for_rows():
    run = Run(10, state=OPEN)
    with RowStream(Source(run), 10) as stream:
        next(iter(stream))
        stream.acknowledge()
        assert run.acknowledged == (0, 10)


def test_two_readers_of_one_shard_are_refused():
    run = Run(10)
    with RowStream(Source(run), 2):
        with pytest.raises(UsageError, match="another reader"):
            RowStream(Source(run), 2)
        with RowStream(Source(run), 2, group="other"), RowStream(Source(run), 2, rank=1, world_size=2):
            pass


def test_a_state_says_which_of_the_runs_of_its_name_it_is_of():
    with RowStream(Source(Run(100, run_id="1" * 32)), 10, workers=2, worker=0) as stream:
        state = stream.state_dict()
    with RowStream(Source(Run(100, run_id="2" * 32)), 10, workers=2, worker=1) as stream:
        other = stream.state_dict()
        with pytest.raises(OptionError, match=r"1{32}, and this one is 2{32}"):
            stream.load_state_dict(state)
    with pytest.raises(OptionError, match=r"2{32}, and this one is 1{32}"):
        merge_states([state, other])


@pytest.mark.parametrize("version", [2, 3])
def test_states_of_each_version_are_read(version, caplog):
    state = json.loads((DATA / f"version-{version}.json").read_text())
    assert state["version"] == version
    run = Run(100)
    with RowStream(Source(run), 10) as stream:
        stream.load_state_dict(state)
        assert ids_of(stream) == list(range(20, 100))
        stream.acknowledge(state)
    assert run.acknowledged == (0, 20)
    assert ("has no id of its run" in caplog.text) == (version == 2)
