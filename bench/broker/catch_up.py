"""Reads a kept topic from its beginning: a SUB with `?begin=old`, a consumer of a group, and XREAD of Redis
Streams."""

from __future__ import annotations

import time

from bench.broker import redis_cycle
from bench.broker.case import Place, Sample
from bench.broker.cycle import Cycle, Part, begin, measure_server, play, sample
from bench.broker.servers import redis_server
from transfer.broker.bench.processes import Processes, Stage
from transfer.broker.bench.target import started
from transfer.broker.clients.native import BrokerClient

#: messages that one call fetches from Redis, and that a consumer may have in flight
_AT_ONCE = 1000
_PATIENCE_MS = 20_000


def measure_ours(place: Place, cycle: Cycle, part: Part) -> Sample:
    """Publishes all messages; then measures the reading."""
    with Processes() as crew:
        target = started(crew, place.folder, transient=())
        with BrokerClient(target.requests) as client:
            for _ in range(0, cycle.count, _AT_ONCE):
                client.publish_many(cycle.topic_names[0], [cycle.payload] * _AT_ONCE)
        target.begin()
        before = target.usage()
        address = f"{target.requests} {target.endpoints['subscriptions']}"
        seconds = play(crew, (part,), address, cycle)
        after = target.usage()
        target.end()
    assert before.cpu is not None and after.cpu is not None
    return sample(cycle, seconds, after.cpu - before.cpu) | {"peak_mb": (after.peak or 0) / 1e6}


def measure_redis(place: Place, cycle: Cycle) -> Sample:
    """As `measure_ours`, with Redis."""
    return measure_server(place, cycle, (xread,), redis_server)


def subscribe(stage: Stage, address: str | int, cycle: Cycle) -> tuple[float, float]:
    """Reads with a SUB."""
    import transfer

    _, endpoint = str(address).split()
    with transfer.Context() as context, context.socket(transfer.SUB, rcvtimeo=_PATIENCE_MS) as sub:
        sub.subscribe(b"")
        begin(stage)
        begun = time.monotonic()
        sub.connect(f"{endpoint}?begin=old")
        for _ in range(cycle.count):
            sub.recv_multipart()
        return begun, time.monotonic()


def consume(stage: Stage, address: str | int, cycle: Cycle) -> tuple[float, float]:
    """Reads with a consumer of a new group, which acknowledges."""
    endpoint, _ = str(address).split()
    with BrokerClient(endpoint) as client:
        begin(stage)
        begun, left = time.monotonic(), cycle.count
        consumer = client.consume(cycle.topic_names[0], "bench", begin="old", window=_AT_ONCE)
        while left:
            messages = consumer.recv_many()
            consumer.ack(*messages)
            left -= len(messages)
        consumer.flush()
        return begun, time.monotonic()


def xread(stage: Stage, port: str | int, cycle: Cycle) -> tuple[float, float]:
    """Adds all messages with XADD, then reads them with XREAD from 0."""
    client, (stream,) = redis_cycle.connected(port), cycle.topic_names
    for _ in range(0, cycle.count, _AT_ONCE):
        redis_cycle.add(client, stream, cycle.payload, _AT_ONCE)
    begin(stage)
    begun, left, last = time.monotonic(), cycle.count, "0"
    while left:
        found = client.xread({stream: last}, count=_AT_ONCE)
        entries = found[0][1] if isinstance(found, list) else next(iter(found.values()))[0]
        left, last = left - len(entries), entries[-1][0]
    return begun, time.monotonic()
