"""The cycle through Redis Streams, by redis-py. See `bench.broker.cycle`."""

from __future__ import annotations

import time
from typing import Any

from bench.broker.cycle import Cycle, begin
from bench.broker.servers import HOST
from transfer.broker.bench.processes import Stage

_GROUP, _NAME = "bench", "one"
_BLOCK_MS = 1000


def publish(stage: Stage, port: str | int, cycle: Cycle) -> tuple[float, float]:
    """Adds with XADD, in pipelines of as many as may be in flight."""
    client, (stream,), payload = connected(port), cycle.topic_names, cycle.payload
    begin(stage)
    begun, left = time.monotonic(), cycle.count
    while left:
        some = min(cycle.in_flight, left)
        add(client, stream, payload, some)
        left -= some
    return begun, time.monotonic()


def consume(stage: Stage, port: str | int, cycle: Cycle) -> tuple[float, float]:
    """Reads several with XREADGROUP, and acknowledges them with one XACK."""
    client, (stream,) = connected(port), cycle.topic_names
    client.xgroup_create(stream, _GROUP, mkstream=True)
    begin(stage)
    begun, left = time.monotonic(), cycle.count
    while left:
        left -= _take(client, stream, cycle.in_flight)
    return begun, time.monotonic()


def together(stage: Stage, port: str | int, cycle: Cycle) -> tuple[float, float]:
    """Adds, reads and acknowledges batch after batch."""
    client, (stream,), payload = connected(port), cycle.topic_names, cycle.payload
    client.xgroup_create(stream, _GROUP, mkstream=True)
    begin(stage)
    begun, left = time.monotonic(), cycle.count
    while left:
        some = min(cycle.in_flight, left)
        add(client, stream, payload, some)
        while some:
            taken = _take(client, stream, cycle.in_flight)
            some -= taken
            left -= taken
    return begun, time.monotonic()


def add(client: Any, stream: str, payload: bytes, count: int) -> None:
    """Adds with XADD, in one pipeline."""
    if count == 1:
        client.xadd(stream, {"p": payload})
        return
    pipeline = client.pipeline(transaction=False)
    for _ in range(count):
        pipeline.xadd(stream, {"p": payload})
    pipeline.execute()


def _take(client: Any, stream: str, most: int) -> int:
    found = client.xreadgroup(_GROUP, _NAME, {stream: ">"}, count=most, block=_BLOCK_MS)
    if not found:
        return 0
    entries = found[0][1] if isinstance(found, list) else next(iter(found.values()))[0]
    client.xack(stream, _GROUP, *(number for number, _ in entries))
    return len(entries)


def connected(port: str | int) -> Any:
    """Returns a client."""
    from redis import Redis

    return Redis(HOST, int(port), protocol=2)
