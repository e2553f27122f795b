"""Between two processes of one host: shared memory compared with TCP, a copy, and hand-written code."""

from __future__ import annotations

import time
from statistics import median
from time import perf_counter, perf_counter_ns

from bench.cases import tensors
from bench.cases.stream import receiver as stream_receiver, sender as stream_sender
from bench.cases.timing import expect, throughput
from bench.peers import Channel, Role, peer_named
from bench.scene import Clock, Link, Outcome, cpu_seconds, play
from bench.work import (
    GIGABYTES_PER_SECOND,
    KIB,
    MEDIAN_MICROSECONDS,
    MIB,
    Case,
    Metric,
    Sample,
    Work,
    by_size,
)

OURS = "transfer-local"
TCP = "transfer"
IDLE_SECONDS = 3.0
SHARE = Metric("percent", "% of a core", False)


def measure_stream(work: Work, peer: str) -> Sample:
    received, sent = play(stream_receiver, stream_sender, peer, work)
    return throughput(work, sent[0], [received])


# --- ordinary tensors -----------------------------------------------------------------------------


def measure_tensors(work: Work, peer: str) -> Sample:
    if peer != "numpy copy":
        return tensors.measure(work, peer)
    import numpy

    source, target = (numpy.ones(work.size // 4, numpy.float32) for _ in range(2))
    for _ in range(work.warmup):
        numpy.copyto(target, source)
    begin, cpu = perf_counter(), cpu_seconds()
    for _ in range(work.count):
        numpy.copyto(target, source)
    seconds = perf_counter() - begin
    nbytes = work.count * work.size
    return {"seconds": seconds, "gb_s": nbytes / seconds / 1e9, "cpu_s": cpu_seconds() - cpu}


# --- tensors that are shared from birth -------------------------------------------------------------


def _pair(peer: str, work: Work, role: Role, address: str = "") -> Channel:
    channel = peer_named(peer).open(role, work, address)
    channel.send, channel.recv = channel.socket.send, channel.socket.recv
    return channel


def answering(peer: str, work: Work, links: list[Link]) -> Outcome:
    channel = _pair(peer, work, Role.PAIR_BOUND)
    links[0].send(channel.address)
    channel.ready(1)
    for _ in range(work.warmup + work.count):
        tensor = channel.socket.recv_tensor()
        channel.send(b"here" if tensor.nbytes == work.size else b"")
        del tensor
    expect(links[0], "over")
    return {}


def sharing(peer: str, work: Work, link: Link) -> Outcome:
    """Measures from before the send to the answer of the receiver, which has the tensor then."""
    channel = _pair(peer, work, Role.PAIR, link.receive())
    channel.ready(1)
    tensor = channel.socket.context.empty(work.size, "uint8")
    tensor[:: 4 * KIB] = 1
    took = []
    clock = Clock()
    for _ in range(work.warmup + work.count):
        begin = perf_counter_ns()
        tracker = channel.socket.send_tensor(tensor)
        answer = channel.recv()
        took.append(perf_counter_ns() - begin)
        assert answer == b"here"
        tracker.wait(10)
    outcome = clock.stop()
    link.send("over")
    return {"took": took[work.warmup :], **outcome}


def measure_empty(work: Work, peer: str) -> Sample:
    _, sent = play(answering, sharing, peer, work)
    return {"median_us": median(sent[0]["took"]) / 1e3, "cpu_s": sent[0]["cpu"]}


# --- nothing to do ----------------------------------------------------------------------------------


def _resting(channel: Channel) -> Outcome:
    time.sleep(0.5)
    clock = Clock()
    time.sleep(IDLE_SECONDS)
    outcome = clock.stop()
    channel.close()
    return outcome


def idle_hub(peer: str, work: Work, links: list[Link]) -> Outcome:
    channel = peer_named(peer).open(Role.PULL, work)
    links[0].send(channel.address)
    channel.ready(1)
    length = len(channel.recv())
    assert length == work.size
    return _resting(channel)


def idle_spoke(peer: str, work: Work, link: Link) -> Outcome:
    channel = peer_named(peer).open(Role.PUSH, work, link.receive())
    channel.ready(1)
    channel.send(bytes(work.size))
    return _resting(channel)


def measure_idle(work: Work, peer: str) -> Sample:
    hub, spokes = play(idle_hub, idle_spoke, peer, work)
    cpu = hub["cpu"] + spokes[0]["cpu"]
    return {"percent": 100 * cpu / IDLE_SECONDS, "cpu_s": cpu}


# ------------------------------------------------------------------------------------------------------


def streams(quick: bool) -> list[Work]:
    less = 5 if quick else 1
    peers = (OURS, TCP)
    return [
        Work("local_push_pull", "64B", 64, 2_000_000 // less, 50_000, peers),
        Work("local_push_pull", "64KiB", 64 * KIB, 30_000 // less, 500, peers),
        Work("local_push_pull", "1MiB", MIB, 3_000 // less, 50, peers),
    ]


def tensor_works(quick: bool) -> list[Work]:
    less = 5 if quick else 1
    peers = (OURS, TCP, "numpy copy", "shared_memory")
    return [
        Work("local_tensors", "1MiB", MIB, 3_000 // less, 50, peers),
        Work("local_tensors", "64MiB", 64 * MIB, 40 // less, 4, peers),
    ]


def empty_works(quick: bool) -> list[Work]:
    count = 100 if quick else 300
    sizes = {"1MiB": MIB, "64MiB": 64 * MIB, "1GiB": 1024 * MIB, "4GiB": 4096 * MIB}
    return [Work("local_empty", label, size, count, 30, (OURS,)) for label, size in sizes.items()]


def idle_works(quick: bool) -> list[Work]:
    return [Work("local_idle", "", 100_000, 1, 0, (OURS,))]


def _of_bytes(_: Work) -> Metric:
    return GIGABYTES_PER_SECOND


def _of_time(_: Work) -> Metric:
    return MEDIAN_MICROSECONDS


def _of_share(_: Work) -> Metric:
    return SHARE


CASES = {
    "local_push_pull": Case("local_push_pull", "PUSH→PULL on one host", streams, measure_stream, by_size),
    "local_tensors": Case(
        "local_tensors", "tensors of ordinary memory on one host", tensor_works, measure_tensors, _of_bytes
    ),
    "local_empty": Case(
        "local_empty", "tensors of context.empty on one host", empty_works, measure_empty, _of_time
    ),
    "local_idle": Case("local_idle", "a connection on one host at rest", idle_works, measure_idle, _of_share),
}
