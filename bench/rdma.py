"""Compares the rdma transport with the layers below it, in one machine: `python -m bench.rdma`.

| case | ours | compared with |
|---|---|---|
| 64 bytes and back | two streams, asleep on their completion channels | bare pyverbs; ib_send_lat |
| 64 bytes, one way | as many as the high-water marks let, several to a buffer | ib_send_bw |
| 64 KiB to 16 MiB | announced from a registered region, or from the pool | bare READs; ib_read_bw |
| silence | the processor time of a connected end | |

In the virtual machine of `make test-rdma` the times are those of an emulator. The ratios are fair, and the
cases take turns, so that a busy host slows all of them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import select
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from transfer.transports import core
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import Broken
from transfer.transports.handshake.upgrade import Surroundings
from transfer.transports.rdma.device_selection import choose_route
from transfer.transports.rdma.domain import Domains
from transfer.transports.rdma.driver import Destination, load
from transfer.transports.rdma.memory import address_of
from transfer.transports.rdma.rendezvous import CHUNK, WINDOW
from transfer.transports.rdma.upgrade import VerbsUpgrade
from transfer.transports.reactor import READABLE, Reactor

Pipe = Any


# --- plain pyverbs: the calls of the transport's lowest layer, and nothing else -----------------------


class Bare:
    """One queue pair with a buffer, used directly through the driver's calls."""

    def __init__(self, link: Pipe, size: int) -> None:
        route = choose_route()
        self.device = load().open(route.device)
        route = route.seen_by(self.device)
        self.memory = bytearray(size)
        self.address = address_of(memoryview(self.memory))
        self.written = self.device.register(self.address, size, local_write=True, remote_read=True)
        self.queue = self.device.completion_queue(256)
        self.shared = self.device.shared_receive_queue(64)
        self.pair = self.device.queue_pair(self.queue, self.shared, 64)
        link.send((self.pair.number, route.gid, route.lid, self.address, self.written.rkey))
        number, gid, lid, self.remote, self.rkey = link.recv()
        self.pair.connect(
            Destination(number, gid, lid, 7, route.mtu, 16), port=route.port, gid_index=route.gid_index, psn=7
        )
        link.send("connected")
        link.recv()

    def close(self) -> None:
        self.pair.close()
        self.written.close()
        self.shared.close()
        self.queue.close()
        self.device.close()


def bare_round_trips(link: Pipe, count: int, first: bool) -> list[int]:
    bare = Bare(link, 1 << 16)
    buffers = [
        bare.shared.prepare(index, bare.address + 128 * index, 128, bare.written.lkey) for index in range(32)
    ]
    for buffer in buffers:
        bare.shared.post(buffer)
    link.send("posted")
    link.recv()
    queue, pair, shared = bare.queue, bare.pair, bare.shared
    poller = select.epoll()
    poller.register(queue.fd, select.EPOLLIN)
    queue.arm()
    out = bare.address + (1 << 15)

    def wait() -> None:
        while True:
            got = False
            for wr_id, status, _, _ in queue.poll(8):
                assert status == 0, status
                if wr_id < 1000:
                    shared.post(buffers[wr_id])
                    got = True
            if got:
                return
            poller.poll()
            queue.take_event()
            queue.arm()

    took = []
    for index in range(count):
        begin = time.perf_counter_ns()
        if first:
            pair.send(1000, out, 64, bare.written.lkey, index % 8 == 7)
        wait()
        if not first:
            pair.send(1000, out, 64, bare.written.lkey, index % 8 == 7)
        took.append(time.perf_counter_ns() - begin)
    link.send("over")
    link.recv()
    poller.close()
    bare.close()
    return took


def bare_reads(link: Pipe, size: int, count: int, first: bool) -> list[float]:
    """Returns bytes per second of READs, with the chunk and window of the transport."""
    bare = Bare(link, max(size, 1 << 16))
    speeds = []
    if first:
        chunks = [(at, min(CHUNK, size - at)) for at in range(0, size, CHUNK)] * count
        poller = select.epoll()
        poller.register(bare.queue.fd, select.EPOLLIN)
        bare.queue.arm()
        begin = time.perf_counter()
        under_way = done = asked = 0
        while done < len(chunks):
            while asked < len(chunks) and under_way < WINDOW:
                at, length = chunks[asked]
                bare.pair.read(1, bare.address + at, length, bare.written.lkey, bare.remote + at, bare.rkey)
                asked += 1
                under_way += 1
            found = bare.queue.poll(16)
            for one in found:
                assert one.status == 0
            done += len(found)
            under_way -= len(found)
            if not found:
                poller.poll()
                bare.queue.take_event()
                bare.queue.arm()
        speeds.append(size * count / (time.perf_counter() - begin))
        poller.close()
    link.send("over")
    link.recv()
    bare.close()
    return speeds


# --- ours --------------------------------------------------------------------------------------------


class End:
    """One stream of `transfer`, with a reactor as in a context."""

    def __init__(self, link: Pipe, connection: Any, connecting: bool) -> None:
        from transfer.transports.handshake.choice import Choice
        from transfer.transports.handshake.hello import Agreement, Hello

        self.reactor, self.flusher, self.pool = Reactor(), core.Flusher(), core.Pool()
        self.domains = Domains(core.copy_into)
        self.around = Surroundings(
            core, self.reactor, self.flusher, self.pool, SocketType.PAIR,
            max_message=1 << 34, send_high_water=1000, send_high_water_bytes=1 << 30,
            shared={"rdma.domains": self.domains},
        )  # fmt: skip
        agreement = Agreement(1, frozenset(), Hello(SocketType.PAIR), Choice("rdma", ""))
        upgrade = VerbsUpgrade(self.around, agreement, connecting=connecting)
        if connecting:
            link.send(upgrade.accept(link.recv()))
        else:
            link.send(upgrade.offer())
            upgrade.finish(link.recv())
        self.stream = upgrade.made(connection.detach()).stream
        self.reactor.register(self.stream.fd, READABLE, self._on_control)
        self.poller = select.epoll()
        self.poller.register(self.stream.wait_fds[0], select.EPOLLIN)

    def _on_control(self, events: int) -> None:
        try:
            self.stream.beside_ready()
        except Broken:
            self.reactor.unregister(self.stream.fd)

    def receive(self) -> Any:
        while (message := self.stream.receive()) is None:
            self.poller.poll()
        return message

    def close(self) -> None:
        self.poller.close()
        self.reactor.unregister(self.stream.fd)
        self.stream.close()
        for kept in self.around.own.values():
            kept.close()
        self.domains.close()
        self.reactor.close()
        self.flusher.close()
        self.pool.close()


def our_round_trips(link: Pipe, count: int, first: bool, connection: Any) -> list[int]:
    end = End(link, connection, first)
    message = [(0, 0, None, None, bytes(64))]
    send, receive = end.stream.send, end.receive
    took = []
    for _ in range(count):
        begin = time.perf_counter_ns()
        if first:
            send(message)
        receive()
        if not first:
            send(message)
        took.append(time.perf_counter_ns() - begin)
    link.send("over")
    link.recv()
    end.close()
    return took


def our_messages(link: Pipe, count: int, first: bool, connection: Any) -> list[float]:
    """Returns messages of 64 bytes per second, one way, until the receiver has the last one."""
    end = End(link, connection, first)
    message = [(0, 0, None, None, bytes(64))]
    speeds = []
    link.recv() if first else link.send("begin")
    begin = time.perf_counter()
    for _ in range(count):
        if not first:
            end.receive()
            continue
        while not end.stream.send(message):
            time.sleep(0.001)
    if first:
        link.recv()
        speeds.append(count / (time.perf_counter() - begin))
    else:
        link.send("over")
    end.close()
    return speeds


def our_payloads(
    link: Pipe, size: int, count: int, pooled: bool, first: bool, connection: Any
) -> list[tuple[float, int]]:
    """Returns bytes per second, from the first announcement until the receiver has the last message, and how
    often either side registered memory meanwhile. pooled: from memory that the transport registered, a slab
    of its pool; else from the user's memory, registered before."""
    end = End(link, connection, first)
    domain = end.domains.get()
    speeds = []
    if first:
        block = domain.staging.take(size)
        data = block.view if pooled else bytearray(size)
        region = end.domains.register(data)
        for messages in (2, count):  # the first two make the receiver register its slabs
            link.recv()
            calls = counted(domain.device)
            for _ in range(messages):
                end.stream.send([(0, 0, None, None, data)], hold=True)
        link.recv()
        link.send(len(calls))
        region.close()
        domain.staging.give_back(block)
    else:
        link.send("begin")
        end.receive()
        end.receive()
        calls = counted(domain.device)
        begin = time.perf_counter()
        link.send("begin")
        for _ in range(count):
            end.receive()
        took = time.perf_counter() - begin
        link.send("over")
        speeds.append((size * count / took, len(calls) + link.recv()))
    end.close()
    return speeds


def counted(device: Any) -> list[int]:
    """Returns a list that gets one entry for each registration of memory from now on."""
    calls: list[int] = []
    register = type(device).register

    def noted(address: int, length: int, **rights: bool) -> Any:
        calls.append(length)
        return register(device, address, length, **rights)

    device.register = noted
    return calls


def our_idleness(link: Pipe, seconds: float, first: bool, connection: Any) -> list[float]:
    """Returns the share of a core that a connected, idle end takes."""
    end = End(link, connection, first)
    link.send("there")
    link.recv()
    time.sleep(0.5)
    before, begin = time.process_time(), time.perf_counter()
    time.sleep(seconds)
    share = (time.process_time() - before) / (time.perf_counter() - begin)
    link.send("over")
    link.recv()
    end.close()
    return [share]


# --- two processes -------------------------------------------------------------------------------------


def play(work: Callable[..., Any], *arguments: Any, tcp: bool = False) -> Any:
    """Runs both sides in separate processes; returns the result of the side that has one."""
    context = multiprocessing.get_context("fork")  # before any verbs object exists
    one, other = context.Pipe()
    connections: tuple[Any, Any] = (None, None)
    if tcp:
        from tests.rdma.ends import tcp_pair

        connections = tcp_pair()
    results = context.SimpleQueue()

    def side(link: Pipe, first: bool) -> None:
        extra = (connections[0 if first else 1],) if tcp else ()
        results.put((first, work(link, *arguments, first, *extra)))

    processes = [
        context.Process(target=side, args=(link, first)) for link, first in ((one, True), (other, False))
    ]
    for process in processes:
        process.start()
    for connection in connections:
        if connection is not None:
            connection.close()
    outcomes = dict(results.get() for _ in processes)
    for process in processes:
        process.join(60)
    one.close()
    other.close()
    return outcomes[True] or outcomes[False]


def perftest(*command: str) -> str:
    """Runs a pair of perftest's programs on this device; returns the last line of figures, or ""."""
    if not shutil.which(command[0]):
        return ""
    route = choose_route()
    words = [*command, "-d", route.device, "-x", str(route.gid_index), "-F"]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(1.5)
        ran = subprocess.run([*words, "127.0.0.1"], capture_output=True, text=True, timeout=300, check=False)
    finally:
        server.wait(30)
    lines = [line for line in ran.stdout.splitlines() if re.match(r"^\s*\d+\s+\d+\s", line)]
    return lines[-1] if lines else ""


def median_us(took: list[int]) -> float:
    return statistics.median(took) / 1e3


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.rdma", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=3, help="times that the cases take turns")
    parser.add_argument("--count", type=int, default=500, help="round trips of a run")
    parser.add_argument("--sizes", type=int, nargs="*", default=[64 << 10, 1 << 20, 16 << 20])
    parser.add_argument("--bytes", type=int, default=32 << 20, help="bytes of one bandwidth run")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds of silence")
    asked = parser.parse_args()
    report: dict[str, Any] = {"cpus": os.cpu_count(), "round_trip_us": {}, "bytes_per_s": {}}
    bare, ours, lat = [], [], []
    for _ in range(asked.rounds):
        bare.append(median_us(play(bare_round_trips, asked.count)))
        ours.append(median_us(play(our_round_trips, asked.count, tcp=True)))
        line = perftest("ib_send_lat", "-e", "-s", "64", "-n", str(asked.count)).split()
        lat.append(2 * float(line[4]) if len(line) > 4 else float("nan"))
        print(
            f"round trip: bare {bare[-1]:.0f} µs, ours {ours[-1]:.0f} µs, ib_send_lat -e {lat[-1]:.0f} µs",
            flush=True,
        )
    report["round_trip_us"] = {"bare": bare, "ours": ours, "ib_send_lat": lat, "ratio": min(ours) / min(bare)}
    report["idle_share_of_a_core"] = play(our_idleness, asked.idle, tcp=True)[0]
    print(f"idle: {report['idle_share_of_a_core']:.2%} of a core", flush=True)
    report["messages_per_s"] = {"ours": [], "ib_send_bw": []}
    for _ in range(asked.rounds):
        rate = play(our_messages, 10 * asked.count, tcp=True)[0]
        line = perftest("ib_send_bw", "-s", "64", "-n", str(10 * asked.count)).split()
        perftest_rate = 1e6 * float(line[4]) if len(line) > 4 else float("nan")
        report["messages_per_s"]["ours"].append(rate)
        report["messages_per_s"]["ib_send_bw"].append(perftest_rate)
        print(f"64 B one way: ours {rate:.0f} messages/s, ib_send_bw {perftest_rate:.0f}", flush=True)
    registrations: dict[tuple[str, int], int] = {}
    for size in asked.sizes:
        count = max(2, asked.bytes // size)
        speeds: dict[str, list[float]] = {"bare": [], "ours": [], "pooled": [], "ib_read_bw": []}
        for _ in range(asked.rounds):
            speeds["bare"] += play(bare_reads, size, count)
            for name, pooled in (("ours", False), ("pooled", True)):
                for speed, calls in play(our_payloads, size, count, pooled, tcp=True):
                    speeds[name].append(speed)
                    registrations[name, size] = max(calls, registrations.get((name, size), 0))
            chunk = min(size, CHUNK)
            reads = str(max(8 * WINDOW, count * size // chunk))
            line = perftest("ib_read_bw", "-s", str(chunk), "-n", reads, "-t", str(WINDOW)).split()
            speeds["ib_read_bw"].append(float(line[3]) * (1 << 20) if len(line) > 3 else float("nan"))
            print(
                f"{size >> 10} KiB: " + ", ".join(f"{k} {v[-1] / 1e6:.1f} MB/s" for k, v in speeds.items()),
                flush=True,
            )
        report["bytes_per_s"][size] = {**speeds, "ratio": max(speeds["ours"]) / max(speeds["ib_read_bw"])}
    report["registrations"] = {f"{name} {size}": calls for (name, size), calls in registrations.items()}
    print("registrations while measuring:", sum(registrations.values()))
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
