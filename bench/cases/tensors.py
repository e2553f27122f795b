"""numpy arrays from one process to another: one a message, and twelve of them in a dict."""

from __future__ import annotations

from typing import Any

from bench.cases.timing import receiving_side, sending_side, throughput
from bench.peers import Channel, Role, peer_named
from bench.scene import Link, Outcome, play
from bench.work import GIGABYTES_PER_SECOND, KIB, MIB, Case, Metric, Sample, Work

DICT = "12×64KiB"
PARTS = 12


def _open(peer: str, role: Role, work: Work, address: str = "") -> Channel:
    library = peer_named(peer)
    opener = library.open_tensors if work.label == DICT else library.open_tensor
    return opener(role, work, address)


def _payload(work: Work) -> Any:
    """float32, two-dimensional; the dict has names as a model's layers have."""
    import numpy

    if work.label != DICT:
        return numpy.ones((16, work.size // 64), numpy.float32)
    return {
        f"layers.{index}.weight": numpy.ones((128, work.size // PARTS // 512), numpy.float32)
        for index in range(PARTS)
    }


def receiver(peer: str, work: Work, links: list[Link]) -> Outcome:
    channel = _open(peer, Role.PULL, work)
    links[0].send(channel.address)
    channel.ready(1)
    return receiving_side(channel, work, links[0])


def sender(peer: str, work: Work, link: Link) -> Outcome:
    channel = _open(peer, Role.PUSH, work, link.receive())
    channel.ready(1)
    return sending_side(channel, work, _payload(work), link)


def measure(work: Work, peer: str) -> Sample:
    received, sent = play(receiver, sender, peer, work)
    return throughput(work, sent[0], [received])


def metric(_: Work) -> Metric:
    return GIGABYTES_PER_SECOND


def works(quick: bool) -> list[Work]:
    less = 5 if quick else 1

    def work(label: str, size: int, count: int, peers: tuple[str, ...]) -> Work:
        count = max(8, count // less)
        return Work("tensors", label, size, count, max(2, count // 20), peers)

    peers = ("transfer", "raw", "pyzmq")
    return [
        work("64KiB", 64 * KIB, 30_000, peers),
        work("1MiB", MIB, 3_000, peers),
        work("64MiB", 64 * MIB, 40, peers),
        work("1MiB", MIB, 300, ("transfer", "gloo")),
        work("64MiB", 64 * MIB, 12, ("transfer", "gloo")),
        work(DICT, PARTS * 64 * KIB, 3_000, ("transfer", "pyzmq")),
    ]


CASES = {"tensors": Case("tensors", "send_tensor/recv_tensor, dict of 12 × 64 KiB", works, measure, metric)}
