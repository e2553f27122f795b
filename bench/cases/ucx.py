"""UCX over TCP: the ucx transport, ucxx by asyncio, ucxx by its lowest loop, and ucx_perftest."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from bench.cases.roundtrip import TAIL, echo, latencies, round_trips
from bench.cases.timing import expect, receiving_side, sending_side, throughput
from bench.peers import Channel, Role, peer_named
from bench.peers.ucxx import by_asyncio
from bench.scene import Clock, Link, Outcome, play
from bench.work import KIB, MEDIAN_MICROSECONDS, MIB, PATIENCE, Case, Failed, Metric, Sample, Skipped, Work

PEERS = ("transfer-ucx", "ucxx", "ucxx-low", "ucx_perftest")


# --- one way --------------------------------------------------------------------------------------


def receiver(peer: str, work: Work, links: list[Link]) -> Outcome:
    link = links[0]
    if peer == "ucxx":
        return _asyncio(Role.PULL, work, link, _receiving)
    return receiving_side(_open(peer, Role.PULL, work, link, binds=True), work, link)


def sender(peer: str, work: Work, link: Link) -> Outcome:
    if peer == "ucxx":
        return _asyncio(Role.PUSH, work, link, _sending)
    channel = _open(peer, Role.PUSH, work, link, binds=False)
    if peer == "transfer-ucx":
        return sending_side(channel, work, bytes(work.size), link)
    return _flushed(channel, work, link)


def _open(peer: str, role: Role, work: Work, link: Link, *, binds: bool) -> Channel:
    """Opens an end and waits for its peer."""
    found = peer_named(peer)
    if peer == "transfer-ucx":
        channel = found.open(role, work, "" if binds else link.receive())
        if binds:
            link.send(channel.address)
    else:
        channel = found.open(role, work)
        link.send(channel.address)
        channel.socket(link.receive())
    channel.ready(1)
    return channel


def _flushed(channel: Channel, work: Work, link: Link) -> Outcome:
    """As `sending_side`, for a send whose last requests must be finished before it waits for the pipe."""
    send: Any = channel.send
    payload = bytes(work.size)
    for count, word in ((work.warmup, "warm"), (work.count, "done")):
        clock = Clock()
        for _ in range(count):
            send(payload)
        send.flush()
        expect(link, word)
        outcome = clock.stop()
    link.send("over")
    return outcome


def _asyncio(role: Role, work: Work, link: Link, part: Any) -> Outcome:
    async def run() -> Outcome:
        outcome = by_asyncio(role, work, link.send, link.receive, lambda *calls: part(work, link, *calls))
        return await asyncio.wait_for(outcome, 2 * PATIENCE)

    return asyncio.run(run())


async def _wait_for(link: Link, word: str) -> None:
    await asyncio.get_running_loop().run_in_executor(None, expect, link, word)


async def _receiving(work: Work, link: Link, send: Any, recv: Any) -> Outcome:
    for _ in range(work.warmup):
        await recv()
    clock = Clock()
    link.send("warm")
    for _ in range(work.count):
        message = await recv()
    if len(message) != work.size:
        raise Failed(f"a message of {len(message)} bytes")
    link.send("done")
    outcome = clock.stop()
    await _wait_for(link, "over")
    return {"received": work.count, "bytes": work.count * work.size, **outcome}


async def _sending(work: Work, link: Link, send: Any, recv: Any) -> Outcome:
    payload = bytes(work.size)
    for count, word in ((work.warmup, "warm"), (work.count, "done")):
        clock = Clock()
        for _ in range(count):
            await send(payload)
        await _wait_for(link, word)
        outcome = clock.stop()
    link.send("over")
    return outcome


def measure_stream(work: Work, peer: str) -> Sample:
    if peer == "ucx_perftest":
        return _perftest(work, "tag_bw")
    received, sent = play(receiver, sender, peer, work)
    return throughput(work, sent[0], [received])


# --- there and back -------------------------------------------------------------------------------


def replier(peer: str, work: Work, links: list[Link]) -> Outcome:
    link = links[0]
    if peer == "ucxx":
        return _asyncio(Role.REP, work, link, _replying)
    channel = _open(peer, Role.REP, work, link, binds=True)
    echo(channel.recv, channel.send, work.warmup)
    clock = Clock()
    echo(channel.recv, channel.send, work.count)
    outcome = clock.stop()
    if peer != "transfer-ucx":
        channel.send.flush()  # type: ignore[attr-defined]
    expect(link, "over")
    return outcome


def requester(peer: str, work: Work, link: Link) -> Outcome:
    if peer == "ucxx":
        return _asyncio(Role.REQ, work, link, _asking)
    channel = _open(peer, Role.REQ, work, link, binds=False)
    payload = bytes(work.size)
    round_trips(channel.send, channel.recv, payload, work.warmup)
    clock = Clock()
    took = round_trips(channel.send, channel.recv, payload, work.count)
    outcome = clock.stop()
    link.send("over")
    return {"took": took, **outcome}


async def _replying(work: Work, link: Link, send: Any, recv: Any) -> Outcome:
    clock = Clock()
    for _ in range(work.warmup + work.count):
        await send(await recv())
    outcome = clock.stop()
    await _wait_for(link, "over")
    return outcome


async def _asking(work: Work, link: Link, send: Any, recv: Any) -> Outcome:
    payload = bytes(work.size)
    took = []
    clock = Clock()
    for _ in range(work.warmup + work.count):
        begin = perf_counter_ns()
        await send(payload)
        await recv()
        took.append(perf_counter_ns() - begin)
    outcome = clock.stop()
    link.send("over")
    return {"took": took[work.warmup :], **outcome}


def measure_round_trip(work: Work, peer: str) -> Sample:
    if peer == "ucx_perftest":
        return _perftest(work, "tag_lat")
    replied, asked = play(replier, requester, peer, work)
    cpu = replied["cpu"] + asked[0]["cpu"]
    return {**latencies(asked[0]["took"]), "cpu_s": cpu, "cpu_s_per_m": cpu / work.count * 1e6}


# --- ucx_perftest ---------------------------------------------------------------------------------


def _perftest(work: Work, test: str) -> Sample:
    """Runs the program of ucxx's UCX. It polls without sleeping: its CPU is that of two cores."""
    try:
        import libucx
    except ImportError as error:
        raise Skipped("the wheel of UCX is not installed") from error
    root = Path(libucx.__file__).parent
    environ = {**os.environ, "UCX_TLS": work.params.get("tls", "tcp"), "UCX_WARN_UNUSED_ENV_VARS": "n"}
    environ["LD_LIBRARY_PATH"] = str(root / "lib")
    port = str(20_000 + os.getpid() % 20_000)
    command = [str(root / "bin" / "ucx_perftest"), "-p", port, "-f"]
    asks = ["-t", test, "-s", str(work.size), "-n", str(work.count), "-w", str(work.warmup)]
    server = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(50):
            client = subprocess.run(
                [*command, "127.0.0.1", *asks],
                check=False, env=environ, capture_output=True, text=True, timeout=PATIENCE,
            )  # fmt: skip
            if client.returncode == 0:
                return _read_perftest(client.stdout, test)
            if server.poll() is not None:
                break
        raise Failed(f"ucx_perftest: {(client.stderr or client.stdout).strip()[-200:]}")
    finally:
        server.kill()
        server.wait()


def _read_perftest(text: str, test: str) -> Sample:
    """Parses its last line: count, percentile, average and overall µs, the same in MB/s, messages/s."""
    words = text.strip().splitlines()[-1].replace("[", " ").replace("]", " ").split()
    values = [float(word) for word in words if word.replace(".", "", 1).isdigit()]
    if test == "tag_lat":  # half a round trip
        return {"median_us": 2 * values[1], "cpu_s": 0.0}
    return {"msg_s": values[-1], "gb_s": values[-3] * MIB / 1e9, "cpu_s": 0.0}


def streams(quick: bool) -> list[Work]:
    less = 5 if quick else 1
    return [
        Work("ucx_push_pull", "64B", 64, 100_000 // less, 1_000, PEERS),
        Work("ucx_push_pull", "64KiB", 64 * KIB, 5_000 // less, 50, PEERS),
        Work("ucx_push_pull", "1MiB", MIB, 1_000 // less, 20, PEERS),
    ]


def round_trip_works(quick: bool) -> list[Work]:
    return [Work("ucx_req_rep", "64B", 64, 2_000 if quick else 10_000, 200, PEERS)]


def metric(_: Work) -> Metric:
    return MEDIAN_MICROSECONDS


CASES = {
    "ucx_push_pull": Case("ucx_push_pull", "PUSH→PULL by UCX over TCP", streams, measure_stream),
    "ucx_req_rep": Case(
        "ucx_req_rep", "REQ/REP by UCX over TCP", round_trip_works, measure_round_trip, metric, TAIL
    ),
}
