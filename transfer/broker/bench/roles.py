"""The parts that processes play: publishers and receivers, each with connections of its own.

A publisher returns (messages, when it began); a receiver returns what it `Received`. All times are of the
monotonic clock, which the processes of one machine share.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from multiprocessing.connection import Connection

from transfer.broker.bench.figures import Samples
from transfer.broker.bench.pacing import Duration, Pace, Steps
from transfer.broker.bench.payloads import Opened, Payloads
from transfer.broker.bench.plan import Plan
from transfer.broker.bench.processes import Stage
from transfer.broker.clients.native import BrokerClient
from transfer.broker.clients.ttp import TtpClient
from transfer.transports.errors import Again

#: seconds that anything of the broker is waited for
PATIENCE = 30.0
#: seconds between two looks whether publishers have ended
_LOOK = 0.1
#: messages published between two looks what the broker says
_HEAR = 16
#: messages that a consumer may hold at most
_MOST_WINDOW = 10_000
#: the group of all measurements: a new one for each would hold what others publish for ever
GROUP = "bench"
#: words to receivers: publishers have ended, so tell how much came; and: it is over
LAST, OVER = "last", "over"

Address = tuple[str, int]


@dataclass(slots=True)
class Received:
    """messages: that came; end: when the last of them had been dealt with."""

    messages: int = 0
    end: float = 0.0
    samples: Samples = field(default_factory=Samples)


@dataclass(frozen=True, slots=True)
class Publishing:
    """What a publisher is told. run: the measurement's number. number: its own. topics: in turn."""

    plan: Plan
    run: int
    number: int
    topics: Sequence[str]
    pace: Sequence[Connection]


@dataclass(frozen=True, slots=True)
class Receiving:
    """What a receiver is told. steps: to publishers, by their numbers. every: messages of one that it is told
    of together."""

    plan: Plan
    run: int
    topics: Sequence[str]
    steps: Mapping[int, Connection]
    every: int


def publish_own(stage: Stage, told: Publishing, endpoint: str) -> tuple[int, float]:
    """Publishes by transfer's own sockets until the time is over and all is kept."""
    with BrokerClient(endpoint, timeout=PATIENCE) as client:

        def publish(topic: str, payload: bytes, count: int) -> None:
            client.publish(topic, payload, wait=False)
            if not count % _HEAR:
                client.hear()

        published = _publish(stage, told, publish)
        client.flush()
        return published


def publish_ttp(stage: Stage, told: Publishing, address: Address) -> tuple[int, float]:
    """Publishes by TTP until the time is over."""
    with TtpClient(*address, name="bench", timeout=PATIENCE) as client:
        published = _publish(stage, told, lambda topic, payload, _: client.publish(topic, payload))
        # Answered behind all that was published: else the end of the connection could overtake it.
        client.subscribe("bench/nothing")
        return published


def _publish(stage: Stage, told: Publishing, publish: Callable[[str, bytes, int], None]) -> tuple[int, float]:
    plan = told.plan
    payloads = Payloads(told.run, told.number, plan.nbytes, compress=plan.compress)
    pace = Pace(told.pace, plan.in_flight, plan.copies)
    topics = cycle(told.topics)
    stage.tell("ready")
    stage.hear()
    duration = Duration(plan.duration)
    count = 0
    while not duration.over:
        pace.take(PATIENCE)
        publish(next(topics), payloads.next(), count)
        count += 1
    return count, duration.begun


def consume_own(stage: Stage, told: Receiving, endpoint: str) -> Received:
    """Consumes topics as one of a group, and acknowledges, until it is told that all has come."""
    with BrokerClient(endpoint, timeout=PATIENCE) as client:
        window = min(_MOST_WINDOW, 2 * told.plan.in_flight)
        consumers = [client.consume(topic, GROUP, window=window) for topic in told.topics]
        taking = _Taking(stage, told)
        while taking.goes_on():
            try:
                ready = client.ready(_LOOK)
            except Again:
                continue
            for consumer in ready:
                messages = consumer.recv_many()
                for message in messages:
                    taking.take(message.data)
                consumer.ack(*messages, wait=taking.is_last)
            taking.dealt_with()
        for consumer in consumers:
            consumer.flush()
        return taking.received


def subscribe_ttp(stage: Stage, told: Receiving, address: Address) -> Received:
    """Receives topics by TTP until it is told that all has come."""
    with TtpClient(*address, name="bench", timeout=PATIENCE) as client:
        for topic in told.topics:
            client.subscribe(topic)
        taking = _Taking(stage, told)
        while taking.goes_on():
            try:
                for _ in range(_HEAR):
                    taking.take(client.recv(_LOOK).data)
                    taking.dealt_with()
            except Again:
                continue
        return taking.received


class _Taking:
    """A receiver's books. is_last: publishers have ended, and it is told how much came so far."""

    def __init__(self, stage: Stage, told: Receiving) -> None:
        self.received = Received()
        self.is_last = False
        self._stage = stage
        self._opened = Opened(told.run, compress=told.plan.compress)
        self._steps = Steps(told.steps, told.every)
        stage.tell("ready")

    def take(self, payload: bytes | memoryview) -> None:
        """One message."""
        seen = self._opened.look(payload)
        if seen is None:
            return
        age, publisher = seen
        self.received.samples.add(age)
        self.received.messages += 1
        self._steps.took(publisher)

    def dealt_with(self) -> None:
        """All that was taken is."""
        self.received.end = time.monotonic()

    def goes_on(self) -> bool:
        """Whether there may be more."""
        word = self._stage.heard()
        if word == LAST:
            self.is_last = True
        if self.is_last:
            self._stage.tell(self.received.messages)
        return bool(word != OVER)
