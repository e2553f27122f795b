"""Two threads change one socket. Another thread may run in the middle of what looks like one step of the
compiled core: where an object is freed, whose finalizer gives the GIL away, and up to Python 3.11 where one
is made, for that may collect garbage. Here each such moment is another thread's turn."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from tests.core.conftest import FANOUT, connected
from tests.core.raw_frames import PUSH, Raw, plain
from tests.core.test_foreign_streams import Foreign
from transfer.transports.errors import Again

ROUNDS = 100


class Subscriber(Foreign):
    def matches(self, topic: bytes) -> bool:
        return True


class Turns:
    """Runs `step` in another thread at each collection of this thread inside `taken`, and at `give`."""

    def __init__(self, step: Callable[[], Any]) -> None:
        self.given, self._giving = 0, False
        self._step, self._failures = step, []
        self._turns: SimpleQueue[bool] = SimpleQueue()
        self._done: SimpleQueue[None] = SimpleQueue()
        self._other = threading.Thread(target=self._run)
        self._thread = threading.get_ident()

    def give(self) -> None:
        if threading.get_ident() != self._thread or self._giving:
            return
        self._giving = True
        self._turns.put(True)
        with suppress(Empty):  # the pure core holds a lock: then the step comes later
            self._done.get(timeout=0.002)
        self.given += 1
        self._giving = False

    def _run(self) -> None:
        while self._turns.get():
            try:
                self._step()
            except Exception as error:  # noqa: BLE001 - of any kind, for the test
                self._failures.append(error)
            self._done.put(None)

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self.give()

    @contextmanager
    def taken(self) -> Iterator[None]:
        thresholds = gc.get_threshold()
        gc.disable()
        hoard = [[] for _ in range(200)]  # type: ignore[var-annotated]  # lists that were freed are made again
        gc.callbacks.append(self._collecting)
        gc.set_threshold(1, 1000, 1000)
        gc.enable()
        try:
            yield
        finally:
            gc.set_threshold(*thresholds)
            gc.callbacks.remove(self._collecting)
            del hoard

    def __enter__(self) -> Turns:
        self._other.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._turns.put(False)
        self._other.join()
        assert self._failures == []


class Changes:
    """Attaches streams and detaches them, which are freed then, in any order."""

    def __init__(self, socket: Any, make: Callable[[], Any], seed: int) -> None:
        self.socket, self.make = socket, make
        self.random = random.Random(seed)
        self.attached: list[Any] = []

    def one(self) -> None:
        if len(self.attached) < 4 or self.random.random() < 0.5:
            stream = self.make()
            self.attached.insert(self.random.randrange(len(self.attached) + 1), stream)
            self.socket._attach(stream, True, True)
        else:
            stream = self.attached.pop()
            self.socket._detach(stream)
            stream.close()


@pytest.mark.parametrize("kind", ["own", "foreign"])
def test_no_attached_stream_is_lost_and_no_detached_one_stays(kit: Any, kind: str) -> None:
    """A PUB stopped sending to a connected SUB for good, while others connected and closed."""

    def make() -> Any:
        if kind == "foreign":
            return Subscriber()
        near, far = connected()
        near.setblocking(False)
        far.close()
        stream = kit.core.Stream(near.detach(), PUSH, kit.flusher, kit.pool)
        weakref.finalize(stream, turns.give).atexit = False
        return stream

    socket = kit.socket(FANOUT)
    ours, theirs = Changes(socket, make, 1), Changes(socket, make, 2)
    with Turns(theirs.one) as turns:
        for _ in range(ROUNDS):
            with turns.taken():
                ours.one()
    attached = ours.attached + theirs.attached
    assert set(socket._streams()) == set(attached)
    assert turns.given > ROUNDS / 4
    if kind == "own":
        for stream in attached:
            stream.close()
    else:
        assert socket._send_frames([plain(b"x", topic=b"t")], 0) == len(attached)


@pytest.mark.parametrize("kind", ["own", "foreign"])
def test_two_threads_detach_one_stream(kit: Any, kind: str) -> None:
    streams = [kit.raw()[0] if kind == "own" else Subscriber() for _ in range(100)]
    socket = kit.socket(FANOUT)
    for stream in streams:
        socket._attach(stream, True, True)
    left = list(streams)
    with Turns(lambda: socket._detach((left or streams)[-1])) as turns:
        while left:
            with turns.taken():
                socket._detach(left[-1])
            turns.give()
            left.pop()
    assert socket._streams() == []


def test_a_message_given_back_is_received_once(kit: Any) -> None:
    stream, far = kit.raw()
    socket = kit.puller(stream)
    far.sendall(b"".join(Raw(b"%d" % i, sequence=i + 1).encode() for i in range(ROUNDS)))
    received: list[bytes] = []

    def receive() -> None:
        with suppress(Again):
            received.append(socket._recv_message(0)[1][0].bytes)

    with Turns(receive) as turns:
        for _ in range(ROUNDS):
            with suppress(Again), turns.taken():
                socket._give_again(*socket._recv_message(0))
    while len(received) < ROUNDS:
        received.append(socket._recv_message(1000)[1][0].bytes)
    assert sorted(map(int, received)) == list(range(ROUNDS))
