"""Two network namespaces joined by a link with a delay, made here and removed at the end.

It uses `tc netem` where the kernel has it; else a delay line: a process that carries packets from one TUN
device to another, each a little later.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import shutil
import struct
import subprocess
import time
from collections import deque
from multiprocessing.connection import Connection
from select import select
from types import TracebackType
from typing import Any, Self

from bench.work import PATIENCE, Failed, Skipped

#: from <linux/if_tun.h>: TUNSETIFF, and packets without a link layer or a leading header
TUNSETIFF = 0x400454CA
IFF_TUN_NO_PI = 0x1001
MTU = 65000
#: packets that a device holds for the delay line; more than any TCP window here
QUEUE = 5000


class DelayedLink:
    """A context manager. `names` are the two namespaces, `addresses` those of their ends.

    Raises Skipped without root, or when a tool or the kernel lacks a function.
    """

    addresses = ("10.201.7.1", "10.201.7.2")

    def __init__(self, delay_ms: float) -> None:
        self.names = (f"bench-a-{os.getpid()}", f"bench-b-{os.getpid()}")
        self.how = ""
        self._delay_ms = delay_ms
        self._line: Any = None

    def __enter__(self) -> Self:
        self._check()
        try:
            self._add_namespaces()
            try:
                self._with_netem()
                self.how = "netem"
            except Failed:
                self._with_delay_line()
                self.how = "delay line"
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def inside(self, end: int) -> tuple[str, ...]:
        """Returns the beginning of a command line that runs a command in that namespace."""
        return ("ip", "netns", "exec", self.names[end])

    def wait_for_listener(self, end: int, port: int) -> None:
        """Waits until a program listens on that port in that namespace."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            done = subprocess.run(
                [*self.inside(end), "cat", "/proc/net/tcp", "/proc/net/tcp6"],
                capture_output=True,
                text=True,
                check=False,
            )
            if any(f":{port:04X} " in line and " 0A " in line for line in done.stdout.splitlines()):
                return
            time.sleep(0.02)
        raise Failed(f"no program listens on port {port}")

    def _check(self) -> None:
        if os.geteuid() != 0:
            raise Skipped("network namespaces need root")
        for tool in ("ip", "tc"):
            if shutil.which(tool) is None:
                raise Skipped(f"the tool {tool} is missing (Debian: iproute2)")

    def _add_namespaces(self) -> None:
        try:
            for name in self.names:
                _run("ip", "netns", "add", name)
                _run("ip", "-n", name, "link")
        except Failed as error:  # a container without the privilege, a root that is no mount point
            raise Skipped(f"no network namespaces here: {error}") from error

    def _with_netem(self) -> None:
        ends = ("bench0", "bench1")
        _run("ip", "link", "add", ends[0], "netns", self.names[0], "type", "veth",
             "peer", "name", ends[1], "netns", self.names[1])  # fmt: skip
        try:
            for name, end, address in zip(self.names, ends, self.addresses, strict=True):
                _run("tc", "-n", name, "qdisc", "add", "dev", end, "root", "netem",
                     "delay", f"{self._delay_ms}ms", "limit", "100000")  # fmt: skip
                _run("ip", "-n", name, "addr", "add", f"{address}/30", "dev", end)
                _run("ip", "-n", name, "link", "set", end, "up")
        except Failed:
            _run("ip", "-n", self.names[0], "link", "del", ends[0])
            raise

    def _with_delay_line(self) -> None:
        if not os.path.exists("/dev/net/tun"):
            raise Skipped("the kernel has neither netem nor TUN")
        spawn = multiprocessing.get_context("spawn")
        here, there = spawn.Pipe()
        self._line = spawn.Process(
            target=run_delay_line, args=(there, self.names, self.addresses, self._delay_ms / 1e3), daemon=True
        )
        self._line.start()
        there.close()
        with here:
            try:
                up = here.poll(PATIENCE) and here.recv() == "up"
            except EOFError:
                up = False
        if not up:
            raise Skipped("the delay line did not start")

    def _remove(self) -> None:
        if self._line is not None:
            self._line.kill()
            self._line.join()
            self._line.close()
            self._line = None
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _run(*command: str) -> None:
    """Runs a tool. Raises Failed with its error output."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)}: {done.stderr.strip()}")


def run_delay_line(
    ready: Connection, names: tuple[str, str], addresses: tuple[str, str], delay: float
) -> None:
    """The main function of the delay line's process; it ends when it is killed."""
    tuns = [_open_tun(name, address) for name, address in zip(names, addresses, strict=True)]
    ready.send("up")
    carry(tuns[0], tuns[1], delay)


def _open_tun(namespace: str, address: str) -> int:
    """Opens a TUN device inside the namespace; its packets are read and written outside of it."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    device = f"bench{os.getpid() % 100000}{address[-1]}"
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN_NO_PI))
    _run("ip", "link", "set", device, "netns", namespace)
    _run("ip", "-n", namespace, "link", "set", device, "mtu", str(MTU), "txqueuelen", str(QUEUE), "up")
    _run("ip", "-n", namespace, "addr", "add", f"{address}/30", "dev", device)
    return descriptor


def carry(left: int, right: int, delay: float) -> None:
    """Moves packets both ways, each `delay` seconds after it was read."""
    waiting: dict[int, deque[tuple[float, bytes]]] = {left: deque(), right: deque()}
    other = {left: right, right: left}
    while True:
        now = time.monotonic()
        for source, queue in waiting.items():
            while queue and queue[0][0] <= now:
                os.write(other[source], queue.popleft()[1])
        heads = [queue[0][0] for queue in waiting.values() if queue]
        pause = max(0.0, min(heads) - time.monotonic()) if heads else None
        for source in select([left, right], [], [], pause)[0]:
            due = time.monotonic() + delay
            for packet in _packets(source):
                waiting[source].append((due, packet))


def _packets(source: int) -> list[bytes]:
    """Reads a few waiting packets, not all: the other direction must not starve."""
    found: list[bytes] = []
    try:
        while len(found) < 16:
            found.append(os.read(source, MTU + 64))
    except BlockingIOError:
        pass
    return found
