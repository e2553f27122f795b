"""The cycle through NATS JetStream in files, by nats-py. See `bench.broker.cycle`."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from bench.broker.cycle import Cycle, begin
from bench.broker.servers import HOST
from transfer.broker.bench.processes import Stage

_GROUP = "bench"
_PATIENCE = 30.0


def publish(stage: Stage, port: str | int, cycle: Cycle) -> tuple[float, float]:
    """Publishes without waiting, with a limited number of missing acknowledgements."""
    return asyncio.run(_publish(stage, port, cycle))


def consume(stage: Stage, port: str | int, cycle: Cycle) -> tuple[float, float]:
    """Fetches several messages, and acknowledges each."""
    return asyncio.run(_consume(stage, port, cycle))


async def _publish(stage: Stage, port: str | int, cycle: Cycle) -> tuple[float, float]:
    import nats

    client = await nats.connect(f"nats://{HOST}:{port}")
    stream = client.jetstream(publish_async_max_pending=cycle.in_flight)
    (topic,), payload = cycle.topic_names, cycle.payload
    begin(stage)
    begun = time.monotonic()
    if cycle.in_flight == 1:
        for _ in range(cycle.count):
            await stream.publish(topic, payload)
    else:
        for _ in range(cycle.count):
            await stream.publish_async(topic, payload, wait_stall=_PATIENCE)
        await asyncio.wait_for(stream.publish_async_completed(), _PATIENCE)
    end = time.monotonic()
    await client.close()
    return begun, end


async def _consume(stage: Stage, port: str | int, cycle: Cycle) -> tuple[float, float]:
    import nats
    from nats.js.api import StorageType, StreamConfig

    client = await nats.connect(f"nats://{HOST}:{port}")
    stream = client.jetstream()
    (topic,) = cycle.topic_names
    await stream.add_stream(StreamConfig(name="bench", subjects=[topic], storage=StorageType.FILE))
    subscription: Any = await stream.pull_subscribe(topic, _GROUP)
    begin(stage)
    begun, left = time.monotonic(), cycle.count
    while left:
        messages = await subscription.fetch(min(cycle.in_flight, left), timeout=_PATIENCE)
        left -= len(messages)
        for message in messages if left else messages[:-1]:
            await message.ack()
    await messages[-1].ack_sync(timeout=_PATIENCE)
    end = time.monotonic()
    await client.close()
    return begun, end
