"""Small round trips while a stream of large messages runs between the same two processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from bench.cases.roundtrip import echo, latencies, round_trips
from bench.cases.timing import expect
from bench.peers import Channel, Role, peer_named
from bench.scene import Clock, Link, Outcome, play
from bench.work import MIB, PATIENCE, Case, Failed, Metric, Sample, Work

STREAM_SIZE = 64 * MIB


def _stream_work(work: Work) -> Work:
    """The stream's queues hold two messages: it must be able to stop soon."""
    return replace(work, size=STREAM_SIZE, params={**work.params, "high_water": 2})


def server(peer: str, work: Work, links: list[Link]) -> Outcome:
    """REP, and a thread that pulls the stream and drops it."""
    library = peer_named(peer)
    reply = library.open(Role.REP, work)
    pull = library.open(Role.PULL, _stream_work(work))
    links[0].send((reply.address, pull.address))
    reply.ready(1)
    pull.ready(1)
    received = [0]
    stopped = threading.Event()
    thread = threading.Thread(target=_drain, args=(pull, received, stopped), daemon=True)
    thread.start()
    clock = Clock()
    links[0].send("warm")
    echo(reply.recv, reply.send, work.warmup + 2 * work.count)
    stopped.set()
    expect(links[0], "over")
    return {"streamed": received[0], **clock.stop()}


def _drain(pull: Channel, received: list[int], stopped: threading.Event) -> None:
    recv = pull.recv
    while not stopped.is_set():
        recv()
        received[0] += 1


def client(peer: str, work: Work, link: Link) -> Outcome:
    """REQ: idle round trips first, then the same number while the stream runs."""
    library = peer_named(peer)
    reply_address, pull_address = link.receive()
    request = library.open(Role.REQ, work, reply_address)
    push = library.open(Role.PUSH, _stream_work(work), pull_address)
    request.ready(1)
    push.ready(1)
    expect(link, "warm")
    payload = bytes(work.size)
    round_trips(request.send, request.recv, payload, work.warmup)
    idle = round_trips(request.send, request.recv, payload, work.count)
    with _stream(push) as sent:
        clock = Clock()
        busy = round_trips(request.send, request.recv, payload, work.count)
        outcome = clock.stop()
        streamed = sent[0]
    link.send("over")
    return {"idle": idle, "busy": busy, "streamed": streamed, **outcome}


@contextmanager
def _stream(push: Channel) -> Iterator[list[int]]:
    """A thread that sends large messages; returns when the second one was taken."""
    stop = threading.Event()
    begun = threading.Event()
    sent = [0]
    payload = bytes(STREAM_SIZE)

    def run() -> None:
        while not stop.is_set():
            push.send(payload)
            sent[0] += 1
            if sent[0] == 2:
                begun.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    if not begun.wait(PATIENCE):
        raise Failed("the stream did not start")
    try:
        yield sent
    finally:
        # the receiver may be gone already: the thread ends with the process
        stop.set()


def measure(work: Work, peer: str) -> Sample:
    _, asked = play(server, client, peer, work)
    idle, busy = latencies(asked[0]["idle"]), latencies(asked[0]["busy"])
    return {
        "median_us": busy["median_us"],
        "p99_us": busy["p99_us"],
        "p999_us": busy["p999_us"],
        "idle_p999_us": idle["p999_us"],
        "slowdown": busy["p999_us"] / idle["p999_us"],
        "stream_gb_s": asked[0]["streamed"] * STREAM_SIZE / asked[0]["seconds"] / 1e9,
        "seconds": asked[0]["seconds"],
    }


ALSO = (
    Metric("p999_us", "µs p99.9", False),
    Metric("idle_p999_us", "µs idle", False),
    Metric("stream_gb_s", "GB/s stream", True),
)


def metric(_: Work) -> Metric:
    return Metric("slowdown", "× idle p99.9", False)


def works(quick: bool) -> list[Work]:
    count = 1_000 if quick else 3_000
    return [Work("req_rep_under_load", "64B", 64, count, 300, ("transfer", "pyzmq"))]


CASES = {
    "req_rep_under_load": Case(
        "req_rep_under_load", "REQ/REP p99.9 during a stream of 64 MiB", works, measure, metric, ALSO
    )
}
