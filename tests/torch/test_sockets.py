"""A task's sending end and a `StreamDataset` over real sockets, without Spark."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import numpy as np
import pytest

import transfer
from tests.torch.message_source import frames_of
from transfer.spark.options import parse_options
from transfer.spark.producer import SocketSender, TaskAttempt, send_commit
from transfer.spool.format.run_messages import Commit
from transfer.torch import StreamDataset
from transfer.transports.errors import Again, Broken, Closed


@pytest.fixture
def dataset():
    with StreamDataset(batch_size=100, timeout=20) as dataset:
        yield dataset


def options_for(endpoint, **more):
    times = {"connect_timeout": "10", "ack_timeout": "20"}
    return parse_options({"endpoint": endpoint, "delivery": "eager", **times, **more})


@contextmanager
def on_a_thread(work):
    """Runs it beside the body, and hands on what it raised."""
    failures = []

    def guarded():
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    try:
        yield failures
    finally:
        thread.join(40)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


def send_run(endpoint, partitions, rows, frame, **more):
    options = options_for(endpoint, **more)
    winners = []
    for number in range(partitions):
        sender = SocketSender(endpoint, options)
        try:
            attempt = TaskAttempt(sender, "run", "job", number, number, timeout=20)
            for columns in frames_of(number * rows, rows, frame):
                attempt.send(columns, len(columns["id"]))
            winners.append(attempt.finish().winner)
        finally:
            sender.close()
    sender = SocketSender(endpoint, options)
    try:
        send_commit(sender, Commit("run", "job", transports=sender.transport), winners, 20)
    finally:
        sender.close()


@pytest.mark.parametrize(
    "more", [{}, {"checksum": "true"}, {"compression": "lz4"}], ids=["plain", "crc", "lz4"]
)
def test_small_and_large_frames_arrive_whole(dataset, more):
    # 5 rows travel packed in one piece, 20,000 in a buffer of their own
    with on_a_thread(lambda: send_run(dataset.endpoint, 2, 40_005, 20_000, **more)):
        ids = np.concatenate([batch["id"].numpy() for batch in dataset])
    assert np.array_equal(np.sort(ids), np.arange(80_010))
    assert dataset.runs[0].transports == "tcp"


def test_a_batch_is_a_writable_view_of_what_was_received(dataset):
    with on_a_thread(lambda: send_run(dataset.endpoint, 1, 50_000, 50_000)):
        batches = list(dataset)
    first, second = batches[0]["x"], batches[1]["x"]
    assert second.data_ptr() == first.data_ptr() + first.nbytes
    first[0, 0] = -1
    assert batches[0]["x"][0, 0] == -1


def test_nobody_listening_is_again_with_what_to_do():
    options = options_for("tcp://127.0.0.1:9", connect_timeout="0.1")
    with pytest.raises(Again, match=r"no peer listens at tcp://127.0.0.1:9[\s\S]*Start the training"):
        SocketSender("tcp://127.0.0.1:9", options)


def test_a_trainer_that_goes_away_breaks_the_task(dataset):
    def send():
        sender = SocketSender(dataset.endpoint, options_for(dataset.endpoint))
        try:
            attempt = TaskAttempt(sender, "run", "job", 0, 0)
            with pytest.raises(Broken, match="receiver went away"):
                for columns in frames_of(0, 10_000_000, 1000):
                    attempt.send(columns, len(columns["id"]))
        finally:
            sender.close()

    with on_a_thread(send):
        next(iter(dataset))
        dataset.close()


def test_closing_wakes_an_iteration(dataset):
    timer = threading.Timer(0.2, dataset.close)
    timer.start()
    with pytest.raises(Closed):
        list(dataset)
    timer.join(10)


def test_silence_is_again():
    with StreamDataset(timeout=0.05) as dataset, pytest.raises(Again, match=r"no rows arrived for 0\.05 s"):
        list(dataset)


def test_foreign_messages_on_the_socket_are_dropped(dataset):
    def send():
        with transfer.Context() as context, context.socket(transfer.PUSH) as push:
            push.connect(dataset.endpoint)
            push.send_multipart([b"what", b"is this"])
            push.send_tensor(np.zeros(4))
            push.send_tensors({"x": np.zeros(4)})
        send_run(dataset.endpoint, 1, 10, 10)

    with on_a_thread(send):
        assert sum(len(batch["id"]) for batch in dataset) == 10
