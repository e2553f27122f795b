"""A CUDA driver without a GPU (null_cuda.c; null_virtual.c has memory that is mapped in pieces), for tests:
memory of the host, and threads as streams.

A device pointer is an address that the host cannot touch: a program that reads it as memory of the host ends
there. Work is done in the order of its stream and in no other order, each copy NULL_CUDA_DELAY_US late: what
forgets to wait finds wrong bytes. Handles, maps and events work between processes that share NULL_CUDA_NAME,
and not within one, as the real ones. To free memory that another living process has mapped, undefined for the
real driver, ends the process. Not as on a GPU: the default stream waits for no other, and work that
waits for a killed process goes on.

Real UCX runs on it, too, if it finds it by `link`.

NULL_CUDA_IPC=0: this process cannot map memory of others. NULL_CUDA_PIECES=0: it cannot import pieces.
NULL_CUDA_DEVICES: GPUs (1). NULL_CUDA_FIRST: the first one that this process sees. NULL_CUDA_MEMORY: bytes
(1 GiB). NULL_CUDA_PINNED=0: nothing can be pinned. NULL_CUDA_ORDERING=0: what a card wrote is visible after a
flush only. NULL_CUDA_DMABUF=0: no memory can be exported for cards. NULL_CUDA_UCX=1: memory that others have
mapped may be freed, since UCX's mappings outlive their use, and an address in an allocation has its handle.
NULL_CUDA_RATE: for measurements, copies take their time at so many MB/s, use no processor, and copy nothing.
"""

from __future__ import annotations

import ctypes
import hashlib
from pathlib import Path
from typing import Any

from tests.rdma.null_provider import ROOT, compile_c

_SOURCES = sorted(Path(__file__).parent.glob("*.c"))
_HEADERS = sorted(Path(__file__).parent.glob("*.h"))
_FLAGS = ("-std=gnu11", "-O2", "-g", "-Wall", "-shared", "-fPIC", "-pthread", "-fvisibility=hidden")
_SHARED = Path("/dev/shm")
COPIES, BYTES, MAPS, CONTEXTS, FLUSHES = range(5)


def build() -> Path:
    """The library, compiled unless it is there. Raises `null_provider.Missing`."""
    sources = b"".join(path.read_bytes() for path in _SOURCES + _HEADERS)
    digest = hashlib.sha256(" ".join(_FLAGS).encode() + sources).hexdigest()[:16]
    library = ROOT / "build" / "null_cuda" / f"libnull_cuda-{digest}.so"
    if not library.exists():
        compile_c(_SOURCES, library, _FLAGS)
    return library


def link(folder: Path) -> None:
    """Makes what UCX looks for by name in this folder of LD_LIBRARY_PATH: the driver, and a library of
    NVIDIA's that its modules are linked with and that says nothing."""
    source = folder / "nothing.c"
    source.write_text('const char *nvmlErrorString(int code) { (void)code; return "none"; }\n')
    compile_c([source], folder / "libnvidia-ml.so.1", ("-shared", "-fPIC"))
    (folder / "libcuda.so.1").symlink_to(build())


def left(name: str) -> list[str]:
    """Files of processes that used this NULL_CUDA_NAME."""
    return sorted(path.name for path in _SHARED.glob(f"{name}-*"))


def remove(name: str) -> None:
    """What killed processes have left."""
    for path in _SHARED.glob(f"{name}-*"):
        path.unlink()


class NullDriver:
    """What a test does past the driver's calls."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(build()))
        self._library.null_cuda_count.restype = ctypes.c_uint64

    def count(self, what: int) -> int:
        """COPIES, BYTES of copies, MAPS of other processes' memory, CONTEXTS asked for, FLUSHES of what a
        card wrote: of this process."""
        return int(self._library.null_cuda_count(what))

    def pieces(self) -> int:
        """Pieces of physical memory that this process has a handle of, or has mapped."""
        return int(self._library.null_cuda_pieces())

    def fill(self, pointer: int, byte: int, nbytes: int, stream: int = 0, delay: float = 0.0) -> None:
        """A kernel that waits for `delay` seconds and writes this byte."""
        arguments = (ctypes.c_uint64(pointer), byte, ctypes.c_size_t(nbytes), ctypes.c_void_p(stream))
        assert not self._library.null_cuda_fill(*arguments, int(delay * 1e6))

    def peek(self, pointer: int, nbytes: int) -> bytes:
        """What the memory holds at this moment."""
        found = ctypes.create_string_buffer(nbytes)
        assert not self._library.null_cuda_peek(ctypes.c_uint64(pointer), found, ctypes.c_size_t(nbytes))
        return found.raw


class Array:
    """An array in memory of a GPU, as of a library that only has `__cuda_array_interface__`."""

    def __init__(
        self, context: Any, shape: tuple[int, ...], typestr: str = "<f4", stream: int | None = None
    ) -> None:
        self.context, self.shape, self.typestr, self.stream = context, shape, typestr, stream
        count = 1
        for length in shape:
            count *= length
        self.nbytes = count * int(typestr[2:])
        self.pointer = context.allocate(max(1, self.nbytes))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.typestr,
            "data": (self.pointer, False),
            "strides": None,
            "stream": self.stream,
            "version": 3,
        }

    def close(self) -> None:
        self.context.free(self.pointer)


class Capsules:
    """The same of a library that only has DLPack, version 0 or 1. asked: the streams that were named."""

    def __init__(self, array: Array, kind: int, bits: int, versioned: bool = True) -> None:
        self.array, self.kind, self.bits, self.versioned = array, kind, bits, versioned
        self.asked: list[object] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.array.context.index

    def __dlpack__(self, *, stream: object = None, **newer: object) -> Any:
        from transfer.transports.core.native import dlpack  # type: ignore[attr-defined]

        if newer and not self.versioned:
            raise TypeError("max_version")
        self.asked.append(stream)
        strides = [1] * len(self.array.shape)
        for axis in range(len(strides) - 2, -1, -1):
            strides[axis] = strides[axis + 1] * self.array.shape[axis + 1]
        device, index = self.__dlpack_device__()
        memory = (self.array.pointer, device, index, self.kind, self.bits, self.array.shape)
        return dlpack.capsule(self.array, *memory, tuple(strides), self.versioned)
