"""One publisher, eight subscribers in separate processes; all must receive all messages."""

from __future__ import annotations

from typing import Any

from bench.cases.timing import expect, length, throughput
from bench.peers import Role, peer_named
from bench.scene import Clock, Link, Outcome, play
from bench.work import GIGABYTES_PER_SECOND, MIB, Case, Metric, Sample, Work

SUBSCRIBERS = 8


def publisher(peer: str, work: Work, links: list[Link]) -> Outcome:
    """Sends without any limit of its queues, then waits for the reply of every subscriber."""
    channel = peer_named(peer).open(Role.PUB, work)
    for link in links:
        link.send(channel.address)
    for link in links:
        expect(link, "connected")
    channel.ready(len(links))
    send, payload = channel.send, bytes(work.size)
    for _ in range(work.warmup):
        send(payload)
    for link in links:
        expect(link, "warm")
    clock = Clock()
    for _ in range(work.count):
        send(payload)
    for link in links:
        expect(link, "done")
    outcome = clock.stop()
    for link in links:
        link.send("over")
    return outcome


def subscriber(peer: str, work: Work, link: Link) -> Outcome:
    """Counts received messages; reports a missing message instead of waiting endlessly."""
    library = peer_named(peer)
    channel = library.open(Role.SUB, work, link.receive())
    channel.ready(1)
    link.send("connected")
    _receive(channel.recv, work.warmup, library.silence)
    clock = Clock()
    link.send("warm")
    received, nbytes = _receive(channel.recv, work.count, library.silence)
    link.send("done")
    outcome = clock.stop()
    expect(link, "over")
    return {"received": received, "bytes": nbytes, **outcome}


def _receive(recv: Any, count: int, silence: tuple[type[BaseException], ...]) -> tuple[int, int]:
    """Returns (messages, bytes) until `count` arrived, or the socket's timeout expired."""
    received = nbytes = 0
    while received < count:
        try:
            message = recv()
        except silence:  # missing messages count as lost
            break
        received += 1
        nbytes += length(message)
    return received, nbytes


def measure(work: Work, peer: str) -> Sample:
    published, received = play(publisher, subscriber, peer, work)
    return throughput(work, published, received)


def metric(_: Work) -> Metric:
    return GIGABYTES_PER_SECOND


def works(quick: bool) -> list[Work]:
    count = 8 if quick else 30
    # a subscriber with a missing message reports it after this many seconds of silence
    params = {"high_water": 0, "patience": 10.0}
    peers = ("transfer", "raw", "pyzmq", "pynng")
    return [Work("pub_fanout", "10MiB", 10 * MIB, count, 2, peers, SUBSCRIBERS, params)]


CASES = {
    "pub_fanout": Case("pub_fanout", f"PUB 1→{SUBSCRIBERS}, sum over all subscribers", works, measure, metric)
}
