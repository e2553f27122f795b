"""Single fronts over a real hub, on a loop in a thread or turn by turn, for tests of one protocol."""

from __future__ import annotations

import asyncio
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress

from transfer.broker.core.topic_patterns import Kind, pattern
from transfer.broker.delivery.hub import Hub
from transfer.broker.delivery.subscriber import BrokerSubscriber
from transfer.broker.net.connection_group import ConnectionGroup
from transfer.broker.net.listener import LoopListener
from transfer.broker.storage.store import Store
from transfer.log import Log
from transfer.transports.core import Pool

#: seconds that anything may take
PATIENCE = 10.0


def _hub(loop, log, durable, most):
    store = Store(log, durable, most=most)
    return Hub(
        loop, store, delay=lambda attempt: 1.0, store_dead_letter=lambda dead, message, told: told(None)
    )


class SingleFront:
    """Fronts on free ports of this machine. fronts, ports: in the order in which they were given."""

    def __init__(self, folder, makers, durable, most, log):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._log = Log(folder, **log)
        self._pool = Pool()
        self.call(self._start, makers, durable, most)
        self.ports = [listener.port for listener in self._listeners]
        self.port = self.ports[0]
        self.front = self.fronts[0]

    def _start(self, makers, durable, most):
        self.hub = _hub(self._loop, self._log, durable, most)
        self._lines = lines = ConnectionGroup(self._loop, self._pool)
        self.fronts = [make(self.hub, lines) for make in makers]
        self._listeners = [LoopListener(self._loop, "127.0.0.1", 0, front.connected) for front in self.fronts]

    def call(self, function, *arguments):
        """What the function answers when it is called on the loop."""
        answer: Future = Future()

        def run():
            try:
                answer.set_result(function(*arguments))
            except BaseException as error:  # noqa: BLE001 - raised in the test
                answer.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return answer.result(PATIENCE)

    def until(self, condition: Callable[[], object]) -> None:
        """Waits until it holds, looking at it on the loop."""
        deadline = time.monotonic() + PATIENCE
        pause = threading.Event()
        while not self.call(condition):
            assert time.monotonic() < deadline, "it does not happen"
            pause.wait(0.002)

    def tick(self, seconds: float) -> None:
        """As if so many seconds had gone by."""
        for front in self.fronts:
            self.call(front.tick, self._loop.time() + seconds)

    def connect(self, index: int = 0) -> socket.socket:
        """A plain connection to one of the fronts."""
        return socket.create_connection(("127.0.0.1", self.ports[index]), PATIENCE)

    def close(self):
        for end in (*self._listeners, *self.fronts, self.hub, self._lines):
            self.call(end.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()
        self._log.close()
        self._pool.close()


@contextmanager
def single_front(folder, *makers, durable=lambda name: True, most=1000, **log) -> Iterator[SingleFront]:
    """Runs fronts, each made by a function of hub and lines. log: how the log is opened."""
    broker = SingleFront(folder, makers, durable, most, log)
    try:
        yield broker
    finally:
        broker.close()


def is_closed(connection: socket.socket) -> bool:
    """Waits until the other side has ended the connection; False if it says something instead."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def receive(connection: socket.socket, nbytes: int) -> bytes:
    """So many bytes, or fewer if the other side ends the connection before."""
    data = b""
    while len(data) < nbytes and (more := connection.recv(nbytes - len(data))):
        data += more
    return data


class Recorder(BrokerSubscriber):
    """Subscribes to everything, and remembers (topic, payload) of what came whole or in pieces."""

    def __init__(self):
        self.received = []
        self._pieces = []
        self._topic = ""

    queued = 0

    def offer(self, message):
        self.received.append((message.topic, bytes(message.payload)))

    def begin(self, message, nbytes):
        self._topic, self._pieces = message.topic, []
        return True

    def piece(self, data):
        self._pieces.append(bytes(data))

    def finish(self):
        self.received.append((self._topic, b"".join(self._pieces)))

    def close(self, reason):
        self.received.append((self._topic, reason))


class Turns:
    """One connection of a front, served turn by turn in the test's own thread. Nothing is kept on disk.

    number: turns until now."""

    def __init__(self, folder, make):
        self.number = 0
        self._loop = asyncio.new_event_loop()
        self._log = Log(folder)
        self._pool = Pool()
        self.hub = _hub(self._loop, self._log, lambda name: False, 1000)
        self._lines = ConnectionGroup(self._loop, self._pool)
        self._front = make(self.hub, self._lines)

    def received(self, pieces: list[bytes]) -> tuple[list[tuple[str, bytes]], bool]:
        """(what subscribers are told when these bytes come piece by piece; whether the connection stays)."""
        recorder = Recorder()
        self.hub.subscribe(recorder, pattern(Kind.PREFIX, ""))
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self._front.connected(theirs, "peer")
        with ours:
            ours.setblocking(False)
            for piece in pieces:
                while piece and self._front.connections:
                    with suppress(BlockingIOError):  # a slow machine's front has given way
                        piece = piece[ours.send(piece) :]
                    self._turn()
            self._turn()
            while self._loop._ready or self._unread(theirs):  # it gives way
                self._turn()
            stays = self._front.connections > 0
            self._front.close()
        self.hub.leave(recorder)
        return recorder.received, stays

    def _unread(self, theirs):
        """Whether something has come that the front has not read."""
        return self._front.connections > 0 and bool(select.select([theirs], [], [], 0)[0])

    def _turn(self):
        self.number += 1
        self._loop.call_soon(self._loop.stop)
        self._loop.run_forever()

    def close(self):
        self.hub.close()
        self._lines.close()
        self._turn()
        self._loop.close()
        self._log.close()
        self._pool.close()
