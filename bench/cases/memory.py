"""A thousand large messages received and dropped: the resident memory of the receiver."""

from __future__ import annotations

import os

from bench.cases.timing import expect, sending_side, throughput
from bench.peers import Role, peer_named
from bench.scene import Clock, Link, Outcome, play
from bench.work import MIB, Case, Failed, Metric, Sample, Work

PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """Returns the bytes of this process that are in memory now."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * PAGE


def receiver(peer: str, work: Work, links: list[Link]) -> Outcome:
    """Measures growth from before the first message, to the highest point and to the end."""
    channel = peer_named(peer).open(Role.PULL, work)
    links[0].send(channel.address)
    channel.ready(1)
    before = highest = resident()
    clock = Clock()
    links[0].send("warm")
    for _ in range(work.count):
        message = channel.recv()
        if len(message) != work.size:
            raise Failed(f"a message of {len(message)} bytes arrived")
        # while the message is still held: the highest point counts
        highest = max(highest, resident())
        del message
    links[0].send("done")
    outcome = clock.stop()
    expect(links[0], "over")
    grown = {"peak_growth": highest - before, "end_growth": resident() - before}
    return {"received": work.count, "bytes": work.count * work.size, **grown, **outcome}


def sender(peer: str, work: Work, link: Link) -> Outcome:
    channel = peer_named(peer).open(Role.PUSH, work, link.receive())
    channel.ready(1)
    return sending_side(channel, work, bytes(work.size), link)


def measure(work: Work, peer: str) -> Sample:
    received, sent = play(receiver, sender, peer, work)
    return {
        **throughput(work, sent[0], [received]),
        "grown_messages": received["peak_growth"] / work.size,
        "end_grown_messages": received["end_growth"] / work.size,
    }


ALSO = (Metric("end_grown_messages", "at the end", False), Metric("gb_s", "GB/s", True))


def metric(_: Work) -> Metric:
    return Metric("grown_messages", "messages of growth", False)


def works(quick: bool) -> list[Work]:
    count = 60 if quick else 1_000
    # the queues have the same limits, so that a slow reader does not affect the result
    params = {"high_water": 4}
    return [Work("memory", "64MiB", 64 * MIB, count, 0, ("transfer", "pyzmq"), 1, params)]


CASES = {
    "memory": Case(
        "memory", "resident growth of a receiver that drops 64 MiB messages", works, measure, metric, ALSO
    )
}
