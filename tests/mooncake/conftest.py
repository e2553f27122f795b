from __future__ import annotations

import queue
import threading

import pytest

from transfer import ZmqInterface

PATIENCE = 5.0


class Inbox:
    """A callback that keeps what it is called with, for the test's thread to fetch."""

    def __init__(self):
        self._items = queue.Queue()

    def __call__(self, item):
        self._items.put(item)

    def get(self, timeout=PATIENCE):
        return self._items.get(timeout=timeout)

    def empty(self):
        return self._items.empty()


class Inside:
    """Counts how many are inside at the same time: `with` it. most: there ever were."""

    def __init__(self):
        self.most = self._now = 0
        self._lock = threading.Lock()

    def __enter__(self):
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)

    def __exit__(self, *exc):
        with self._lock:
            self._now -= 1


@pytest.fixture
def make():
    """make(config) -> an interface that is shut down after the test."""
    made = []

    def new(config=None):
        one = ZmqInterface()
        assert one.initialize(config)
        made.append(one)
        return one

    yield new
    for one in made:
        one.shutdown()


@pytest.fixture
def zi(make):
    return make()


@pytest.fixture
def link(zi):
    """link("PUSH", "PULL") -> ids of two sockets; the second is bound, the first connected."""

    def new(connected, bound):
        first, second = zi.create_socket(connected), zi.create_socket(bound)
        zi.bind(second, "127.0.0.1:0")
        zi.connect(first, zi.get_bound_endpoint(second))
        return first, second

    return new


@pytest.fixture
def pickling(monkeypatch):
    monkeypatch.setenv("MOONCAKE_ALLOW_PICKLE", "1")


def until_received(publish, inbox, mark):
    """Publishes until the subscription works, and clears the inbox of what was published for that."""
    import time

    deadline = time.monotonic() + PATIENCE
    while inbox.empty():
        assert time.monotonic() < deadline, "nobody hears"
        publish(mark)
        time.sleep(0.01)
    publish(mark + b"!")
    while inbox.get()["data"] != mark + b"!":
        pass
