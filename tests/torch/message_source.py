"""A source of messages in this process, and a sender that feeds it as a Spark task would."""

from __future__ import annotations

import json
from collections import deque

import numpy as np

from transfer.spark.producer import TaskAttempt, send_commit
from transfer.spool.format.run_messages import Commit, Winner
from transfer.transports.errors import Again


class Consumed:
    """A tracker of a message that is always confirmed at once."""

    def wait_confirmed(self, timeout=None):
        return None


class Feed:
    """Both ends: a Sender for producers, a MessageSource for the data set. Nothing ever waits."""

    endpoint = "memory://feed"
    transport = "memory"

    def __init__(self):
        self.messages = deque()
        self.closed = False

    def alive(self):
        return True

    def send(self, arrays, meta):
        # The wire copies, and metadata travels as JSON: so do both here.
        self.messages.append(({k: np.array(v) for k, v in arrays.items()}, json.loads(json.dumps(meta))))
        return Consumed()

    def receive(self, timeout):
        if not self.messages:
            raise Again("nothing there")
        return self.messages.popleft()

    def peers(self):
        return {"feed": "memory"}

    def close(self):
        self.closed = True


def frames_of(start: int, rows: int, frame: int):
    """Frames of ids start … start + rows, with two columns that follow from the id."""
    for first in range(start, start + rows, frame):
        ids = np.arange(first, min(first + frame, start + rows))
        yield {"id": ids, "x": np.stack([ids, ids * 2], axis=1).astype(np.float32)}


def feed_partition(feed, run, partition, attempt, frames, job="job", number=0):
    """One whole attempt; its winner."""
    sending = TaskAttempt(feed, run, job, partition, attempt, number)
    for frame in frames:
        sending.send(frame, len(frame["id"]))
    return sending.finish().winner


def feed_run(feed, run="run", partitions=3, rows=10, frame=4, job="job"):
    """A whole run: partition p has the ids p * rows … (p + 1) * rows."""
    winners: list[Winner] = []
    for p in range(partitions):
        winners.append(feed_partition(feed, run, p, 100 + p, frames_of(p * rows, rows, frame), job=job))
    send_commit(feed, Commit(run, job, transports=feed.transport), winners, timeout=1)
    return winners
