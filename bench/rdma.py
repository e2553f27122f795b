"""Compares the rdma transport with perftest's programs, in one machine: `python -m bench.rdma`.

| case | ours | compared with |
|---|---|---|
| 64 bytes and back | two streams, asleep on their completion channels, or spinning | ib_send_lat (-e) |
| 64 bytes, one way | PUSH to PULL, several messages to a WRITE | ib_send_bw |
| 64 KiB to 16 MiB | through the ring, or READ from a registered region, or from the pool | ib_read_bw |
| 300 tensors, a model's layers | a dict of them by sockets | one payload of their size |
| silence | the processor time of a connected end | |

In the virtual machine of `make test-rdma` the times are those of an emulator: the ratios are fair, and the
cases take turns, so that a busy host slows all of them. On the null provider there is no perftest, and what
is measured is what our code costs: `python -m tests.rdma.null_provider -m bench.rdma`.
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

import transfer
from transfer.transports import core
from transfer.transports.core.wire import SocketType
from transfer.transports.handshake.choice import Choice
from transfer.transports.handshake.hello import Agreement, Hello
from transfer.transports.handshake.upgrade import Surroundings
from transfer.transports.rdma.device_selection import choose_route
from transfer.transports.rdma.domain import Domains
from transfer.transports.rdma.upgrade import VerbsUpgrade
from transfer.transports.reactor import Reactor
from transfer.transports.sizes import VERY_LARGE

#: of a READ, in bytes, and how many are posted at once: see ring_requests.pxd
CHUNK, READS = 1 << 20, 16
Pipe = Any


# --- ours --------------------------------------------------------------------------------------------


class End:
    """One stream of `transfer`, with a reactor as in a context."""

    def __init__(self, link: Pipe, connection: Any, connecting: bool) -> None:
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
        made = upgrade.made(connection.detach())
        self.stream: Any = core.Stream(
            made.fd, SocketType.PAIR, self.flusher, self.pool, channel=made.channel, max_message=1 << 34,
            send_high_water=1000, send_high_water_bytes=1 << 30,
        )  # fmt: skip
        self.stream.carrier = made.carrier
        self.poller = select.epoll()
        self.poller.register(self.stream.fileno(), select.EPOLLIN)

    def receive(self, spin: bool = False) -> Any:
        while (message := self.stream.receive()) is None:
            if not spin:
                self.poller.poll()
        return message

    def send(self, message: Any, **options: Any) -> None:
        while not self.stream.send(message, **options):
            self.stream.flush()
            time.sleep(0.0002)

    def close(self) -> None:
        self.poller.close()
        self.stream.close()
        self.domains.close()
        self.reactor.close()
        self.flusher.close()
        self.pool.close()


def our_round_trips(link: Pipe, count: int, spin: bool, first: bool, connection: Any) -> list[int]:
    end = End(link, connection, first)
    message = [(0, 0, None, None, bytes(64))]
    send = end.stream.send

    def receive() -> None:
        end.receive(spin)

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


def our_messages(link: Pipe, count: int, first: bool, _connection: Any) -> list[float]:
    """Returns messages of 64 bytes per second from a PUSH to a PULL, until the last one has come."""
    message = bytes(64)
    with transfer.Context(protocol="rdma", policy="require") as context:
        with context.socket(transfer.PUSH if first else transfer.PULL) as socket:
            if first:
                socket.connect(link.recv())
                socket.wait_for_peers(1)
                link.recv()
                begin = time.perf_counter()
                for _ in range(count):
                    socket.send(message)
                link.recv()
                return [count / (time.perf_counter() - begin)]
            socket.bind("tcp://127.0.0.1:0")
            link.send(socket.last_endpoint)
            socket.wait_for_peers(1)
            link.send("begin")
            for _ in range(count):
                socket.recv()
            link.send("over")
            return []


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
                end.send([(0, 0, None, None, data)], hold=True)
        link.recv()
        while not end.stream.flush():
            time.sleep(0.001)
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


def layers(width: int = 256) -> dict[str, Any]:
    """300 tensors of float32 with the shapes of a transformer's layers: 76 MB at the default width."""
    import numpy

    shapes = {"qkv": (3, width), "out": (width,), "up": (4, width), "down": (width, 4)}
    tensors = {}
    for number in range(25):
        for name, shape in shapes.items():
            tensors[f"{number}.{name}.weight"] = numpy.ones((*shape, width), "f4")
            tensors[f"{number}.{name}.bias"] = numpy.ones(width, "f4")
        for name in ("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"):
            tensors[f"{number}.{name}"] = numpy.ones(width, "f4")
    return tensors


def our_models(
    link: Pipe, count: int, width: int, whole: bool, registered: bool, first: bool, _connection: Any
) -> list[float]:
    """Returns bytes per second of models from a PUSH to a PULL. whole: each is one tensor of their size."""
    import numpy

    model = layers(width)
    size = sum(tensor.nbytes for tensor in model.values())
    if whole:
        model = {"whole": numpy.ones(size // 4, "f4")}
    with transfer.Context(protocol="rdma", policy="require") as context:
        with context.socket(transfer.PUSH if first else transfer.PULL) as socket:
            if not first:
                socket.bind("tcp://127.0.0.1:0")
                link.send(socket.last_endpoint)
                for _ in range(count + 1):
                    socket.recv_tensors()
                    link.send("came")
                return []
            registers = [one for one in model.values() if registered and one.nbytes >= VERY_LARGE]
            regions = [context.register(one) for one in registers]
            socket.connect(link.recv())
            begin = 0.0
            for _ in range(count + 1):
                socket.send_tensors(model, copy=False)
                link.recv()
                begin = begin or time.perf_counter()  # the first makes the receiver register its slabs
            took = time.perf_counter() - begin
            for region in regions:
                region.close()
            return [size * count / took]


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


def play(work: Callable[..., Any], *arguments: Any) -> Any:
    """Runs both sides in separate processes; returns the result of the side that has one."""
    from tests.rdma.ends import tcp_pair

    context = multiprocessing.get_context("fork")  # before any verbs object exists
    one, other = context.Pipe()
    connections = tcp_pair()
    results = context.SimpleQueue()

    def side(link: Pipe, first: bool) -> None:
        results.put((first, work(link, *arguments, first, connections[0 if first else 1])))

    processes = [
        context.Process(target=side, args=(link, first)) for link, first in ((one, True), (other, False))
    ]
    for process in processes:
        process.start()
    for connection in connections:
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
        ran = subprocess.run([*words, "127.0.0.1"], capture_output=True, text=True, timeout=100, check=False)
        server.wait(30)
    except subprocess.TimeoutExpired:  # two that spin on an emulated processor may never meet
        return ""
    finally:
        server.kill()
        server.wait(30)
    lines = [line for line in ran.stdout.splitlines() if re.match(r"^\s*\d+\s+\d+\s", line)]
    return lines[-1] if lines else ""


def median_us(took: list[int]) -> float:
    return statistics.median(took) / 1e3


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.rdma", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=3, help="times that the cases take turns")
    parser.add_argument("--count", type=int, default=500, help="round trips of a run")
    parser.add_argument("--messages", type=int, default=50_000, help="messages of a run one way")
    parser.add_argument("--sizes", type=int, nargs="*", default=[64 << 10, 1 << 20, 16 << 20])
    parser.add_argument("--bytes", type=int, default=32 << 20, help="bytes of one bandwidth run")
    parser.add_argument("--models", type=int, default=5, help="dicts of 300 tensors of a run")
    parser.add_argument("--width", type=int, default=256, help="of the layers in them")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds of silence")
    asked = parser.parse_args()
    report: dict[str, Any] = {"cpus": os.cpu_count(), "round_trip_us": {}, "bytes_per_s": {}}
    for spin, words in ((False, ["-e"]), (True, [])):
        ours, lat = [], []
        name = "spinning" if spin else "asleep"
        for _ in range(asked.rounds):
            ours.append(median_us(play(our_round_trips, asked.count, spin)))
            line = perftest("ib_send_lat", *words, "-s", "64", "-n", str(asked.count)).split()
            lat.append(2 * float(line[4]) if len(line) > 4 else float("nan"))
            print(f"round trip, {name}: ours {ours[-1]:.1f} µs, ib_send_lat × 2 {lat[-1]:.1f} µs", flush=True)
        report["round_trip_us"][name] = {"ours": ours, "ib_send_lat": lat, "ratio": min(ours) / min(lat)}
    report["idle_share_of_a_core"] = play(our_idleness, asked.idle)[0]
    print(f"idle: {report['idle_share_of_a_core']:.3%} of a core", flush=True)
    rates: dict[str, list[float]] = {"ours": [], "ib_send_bw": []}
    for _ in range(asked.rounds):
        rates["ours"].append(play(our_messages, asked.messages)[0])
        line = perftest("ib_send_bw", "-s", "64", "-n", str(10 * asked.count)).split()
        rates["ib_send_bw"].append(1e6 * float(line[4]) if len(line) > 4 else float("nan"))
        print(
            "64 B one way: " + ", ".join(f"{k} {v[-1]:.0f} messages/s" for k, v in rates.items()), flush=True
        )
    report["messages_per_s"] = rates
    registrations: dict[tuple[str, int], int] = {}
    for size in asked.sizes:
        count = max(2, asked.bytes // size)
        speeds: dict[str, list[float]] = {"ours": [], "pooled": [], "ib_read_bw": []}
        for _ in range(asked.rounds):
            for name, pooled in (("ours", False), ("pooled", True))[: 1 if size < VERY_LARGE else 2]:
                for speed, calls in play(our_payloads, size, count, pooled):
                    speeds[name].append(speed)
                    registrations[name, size] = max(calls, registrations.get((name, size), 0))
            chunk = min(size, CHUNK)
            reads = str(max(4 * READS, count * size // chunk))
            line = perftest("ib_read_bw", "-s", str(chunk), "-n", reads, "-t", str(READS)).split()
            speeds["ib_read_bw"].append(float(line[3]) * (1 << 20) if len(line) > 3 else float("nan"))
            shown = (f"{k} {v[-1] / 1e6:.1f} MB/s" for k, v in speeds.items() if v)
            print(f"{size >> 10} KiB: " + ", ".join(shown), flush=True)
        report["bytes_per_s"][size] = {**speeds, "ratio": max(speeds["ours"]) / max(speeds["ib_read_bw"])}
    report["models"] = {}
    for registered in (True, False):
        models: dict[str, list[float]] = {"dict": [], "whole": []}
        for _ in range(asked.rounds):
            for name, whole in (("dict", False), ("whole", True)):
                models[name] += play(our_models, asked.models, asked.width, whole, registered)
        name = "registered" if registered else "not registered"
        ratios = [one / other for one, other in zip(models["dict"], models["whole"], strict=True)]
        shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        shown += "; " + ", ".join(f"{k} {max(v) / 1e9:.2f} GB/s" for k, v in models.items())
        print(f"300 tensors, {name}, ÷ one payload: {shown}", flush=True)
        report["models"][name] = {**models, "ratios": ratios}
    report["registrations"] = {f"{name} {size}": calls for (name, size), calls in registrations.items()}
    print("registrations while measuring:", sum(registrations.values()))
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
