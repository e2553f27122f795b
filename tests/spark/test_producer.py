"""The sending end of a task, with trackers that do as they are told."""

from __future__ import annotations

import numpy as np
import pytest

from transfer.spark import producer
from transfer.spark.producer import TaskAttempt
from transfer.spark.session import parse_java_version
from transfer.transports.errors import Again, Broken, NotSupported


class Told:
    def __init__(self):
        self.answer = Again("not yet")

    def wait_confirmed(self, timeout=None):
        if isinstance(self.answer, Exception):
            raise self.answer


class Line:
    """A sender that keeps what it was given."""

    transport = "memory"

    def __init__(self):
        self.kinds, self.trackers = [], []

    def alive(self):
        return True

    def send(self, arrays, meta):
        self.kinds.append(meta["kind"])
        self.trackers.append(Told())
        return self.trackers[-1]

    def close(self):
        pass


def test_an_attempt_is_done_when_all_of_it_is_confirmed():
    line = Line()
    attempt = TaskAttempt(line, "run", "job", 2, 7, timeout=0.01)
    attempt.send({"x": np.zeros((3, 2), np.float32)}, 3)
    with pytest.raises(Again, match="longer option 'ack_timeout'"):
        attempt.finish()
    assert line.kinds == ["begin", "rows", "end"]
    for tracker in line.trackers[:-1]:
        tracker.answer = None
    with pytest.raises(Again):
        attempt.finish()


def test_a_slow_receiver_holds_no_more_than_a_share_of_the_hosts_memory(monkeypatch):
    monkeypatch.setattr(producer, "window", lambda: 1000)
    line = Line()
    attempt = TaskAttempt(line, "run", "job", 2, 7, timeout=0.01)
    attempt.send({"x": np.zeros(300)}, 300)  # larger than the window, and alone
    line.trackers[0].answer = None
    for _ in range(2):
        with pytest.raises(Again, match="longer option 'ack_timeout'"):
            attempt.send({"x": np.zeros(100)}, 100)
    assert line.kinds == ["begin", "rows"]
    line.trackers[1].answer = None
    attempt.send({"x": np.zeros(100)}, 100)
    attempt.send({"x": np.zeros(25)}, 25)
    with pytest.raises(Again):
        attempt.send({"x": np.zeros(1)}, 1)
    assert line.kinds == ["begin", "rows", "rows", "rows"]


@pytest.mark.parametrize(("cores", "share"), [(1, 256), (16, 16), (128, 8), (None, 256)])
def test_the_share_of_a_task(monkeypatch, cores, share):
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert producer.window() == share << 20


def test_the_receipt_tells_what_was_sent():
    class Confirming(Line):
        def alive(self):
            return True

        def send(self, arrays, meta):
            super().send(arrays, meta).answer = None
            return self.trackers[-1]

    attempt = TaskAttempt(Confirming(), "run", "job", 2, 7)
    attempt.send({"x": np.zeros((3, 2), np.float32), "y": np.zeros(3, np.int64)}, 3)
    attempt.send({"x": np.ones((1, 2), np.float32), "y": np.ones(1, np.int64)}, 1)
    receipt = attempt.finish()
    winner = receipt.winner
    assert (winner.partition, winner.attempt, winner.frames, winner.rows) == (2, 7, 2, 4)
    assert winner.nbytes == 4 * (8 + 8) and winner.crc
    assert receipt.transport == "memory"


def test_a_dead_trainer_ends_the_attempt_at_the_next_frame():
    line = Line()
    attempt = TaskAttempt(line, "run", "job", 0, 1)
    line.trackers[0].answer = Broken("gone")
    with pytest.raises(Broken, match="receiver went away while partition 0 of run run"):
        attempt.send({"x": np.zeros(3)}, 3)


def test_a_trainer_that_dies_before_the_last_confirmation_fails_the_attempt():
    line = Line()
    attempt = TaskAttempt(line, "run", "job", 0, 1)
    attempt.send({"x": np.zeros(3)}, 3)
    line.trackers[0].answer = None
    line.trackers[1].answer = Broken("gone")
    with pytest.raises(Broken):
        attempt.finish()


class Full(Line):
    """Takes the beginning, and then nothing any more."""

    def alive(self):
        return True

    def send(self, arrays, meta):
        if self.kinds:
            raise Again("full")
        return super().send(arrays, meta)


def test_a_trainer_that_dies_while_a_task_waits_for_room_ends_the_attempt():
    line = Full()
    attempt = TaskAttempt(line, "run", "job", 0, 1, timeout=600)
    line.trackers[0].answer = Broken("gone")
    with pytest.raises(Broken, match="receiver went away"):
        attempt.send({"x": np.zeros(3)}, 3)


def test_a_trainer_that_stays_behind_ends_the_attempt_in_time():
    attempt = TaskAttempt(Full(), "run", "job", 0, 1, timeout=0.01)
    with pytest.raises(Again, match="full"):
        attempt.send({"x": np.zeros(3)}, 3)


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023', 21),
        ('java version "25-ea"', 25),
    ],
)
def test_java_versions(text, major):
    assert parse_java_version(text) == major


@pytest.mark.parametrize(
    "text", ['java version "1.8.0_392"', 'openjdk version "11.0.2"', "command not found"]
)
def test_old_java_is_refused_with_what_to_install(text):
    with pytest.raises(NotSupported, match="openjdk-17"):
        parse_java_version(text)
