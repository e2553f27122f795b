"""The cycle through the broker's native front, by its client. See `bench.broker.cycle`."""

from __future__ import annotations

import time
from itertools import cycle as endless

from bench.broker.cycle import Cycle, begin
from bench.work import MIB
from transfer.broker.bench.processes import Stage
from transfer.broker.clients.native import BrokerClient, Consumer

_GROUP = "bench"


def publish(stage: Stage, endpoint: str | int, cycle: Cycle) -> tuple[float, float]:
    """Publishes all messages, with so many in flight; small ones half of that with one call."""
    burst = max(1, cycle.in_flight // 2) if cycle.size < MIB else 1
    return _publish(stage, str(endpoint), cycle, burst)


def publish_each(stage: Stage, endpoint: str | int, cycle: Cycle) -> tuple[float, float]:
    """As `publish`, with a call for each message."""
    return _publish(stage, str(endpoint), cycle, 1)


def _publish(stage: Stage, endpoint: str, cycle: Cycle, burst: int) -> tuple[float, float]:
    with BrokerClient(endpoint) as client:
        payload, topics = cycle.payload, endless(cycle.topic_names)
        begin(stage)
        begun, left = time.monotonic(), cycle.count
        while left:
            some = min(burst, left)
            client.wait_room(cycle.in_flight - some + 1)
            if some == 1:
                client.publish(next(topics), payload, wait=False)
            elif cycle.topics == 1:
                client.publish_many(next(topics), [payload] * some, wait=False)
            else:
                with client.batch():
                    for _ in range(some):
                        client.publish(next(topics), payload, wait=False)
            left -= some
        client.flush()
        return begun, time.monotonic()


def consume(stage: Stage, endpoint: str | int, cycle: Cycle) -> tuple[float, float]:
    """Consumes and acknowledges all messages."""
    with BrokerClient(str(endpoint)) as client:
        consumers = _consumers(client, cycle)
        begin(stage)
        begun, left = time.monotonic(), cycle.count
        while left:
            there = client.ready()
            with client.batch():
                for consumer in there:
                    messages = consumer.recv_many()
                    consumer.ack(*messages, wait=cycle.in_flight == 1)
                    left -= len(messages)
        for consumer in consumers:
            consumer.flush()
        return begun, time.monotonic()


def together(stage: Stage, endpoint: str | int, cycle: Cycle) -> tuple[float, float]:
    """Publishes, consumes and acknowledges batch after batch."""
    with BrokerClient(str(endpoint)) as client:
        (consumer,) = _consumers(client, cycle)
        payload, topic = cycle.payload, cycle.topic_names[0]
        begin(stage)
        begun, left = time.monotonic(), cycle.count
        while left:
            some = min(cycle.in_flight, left)
            client.publish_many(topic, [payload] * some)
            waiting = some
            while waiting:
                messages = consumer.recv_many()
                consumer.ack(*messages)
                waiting -= len(messages)
            consumer.flush()
            left -= some
        return begun, time.monotonic()


def _consumers(client: BrokerClient, cycle: Cycle) -> list[Consumer]:
    window = max(1, cycle.in_flight)
    return [client.consume(topic, _GROUP, window=window) for topic in cycle.topic_names]
