"""PUSH to PULL with `await` for each message, on asyncio's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from bench.cases.timing import expect, throughput
from bench.peers import Channel, Role, peer_named
from bench.scene import Clock, Link, Outcome, play
from bench.work import PATIENCE, Case, Failed, Sample, Work


def receiver(peer: str, work: Work, links: list[Link]) -> Outcome:
    async def run() -> Outcome:
        channel = peer_named(peer).open_async(Role.PULL, work)
        links[0].send(channel.address)
        await _receive_all(channel, work.warmup, work.size)
        clock = Clock()
        links[0].send("warm")
        await _receive_all(channel, work.count, work.size)
        links[0].send("done")
        outcome = clock.stop()
        await _wait_for(links[0], "over")
        return {"received": work.count, "bytes": work.count * work.size, **outcome}

    return asyncio.run(_bounded(run()))


def sender(peer: str, work: Work, link: Link) -> Outcome:
    async def run() -> Outcome:
        channel = peer_named(peer).open_async(Role.PUSH, work, link.receive())
        send, payload = channel.send, bytes(work.size)
        for _ in range(work.warmup):
            await send(payload)
        await _wait_for(link, "warm")
        clock = Clock()
        for _ in range(work.count):
            await send(payload)
        await _wait_for(link, "done")
        outcome = clock.stop()
        link.send("over")
        return outcome

    return asyncio.run(_bounded(run()))


async def _bounded(work: Coroutine[Any, Any, Outcome]) -> Outcome:
    return await asyncio.wait_for(work, 2 * PATIENCE)


async def _wait_for(link: Link, word: str) -> None:
    """Waits in another thread: queued messages may need the loop to be sent."""
    await asyncio.get_running_loop().run_in_executor(None, expect, link, word)


async def _receive_all(channel: Channel, count: int, size: int) -> None:
    recv = channel.recv
    for _ in range(count):
        message = await recv()
    if len(message) != size:
        raise Failed(f"a message of {len(message)} bytes arrived instead of {size}")


def measure(work: Work, peer: str) -> Sample:
    received, sent = play(receiver, sender, peer, work)
    return throughput(work, sent[0], [received])


def works(quick: bool) -> list[Work]:
    count = 20_000 if quick else 150_000
    return [Work("asyncio", "64B", 64, count, 2_000, ("transfer", "pyzmq", "pynng"))]


CASES = {"asyncio": Case("asyncio", "PUSH→PULL under asyncio (pyzmq: zmq.asyncio)", works, measure)}
