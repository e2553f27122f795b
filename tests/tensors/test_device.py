"""Staged copies, on a stand-in for a GPU: no test here ran on one.

The stand-in's memory is numpy's, and its streams are lists of things to do, done as late as their
order allows, or at once: whoever forgets to wait sees wrong bytes under one of the two.
"""

from __future__ import annotations

import ctypes
import os
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from transfer.tensors import device as devices
from transfer.tensors.build import recipe_for
from transfer.tensors.device import CupyDevice, StagingBuffer, TorchDevice
from transfer.tensors.export import export
from transfer.tensors.target import CupyTarget, TorchTarget, target_for
from transfer.transports.errors import TensorMismatch


class Stream:
    """eager: everything is done when it is asked for, unless something before it is not done yet."""

    def __init__(self, eager: bool = False) -> None:
        self.todo: list = []
        self.done = 0
        self.eager = eager

    def enqueue(self, what) -> None:
        self.todo.append(what)
        if self.eager:
            self.run(len(self.todo))

    def run(self, until: int) -> None:
        while self.done < until:
            what = self.todo[self.done]
            self.done += 1
            what()


class FakeDevice:
    """A stand-in: see the module. `forget`: waits of this kind are left out, as a bug would."""

    def __init__(self, eager: bool = False, forget: str = "") -> None:
        self.now = Stream()
        self.own = Stream(eager)
        self.log: list[str] = []
        self.slabs = 0
        self._forget = forget

    def current(self):
        return self.now

    def side(self):
        return self.own

    def record(self, stream):
        return stream, len(stream.todo)

    def wait(self, stream, event):
        kind = "before" if stream is self.own else "after"
        if kind != self._forget:
            self.log.append(kind)
            stream.enqueue(lambda: event[0].run(event[1]))

    def synchronize(self, event):
        if self._forget != "slab":
            event[0].run(event[1])

    def pinned(self, nbytes):
        self.slabs += 1
        return bytearray(b"?" * nbytes)

    def view(self, slab):
        return memoryview(slab)

    def copy_out(self, slab, flat, chunk, stream):
        self.log.append(f"out {chunk.offset}")

        def copy():
            slab[: chunk.length] = flat[chunk.offset : chunk.offset + chunk.length].tobytes()

        stream.enqueue(copy)

    def copy_in(self, flat, chunk, slab, stream):
        self.log.append(f"in {chunk.offset}")

        def copy():
            flat[chunk.offset : chunk.offset + chunk.length] = np.frombuffer(slab, "u1", chunk.length)

        stream.enqueue(copy)

    def keep(self, flat, stream):
        self.log.append("keep")


def pattern(nbytes):
    return np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype="u1")


def send(made, nbytes=1000):
    """A tensor whose contents the current stream has still to write, copied to the host."""
    flat, data = np.zeros(nbytes, "u1"), pattern(nbytes)
    made.now.enqueue(lambda: flat.__setitem__(slice(None), data))
    host = bytearray(nbytes)
    StagingBuffer(made, slab=64, slabs=3).to_host(flat, memoryview(host))
    return bytes(host) == data.tobytes()


def receive(made, nbytes=1000):
    """A tensor that work on the current stream reads before, and after; both must be right."""
    flat, data = np.full(nbytes, 5, "u1"), pattern(nbytes)
    seen = {}
    made.now.enqueue(lambda: seen.setdefault("before", flat.copy()))
    source = bytearray(data.tobytes())
    StagingBuffer(made, slab=64, slabs=3).to_device(memoryview(source), flat)
    source[:] = bytes(nbytes)  # the caller may use it again
    made.now.enqueue(lambda: seen.setdefault("after", flat.copy()))
    made.now.run(len(made.now.todo))
    return (seen["before"] == 5).all() and (seen["after"] == data).all()


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("nbytes", [1, 63, 64, 65, 192, 1000, 4096])
def test_the_order_of_streams_is_kept(eager, nbytes):
    assert send(FakeDevice(eager), nbytes)
    assert receive(FakeDevice(eager), nbytes)


def test_the_stand_in_notices_a_wait_that_is_missing():
    assert not (send(FakeDevice(False, "before")) and send(FakeDevice(True, "before")))
    assert not (receive(FakeDevice(False, "before")) and receive(FakeDevice(True, "before")))
    assert not (receive(FakeDevice(False, "after")) and receive(FakeDevice(True, "after")))
    assert not send(FakeDevice(False, "slab"))
    assert not receive(FakeDevice(False, "slab"))


def test_slabs_are_few_and_used_again():
    made = FakeDevice()
    stage = StagingBuffer(made, slab=64, slabs=3)
    flat = pattern(10_000)
    for _ in range(3):
        host = bytearray(10_000)
        stage.to_host(flat, memoryview(host))
        assert host == flat.tobytes()
        target = np.zeros(10_000, "u1")
        stage.to_device(memoryview(host), target)
        made.now.run(len(made.now.todo))
        assert (target == flat).all()
    assert made.slabs == 3


def test_chunks_overlap():
    """The second chunk is on its way before the first one is taken off its slab."""
    made = FakeDevice()
    drained = []
    made.synchronize = lambda event: (drained.append(len(made.log)), event[0].run(event[1]))
    StagingBuffer(made, slab=64, slabs=3).to_host(pattern(640), memoryview(bytearray(640)))
    assert made.log[:4] == ["before", "out 0", "out 64", "out 128"] and drained[0] == 4


# -- the libraries' own calls, on fakes of the libraries ------------------------------------------


class Event:
    done = True

    def __init__(self, **_):
        self.at = None

    def record(self, stream):
        self.at = stream, len(stream.todo)

    def synchronize(self):
        self.at[0].run(self.at[1])


class LibraryStream(Stream):
    ptr = 0

    def __init__(self, *_, **__):
        super().__init__()
        type(self).last = self

    def wait_event(self, event):
        self.enqueue(lambda: event.at[0].run(event.at[1]))


class Nothing:
    def __init__(self, *_):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


class FakeCupyArray(np.ndarray):
    """numpy's memory standing for a GPU's; its address is a host address."""

    device = SimpleNamespace(id=0)

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)

    def __dlpack_device__(self):
        return 2, 0


class Pinned:
    """As cupy.cuda.PinnedMemoryPointer: a buffer with a `ptr`."""

    def __new__(cls, nbytes):
        array = (ctypes.c_ubyte * nbytes)()

        class Memory(type(array)):
            ptr = property(lambda self: ctypes.addressof(self))

        return Memory()


@pytest.fixture
def cupy(monkeypatch):
    current = LibraryStream()
    side = LibraryStream()

    def copy(target, source, nbytes, kind, stream):
        assert stream == side.ptr and kind in (1, 2)
        side.enqueue(lambda: ctypes.memmove(target, source, nbytes))

    module = ModuleType("cupy")
    module.ndarray = FakeCupyArray
    module.cuda = SimpleNamespace(
        Device=Nothing,
        Stream=lambda **_: side,
        Event=Event,
        get_current_stream=lambda: current,
        alloc_pinned_memory=Pinned,
        runtime=SimpleNamespace(memcpyAsync=copy, memcpyDeviceToHost=2, memcpyHostToDevice=1),
    )
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(
        devices, "_stages", {("cupy", 0, os.getpid()): StagingBuffer(CupyDevice(module, 0), 4096, 3)}
    )
    module.now = current
    return module


def on_gpu(array):
    return np.asarray(array).view(FakeCupyArray)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_cupy_array_there_and_back(cupy, order):
    array = np.asarray(np.arange(30_000, dtype="f4").reshape(100, 300), order=order)
    flags, header, buffer = export(on_gpu(array))
    recipe = recipe_for(header)
    assert recipe.shape == (100, 300) and recipe.nbytes == array.nbytes and flags
    out = on_gpu(np.zeros_like(array))
    target = target_for(out)
    assert isinstance(target, CupyTarget) and target.buffer_for(recipe) is None
    target.check(recipe)
    target.fill(recipe, buffer)
    cupy.now.run(len(cupy.now.todo))
    assert np.array_equal(np.asarray(out), array)


def test_a_cupy_array_with_gaps_is_made_dense_first(cupy):
    array = np.arange(1000.0)[::2]
    _, header, buffer = export(on_gpu(array))
    assert bytes(buffer) == array.tobytes() and recipe_for(header).shape == (500,)


def test_a_cupy_target_that_does_not_fit(cupy):
    _, header, _ = export(on_gpu(np.ones((4, 5), "f4")))
    recipe = recipe_for(header)
    for wrong in (np.ones((5, 4), "f4"), np.ones((4, 5), "f8"), np.ones((4, 10), "f4")[:, ::2]):
        with pytest.raises(TensorMismatch):
            target_for(on_gpu(wrong)).check(recipe)


torch = pytest.importorskip("torch")


class FakeCudaTensor(torch.Tensor):
    """Host memory that says it is a GPU's."""

    is_cuda = True
    is_cpu = False
    device = SimpleNamespace(type="cuda", index=0)

    def __dlpack_device__(self):
        return 2, 0

    def record_stream(self, stream):
        stream.kept = True


@pytest.fixture
def cuda(monkeypatch):
    current = LibraryStream()
    library = SimpleNamespace(
        uint8=torch.uint8,
        empty=lambda n, dtype, pin_memory: torch.empty(n, dtype=dtype),
        cuda=SimpleNamespace(
            Stream=LibraryStream, Event=Event, current_stream=lambda _: current, stream=Nothing
        ),
    )
    made = TorchDevice(library, FakeCudaTensor.device)
    monkeypatch.setattr(devices, "_stages", {("torch", 0, os.getpid()): StagingBuffer(made, 4096, 3)})
    return SimpleNamespace(now=current, device=made)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "bool"])
@pytest.mark.parametrize("permuted", [False, True])
def test_a_torch_tensor_there_and_back(cuda, dtype, permuted):
    plain = (torch.arange(24_000) % 7).reshape(10, 2400).to(getattr(torch, dtype))
    if permuted:
        plain = plain.t().contiguous().t()
    _, header, buffer = export(plain.as_subclass(FakeCudaTensor))
    recipe = recipe_for(header)
    assert recipe.nbytes == plain.numel() * plain.element_size() == len(buffer)
    out = torch.zeros_like(plain).as_subclass(FakeCudaTensor)
    target = target_for(out)
    assert isinstance(target, TorchTarget) and target.buffer_for(recipe) is None
    target.check(recipe)
    target.fill(recipe, buffer)
    cuda.now.run(len(cuda.now.todo))
    assert torch.equal(out.as_subclass(torch.Tensor), plain)
    assert cuda.device.side().kept


# -- on a real one ---------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu():
    """Never ran: no GPU was at hand when this was written."""
    tensor = torch.arange(50_000_000, device="cuda", dtype=torch.float32)
    _, header, buffer = export(tensor * 2)
    out = torch.empty_like(tensor)
    target_for(out).fill(recipe_for(header), buffer)
    assert torch.equal(out, tensor * 2)
