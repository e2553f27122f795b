"""Memory of a GPU over rdma, on stand-ins: a memfd is the dma-buf, host memory what peermem registers.

No test here ran on a GPU.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

import transfer
from tests.rdma.ends import meet
from transfer.sockets import registration
from transfer.tensors import gpu_sending
from transfer.transports import cuda, gpu
from transfer.transports.base import Capabilities
from transfer.transports.errors import RegistrationError
from transfer.transports.testing.ends import receive, until

SIZE = (2 << 20) + 12_345
BYTES = bytes(range(256)) * (SIZE // 256 + 1)


class Flat:
    """A flat tensor of a device, as its library describes it."""

    def __init__(self, pointer: int, nbytes: int = SIZE) -> None:
        self.nbytes = nbytes
        self.__cuda_array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (pointer, False)}


class Driver:
    """The CUDA driver and the context of a GPU: memory at 0x7f0000000000 lies in a memfd."""

    BASE = 0x7F00_0000_0000

    def __init__(self, *, refuses: bool = False, virtual: bool = False) -> None:
        self.refuses, self.virtual = refuses, virtual
        self.memory = os.memfd_create("device")
        os.write(self.memory, bytes(8192) + BYTES)
        self.asked: list[tuple[int, int]] = []

    def device_uuid(self, index: int) -> bytes:
        return bytes(16)

    def device_attribute(self, index: int, number: int) -> int:
        return {gpu.DMA_BUF_SUPPORTED: 1, gpu.WRITES_ORDERING: 100, gpu.FLUSH_WRITES_OPTIONS: 1}[number]

    def pointer_attribute(self, pointer: int, number: int) -> int:
        return int(number == gpu.IS_LEGACY_IPC_CAPABLE and not self.virtual)

    def export_dmabuf(self, begin: int, size: int) -> int:
        assert begin % 4096 == size % 4096 == 0
        self.asked.append((begin, size))
        if self.refuses:
            raise RegistrationError("dmabuf", "no dma-buf")
        whole = os.memfd_create("range")
        os.write(whole, os.pread(self.memory, size, begin - self.BASE))
        os.lseek(whole, 0, os.SEEK_SET)
        return whole


@pytest.fixture
def driver(monkeypatch):
    made = Driver()
    monkeypatch.setattr(cuda, "load", lambda: cuda.Cuda(made, lambda index: made))
    yield made
    os.close(made.memory)


def exported() -> list[str]:
    """Descriptors of dma-bufs."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the listing itself
            found.append(os.readlink(path))
    return [target for target in found if "memfd:range" in target]


def frame(data):
    return [(0, 0, None, None, data)]


@pytest.mark.parametrize("offset", [0, 8192, 8192 + 100], ids=["begin", "page", "inside"])
@pytest.mark.parametrize("size", [SIZE, 100])
def test_as_a_dma_buf(over_null, driver, offset, size):
    expected = (bytes(8192) + BYTES)[offset : offset + size]
    with meet(over_null) as ends:
        released: list[object] = []
        payload = gpu_sending.registrable(Flat(driver.BASE + offset, size))
        assert ends.connecting.send(frame(payload), hold=True, released=released.append)
        assert receive(ends.accepting)[0].bytes == expected
        until(ends.connecting.flush, "the peer's word that it has READ all")
        until(lambda: released == [None], "the owner to be informed")
        until(lambda: not exported(), "the dma-buf to be closed")
    [(begin, asked)] = driver.asked
    assert begin <= driver.BASE + offset and begin + asked >= driver.BASE + offset + size


def test_by_its_address(over_null):
    memory = ctypes.create_string_buffer(BYTES, len(BYTES))
    one, other = over_null.socket(), over_null.socket()
    near, far = over_null.connect(one, other)
    assert near.send(frame(Flat(ctypes.addressof(memory) + 5)), hold=True)
    assert one.shared["rdma.domains"].get().sources.registrations == 1
    assert receive(far)[0].bytes == BYTES[5 : 5 + SIZE]
    until(near.flush, "the peer's word that it has READ all")


def test_a_refusal_takes_nothing(over_null, driver):
    driver.refuses = True
    with meet(over_null) as ends:
        with pytest.raises(RegistrationError, match="no dma-buf") as refused:
            ends.connecting.send(frame(gpu_sending.registrable(Flat(driver.BASE))), hold=True)
        assert refused.value.reason == "dmabuf"
        assert not ends.connecting.queued
        ends.connecting.send(frame(b"next"))
        assert receive(ends.accepting)[0].bytes == b"next"


def test_checksums_and_device_memory_exclude_each_other(over_null):
    with meet(over_null) as ends:
        assert ends.connecting.registers_device_memory
        ends.connecting.checksum = True
        assert not ends.connecting.registers_device_memory


def test_a_region_of_the_users_is_found_again(over_null, driver):
    one, other = over_null.socket(), over_null.socket()
    near, far = over_null.connect(one, other)
    domain = one.shared["rdma.domains"].get()
    handle = domain.regions.add(gpu_sending.registrable(Flat(driver.BASE + 8192)))
    near.send(frame(gpu_sending.registrable(Flat(driver.BASE + 8192 + 1000, 5000))), hold=True)
    assert receive(far)[0].bytes == BYTES[1000:6000]
    assert domain.sources.registrations == 0
    until(near.flush, "the peer's word that it has READ all")
    handle.close()


# --- what decides ------------------------------------------------------------------------------


RDMA = Capabilities(registers_memory=True)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """/proc/modules of a machine with peermem."""
    path = tmp_path / "modules"
    path.write_text("nvidia_peermem 16384 0 - Live 0x0\n")
    monkeypatch.setattr(cuda, "_MODULES", path)
    return path


def test_dma_buf_first_then_peermem_then_the_host(driver, module, monkeypatch):
    tensor = Flat(driver.BASE)
    monkeypatch.setattr(cuda.os, "uname", lambda: SimpleNamespace(release="6.1.0-13-amd64"))
    assert gpu_sending.way_of(tensor, RDMA).route is gpu.GpuRoute.DMABUF
    monkeypatch.setattr(cuda.os, "uname", lambda: SimpleNamespace(release="5.4.0"))
    assert gpu_sending.way_of(tensor, RDMA).route is gpu.GpuRoute.PEERMEM
    module.write_text("")
    found = gpu_sending.way_of(tensor, RDMA)
    assert found.route is gpu.GpuRoute.STAGING and "5.12" in found.reason and "modprobe" in found.reason


def test_memory_that_is_mapped_piece_by_piece_is_staged(driver, monkeypatch, caplog):
    driver.virtual = True
    monkeypatch.setattr(gpu_sending, "_warned", set())
    monkeypatch.setattr(cuda.os, "uname", lambda: SimpleNamespace(release="6.1.0"))
    assert gpu_sending.way_of(Flat(driver.BASE), RDMA).route is gpu.GpuRoute.STAGING
    assert caplog.text.count("expandable segments") == 1


def test_whole_pages_are_exported():
    assert cuda.pages(4096, 4096) == (4096, 8192)
    assert cuda.pages(4097, 4096) == (4096, 12288)
    assert cuda.pages(100, 1) == (0, 4096)


def test_registering_says_why_it_is_staged(monkeypatch):
    monkeypatch.setattr(cuda, "_MODULES", Path("/nowhere"))
    with transfer.Context() as context, registration.register(context, Flat(Driver.BASE)) as made:
        assert not made.transports and "copied through the host" in made.reason
        assert "/nowhere" in made.reason
