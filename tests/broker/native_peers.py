"""What tests of the broker's own front share."""

from __future__ import annotations

import threading
import time


def payloads(messages):
    return [bytes(one.data) for one in messages]


def receive(consumer, count):
    found = []
    while len(found) < count:
        found += consumer.recv_many(count - len(found))
    return found


def wait_for(condition, seconds=10):
    """What it answers, when that is true."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not (answer := condition()):
        assert time.monotonic() < deadline, "it does not happen"
        pause.wait(0.005)
    return answer
