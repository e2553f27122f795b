"""Ten thousand connections to one PULL: resident bytes for each, in the process of the PULL."""

from __future__ import annotations

import gc
import os

from bench.cases.memory import resident
from bench.cases.timing import expect
from bench.peers import Channel, Role, peer_named
from bench.scene import Clock, Link, Outcome, play
from bench.work import Case, Failed, Metric, Sample, Work


def receiver(peer: str, work: Work, links: list[Link]) -> Outcome:
    """One message from each connection proves that it exists; the resident set is read afterwards."""
    channel = peer_named(peer).open(Role.PULL, work)
    gc.collect()
    before = resident()
    clock = Clock()
    for link in links:
        link.send(channel.address)
    seen = {bytes(channel.recv()) for _ in range(work.count)}
    if len(seen) != work.count:
        raise Failed(f"{len(seen)} different senders instead of {work.count}")
    outcome = clock.stop()
    gc.collect()
    seen.clear()
    after = resident()
    for link in links:
        link.send("over")
    return {"grown": after - before, **outcome}


def senders(peer: str, work: Work, link: Link) -> Outcome:
    """This process's share of the connections, a socket each; all stay open until the end."""
    library = peer_named(peer)
    address = link.receive()
    share = work.count // work.spokes
    channels: list[Channel] = []
    for number in range(share):
        channel = library.open(Role.PUSH, work, address)
        channel.send(f"{os.getpid()}-{number}".encode())
        channels.append(channel)
    expect(link, "over")
    return {"connections": len(channels)}


def measure(work: Work, peer: str) -> Sample:
    received, sent = play(receiver, senders, peer, work)
    connections = sum(outcome["connections"] for outcome in sent)
    return {
        "kib_each": received["grown"] / connections / 1024,
        "connections": connections,
        "connections_s": connections / received["seconds"],
        "cpu_s": received["cpu"],
    }


ALSO = (Metric("connections_s", "connections/s", True),)


def metric(_: Work) -> Metric:
    return Metric("kib_each", "KiB each", False)


def works(quick: bool) -> list[Work]:
    count, spokes = (1_000, 2) if quick else (10_000, 10)
    return [Work("connections", f"{count}", 64, count, 0, ("transfer", "pyzmq"), spokes)]


CASES = {
    "connections": Case(
        "connections", "connections to one PULL, resident memory for each", works, measure, metric, ALSO
    )
}
