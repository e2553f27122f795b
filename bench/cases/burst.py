"""How late the last message of a burst is while its sender computes, against a lone message.

Each message carries the sender's CLOCK_MONOTONIC, which is one clock for all processes of a machine. A core
that waits for the sender's next call to flush would delay the last message by a whole second.
"""

from __future__ import annotations

import struct
from time import monotonic, monotonic_ns

from bench.cases.timing import expect
from bench.peers import Role, peer_named
from bench.scene import Link, Outcome, play
from bench.stats import percentile
from bench.work import Case, Metric, Sample, Work

#: seconds that the sender computes after a lone message: far more than the message needs
LONE_COMPUTE = 0.05
STAMP = struct.Struct("<Q")


def receiver(peer: str, work: Work, links: list[Link]) -> Outcome:
    """Each round: a burst, then a lone message; returns the nanoseconds that the last of each needed."""
    channel = peer_named(peer).open(Role.PULL, work)
    links[0].send(channel.address)
    channel.ready(1)
    burst, rounds = work.params["burst"], work.count
    recv = channel.recv
    late: dict[str, list[int]] = {"burst": [], "lone": []}
    links[0].send("warm")
    for _ in range(rounds):
        for kind, messages in (("burst", burst), ("lone", 1)):
            for _ in range(messages):
                message = recv()
            arrived = monotonic_ns()
            late[kind].append(arrived - STAMP.unpack_from(message)[0])
    expect(links[0], "over")
    return late


def sender(peer: str, work: Work, link: Link) -> Outcome:
    channel = peer_named(peer).open(Role.PUSH, work, link.receive())
    channel.ready(1)
    expect(link, "warm")
    send, rest, pack = channel.send, bytes(work.size - STAMP.size), STAMP.pack
    for _ in range(work.count):
        for messages in (work.params["burst"], 1):
            for _ in range(messages):
                send(pack(monotonic_ns()) + rest)
            # the receiver sleeps through the second after the burst when the lone message arrives; messages
            # before a burst do not affect its last message
            compute(work.params["compute"] if messages > 1 else LONE_COMPUTE)
    link.send("over")
    return {}


def compute(seconds: float) -> int:
    """Pure Python that never waits and never calls into the library."""
    end = monotonic() + seconds
    total = 0
    while monotonic() < end:
        for number in range(2_000):
            total += number * number
    return total


def measure(work: Work, peer: str) -> Sample:
    patience = 60 + 3 * work.count * work.params["compute"]
    late, _ = play(receiver, sender, peer, work, patience)
    burst, lone = late["burst"], late["lone"]
    return {
        "median_us": percentile(burst, 50) / 1e3,
        "p99_us": percentile(burst, 99) / 1e3,
        "lone_median_us": percentile(lone, 50) / 1e3,
        "lone_p99_us": percentile(lone, 99) / 1e3,
        "median_ratio": percentile(burst, 50) / percentile(lone, 50),
        "p99_ratio": percentile(burst, 99) / percentile(lone, 99),
    }


ALSO = (
    Metric("p99_ratio", "× at p99", False),
    Metric("median_us", "µs", False),
    Metric("lone_median_us", "µs lone", False),
)


def metric(_: Work) -> Metric:
    return Metric("median_ratio", "× a lone message", False)


def works(quick: bool) -> list[Work]:
    """A round takes as long as the computation: a full run some 40 s for each peer."""
    params = {"burst": 1_000, "compute": 0.05 if quick else 1.0}
    return [Work("burst_tail", "64B", 64, 40, 0, ("transfer", "pyzmq"), 1, params)]


CASES = {
    "burst_tail": Case(
        "burst_tail", "last of 1,000 messages while the sender computes", works, measure, metric, ALSO
    )
}
