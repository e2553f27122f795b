"""`ZmqInterface` compared with the sockets that it uses: push to a callback, and request to a callback."""

from __future__ import annotations

from typing import Any

from bench.cases import roundtrip, stream
from bench.cases.timing import expect, sending_side, throughput
from bench.peers import Role, peer_named
from bench.scene import Clock, Link, Outcome, play
from bench.work import Case, Sample, Work

#: a callback for each message, and one for many at once
INTERFACES = ("interface", "interface-batch")


def receiver(peer: str, work: Work, links: list[Link]) -> Outcome:
    if peer not in INTERFACES:
        return stream.receiver(peer, work, links)
    channel = peer_named(peer).open(Role.PULL, work)
    links[0].send(channel.address)
    arrivals: Any = channel.socket
    arrivals.wait(work.warmup, work.size)
    clock = Clock()
    links[0].send("warm")
    nbytes = arrivals.wait(work.count, work.size)
    links[0].send("done")
    outcome = clock.stop()
    expect(links[0], "over")
    return {"received": work.count, "bytes": nbytes, **outcome}


def sender(peer: str, work: Work, link: Link) -> Outcome:
    channel = peer_named(peer).open(Role.PUSH, work, link.receive())
    channel.ready(1)
    return sending_side(channel, work, bytes(work.size), link)


def measure_push(work: Work, peer: str) -> Sample:
    received, sent = play(receiver, sender, peer, work)
    return throughput(work, sent[0], [received])


def replier(peer: str, work: Work, links: list[Link]) -> Outcome:
    if peer not in INTERFACES:
        return roundtrip.replier(peer, work, links)
    channel = peer_named(peer).open(Role.REP, work)
    links[0].send(channel.address)
    links[0].send("warm")
    clock = Clock()
    expect(links[0], "over")
    return clock.stop()


def measure_request(work: Work, peer: str) -> Sample:
    return roundtrip.sample_of(work, *play(replier, roundtrip.requester, peer, work))


def push_works(quick: bool) -> list[Work]:
    count = 100_000 if quick else 1_000_000
    return [Work("interface_push", "64B", 64, count, count // 20, ("transfer", *INTERFACES))]


def request_works(quick: bool) -> list[Work]:
    return [
        Work("interface_request", "64B", 64, 2_000 if quick else 10_000, 500, ("transfer", INTERFACES[0]))
    ]


CASES = {
    "interface_push": Case(
        "interface_push", "ZmqInterface: push to a callback", push_works, measure_push, any_transport=False
    ),
    "interface_request": Case(
        "interface_request",
        "ZmqInterface: request to a callback",
        request_works,
        measure_request,
        roundtrip.metric,
        roundtrip.TAIL,
        any_transport=False,
    ),
}
