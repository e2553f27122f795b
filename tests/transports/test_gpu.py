"""How GPU memory travels, decided from descriptions: no GPU is looked for, and none was at hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from transfer.transports import gpu
from transfer.transports.base import Capabilities
from transfer.transports.gpu import (
    CPU,
    CUDA,
    CUDA_HOST,
    CUDA_MANAGED,
    DIRECT_FROM,
    ROCM,
    DeviceMemory,
    GpuRoute,
    Machine,
)

TCP, UCX = Capabilities(), Capabilities(device_memory=True)
RDMA = Capabilities(registers_memory=True)
LARGE = 16 << 20
BARE = Machine(dmabuf="no dma-buf", peermem="no module")
BOTH = Machine(dmabuf="", peermem="")


def memory(kind=CUDA, nbytes=LARGE, virtual=False):
    return DeviceMemory(kind, 0, 0x7F00_0000_0000, nbytes, virtual=virtual)


@pytest.mark.parametrize(
    ("what", "can", "machine", "route"),
    [
        (memory(), UCX, BARE, GpuRoute.POINTER),
        (memory(ROCM), UCX, BARE, GpuRoute.POINTER),
        (memory(), RDMA, BOTH, GpuRoute.DMABUF),
        (memory(), RDMA, Machine(dmabuf="", peermem="no module"), GpuRoute.DMABUF),
        (memory(), RDMA, Machine(dmabuf="no", peermem=""), GpuRoute.PEERMEM),
        (memory(), RDMA, BARE, GpuRoute.STAGING),
        (memory(), TCP, BOTH, GpuRoute.STAGING),
        (memory(nbytes=DIRECT_FROM - 1), UCX, BOTH, GpuRoute.STAGING),
        (memory(nbytes=DIRECT_FROM - 1), RDMA, BOTH, GpuRoute.STAGING),
        (memory(nbytes=DIRECT_FROM), UCX, BOTH, GpuRoute.POINTER),
        (memory(kind=8), UCX, BOTH, GpuRoute.STAGING),
        (memory(CPU), UCX, BOTH, GpuRoute.HOST),
        (memory(CUDA_HOST), RDMA, BOTH, GpuRoute.HOST),
        (memory(CUDA_MANAGED), TCP, BARE, GpuRoute.HOST),
    ],
)
def test_the_way(what, can, machine, route):
    way = gpu.decide(what, can, machine)
    assert way.route is route and way.reason and not way.warning


@pytest.mark.parametrize("can", [UCX, RDMA])
def test_expandable_segments_are_staged_with_a_warning(can):
    """Trap 17: they work, hundreds of times slower."""
    way = gpu.decide(memory(virtual=True), can, BOTH)
    assert way.route is GpuRoute.STAGING and "PYTORCH_CUDA_ALLOC_CONF" in way.warning
    told = Machine(dmabuf="", peermem="", expandable=True)
    assert gpu.decide(memory(virtual=None), can, told).warning
    # asked, the driver knows better than the environment
    assert gpu.decide(memory(virtual=False), can, told).route is not GpuRoute.STAGING
    assert gpu.decide(memory(virtual=True), TCP, BOTH).warning == "", "there is nothing to register"


def test_every_reason_names_what_is_missing():
    way = gpu.decide(memory(), RDMA, Machine(dmabuf="kernel 5.4", peermem="nvidia_peermem is not loaded"))
    assert "kernel 5.4" in way.reason and "nvidia_peermem" in way.reason


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("", False),
        ("expandable_segments:True", True),
        ("max_split_size_mb:128,expandable_segments:true", True),
        ("expandable_segments: True ,garbage_collection_threshold:0.8", True),
        ("expandable_segments:False", False),
        ("max_split_size_mb:128", False),
    ],
)
def test_what_pytorch_was_told(settings, expected):
    assert gpu.expandable_segments(settings) is expected


def test_what_the_driver_says_of_a_pointer():
    legacy, pool = gpu.IS_LEGACY_IPC_CAPABLE, gpu.MEMPOOL_HANDLE
    assert gpu.is_virtual({}) is None
    assert gpu.is_virtual({legacy: 1}) is False  # cudaMalloc
    assert gpu.is_virtual({legacy: 0, pool: 0x1234}) is False  # cudaMallocAsync
    assert gpu.is_virtual({legacy: 0, pool: 0}) is True
    assert gpu.is_virtual({legacy: 0}) is True


def test_what_is_exported_by_pieces():
    legacy, pool, types = gpu.IS_LEGACY_IPC_CAPABLE, gpu.MEMPOOL_HANDLE, gpu.ALLOWED_HANDLE_TYPES
    assert gpu.is_exported_by_pieces({legacy: 0, pool: 0, types: 1})  # expandable segments
    assert gpu.is_exported_by_pieces({legacy: 0, types: 1 | 8})  # with fabric handles as well
    assert not gpu.is_exported_by_pieces({legacy: 0, types: 8})  # with fabric handles only
    assert not gpu.is_exported_by_pieces({legacy: 0})
    assert not gpu.is_exported_by_pieces({legacy: 0, pool: 0x1234, types: 1})  # a pool that was made for it
    assert not gpu.is_exported_by_pieces({legacy: 1, types: 1})  # cudaMalloc, which has a handle
    assert not gpu.is_exported_by_pieces({})


def test_what_the_machine_has():
    assert gpu.peermem_missing("nvidia_peermem 16384 0 - Live 0x0\nnvidia 5 2\n") == ""
    assert gpu.peermem_missing("nv_peer_mem 16384 0\n") == ""
    assert "modprobe" in gpu.peermem_missing("nvidia 56623104 2 nvidia_uvm, Live 0x0\n")
    assert gpu.dmabuf_missing("6.1.0-13-amd64", 1, True) == ""
    assert "5.12" in gpu.dmabuf_missing("5.4.0-150-generic", 1, True)
    assert "5.12" in gpu.dmabuf_missing("", 1, True)
    assert "ibv_reg_dmabuf_mr" in gpu.dmabuf_missing("6.1.0", 1, False)
    assert "answer" in gpu.dmabuf_missing("6.1.0", None, True)
    assert "driver" in gpu.dmabuf_missing("6.1.0", 0, True)


class Parameter:
    """As torch's, which refuses `__cuda_array_interface__` while it wants a gradient."""

    nbytes = 64

    @property
    def __cuda_array_interface__(self):
        raise RuntimeError("Can't get __cuda_array_interface__ on Variable that requires grad")

    def __dlpack_device__(self):
        return CUDA, 1

    def data_ptr(self):
        return 8192


def test_what_a_tensor_says():
    interface = {"shape": (4, 5), "typestr": "<f4", "data": (4096, False), "stream": 2, "version": 3}
    cupy = SimpleNamespace(__cuda_array_interface__=interface)
    assert gpu.described(cupy) == DeviceMemory(CUDA, 0, 4096, 80, stream=2)
    both = SimpleNamespace(
        __cuda_array_interface__={**interface, "stream": None}, __dlpack_device__=lambda: (CUDA_MANAGED, 3)
    )
    assert gpu.described(both) == DeviceMemory(CUDA_MANAGED, 3, 4096, 80)
    torch = SimpleNamespace(__dlpack_device__=lambda: (CUDA, 1), data_ptr=lambda: 8192, nbytes=64)
    assert gpu.described(torch) == DeviceMemory(CUDA, 1, 8192, 64)
    assert gpu.described(Parameter()) == DeviceMemory(CUDA, 1, 8192, 64)
    assert gpu.described(b"bytes") is None
    scalar = SimpleNamespace(__cuda_array_interface__={"shape": (), "typestr": "|u1", "data": (1, False)})
    assert gpu.described(scalar).nbytes == 1


def test_the_numbers_are_the_drivers():
    """Against NVIDIA's own enumerations: a wheel, and no GPU."""
    driver = pytest.importorskip("cuda.bindings.driver")
    attribute = driver.CUpointer_attribute
    assert attribute.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE.value == gpu.IS_LEGACY_IPC_CAPABLE
    assert attribute.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE.value == gpu.MEMPOOL_HANDLE
    assert attribute.CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES.value == gpu.ALLOWED_HANDLE_TYPES
    attributes = driver.CUdevice_attribute
    assert attributes.CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED.value == gpu.DMA_BUF_SUPPORTED
    prefix = "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_"
    assert attributes.__members__[f"{prefix}FLUSH_WRITES_OPTIONS"].value == gpu.FLUSH_WRITES_OPTIONS
    assert attributes.__members__[f"{prefix}WRITES_ORDERING"].value == gpu.WRITES_ORDERING
    assert attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL.value == gpu.DEVICE_ORDINAL
    assert attribute.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR.value == gpu.RANGE_BEGIN
    assert attribute.CU_POINTER_ATTRIBUTE_RANGE_SIZE.value == gpu.RANGE_SIZE


@pytest.mark.parametrize(
    ("ordering", "options", "unseen", "flushes"),
    [
        (100, None, False, False),
        (200, 0, False, False),
        (0, 1, False, True),
        (0, 3, False, True),
        (0, 2, True, False),
        (0, None, True, False),
        (None, None, True, False),
        (None, 1, False, True),
    ],
)
def test_whether_a_gpu_sees_what_a_card_wrote(ordering, options, unseen, flushes):
    why, found = gpu.writes_of_cards(ordering, options)
    assert (bool(why), found) == (unseen, flushes)
    machine = Machine(dmabuf="", unseen=why)
    way = gpu.decide_receiving(memory(), RDMA, machine)
    assert way.route is (GpuRoute.STAGING if unseen else GpuRoute.DMABUF)
    assert not unseen or way.reason == why


def test_the_scope_of_orders_is_the_drivers():
    driver = pytest.importorskip("cuda.bindings.driver")
    orders = driver.CUGPUDirectRDMAWritesOrdering
    assert orders.CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER.value == gpu._ORDERED_FOR_OWNER
    options = driver.CUflushGPUDirectRDMAWritesOptions
    assert options.CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST.value == gpu._FLUSH_BY_HOST
