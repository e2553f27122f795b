"""How a GPU's memory reaches a transport: one pure decision from descriptions of memory and machine.

No GPU is needed here. What the descriptions say of each kind of memory was compared with a real one.

    decide(memory, can, machine) -> Way(route, reason, warning)

| route | when |
|---|---|
| mapped | every peer is on this host and maps memory of this GPU (local) |
| pointer | the transport takes device pointers (ucx with CUDA) |
| dmabuf | the transport registers memory, and this memory can be exported as a dma-buf |
| peermem | it registers memory, and a peer-memory module is loaded |
| staging | otherwise: copied through pinned host memory (`transfer/tensors/device.py`) |
| host | the host can read the memory, whatever the library calls it |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

from transfer.transports.base import Capabilities
from transfer.transports.sizes import LARGE as DIRECT_FROM

#: DLPack's device types
CPU, CUDA, CUDA_HOST, ROCM, ROCM_HOST, CUDA_MANAGED = 1, 2, 3, 10, 11, 13
_HOST_READABLE: Final = frozenset({CPU, CUDA_HOST, ROCM_HOST, CUDA_MANAGED})

#: numbers of cuPointerGetAttribute
DEVICE_ORDINAL, IS_LEGACY_IPC_CAPABLE, RANGE_BEGIN, RANGE_SIZE = 9, 10, 11, 12
ALLOWED_HANDLE_TYPES, MEMPOOL_HANDLE = 14, 17
#: of attribute 14: it can be exported as descriptors
_POSIX_FILE_DESCRIPTOR: Final = 1
#: numbers of cuDeviceGetAttribute
FLUSH_WRITES_OPTIONS, WRITES_ORDERING, DMA_BUF_SUPPORTED = 117, 118, 124
#: of these attributes: the host can flush; what a card wrote is in order for work of this GPU
_FLUSH_BY_HOST, _ORDERED_FOR_OWNER = 1, 100


class GpuRoute(Enum):
    """The routes in the module's table."""

    MAPPED = "mapped"
    POINTER = "pointer"
    DMABUF = "dmabuf"
    PEERMEM = "peermem"
    STAGING = "staging"
    HOST = "host"


class Way(NamedTuple):
    """route: how the bytes go; reason: why, as text; warning: logged once, or empty."""

    route: GpuRoute
    reason: str
    warning: str = ""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What a tensor states about its memory.

    kind: DLPack's device type; index: which device. pointer, nbytes: where and how much. stream: the one on
    which its contents are ready, from `__cuda_array_interface__` (None: none to wait for).
    virtual: mapped by CUDA's virtual memory calls, as PyTorch's expandable segments are; None: unknown.
    uuid: of the GPU, in all processes; empty: unknown.
    """

    kind: int
    index: int
    pointer: int
    nbytes: int
    stream: int | None = None
    virtual: bool | None = None
    uuid: bytes = b""

    @property
    def is_host_readable(self) -> bool:
        """The CPU can read it directly."""
        return self.kind in _HOST_READABLE


@dataclass(frozen=True, slots=True)
class Machine:
    """What the driver, the kernel and the environment allow.

    dmabuf: "" or why memory cannot be exported as a dma-buf. peermem: "" or why there is no
    peer-memory module. expandable: PyTorch is set to use expandable segments. unseen: "" or why a GPU may
    not see what a network card has written to its memory; flushes: it does after a flush.
    """

    dmabuf: str = "not looked for"
    peermem: str = "not looked for"
    expandable: bool = False
    unseen: str = ""
    flushes: bool = False


class Exportable:
    """Device memory as the payload of a frame: `flat` of a library, and a function that exports a dma-buf.

    dmabuf: returns (a descriptor that the caller closes, the memory's offset in it).
    """

    def __init__(self, flat: Any, dmabuf: Callable[[], tuple[int, int]]) -> None:
        self.__cuda_array_interface__: Mapping[str, Any] = flat.__cuda_array_interface__
        self.nbytes = int(flat.nbytes)
        self.flat = flat
        self.dmabuf = dmabuf


class OnGpu:
    """A tensor's memory on a GPU as the payload of a frame, for peers that map it (shm/gpu_shares.py).

    flat: keeps it. index: of the GPU in this process; uuid: in all. stream: its number; the payload is ready
    when the work that this stream has now is done. copied: makes a copy on this GPU, in the order of that
    stream: (what keeps it, its address).
    """

    def __init__(
        self,
        flat: Any,
        memory: DeviceMemory,
        uuid: bytes,
        stream: int,
        copied: Callable[[], tuple[Any, int]],
    ) -> None:
        self.__cuda_array_interface__: Mapping[str, Any] = {
            "shape": (memory.nbytes,),
            "typestr": "|u1",
            "data": (memory.pointer, False),
            "version": 3,
        }
        self.flat = flat
        self.pointer, self.nbytes, self.index = memory.pointer, memory.nbytes, memory.index
        self.uuid = uuid
        self.stream = stream
        self.copied = copied


#: of Capabilities.host_only
NOT_ASKED: Final = "not every peer has asked for memory of a GPU by device= or out=, or one cannot map it"
_OTHER_GPU: Final = (
    "not every peer has asked for memory of this GPU by device= or out=, but of another one (does "
    "CUDA_VISIBLE_DEVICES differ?)"
)
VIRTUAL_WARNING: Final = (
    "GPU memory of PyTorch's expandable segments cannot be registered in one piece and is copied through "
    "the host, which may be hundreds of times slower: unset expandable_segments in PYTORCH_CUDA_ALLOC_CONF, "
    "or allocate what is sent before it is set"
)


def decide(memory: DeviceMemory, can: Capabilities, machine: Machine) -> Way:
    """Decides how this memory reaches a transport with these capabilities, on this machine. Never raises."""
    if memory.is_host_readable:
        return Way(GpuRoute.HOST, "the host can read it")
    if memory.kind not in (CUDA, ROCM):
        return Way(GpuRoute.STAGING, f"nothing is known of devices of kind {memory.kind}")
    if not (can.device_memory or can.registers_memory or can.maps_gpus):
        return Way(GpuRoute.STAGING, can.host_only or "a peer's transport moves memory of the host only")
    if memory.nbytes < DIRECT_FROM:
        return Way(GpuRoute.STAGING, f"{memory.nbytes} bytes: a copy is quicker than what a direct way needs")
    if memory.uuid and memory.uuid in can.maps_gpus:
        return Way(GpuRoute.MAPPED, "every peer maps memory of this GPU")
    if not (can.device_memory or can.registers_memory):
        return Way(GpuRoute.STAGING, _OTHER_GPU)
    if memory.virtual or (memory.virtual is None and machine.expandable):
        known = "it is" if memory.virtual else "it may be, by PYTORCH_CUDA_ALLOC_CONF,"
        return Way(GpuRoute.STAGING, f"{known} mapped piece by piece (expandable segments)", VIRTUAL_WARNING)
    if can.device_memory:
        return Way(GpuRoute.POINTER, "the transport takes device pointers")
    if not machine.dmabuf:
        return Way(GpuRoute.DMABUF, "it can be exported as a dma-buf")
    if not machine.peermem:
        return Way(GpuRoute.PEERMEM, f"a peer-memory module is loaded; no dma-buf: {machine.dmabuf}")
    return Way(GpuRoute.STAGING, f"no dma-buf: {machine.dmabuf}; no peermem: {machine.peermem}")


def own_memory(index: int) -> DeviceMemory:
    """Of a GPU, as a transport allocates it to receive into."""
    return DeviceMemory(CUDA, index, 0, DIRECT_FROM, virtual=False)


def decide_receiving(memory: DeviceMemory, can: Capabilities, machine: Machine) -> Way:
    """The same for memory that a transport receives into."""
    way = decide(memory, can, machine)
    if machine.unseen and way.route in (GpuRoute.DMABUF, GpuRoute.PEERMEM, GpuRoute.POINTER):
        return Way(GpuRoute.STAGING, machine.unseen)
    return way


#: the types of payloads in memory of a GPU: the core's, once it has made one
PAYLOADS: Final[set[type]] = set()


def is_device_memory(data: Any) -> bool:
    """Whether a payload to be sent lies in memory of a device."""
    return hasattr(data, "__cuda_array_interface__")


def is_payload(data: Any) -> bool:
    """Whether a frame's data lies in memory of a GPU."""
    return type(data) in PAYLOADS


# --- parsing what others report --------------------------------------------------------------------


def described(tensor: Any) -> DeviceMemory | None:
    """What a tensor states by its own methods, `__cuda_array_interface__` or DLPack; None: no device memory.

    Nothing is imported and nothing is copied. Raises what the tensor's own attributes raise.
    """
    device = getattr(tensor, "__dlpack_device__", None)
    pointer = getattr(tensor, "data_ptr", None)
    if not (device is not None and callable(pointer)):  # torch's interface refuses a tensor with a gradient
        interface = getattr(tensor, "__cuda_array_interface__", None)
        if isinstance(interface, Mapping):
            return _of_interface(tensor, interface)
    if device is None:
        return None
    kind, index = (int(number) for number in device())
    nbytes = int(getattr(tensor, "nbytes", 0))
    return DeviceMemory(kind, index, int(pointer()) if callable(pointer) else 0, nbytes)


def _of_interface(tensor: Any, interface: Mapping[str, Any]) -> DeviceMemory:
    count = 1
    for length in interface["shape"]:
        count *= int(length)
    # as "<f4", "<U3" (characters of four bytes), "<M8[ns]"
    match = re.match(r"[<>|=]?([A-Za-z])(\d+)", str(interface["typestr"]))
    itemsize = int(match[2]) * (4 if match[1] == "U" else 1) if match else 1
    index = 0
    device = getattr(tensor, "__dlpack_device__", None)
    kind = CUDA
    if device is not None:
        kind, index = (int(number) for number in device())
    # 1 is the legacy default stream and 2 the one of each thread; 0 is forbidden, since it may mean either
    stream = interface.get("stream")
    return DeviceMemory(
        kind, index, int(interface["data"][0]), count * itemsize, None if stream is None else int(stream)
    )


def expandable_segments(settings: str) -> bool:
    """Whether PYTORCH_CUDA_ALLOC_CONF (or PYTORCH_ALLOC_CONF) enables expandable segments."""
    for part in settings.split(","):
        name, _, value = part.partition(":")
        if name.strip() == "expandable_segments" and value.strip().lower() in ("true", "1"):
            return True
    return False


def is_virtual(attributes: Mapping[int, int]) -> bool | None:
    """From results of cuPointerGetAttribute, by number; None if they do not decide it.

    The old calls can share memory of cudaMalloc. They cannot share memory of a stream-ordered pool, which
    names its pool. The remaining memory was mapped by hand.
    """
    legacy = attributes.get(IS_LEGACY_IPC_CAPABLE)
    if legacy is None:
        return None
    return not legacy and not attributes.get(MEMPOOL_HANDLE)


def is_exported_by_pieces(attributes: Mapping[int, int]) -> bool:
    """From the same results: whether each piece of it can be exported as a descriptor.

    Not so memory of pools: those of torch and CuPy are the devices' default ones, which CUDA does not share.
    """
    types = attributes.get(ALLOWED_HANDLE_TYPES, 0)
    return is_virtual(attributes) is True and bool(types & _POSIX_FILE_DESCRIPTOR)


def can_be_lent(attributes: Mapping[int, int]) -> bool:
    """From the same results: whether other processes can map this memory itself, and not only a copy."""
    return bool(attributes.get(IS_LEGACY_IPC_CAPABLE)) or is_exported_by_pieces(attributes)


def peermem_missing(modules: str) -> str:
    """From the text of /proc/modules: why there is no peer-memory module, or empty if there is one."""
    loaded = {line.split(" ", 1)[0] for line in modules.splitlines()}
    if loaded & {"nvidia_peermem", "nv_peer_mem", "amdgpu"}:
        return ""
    return "nvidia_peermem is not loaded (modprobe nvidia_peermem)"


def writes_of_cards(ordering: int | None, options: int | None) -> tuple[str, bool]:
    """From attributes 118 and 117: why a GPU may not see what a network card has written, or empty; whether a
    flush is needed. None: the driver does not know the attribute, and the GPU is older than they are."""
    if ordering is not None and ordering >= _ORDERED_FOR_OWNER:
        return "", False
    if options is not None and options & _FLUSH_BY_HOST:
        return "", True
    return "the GPU gives no order to what a network card writes, and the host cannot flush it", False


def dmabuf_missing(release: str, supported: int | None, registers: bool) -> str:
    """Why device memory cannot be registered by dma-buf, or empty if it can.

    release: the kernel's, from uname. supported: attribute 124 of the device, None if it could not be read.
    registers: the verbs library has ibv_reg_dmabuf_mr.
    """
    match = re.match(r"(\d+)\.(\d+)", release)
    if match is None or (int(match[1]), int(match[2])) < (5, 12):
        return f"the kernel is {release or 'unknown'}, 5.12 is needed"
    if not registers:
        return "the verbs library has no ibv_reg_dmabuf_mr"
    if supported is None:
        return "the CUDA driver did not answer"
    return "" if supported else "the driver cannot export it (the open kernel modules can)"
