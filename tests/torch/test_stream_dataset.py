"""`StreamDataset` over messages from this process: what it yields, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tests.torch.message_source import Feed, feed_partition, feed_run, frames_of
from transfer.spark.producer import TaskAttempt, send_commit
from transfer.spool.format.run_messages import Abort, Commit, RowsFrame, TaskBegin, to_meta
from transfer.torch import StreamDataset
from transfer.transports.errors import Again, Broken, OptionError, ProtocolError, UsageError


@pytest.fixture
def feed():
    return Feed()


def ids_of(batches):
    return sorted(int(i) for batch in batches for i in batch["id"])


def test_every_row_once_in_batches(feed):
    feed_run(feed, partitions=3, rows=10, frame=4)
    dataset = StreamDataset(source=feed, batch_size=8)
    batches = list(dataset)
    assert [len(b["id"]) for b in batches] == [8, 8, 8, 6]
    assert ids_of(batches) == list(range(30))
    for batch in batches:
        assert batch["x"].dtype == torch.float32
        assert torch.equal(batch["x"][:, 1], 2.0 * batch["id"])
    (summary,) = dataset.runs
    assert (summary.rows, summary.sent_rows, summary.frames, summary.batches) == (30, 30, 9, 4)
    assert (summary.partitions, summary.attempts, summary.transports) == (3, 3, "memory")
    assert summary.nbytes == 30 * (8 + 8)
    assert summary.peers == {"feed": "memory"}


def test_frames_as_sent_without_a_batch_size(feed):
    feed_run(feed, partitions=1, rows=10, frame=4)
    assert [len(b["id"]) for b in StreamDataset(source=feed)] == [4, 4, 2]


def test_columns_give_a_tuple_in_their_order(feed):
    feed_run(feed, partitions=1, rows=4)
    ((x, ids),) = StreamDataset(source=feed, columns=("x", "id"))
    assert x.shape == (4, 2) and ids.tolist() == [0, 1, 2, 3]
    feed_run(feed, "other", partitions=1, rows=4)
    with pytest.raises(OptionError, match="no column 'y'"):
        list(StreamDataset(source=feed, columns=("y",)))


def test_drop_last_counts_what_it_drops(feed):
    feed_run(feed, partitions=1, rows=10)
    dataset = StreamDataset(source=feed, batch_size=4, drop_last=True)
    assert [len(b["id"]) for b in dataset] == [4, 4]
    assert dataset.runs[0].dropped_rows == 2


def test_one_iteration_is_one_run(feed):
    feed_run(feed, "a", rows=5, job="1")
    feed_run(feed, "b", rows=7, job="2")
    dataset = StreamDataset(source=feed, batch_size=6)
    assert len(ids_of(dataset)) == 15
    assert len(ids_of(dataset)) == 21
    assert [run.run for run in dataset.runs] == ["a", "b"]


def test_leaving_early_loses_nothing(feed):
    feed_run(feed, partitions=2, rows=10, frame=4)
    dataset = StreamDataset(source=feed, batch_size=3)
    seen = [next(iter(dataset)), next(iter(dataset))]
    seen += list(dataset)
    assert ids_of(seen) == list(range(20))
    assert dataset.runs[0].rows == 20


def test_an_empty_run_ends_at_once(feed):
    send_commit(feed, Commit("empty", "job"), [], timeout=1)
    dataset = StreamDataset(source=feed, batch_size=3)
    assert list(dataset) == []
    assert dataset.runs[0].sent_rows == 0


def test_works_in_a_data_loader_without_workers_only(feed):
    feed_run(feed, partitions=1, rows=10)
    dataset = StreamDataset(source=feed, batch_size=5)
    assert len(list(DataLoader(dataset, batch_size=None))) == 2


def test_tensors_are_writable_and_not_copied(feed):
    feed_run(feed, partitions=1, rows=4)
    array = feed.messages[1][0]["x"]
    (batch,) = StreamDataset(source=feed)
    batch["x"][0, 0] = 42
    assert array[0, 0] == 42


# --- retries ------------------------------------------------------------------------------------


def cut_off(feed, frames, attempt=1):
    """An attempt that dies after some frames."""
    sending = TaskAttempt(feed, "run", "job", 0, attempt)
    for frame in frames:
        sending.send(frame, len(frame["id"]))


def test_a_retry_gives_no_row_twice(feed):
    frames = list(frames_of(0, 20, 4))
    cut_off(feed, frames[:3])
    winner = feed_partition(feed, "run", 0, 2, frames, number=1)
    send_commit(feed, Commit("run", "job"), [winner], timeout=1)
    dataset = StreamDataset(source=feed, batch_size=7)
    assert ids_of(dataset) == list(range(20))
    assert (dataset.runs[0].duplicate_rows, dataset.runs[0].attempts) == (12, 2)


def test_a_speculative_copy_gives_no_row_twice(feed):
    frames = list(frames_of(0, 8, 2))
    one, two = (TaskAttempt(feed, "run", "job", 0, n) for n in (1, 2))
    for number, frame in enumerate(frames):
        for sending in (one, two) if number % 2 else (two, one):
            sending.send(frame, len(frame["id"]))
    winner = two.finish().winner
    one.finish()
    send_commit(feed, Commit("run", "job"), [winner], timeout=1)
    feed_run(feed, "next", partitions=1, rows=3)
    dataset = StreamDataset(source=feed)
    assert ids_of(dataset) == list(range(8))
    assert dataset.runs[0].duplicate_rows == 8
    assert len(ids_of(dataset)) == 3


def test_a_retry_that_cuts_other_frames_is_an_error(feed):
    cut_off(feed, list(frames_of(0, 20, 4))[:2])
    feed_partition(feed, "run", 0, 2, reversed(list(frames_of(0, 20, 4))))
    with pytest.raises(ProtocolError, match="cut other frames") as caught:
        list(StreamDataset(source=feed))
    assert caught.value.reason == "recut"


def test_messages_after_the_commit_are_dropped(feed):
    feed_run(feed, "a", partitions=1, rows=8)
    late = list(feed.messages)[:-1]
    dataset = StreamDataset(source=feed)
    assert len(ids_of(dataset)) == 8
    feed.messages.extend(late)
    feed_run(feed, "b", partitions=1, rows=4, job="second")
    assert ids_of(dataset) == [0, 1, 2, 3]


def test_a_committed_run_is_not_delivered_again(feed):
    dataset = StreamDataset(source=feed)
    feed_run(feed, "a", partitions=1, rows=8)
    list(dataset)
    feed_run(feed, "a", partitions=1, rows=8, job="again")
    with pytest.raises(Again):
        list(dataset)
    restarted = StreamDataset(source=feed)
    restarted.load_state_dict(dataset.state_dict())
    feed_run(feed, "a", partitions=1, rows=8, job="once more")
    with pytest.raises(Again):
        list(restarted)


def test_frames_without_a_beginning_are_strays(feed):
    """The trainer was restarted in mid-attempt: the task will fail and be retried from its start."""
    frames = list(frames_of(0, 12, 4))
    cut_off(feed, frames)
    feed.messages.popleft()
    winner = feed_partition(feed, "run", 0, 2, frames)
    send_commit(feed, Commit("run", "job"), [winner], timeout=1)
    assert ids_of(StreamDataset(source=feed)) == list(range(12))


# --- what must be loud --------------------------------------------------------------------------


def drop(feed, number):
    """Loses the nth message of rows."""
    rows = [m for m in feed.messages if m[1]["kind"] == "rows"]
    feed.messages = type(feed.messages)(m for m in feed.messages if m is not rows[number])


@pytest.mark.parametrize("number", [0, 1, 2], ids=["first", "middle", "last"])
def test_a_lost_frame_is_an_error(feed, number):
    feed_run(feed, partitions=1, rows=12, frame=4)
    drop(feed, number)
    with pytest.raises(ProtocolError) as caught:
        list(StreamDataset(source=feed))
    assert caught.value.reason == "lost_rows"


def test_a_lost_partition_is_an_error(feed):
    feed_run(feed, partitions=2, rows=4, frame=4)
    feed.messages = type(feed.messages)(m for m in feed.messages if m[1].get("partition") != 1)
    with pytest.raises(ProtocolError, match="partition 1: 4 rows were sent and 0 arrived"):
        list(StreamDataset(source=feed))


def test_a_partition_that_the_commit_does_not_name_is_an_error(feed):
    winners = [feed_partition(feed, "run", p, p, frames_of(p * 4, 4, 4)) for p in range(2)]
    send_commit(feed, Commit("run", "job"), winners[:1], timeout=1)
    with pytest.raises(ProtocolError) as caught:
        list(StreamDataset(source=feed))
    assert caught.value.reason == "doubled_rows"


def test_changed_rows_are_an_error(feed):
    feed_run(feed, partitions=1, rows=4)
    feed.messages[1][0]["x"][2, 0] += 1
    with pytest.raises(ProtocolError) as caught:
        list(StreamDataset(source=feed))
    assert caught.value.reason == "checksum"


def test_a_failed_run_is_an_error_and_may_be_tried_again(feed):
    frames = list(frames_of(0, 8, 4))
    cut_off(feed, frames)
    feed.send({}, to_meta(Abort("run", "job")))
    dataset = StreamDataset(source=feed, batch_size=5)
    with pytest.raises(Broken, match="failed in Spark"):
        list(dataset)
    winner = feed_partition(feed, "run", 0, 1, frames, job="second try")
    send_commit(feed, Commit("run", "second try"), [winner], timeout=1)
    assert ids_of(dataset) == list(range(8))


def test_two_runs_at_once_are_refused_and_the_second_can_go_on(feed):
    cut_off(feed, list(frames_of(0, 8, 4)))
    feed_run(feed, "other", partitions=1, rows=4, job="other")
    dataset = StreamDataset(source=feed)
    with pytest.raises(UsageError, match="before run run was complete"):
        list(dataset)
    assert ids_of(dataset) == [0, 1, 2, 3]


def test_other_rows_under_a_complete_name_are_said_between_two_runs(feed):
    """They were dropped, and Spark's job ended well."""
    dataset = StreamDataset(source=feed, batch_size=3)
    feed_run(feed, partitions=2, rows=4)
    assert ids_of(dataset) == list(range(8))
    feed_run(feed, partitions=2, rows=4, job="answer lost")  # the same rows
    sending = TaskAttempt(feed, "next", "next", 0, 1)
    for rows in frames_of(0, 4, 2):
        sending.send(rows, 2)
    feed_run(feed, partitions=2, rows=5, job="other rows")
    send_commit(feed, Commit("next", "next"), [sending.finish().winner], timeout=1)
    assert ids_of(dataset) == list(range(4))
    feed_run(feed, "third", partitions=1, rows=2)
    with pytest.raises(UsageError, match="run run was received completely") as caught:
        list(dataset)
    assert "another name" in caught.value.hint
    assert ids_of(dataset) == [0, 1]
    assert [run.run for run in dataset.runs] == ["run", "next", "third"]


def test_silence_is_again_and_keeps_the_run(feed):
    frames = list(frames_of(0, 8, 4))
    sending = TaskAttempt(feed, "run", "job", 0, 1)
    sending.send(frames[0], len(frames[0]["id"]))
    dataset = StreamDataset(source=feed, batch_size=5, timeout=0.01)
    with pytest.raises(Again, match="no rows arrived"):
        list(dataset)
    sending.send(frames[1], len(frames[1]["id"]))
    send_commit(feed, Commit("run", "job"), [sending.finish().winner], timeout=1)
    assert ids_of(dataset) == list(range(8))


def test_a_foreign_message_is_dropped_and_the_run_goes_on(feed):
    feed.send({"x": np.zeros(3)}, {"hello": 1})
    feed_run(feed, partitions=1, rows=4)
    assert ids_of(StreamDataset(source=feed)) == [0, 1, 2, 3]


def test_columns_that_change_in_mid_run_are_an_error(feed):
    sending = TaskAttempt(feed, "run", "job", 0, 1)
    sending.send({"x": np.zeros((3, 2))}, 3)
    sending.send({"x": np.zeros((3, 4))}, 3)
    with pytest.raises(ProtocolError, match="another type or shape"):
        list(StreamDataset(source=feed))


def test_a_frame_that_lies_about_its_rows_is_an_error(feed):
    feed.send({}, to_meta(TaskBegin("run", "job", 0, 1)))
    feed.send({"x": np.zeros(3)}, to_meta(RowsFrame("run", "job", 0, 1, 0, 4, 0)))
    with pytest.raises(ProtocolError, match="do not have the rows"):
        list(StreamDataset(source=feed))


def test_bad_arguments():
    with pytest.raises(OptionError):
        StreamDataset(source=Feed(), batch_size=0)
    with pytest.raises(OptionError):
        StreamDataset(source=Feed()).load_state_dict({"version": 99})


def test_close_closes_the_source(feed):
    with StreamDataset(source=feed):
        pass
    assert feed.closed
