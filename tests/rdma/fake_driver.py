"""A driver without a device: it stands for the seam, so that the logic above it runs in every test.

It moves bytes between queue pairs of this process at once, checks keys, bounds and rights as a device
does, and breaks a queue pair as a device does. Real verbs are tested in the virtual machine
(`make test-rdma`), by the same tests where they apply.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from collections import deque
from typing import Any

from transfer.transports.errors import Broken, DeviceError, RegistrationError
from transfer.transports.rdma.device_selection import DeviceRoute
from transfer.transports.rdma.driver import (
    Completion,
    CompletionQueue,
    Destination,
    DeviceHandle,
    DeviceLimits,
    Driver,
    MemoryRegion,
    PortState,
    QueuePair,
    SharedReceiveQueue,
)

ROUTE = DeviceRoute("fake0", 1, 1, "::ffff:10.77.0.1", 4096)
LIMITS = DeviceLimits(
    queue_pairs=1024, completions=32767, requests=1024, shared_requests=32767, regions=1000, reads=16
)
RNR, ACCESS, FLUSHED, NO_ANSWER = 13, 10, 5, 12


class FakeDriver(Driver):
    """One machine. `pairs` and `regions` are what a test looks at; `down` makes nobody answer."""

    name, version = "fake", "1"

    def __init__(self) -> None:
        self.pairs: dict[int, FakePair] = {}
        self.regions: dict[int, FakeRegion] = {}
        self.keys = itertools.count(1000)
        self.numbers = itertools.count(17)
        self.order: list[str] = []  # what was closed, in order
        self.refuses: RegistrationError | None = None
        self.registered = 0
        self.down = False
        self.posted_out = 0  # sends that found no receive buffer
        #: READs wait here while it is a list, and run when `resume` is called
        self.held_reads: list[Any] | None = None

    def devices(self) -> list[str]:
        return [ROUTE.device]

    def open(self, device: str) -> DeviceHandle:
        if device != ROUTE.device:
            raise DeviceError("no_device", device)
        return FakeDevice(self)

    def resume(self) -> None:
        held, self.held_reads = self.held_reads or [], None
        for run in held:
            run()


class FakeDevice(DeviceHandle):
    name = ROUTE.device
    limits = LIMITS

    def __init__(self, driver: FakeDriver) -> None:
        self.driver = driver

    def port(self, number: int) -> PortState:
        return PortState(True, 4096, 0, True)

    def gid(self, port: int, index: int) -> str:
        return ROUTE.gid

    def register(self, address: int, length: int, *, local_write: bool, remote_read: bool) -> MemoryRegion:
        if self.driver.refuses is not None:
            raise self.driver.refuses
        self.driver.registered += 1
        return FakeRegion(self, address, length, local_write, remote_read)

    def register_dmabuf(
        self, fd: int, offset: int, length: int, *, local_write: bool, remote_read: bool
    ) -> MemoryRegion:
        """As pyverbs: the region's addresses are those of the dma-buf, a memfd here."""
        region = self.register(offset, length, local_write=local_write, remote_read=remote_read)
        assert isinstance(region, FakeRegion)
        region.dmabuf = os.dup(fd)
        return region

    def completion_queue(self, depth: int) -> CompletionQueue:
        return FakeQueue(self.driver, depth)

    def shared_receive_queue(self, depth: int) -> SharedReceiveQueue:
        return FakeShared(self.driver, depth)

    def queue_pair(self, queue: CompletionQueue, shared: SharedReceiveQueue, depth: int) -> QueuePair:
        return FakePair(self.driver, queue, shared, depth)

    def close(self) -> None:
        assert not [one for one in self.driver.regions.values() if one.device is self], (
            "regions outlive their protection domain"
        )
        self.driver.order.append("device")


class FakeRegion(MemoryRegion):
    def __init__(
        self, device: FakeDevice, address: int, length: int, local_write: bool, remote_read: bool
    ) -> None:
        self.device, self.driver = device, device.driver
        self.address, self.length = address, length
        self.local_write, self.remote_read = local_write, remote_read
        self.lkey = self.rkey = next(self.driver.keys)
        self.dmabuf: int | None = None
        self.driver.regions[self.rkey] = self

    def copy_out(self, target: int, address: int, length: int) -> None:
        if self.dmabuf is None:
            ctypes.memmove(target, address, length)
        else:
            ctypes.memmove(target, os.pread(self.dmabuf, length, address), length)

    def holds(self, address: int, length: int) -> bool:
        return self.address <= address and address + length <= self.address + self.length

    def close(self) -> None:
        if self.driver.regions.pop(self.rkey, None) is not None:
            self.driver.order.append("region")
            if self.dmabuf is not None:
                os.close(self.dmabuf)


class FakeQueue(CompletionQueue):
    def __init__(self, driver: FakeDriver, depth: int) -> None:
        self.driver, self.depth = driver, depth
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
        self.entries: deque[Completion] = deque()
        self.armed = False

    def add(self, one: Completion) -> None:
        if self.fd < 0:
            return
        self.entries.append(one)
        assert len(self.entries) <= self.depth, "the completion queue overflows"
        if self.armed:
            self.armed = False
            os.eventfd_write(self.fd, 1)

    def poll(self, limit: int) -> list[Completion]:
        return [self.entries.popleft() for _ in range(min(limit, len(self.entries)))]

    def arm(self) -> None:
        self.armed = True

    def take_event(self) -> bool:
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self.driver.order.append("queue")


class FakeShared(SharedReceiveQueue):
    def __init__(self, driver: FakeDriver, depth: int) -> None:
        self.driver, self.depth = driver, depth
        self.buffers: deque[Any] = deque()

    def prepare(self, wr_id: int, address: int, length: int, lkey: int) -> Any:
        region = self.driver.regions[lkey]
        assert region.local_write and region.holds(address, length)
        return wr_id, address, length

    def post(self, prepared: Any) -> None:
        self.buffers.append(prepared)
        assert len(self.buffers) <= self.depth, "more receive buffers than the queue takes"

    def close(self) -> None:
        self.driver.order.append("shared")


class FakePair(QueuePair):
    def __init__(self, driver: FakeDriver, queue: Any, shared: Any, depth: int) -> None:
        self.driver, self.queue, self.shared, self.depth = driver, queue, shared, depth
        self.number = next(driver.numbers)
        self.peer = 0
        self.failed = self.closed = False
        self.unsignaled = 0
        driver.pairs[self.number] = self

    def connect(self, destination: Destination, *, port: int, gid_index: int, psn: int) -> None:
        self.peer = destination.number

    def _other(self) -> FakePair | None:
        other = self.driver.pairs.get(self.peer)
        return None if other is None or self.driver.down or other.failed else other

    def _fail(self, wr_id: int, status: int) -> None:
        self.queue.add(Completion(wr_id, FLUSHED if self.failed else status, 0, self.number))
        self.failed = True

    def send(self, wr_id: int, address: int, length: int, lkey: int, signaled: bool) -> None:
        if self.closed:
            raise Broken("the queue pair is closed")
        assert self.driver.regions[lkey].holds(address, length)
        self.unsignaled = 0 if signaled else self.unsignaled + 1
        assert self.unsignaled < self.depth, "nothing would free the send queue"
        other = self._other()
        if self.failed or other is None:
            self._fail(wr_id, NO_ANSWER)
            return
        if not other.shared.buffers:
            self.driver.posted_out += 1
            self._fail(wr_id, RNR)
            return
        receive_id, target, room = other.shared.buffers.popleft()
        assert length <= room
        ctypes.memmove(target, address, length)
        if signaled:
            self.queue.add(Completion(wr_id, 0, 0, self.number))
        other.queue.add(Completion(receive_id, 0, length, other.number))

    def read(self, wr_id: int, address: int, length: int, lkey: int, remote: int, rkey: int) -> None:
        if self.closed:
            raise Broken("the queue pair is closed")
        local = self.driver.regions[lkey]
        assert local.local_write and local.holds(address, length)

        def run() -> None:
            if self.closed:
                return
            other, region = self._other(), self.driver.regions.get(rkey)
            if self.failed or other is None:
                self._fail(wr_id, NO_ANSWER)
            elif region is None or not region.remote_read or not region.holds(remote, length):
                self._fail(wr_id, ACCESS)
                other.failed = True
            else:
                region.copy_out(address, remote, length)
                self.queue.add(Completion(wr_id, 0, length, self.number))

        if self.driver.held_reads is None:
            run()
        else:
            self.driver.held_reads.append(run)

    def fail(self) -> None:
        self.failed = True

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            del self.driver.pairs[self.number]
            self.driver.order.append("pair")
