"""Registrations that outlive a send: which memory, how long, how much."""

from __future__ import annotations

import gc
import mmap
import threading
from typing import Any

import numpy as np
import pytest

from tests.rdma.ends import World
from tests.rdma.null_provider import NullProvider
from transfer.transports.errors import RegistrationError
from transfer.transports.rdma.registration_cache import RegistrationCache
from transfer.transports.testing.ends import plain, receive, until


class Region:
    def __init__(self, address: int, length: int, open_: list[Any]) -> None:
        self.address, self.length, self.rkey = address, length, 7
        self._open = open_
        open_.append(self)

    def close(self) -> None:
        self._open.remove(self)


class Device:
    """Counts what is registered; refuses what is more than `most` bytes in all."""

    forks_freely = True
    reclaim: Any = None

    def __init__(self, most: int = 1 << 40) -> None:
        self.open: list[Region] = []
        self.most = most

    def register(self, address: int, length: int) -> Region:
        for _ in range(2):
            if sum(region.length for region in self.open) + length <= self.most:
                return Region(address, length, self.open)
            if not self.reclaim():
                break
        raise RegistrationError("memlock", "too much", hint="")


def made(device: Device | None = None, **options: Any) -> tuple[Device, RegistrationCache]:
    device = device or Device()
    return device, RegistrationCache(device, device.register, **options)  # type: ignore[arg-type]


def find(cache: RegistrationCache, array: Any) -> Any:
    owner = array if isinstance(array, np.ndarray) else memoryview(array)
    return cache.find(owner, np.asarray(owner).ctypes.data, memoryview(array).nbytes)


def sent(cache: RegistrationCache, array: Any) -> Region:
    """One send of it, which the peer has READ."""
    region, leave = find(cache, array)
    leave()
    return region  # type: ignore[no-any-return]


def test_the_second_send_registers_and_the_end_of_the_array_deregisters() -> None:
    device, cache = made()
    array = np.zeros(1000)
    assert find(cache, array) is None and not device.open
    first = sent(cache, array)
    assert sent(cache, array) is first and (first.address, first.length) == (array.ctypes.data, 8000)
    assert sent(cache, memoryview(array)) is first, "what the socket hands over is often a view"
    assert device.open == [first] and cache.registered == 8000
    del array
    assert not device.open and not cache.registered


def test_views_of_an_array_count_for_their_owner() -> None:
    device, cache = made()
    array = np.zeros((10, 1000))
    for row in array.reshape(20, 500):
        assert find(cache, row) is None
        assert sent(cache, row).length == 4000
    assert len(device.open) == 20
    del array, row
    gc.collect()
    assert not device.open


@pytest.mark.parametrize(
    "data",
    [bytes(9), bytearray(9), memoryview(b"9"), mmap.mmap(-1, 4096), np.frombuffer(bytearray(9), "u1")],
    ids=lambda data: type(data).__name__,
)
def test_memory_that_its_owner_may_move_is_not_kept(data: Any) -> None:
    device, cache = made()
    for _ in range(3):
        assert find(cache, data) is None
    assert not device.open


def test_a_torch_storage_is_not_kept() -> None:
    torch = pytest.importorskip("torch", reason="pip install torch")
    _, cache = made()
    view = torch.zeros(1000).numpy()
    assert [find(cache, view) for _ in range(3)] == [None] * 3


def test_an_array_that_is_kept_refuses_to_be_resized() -> None:
    _, cache = made()
    array = np.zeros(1000)
    find(cache, array)
    sent(cache, array)
    with pytest.raises(ValueError, match="resize"):
        array.resize(100_000, refcheck=False)


def test_another_array_at_the_same_address_is_registered_anew() -> None:
    device, cache = made()
    array = np.zeros(100_000)
    for _ in range(50):
        find(cache, array)
        region = sent(cache, array)
        assert device.open == [region]
        address = array.ctypes.data
        del array
        array = np.zeros(100_000)
        if array.ctypes.data == address:
            assert find(cache, array) is None or region not in device.open


def test_the_oldest_that_nobody_uses_makes_room() -> None:
    device, cache = made(most=30_000)
    arrays = [np.zeros(1000) for _ in range(5)]
    for array in arrays:
        find(cache, array)
    used, leave = find(cache, arrays[0])
    regions = [sent(cache, array) for array in arrays[1:3]]
    assert sent(cache, arrays[1]) is regions[0]
    assert sent(cache, arrays[3]) in device.open
    assert used in device.open and regions[0] in device.open and regions[1] not in device.open
    leave()
    uses = [find(cache, array) for array in (arrays[0], arrays[1], arrays[3])]
    assert all(uses) and find(cache, arrays[4]) is None, "all is in use: it is registered for one send"
    assert cache.registered == 24_000
    assert find(cache, np.zeros(10_000)) is None


def test_a_failed_registration_ends_what_nobody_uses() -> None:
    device, cache = made(Device(most=20_000))
    arrays = [np.zeros(1000) for _ in range(4)]
    for array in arrays:
        find(cache, array)
    _, leave = find(cache, arrays[0])
    sent(cache, arrays[1])
    assert sent(cache, arrays[2]).length == 8000 and len(device.open) == 2
    find(cache, arrays[2])
    with pytest.raises(RegistrationError):
        find(cache, arrays[3])
    assert cache.registered == 16_000
    leave()
    cache.close()
    cache.close()
    assert not device.open and find(cache, arrays[0]) is None


def test_nothing_is_kept_where_a_fork_takes_memory_away() -> None:
    device = Device()
    device.forks_freely = False
    _, cache = made(device)
    array = np.zeros(1000)
    assert [find(cache, array) for _ in range(3)] == [None] * 3


def test_an_array_that_is_sent_again_and_again(made: World) -> None:
    shared = made.context()
    one, other = made.socket(shared=shared), made.socket()
    near, far = made.connect(one, other)
    sources = shared["rdma.domains"].get().sources
    assert sources.cache.enabled
    array = np.zeros(1 << 18)
    for number in range(5):
        array[:] = number
        free: list[Any] = []
        near.send(plain(array), hold=True, released=free.append)
        received = np.frombuffer(receive(far)[0].bytes)
        assert received[0] == number == received[-1]
        until(lambda free=free: near.receive() or free, "the memory to be free")
    assert sources.registrations == 1 and sources.cache.registered == array.nbytes
    del array
    until(lambda: not sources.cache.registered, "the registration's end")


def test_kept_registrations_leave_room_for_others(null: NullProvider, over_null: World) -> None:
    """Where the limit of locked memory is reached, they end before anything fails."""
    shared = over_null.context()
    near, far = over_null.connect(over_null.socket(shared=shared), over_null.socket())
    cache = shared["rdma.domains"].get().sources.cache
    array, other = np.ones(1 << 17), np.full(1 << 17, 2.0)
    free: list[Any] = []
    for number in range(3):
        near.send(plain(array), hold=True, released=free.append)
        receive(far)
        until(lambda number=number: near.receive() or len(free) > number, "the memory to be free")
    assert cache.registered == array.nbytes
    null.fault("register=12")
    near.send(plain(other), hold=True, released=free.append)
    assert np.frombuffer(receive(far)[0].bytes)[-1] == 2 and not cache.registered


def test_a_registration_of_an_array_that_is_gone_serves_no_other_one() -> None:
    """Its end may be missed: a signal's handler may raise in the callback."""
    device, cache = made()
    cache._forget = lambda found: None  # type: ignore[method-assign, misc, assignment]
    gone, array = np.zeros(1000), np.zeros(1000)
    find(cache, gone)
    old = sent(cache, gone)
    [kept] = cache._kept.values()
    del gone
    assert kept() is None and device.open == [old]
    cache._kept = {kept.key._replace(owner=id(array), address=array.ctypes.data): kept}
    assert find(cache, array) is None and not device.open


def test_a_use_ends_while_another_thread_registers() -> None:
    """The reactor ends uses: it waits for no registration, nor for what the collector does in one."""
    inside, go_on = threading.Event(), threading.Event()

    class Slow(Device):
        def register(self, address: int, length: int) -> Region:
            if length == 80_000:
                inside.set()
                assert go_on.wait(10)
            return super().register(address, length)

    device, cache = made(Slow())
    array, other, third = np.zeros(1000), np.zeros(10_000), np.zeros(100)
    for one in (array, other, third):
        find(cache, one)
    _, leave = find(cache, array)
    sent(cache, third)
    thread = threading.Thread(target=find, args=(cache, other))
    thread.start()
    assert inside.wait(10)
    leave()
    del third, one
    assert cache.registered == 8000
    assert device.reclaim() and not device.open
    go_on.set()
    thread.join(10)
    assert cache.registered == 80_000
