"""The roles of processes: publishers and receivers.

A publisher returns (messages, when it began); a receiver returns `ReceivedCount`. All times are of the
monotonic clock, which the processes of one machine share.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from multiprocessing.connection import Connection

from transfer.broker.bench.figures import Samples
from transfer.broker.bench.pacing import Pace, PacingSteps
from transfer.broker.bench.payloads import Opened, Payloads
from transfer.broker.bench.plan import Plan
from transfer.broker.bench.processes import Stage
from transfer.broker.clients.native import BrokerClient
from transfer.broker.clients.ttp import TtpClient
from transfer.transports.errors import Again

#: seconds that a call waits for the broker
PATIENCE = 30.0
#: seconds between two checks whether publishers have ended
_CHECK_INTERVAL = 0.1
#: messages between two checks for the broker's answers
_CHECK_EVERY = 16
#: a consumer's unacknowledged messages at most
_MOST_WINDOW = 10_000
#: the group of all measurements: a group for each would keep the messages of later ones for ever
GROUP = "bench"
#: messages to receivers: publishers have ended, so report the number of messages; the measurement is over
LAST, OVER = "last", "over"

Address = tuple[str, int]


@dataclass(slots=True)
class ReceivedCount:
    """The result of a receiver. end: when it had processed the last message."""

    messages: int = 0
    end: float = 0.0
    samples: Samples = field(default_factory=Samples)


@dataclass(frozen=True, slots=True)
class Publishing:
    """A publisher's task. run: number of the measurement; number: of the publisher. topics: used in turn."""

    plan: Plan
    run: int
    number: int
    topics: Sequence[str]
    pace: Sequence[Connection]


@dataclass(frozen=True, slots=True)
class ReceivingTask:
    """A receiver's task. steps: pipes to publishers, by their numbers. every: messages of one report."""

    plan: Plan
    run: int
    topics: Sequence[str]
    steps: Mapping[int, Connection]
    every: int


def publish_native(stage: Stage, task: Publishing, endpoint: str) -> tuple[int, float]:
    """Publishes by transfer's own sockets until the time is over and all messages are kept."""
    with BrokerClient(endpoint, timeout=PATIENCE) as client:

        def publish(topic: str, payload: bytes, count: int) -> None:
            client.publish(topic, payload, wait=False)
            if not count % _CHECK_EVERY:
                client.process_answers()

        published = _publish(stage, task, publish)
        client.flush()
        return published


def publish_ttp(stage: Stage, task: Publishing, address: Address) -> tuple[int, float]:
    """Publishes by TTP until the time is over."""
    with TtpClient(*address, name="bench", timeout=PATIENCE) as client:
        published = _publish(stage, task, lambda topic, payload, _: client.publish(topic, payload))
        # Its answer follows all published messages: else the connection's end could overtake them.
        client.subscribe("bench/nothing")
        return published


def _publish(stage: Stage, task: Publishing, publish: Callable[[str, bytes, int], None]) -> tuple[int, float]:
    plan = task.plan
    payloads = Payloads(task.run, task.number, plan.nbytes, compress=plan.compress)
    pace = Pace(task.pace, plan.in_flight, plan.copies)
    topics = cycle(task.topics)
    stage.send("ready")
    stage.receive()
    begun, count = time.monotonic(), 0
    while time.monotonic() < begun + plan.duration:
        pace.take(PATIENCE)
        publish(next(topics), payloads.next(), count)
        count += 1
    return count, begun


def consume_native(stage: Stage, task: ReceivingTask, endpoint: str) -> ReceivedCount:
    """Consumes topics as one of a group, and acknowledges, until the message OVER."""
    with BrokerClient(endpoint, timeout=PATIENCE) as client:
        window = min(_MOST_WINDOW, 2 * task.plan.in_flight)
        consumers = [client.consume(topic, GROUP, window=window) for topic in task.topics]
        taking = _Taking(stage, task)
        while taking.continues():
            try:
                ready = client.ready(_CHECK_INTERVAL)
            except Again:
                continue
            for consumer in ready:
                messages = consumer.recv_many()
                for message in messages:
                    taking.take(message.data)
                consumer.ack(*messages, wait=taking.is_last)
            taking.processed()
        for consumer in consumers:
            consumer.flush()
        return taking.received


def subscribe_ttp(stage: Stage, task: ReceivingTask, address: Address) -> ReceivedCount:
    """Receives topics by TTP until the message OVER."""
    with TtpClient(*address, name="bench", timeout=PATIENCE) as client:
        for topic in task.topics:
            client.subscribe(topic)
        taking = _Taking(stage, task)
        while taking.continues():
            try:
                for _ in range(_CHECK_EVERY):
                    taking.take(client.recv(_CHECK_INTERVAL).data)
                    taking.processed()
            except Again:
                continue
        return taking.received


class _Taking:
    """A receiver's state. is_last: publishers have ended, and it reports the number of messages."""

    def __init__(self, stage: Stage, task: ReceivingTask) -> None:
        self.received = ReceivedCount()
        self.is_last = False
        self._stage = stage
        self._opened = Opened(task.run, compress=task.plan.compress)
        self._steps = PacingSteps(task.steps, task.every)
        stage.send("ready")

    def take(self, payload: bytes | memoryview) -> None:
        """Counts a message."""
        seen = self._opened.read(payload)
        if seen is None:
            return
        age, publisher = seen
        self.received.samples.add(age)
        self.received.messages += 1
        self._steps.took(publisher)

    def processed(self) -> None:
        """Notes the time after the last message was processed."""
        self.received.end = time.monotonic()

    def continues(self) -> bool:
        """Whether the measurement continues."""
        word = self._stage.poll()
        if word == LAST:
            self.is_last = True
        if self.is_last:
            self._stage.send(self.received.messages)
        return bool(word != OVER)
