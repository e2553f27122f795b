"""`ZmqInterface` beside the sockets that it is made of: push to a callback, and request to a callback."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

from bench.cases import roundtrip, stream
from bench.cases.timing import expect, sending_side, throughput
from bench.peers import Role, peer_named
from bench.scene import Clock, Link, Outcome, play
from bench.work import MEDIAN_MICROSECONDS, Case, Metric, Sample, Work

#: a callback for each message, and one for many at once
INTERFACES = ("interface", "interface-batch")


def receiver(peer: str, work: Work, links: list[Link]) -> Outcome:
    if peer not in INTERFACES:
        return stream.receiver(peer, work, links)
    channel = peer_named(peer).open(Role.PULL, work)
    links[0].tell(channel.address)
    arrivals: Any = channel.socket
    arrivals.wait(work.warmup, work.size)
    clock = Clock()
    links[0].tell("warm")
    nbytes = arrivals.wait(work.count, work.size)
    links[0].tell("done")
    outcome = clock.stop()
    expect(links[0], "over")
    return {"received": work.count, "bytes": nbytes, **outcome}


def sender(peer: str, work: Work, link: Link) -> Outcome:
    channel = peer_named(peer).open(Role.PUSH, work, link.hear())
    channel.ready(1)
    return sending_side(channel, work, bytes(work.size), link)


def measure_push(work: Work, peer: str) -> Sample:
    received, sent = play(receiver, sender, peer, work)
    return throughput(work, sent[0], [received])


def replier(peer: str, work: Work, links: list[Link]) -> Outcome:
    if peer not in INTERFACES:
        return roundtrip.replier(peer, work, links)
    channel = peer_named(peer).open(Role.REP, work)
    links[0].tell(channel.address)
    links[0].tell("warm")
    clock = Clock()
    expect(links[0], "over")
    return clock.stop()


def requester(peer: str, work: Work, link: Link) -> Outcome:
    if peer not in INTERFACES:
        return roundtrip.requester(peer, work, link)
    channel = peer_named(peer).open(Role.REQ, work, link.hear())
    channel.ready(1)
    payload = bytes(work.size)
    requests(channel.send, payload, work.warmup)
    expect(link, "warm")
    clock = Clock()
    took = requests(channel.send, payload, work.count)
    outcome = clock.stop()
    link.tell("over")
    return {"took": took, **outcome}


def requests(request: Any, payload: bytes, count: int) -> list[int]:
    """Nanoseconds of each of `count` round trips, one call each."""
    took = [0] * count
    for index in range(count):
        begin = perf_counter_ns()
        request(payload)
        took[index] = perf_counter_ns() - begin
    return took


def measure_request(work: Work, peer: str) -> Sample:
    replied, asked = play(replier, requester, peer, work)
    cpu = replied["cpu"] + asked[0]["cpu"]
    return {
        **roundtrip.latencies(asked[0]["took"]),
        "seconds": asked[0]["seconds"],
        "cpu_s": cpu,
        "cpu_s_per_m": cpu / work.count * 1e6,
    }


def push_works(quick: bool) -> list[Work]:
    count = 100_000 if quick else 1_000_000
    return [Work("interface_push", "64B", 64, count, count // 20, ("transfer", *INTERFACES))]


def request_works(quick: bool) -> list[Work]:
    return [
        Work("interface_request", "64B", 64, 2_000 if quick else 10_000, 500, ("transfer", INTERFACES[0]))
    ]


def median(_: Work) -> Metric:
    return MEDIAN_MICROSECONDS


CASES = {
    "interface_push": Case(
        "interface_push", "ZmqInterface: push to a callback", push_works, measure_push, any_transport=False
    ),
    "interface_request": Case(
        "interface_request",
        "ZmqInterface: request to a callback",
        request_works,
        measure_request,
        median,
        roundtrip.TAIL,
        any_transport=False,
    ),
}
