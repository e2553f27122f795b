"""A request and its reply, over and over: how long one round trip takes."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from bench.cases.timing import expect
from bench.peers import Role, peer_named
from bench.scene import Clock, Link, Outcome, play
from bench.stats import percentile
from bench.work import MEDIAN_MICROSECONDS, Case, Metric, Sample, Work


def replier(peer: str, work: Work, links: list[Link]) -> Outcome:
    channel = peer_named(peer).open(Role.REP, work)
    links[0].send(channel.address)
    channel.ready(1)
    echo(channel.recv, channel.send, work.warmup)
    clock = Clock()
    links[0].send("warm")
    echo(channel.recv, channel.send, work.count)
    outcome = clock.stop()
    expect(links[0], "over")
    return outcome


def requester(peer: str, work: Work, link: Link) -> Outcome:
    channel = peer_named(peer).open(Role.REQ, work, link.receive())
    channel.ready(1)
    payload = bytes(work.size)
    round_trips(channel.send, channel.recv, payload, work.warmup)
    expect(link, "warm")
    clock = Clock()
    took = round_trips(channel.send, channel.recv, payload, work.count)
    outcome = clock.stop()
    link.send("over")
    return {"took": took, **outcome}


def echo(recv: Callable[[], Any], send: Callable[[Any], Any], count: int) -> None:
    """Sends back what arrives, `count` times."""
    for _ in range(count):
        send(recv())


def round_trips(send: Callable[[Any], Any], recv: Callable[[], Any], payload: bytes, count: int) -> list[int]:
    """Nanoseconds of each of `count` round trips."""
    took = [0] * count
    for index in range(count):
        begin = perf_counter_ns()
        send(payload)
        recv()
        took[index] = perf_counter_ns() - begin
    return took


def latencies(nanoseconds: list[int]) -> Sample:
    """Median, 99th and 99.9th percentile, in microseconds."""
    return {
        "median_us": percentile(nanoseconds, 50) / 1e3,
        "p99_us": percentile(nanoseconds, 99) / 1e3,
        "p999_us": percentile(nanoseconds, 99.9) / 1e3,
    }


def measure(work: Work, peer: str) -> Sample:
    return sample_of(work, *play(replier, requester, peer, work))


def sample_of(work: Work, replied: Outcome, asked: list[Outcome]) -> Sample:
    """Latencies of the requester; CPU seconds of both processes."""
    cpu = replied["cpu"] + asked[0]["cpu"]
    return {
        **latencies(asked[0]["took"]),
        "seconds": asked[0]["seconds"],
        "cpu_s": cpu,
        "cpu_s_per_m": cpu / work.count * 1e6,
    }


TAIL = (Metric("p99_us", "µs p99", False), Metric("p999_us", "µs p99.9", False))


def metric(_: Work) -> Metric:
    return MEDIAN_MICROSECONDS


def works(quick: bool) -> list[Work]:
    peers = ("transfer", "transfer-spin", "raw", "pyzmq", "pynng")
    return [Work("req_rep", "64B", 64, 4_000 if quick else 20_000, 500, peers)]


CASES = {"req_rep": Case("req_rep", "REQ/REP round trip", works, measure, metric, TAIL)}
