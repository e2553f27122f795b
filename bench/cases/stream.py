"""One sender, one receiver, one call a message: PUSH to PULL, and PAIR to PAIR."""

from __future__ import annotations

from bench.cases.timing import receiving_side, sending_side, throughput
from bench.peers import Role, peer_named
from bench.scene import Link, Outcome, play
from bench.work import KIB, MIB, Case, Sample, Work

SMALL = ("transfer", "pyzmq")
LARGE = ("transfer", "raw", "pyzmq")
#: a thousand times slower than the fastest at 64 B: these run in line-ups with fewer messages
SLOW = ("transfer", "pynng", "gloo", "mooncake")


def receiver(peer: str, work: Work, links: list[Link]) -> Outcome:
    role = Role.PULL if work.case != "pair" else Role.PAIR_BOUND
    channel = peer_named(peer).open(role, work)
    links[0].send(channel.address)
    channel.ready(1)
    return receiving_side(channel, work, links[0])


def sender(peer: str, work: Work, link: Link) -> Outcome:
    role = Role.PUSH if work.case != "pair" else Role.PAIR
    channel = peer_named(peer).open(role, work, link.receive())
    channel.ready(1)
    return sending_side(channel, work, bytes(work.size), link)


def measure(work: Work, peer: str) -> Sample:
    received, sent = play(receiver, sender, peer, work)
    return throughput(work, sent[0], [received])


def push_pull_works(quick: bool) -> list[Work]:
    less = 5 if quick else 1

    def work(label: str, size: int, count: int, peers: tuple[str, ...]) -> Work:
        count = max(8, count // less)
        return Work("push_pull", label, size, count, max(2, count // 20), peers)

    return [
        work("64B", 64, 2_000_000, SMALL),
        work("1KiB", KIB, 1_000_000, SMALL),
        work("64KiB", 64 * KIB, 30_000, LARGE),
        work("1MiB", MIB, 3_000, LARGE),
        work("64MiB", 64 * MIB, 40, LARGE),
        work("64B", 64, 20_000, SLOW),
        work("1MiB", MIB, 300, SLOW),
        work("64MiB", 64 * MIB, 12, SLOW),
    ]


def pair_works(quick: bool) -> list[Work]:
    less = 5 if quick else 1
    peers = ("transfer", "pyzmq", "pynng")
    return [
        Work("pair", "64B", 64, 300_000 // less, 5_000, peers),
        Work("pair", "1MiB", MIB, 2_000 // less, 50, peers),
    ]


CASES = {
    "push_pull": Case("push_pull", "PUSH→PULL, one call a message", push_pull_works, measure),
    "pair": Case("pair", "PAIR→PAIR, one way", pair_works, measure),
}
