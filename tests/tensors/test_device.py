"""Staged copies, on a stand-in for a GPU; tests/gpu runs them on one.

The stand-in's memory is numpy's, and its streams are lists of things to do, done as late as their
order allows, or at once: whoever forgets to wait sees wrong bytes under one of the two.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import weakref
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from transfer.tensors import device as devices, pinned
from transfer.tensors.build import recipe_for
from transfer.tensors.device import CupyDevice, Slab, TorchDevice
from transfer.tensors.export import export
from transfer.tensors.pinned import PinnedPool
from transfer.tensors.target import CupyTarget, TorchTarget, target_for
from transfer.transports.errors import InternalError, TensorMismatch


class Stream:
    """eager: everything is done when it is asked for, unless something before it is not done yet."""

    def __init__(self, eager: bool = False) -> None:
        self.todo: list = []
        self.done = 0
        self.eager = eager
        self._lock = threading.Lock()

    def enqueue(self, what) -> None:
        self.todo.append(what)
        if self.eager:
            self.run(len(self.todo))

    def run(self, until: int) -> None:
        with self._lock:  # several threads wait for events
            while self.done < until:
                what, self.todo[self.done] = self.todo[self.done], None
                what()
                self.done += 1


class Event:
    """As the libraries' events: after all work that its stream had when it was recorded."""

    def __init__(self, **_):
        self.at = None

    @property
    def done(self):
        return self.at[0].done >= self.at[1]

    def record(self, stream):
        self.at = stream, len(stream.todo)

    def query(self):
        return self.done

    def synchronize(self):
        self.at[0].run(self.at[1])


class FakeDevice:
    """A stand-in: see the module. `forget`: waits are left out, as a bug would."""

    def __init__(self, eager: bool = False, forget: bool = False) -> None:
        self.now = Stream(eager)
        self.made: list[Slab] = []
        #: bytes of other memory that is pinned, by address
        self.live: dict[int, int] = {}
        self._forget = forget

    def record(self):
        event = Event()
        event.record(self.now)
        return SimpleNamespace(synchronize=lambda: None) if self._forget else event

    def pinned(self, nbytes):
        memory = np.full(nbytes, 63, "u1")
        self.made.append(Slab(memory, memory))
        return self.made[-1]

    def copy_out(self, flat, start, slab, nbytes, at=0):
        self.now.enqueue(lambda: slab.view.__setitem__(slice(at, at + nbytes), flat[start : start + nbytes]))
        return self.record()

    def copy_in(self, slab, flat, start, nbytes, at=0):
        self.now.enqueue(lambda: flat.__setitem__(slice(start, start + nbytes), slab.view[at : at + nbytes]))
        return self.record()

    def hold(self, slab, event):
        pass

    def pin(self, memory):
        address = memory.ctypes.data
        self.live[address] = memory.nbytes
        return lambda: self.live.pop(address)

    def slab(self, view):
        return Slab(view, view, pooled=True)


@pytest.fixture(autouse=True)
def small_slabs(monkeypatch):
    """What takes gigabytes on a GPU takes kilobytes here."""
    monkeypatch.setattr(devices, "SLAB", 64)
    monkeypatch.setattr(devices, "PIECE", 48)
    monkeypatch.setattr(devices, "LIBRARY_MOST", 1000)
    monkeypatch.setattr(pinned, "STEP", 4096)


@pytest.fixture(autouse=True, params=["pooled", "in slabs"])
def pool(request, monkeypatch):
    """The memory of what is larger than the library's, or none."""
    pool = PinnedPool(128 * 4096 if request.param == "pooled" else 0)
    monkeypatch.setattr(devices, "POOL", pool)
    yield pool
    pool.give_back()
    assert not pool.total


def pattern(nbytes):
    return np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype="u1")


def send(made, nbytes=1000, copy=devices.to_host):
    """A tensor whose contents the current stream has still to write, copied to the host; it is overwritten
    afterwards."""
    flat, data = np.zeros(nbytes, "u1"), pattern(nbytes)
    made.now.enqueue(lambda: flat.__setitem__(slice(None), data))
    host = copy(made, flat)
    sent = bytes(host)
    made.now.enqueue(lambda: flat.__setitem__(slice(None), 0))
    made.now.run(len(made.now.todo))
    return sent == bytes(host) == data.tobytes()


def receive(made, nbytes=1000, landed=False):
    """A tensor that work on the current stream reads before, and after; both must be right."""
    flat, data = np.full(nbytes, 5, "u1"), pattern(nbytes)
    seen = {}
    made.now.enqueue(lambda: seen.setdefault("before", flat.copy()))
    landing = devices.Landing(made)
    source = landing.buffer(flat) if landed else None
    if source is None:
        source = np.empty(nbytes, "u1")
    elif nbytes > 100:
        source[:90] = data[:90]
        landing.landed(90)
    source[:] = data
    landing.fill(flat, source)
    if not landing.holds(source):
        source[:] = 0  # the caller may use it again
    made.now.enqueue(lambda: seen.setdefault("after", flat.copy()))
    made.now.run(len(made.now.todo))
    return (seen["before"] == 5).all() and (seen["after"] == data).all()


SIZES = [1, 63, 64, 65, 192, 1000, 1001, 4096]


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("nbytes", SIZES)
def test_the_order_of_the_stream_is_kept(eager, nbytes):
    assert send(FakeDevice(eager), nbytes)
    assert receive(FakeDevice(eager), nbytes)
    assert receive(FakeDevice(eager), nbytes, landed=True)
    assert send(FakeDevice(eager), nbytes, copy=devices.begin_to_host)


def test_the_stand_in_notices_a_wait_that_is_missing():
    assert not send(FakeDevice(forget=True)) and not send(FakeDevice(forget=True), 4096)
    assert not receive(FakeDevice(forget=True), 4096)
    assert not send(FakeDevice(forget=True), copy=devices.begin_to_host)


def test_a_large_message_has_memory_of_the_pool_or_passes_through_slabs(pool):
    made = FakeDevice()
    for _ in range(3):
        assert send(made, 10_000) and receive(made, 10_000, landed=True)
    place = devices.Landing(made).buffer(pattern(10_000))
    if pool.total:
        assert not made.made and list(made.live.values()) == [12_288], "one, which all have in turn"
        assert place.ctypes.data in made.live and place.nbytes == 10_000
    else:
        assert not made.live and place is None, "the core reads it to memory of its own"
        assert [slab.view.nbytes for slab in made.made] == [64] * 6 * devices.SLABS


def test_a_message_larger_than_the_pool_passes_through_slabs(pool):
    made = FakeDevice()
    assert send(made, 600_000) and receive(made, 600_000, landed=True)
    assert not made.live and not pool.total
    assert {slab.view.nbytes for slab in made.made} == {64}


@pytest.mark.parametrize("pool", ["in slabs"], indirect=True)
def test_other_pieces_are_copied_while_one_is_waited_for(pool):
    """Both ways: the slabs of all threads and one more are on their way at once."""
    made, flat = FakeDevice(), pattern(1280)
    here = threading.Barrier(devices.THREADS, timeout=20)
    waited = Event.synchronize

    def wait(event):
        if not here.broken:
            here.wait()
        waited(event)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Event, "synchronize", wait)
        assert devices.THREADS < 20 and devices.to_host(made, flat).tobytes() == flat.tobytes()
    assert len(made.made) == devices.SLABS


def test_pinned_memory_that_is_used_up_is_a_clear_error():
    made = FakeDevice()

    def pinned(nbytes):
        raise RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA")

    made.pinned = pinned
    with pytest.raises(InternalError, match="no pinned memory for 100 bytes") as refused:
        devices.to_host(made, pattern(100))
    assert "out of memory" in str(refused.value) and "Compile" not in str(refused.value)
    with pytest.raises(InternalError, match="no memory for"):
        devices.to_host(made, SimpleNamespace(nbytes=1 << 60))


# -- the libraries' own calls, on fakes of the libraries ------------------------------------------


class Nothing:
    def __init__(self, *_):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


class Numbered(Nothing):
    """A device that is not the thread's current one."""

    id = 3


class FakeCupyArray(np.ndarray):
    """numpy's memory standing for a GPU's; its address is a host address."""

    device = Numbered()

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
    current = Stream()
    current.ptr = 77

    def copy(target, source, nbytes, kind, stream):
        assert stream == current.ptr and kind in (1, 2)
        current.enqueue(lambda: ctypes.memmove(target, source, nbytes))

    def of_device(index):
        assert index == FakeCupyArray.device.id, "another device's stream"
        return current

    module = ModuleType("cupy")
    module.ndarray = FakeCupyArray
    module.cuda = SimpleNamespace(
        Device=Nothing,
        Event=Event,
        get_current_stream=of_device,
        alloc_pinned_memory=Pinned,
        runtime=SimpleNamespace(
            memcpyAsync=copy,
            memcpyDeviceToHost=2,
            memcpyHostToDevice=1,
            hostRegister=lambda address, nbytes, flags: module.live.add(address),
            hostUnregister=lambda address: module.live.remove(address),
        ),
    )
    monkeypatch.setitem(sys.modules, "cupy", module)
    module.now = current
    module.live = set()
    yield module
    current.run(len(current.todo))


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
    assert isinstance(target, CupyTarget) and not target.direct
    target.check(recipe)
    for place in (target.buffer_for(recipe), np.frombuffer(bytearray(buffer), "u1")):
        if landed := place is not None:
            place[:] = np.frombuffer(buffer, "u1")
            target.fill(recipe, place)
        cupy.now.run(len(cupy.now.todo))
        assert np.array_equal(np.asarray(out), array) is landed
    assert (place.ctypes.data in cupy.live) is False


@pytest.mark.parametrize("pool", ["pooled"], indirect=True)
@pytest.mark.parametrize("nbytes", [500, 5000])
def test_memory_of_cupy_is_kept_until_its_copy_has_run(cupy, pool, nbytes):
    out = on_gpu(np.zeros(nbytes, "u1"))
    landing = devices.Landing(CupyDevice(3))
    place = landing.buffer(out)
    place[:] = 7
    landing.fill(out, place)
    address, gone = place.ctypes.data, weakref.ref(landing._slab.view)
    del place, landing
    pool.collect()
    assert gone() is not None
    if nbytes == 5000:
        assert devices.Landing(CupyDevice(3)).buffer(out).ctypes.data != address
    cupy.now.run(len(cupy.now.todo))
    CupyDevice(3).pinned(10)
    assert gone() is None and (np.asarray(out) == 7).all()


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


@pytest.fixture
def cuda(monkeypatch):
    """torch's copies happen at once here: only the calls are tried, and the order above."""
    current = Stream(eager=True)
    make = torch.empty
    monkeypatch.setattr(torch, "empty", lambda n, dtype, pin_memory=False: make(n, dtype=dtype))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(torch.cuda, "device", Nothing)
    registered = set()

    def register(address, nbytes, flags):
        return registered.add(address) or 0

    def unregister(address):
        return registered.remove(address) or 0

    runtime = SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=unregister)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    return SimpleNamespace(registered=registered, runtime=runtime, now=current)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "bool"])
@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize("size", [10, 2400])
def test_a_torch_tensor_there_and_back(cuda, pool, dtype, permuted, size):
    plain = (torch.arange(10 * size) % 7).reshape(10, size).to(getattr(torch, dtype))
    if permuted:
        plain = plain.t().contiguous().t()
    _, header, buffer = export(plain.as_subclass(FakeCudaTensor))
    recipe = recipe_for(header)
    assert recipe.nbytes == plain.numel() * plain.element_size() == len(buffer)
    out = torch.zeros_like(plain).as_subclass(FakeCudaTensor)
    target = target_for(out)
    assert isinstance(target, TorchTarget) and not target.direct
    target.check(recipe)
    place = target.buffer_for(recipe)
    large = recipe.nbytes > devices.LIBRARY_MOST
    assert (place is None) is (large and not pool._limit) and bool(cuda.registered) is (
        large and place is not None
    )
    if place is not None:
        place[:] = buffer
    target.fill(recipe, bytes(buffer) if place is None else place)
    assert torch.equal(out.as_subclass(torch.Tensor), plain)


@pytest.mark.parametrize("pool", ["pooled"], indirect=True)
def test_memory_that_torch_still_reads_is_lent_to_nobody(cuda, pool):
    cuda.now.eager = False
    device = TorchDevice(FakeCudaTensor.device)
    out = torch.zeros(5000, dtype=torch.uint8)
    landing = devices.Landing(device)
    place = landing.buffer(out)
    landing.fill(out, place)
    address = place.ctypes.data
    cuda.now.enqueue(lambda: None)
    pool._copying[0][1].__self__.record(cuda.now)
    del place, landing
    assert devices.Landing(device).buffer(out).ctypes.data != address
    cuda.now.run(1)
    assert devices.Landing(device).buffer(out).ctypes.data == address


def test_a_message_goes_on_where_torch_cannot_pin(cuda, pool, caplog, monkeypatch):
    cuda.runtime.cudaHostRegister = lambda *_: 2
    monkeypatch.setattr(torch, "zeros", lambda *_, device: None)
    tensor = torch.arange(5000, dtype=torch.uint8).as_subclass(FakeCudaTensor)
    for _ in range(2):
        assert bytes(export(tensor)[2]) == bytes(export(tensor.as_subclass(torch.Tensor))[2])
    assert len(caplog.records) == bool(pool._limit) and not cuda.registered
    assert not pool._limit or "cudaHostRegister returns 2" in caplog.text
