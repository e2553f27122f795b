"""The broker's hub without fronts, on a loop that runs turn by turn; a subscriber that tests control."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager

from transfer.broker.core.message import Front, Message
from transfer.broker.core.topic_patterns import Kind, pattern
from transfer.broker.delivery.hub import Hub
from transfer.broker.delivery.subscriber import BrokerSubscriber, Overflow
from transfer.broker.storage.store import Store
from transfer.log import Log

EVERYTHING = pattern(Kind.PREFIX, "")


class StepsLoop:
    """Runs `loop`, a little at a time."""

    def turn(self, seconds=0.0):
        self.loop.call_later(seconds, self.loop.stop)
        self.loop.run_forever()

    def until(self, condition):
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline, "it does not happen"
            self.turn(0.0002)


class SteppedHub(StepsLoop):
    """hub, store, log, loop; letters: the dead ones, by (topic, group, offset)."""

    def __init__(
        self, folder, *, durable=lambda name: True, most=1000, patience=10.0, delay=None,
        is_dead_lettered=lambda topic, group, offset: False, room=None, **log,
    ):  # fmt: skip
        self.loop = asyncio.new_event_loop()
        self.log = Log(folder, **log)
        self.store = Store(self.log, durable, most=most, room=room)
        self.letters = {}
        self.hub = Hub(
            self.loop, self.store, delay or (lambda attempt: 0.01), self._keep_dead_letter,
            is_dead_lettered=is_dead_lettered, patience=patience,
        )  # fmt: skip

    def _keep_dead_letter(self, dead, message, on_complete):
        self.letters[dead[:3]] = (dead, message)
        self.loop.call_soon(on_complete, None)

    def publish(self, topic, payload, on_complete=None):
        message = Message(topic, (payload,), Front.RQUEUE)
        self.hub.publish(message, on_complete)
        return message

    def begin(self, topic, nbytes, publisher=None, on_complete=None):
        publisher = publisher or Publisher()
        return self.hub.begin(Message(topic, (), Front.RQUEUE), nbytes, publisher, on_complete)

    def kept(self, topic, payload):
        """Publishes, and returns when it is on the disk."""
        answers = []
        self.publish(topic, payload, answers.append)
        self.until(lambda: answers)
        assert answers == [None]

    def close(self):
        self.hub.close()
        self.turn()
        self.loop.close()
        self.log.close()


@contextmanager
def stepped_hub(folder, **changes):
    stepped = SteppedHub(folder, **changes)
    try:
        yield stepped
    finally:
        stepped.close()


class Publisher:
    """Counts how often it was told to wait."""

    def __init__(self):
        self.pauses = self.resumes = 0

    @property
    def paused(self):
        return self.pauses - self.resumes

    def pause(self):
        self.pauses += 1

    def resume(self):
        self.resumes += 1
        assert self.paused >= 0, "resumed more often than paused"


class ControlledSubscriber(BrokerSubscriber):
    """received: payloads in the order in which they come, whole ones and those of pieces; or a reason in
    brackets. What it was offered waits until `take`; auto: it takes everything at once."""

    def __init__(self, hub=None, *, limit=1000, overflow=Overflow.SPILL, auto=False):
        self.limit, self.overflow, self.auto = limit, overflow, auto
        self.hub = hub
        self.received = []
        self.closed = False
        self._waiting = []  # [size]
        self._pieces = None
        self._behind = []

    @property
    def queued(self):
        return sum(self._waiting)

    def take(self, nbytes=None):
        """Writes as much, or all; then it is relieved."""
        left = self.queued if nbytes is None else nbytes
        while left and self._waiting:
            part = min(left, self._waiting[0])
            left -= part
            self._waiting[0] -= part
            if not self._waiting[0]:
                del self._waiting[0]
        if not self._waiting and self.hub is not None:
            self.hub.on_drained(self)

    def _wait(self, nbytes):
        self._waiting.append(nbytes)
        if self.auto:
            self.take()

    def offer(self, message):
        if self.closed:
            return
        if self._pieces is not None:
            self._behind.append(message)
        else:
            self.received.append(bytes(message.payload))
        self._wait(message.nbytes)

    def begin(self, message, nbytes):
        if self._pieces is not None or self.closed:
            return False
        self._pieces = []
        return True

    def piece(self, data):
        if not self.closed:
            self._pieces.append(bytes(data))
            self._wait(len(data))

    def finish(self):
        if not self.closed:
            self.received.append(b"".join(self._pieces))
            self._pieces = None
            behind, self._behind = self._behind, []
            self.received += [bytes(message.payload) for message in behind]

    def close(self, reason):
        if not self.closed:
            self.closed = True
            self.received.append(f"[{reason}]")
            self._waiting.clear()
            if self.hub is not None:
                self.hub.leave(self)
