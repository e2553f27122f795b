"""Memory: receive buffers that are reused, and users' objects that are held until they are sent."""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from transfer.transports.core.buffers import flat_view, size_class
from transfer.transports.errors import InternalError
from transfer.transports.sizes import LARGE

_ALIGNMENT = 64
#: from this size on a block is a separate mapping: page aligned, and untouched pages cost nothing
_MAPPED = 16 * 1024
HUGE = 2 << 20
#: bytes of a copy that holds the GIL
PIECE = 1 << 20


class _Byte(ctypes.Union):
    # A union, because ctypes describes the bytes of one as "B"; those of c_ubyte are "<B", which
    # memoryview cannot index.
    _fields_ = [("value", ctypes.c_ubyte)]


class Lease:
    """Writable memory of a pool: supports the buffer protocol (format "B", one dimension).

    It returns to the pool when the lease and all its views are deleted: a view keeps the lease
    alive. Made by `Pool.lease` only. Aligned to 64 bytes.

    Before 3.12 a Python class cannot export a buffer except by inheriting it, so each lease is a ctypes array
    too, of a class for its length.
    """

    _pool: Pool
    _block: mmap.mmap | bytearray

    @property
    def nbytes(self) -> int:
        return len(self)

    def __len__(self) -> int:
        raise TypeError("a lease is made by Pool.lease()")

    def __buffer__(self, flags: int, /) -> memoryview:
        raise TypeError("a lease is made by Pool.lease()")

    def __repr__(self) -> str:
        return f"<Lease of {len(self)} bytes>"

    def __del__(self) -> None:
        # Missing if the construction of the lease failed.
        pool = getattr(self, "_pool", None)
        if pool is not None:
            pool._take_back(self._block)


@lru_cache(maxsize=256)
def _exporter(base: type, nbytes: int) -> Any:
    # The methods of the base that ctypes must provide are taken from the array instead.
    array = ctypes.Array
    members = {
        "_type_": _Byte,
        "_length_": nbytes,
        "__len__": array.__len__,
        "__getitem__": array.__getitem__,
    }
    if hasattr(array, "__buffer__"):
        members["__buffer__"] = array.__buffer__
    metaclass: Any = type(array)
    return metaclass(base.__name__, (base, array), members)


class Region:
    """Bytes that belong to another object, which is called back when their last view is deleted."""

    _released: Callable[[], None] | None
    _view: memoryview
    __hash__ = object.__hash__  # arrays have none

    def __new__(
        cls, memory: Any, released: Callable[[], None] | None = None, *, readonly: bool = False
    ) -> Region:
        view = flat_view(memory)
        if view.readonly and not readonly:
            raise BufferError("the memory of a region is writable")
        exporter = _exporter(Region, view.nbytes)
        # ctypes accepts no read-only buffer. The owner of such a region makes its views read-only.
        region: Region = exporter.from_address(address_of(view)) if readonly else exporter.from_buffer(view)
        region._view = view
        region._released = released
        return region

    def __init__(
        self, memory: Any, released: Callable[[], None] | None = None, *, readonly: bool = False
    ) -> None:
        pass

    @property
    def nbytes(self) -> int:
        return len(self)

    def __len__(self) -> int:
        raise TypeError("a region exports its memory by a class of its length")

    def __buffer__(self, flags: int, /) -> memoryview:
        raise TypeError("a region exports its memory by a class of its length")

    def __del__(self) -> None:
        released = getattr(self, "_released", None)
        if released is not None:
            released()


class Mapping(mmap.mmap):
    """Shared memory, unmapped when its last view is deleted: an mmap cannot close under its views."""

    def __new__(
        cls, fd: int, size: int, *, offset: int = 0, private: bool = False, readonly: bool = False
    ) -> Mapping:
        flags = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
        options: Any = {"trackfd": False} if sys.version_info >= (3, 13) else {}
        protection = mmap.PROT_READ if readonly else mmap.PROT_READ | mmap.PROT_WRITE
        return super().__new__(cls, fd, size, flags, protection, offset=offset, **options)


class _BufferInfo(ctypes.Structure):
    # Py_buffer: the only access to the address of read-only memory.
    _fields_ = [("address", ctypes.c_void_p), ("owner", ctypes.py_object), ("rest", ctypes.c_char * 128)]


def address_of(memory: Any) -> int:
    """The address of the first byte of a contiguous buffer."""
    view = flat_view(memory)
    info = _BufferInfo()
    at = ctypes.byref(info)
    try:  # a signal handler may raise after each call, and nothing else releases the view
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), at, 0)
        address: int = info.address or 0
        return address
    finally:
        ctypes.pythonapi.PyBuffer_Release(at)


def copy_into(target: Any, source: Any) -> None:
    """Copies one contiguous buffer into another of the same size. Raises BufferError."""
    to, what = flat_view(target), flat_view(source)
    if to.readonly or to.nbytes != what.nbytes:
        raise BufferError(f"{what.nbytes} bytes do not fit {to.nbytes}, or that is read-only")
    if what.nbytes < LARGE:  # a smaller copy takes no longer than releasing the GIL
        to[:] = what
        return
    # A foreign function releases the GIL, a slice assignment does not.
    target = (ctypes.c_char * what.nbytes).from_buffer(to)
    ctypes.memmove(target, address_of(what), what.nbytes)


class Pool:
    """Owns receive buffers in size classes. Returned buffers are kept up to `limit` bytes.

    `in_use`: bytes of leases in use. `cached`: bytes kept for reuse. Thread-safe.
    """

    def __init__(self, limit: int = 1 << 28) -> None:
        self.in_use = 0
        self.cached = 0
        self._limit = limit
        self._free: dict[int, list[mmap.mmap | bytearray]] = {}
        # Reentrant: the collector may end a lease inside any statement of this class.
        self._lock = threading.RLock()

    def lease(self, nbytes: int) -> Lease:
        """`nbytes` of memory, not cleared. Raises InternalError when the machine has no more."""
        size = size_class(nbytes)
        with self._lock:
            blocks = self._free.get(size)
            block = blocks.pop() if blocks else None
            if block is not None:
                self.cached -= size
        try:
            if block is None:
                block = self._allocate(size)
            lease: Lease = _exporter(Lease, nbytes).from_buffer(block, _offset(block))
        except (MemoryError, OverflowError, OSError) as error:
            raise InternalError(f"no memory for {nbytes} bytes", hint="lower maxmsgsize or rcvhwm") from error
        lease._block = block
        lease._pool = self
        with self._lock:
            self.in_use += size
        return lease

    @staticmethod
    def _allocate(size: int) -> mmap.mmap | bytearray:
        if size < _MAPPED:
            return bytearray(size + _ALIGNMENT)
        return mapping(size)

    def _take_back(self, block: mmap.mmap | bytearray) -> None:
        size = len(block) if isinstance(block, mmap.mmap) else len(block) - _ALIGNMENT
        with self._lock:
            self.in_use -= size
            if self.cached + size <= self._limit:
                self.cached += size
                self._free.setdefault(size, []).append(block)

    def close(self) -> None:
        """Frees cached buffers. Leases in use free themselves later."""
        with self._lock:
            self._limit = -1
            self._free.clear()
            self.cached = 0


def mapping(size: int) -> mmap.mmap:
    """Memory whose untouched pages cost nothing, of huge pages if it is large: freeing gigabytes of small
    pages blocks allocations of the whole process for a second."""
    # Private: by default it is shared memory, which has no huge pages, and which a forked child shares.
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size > HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        try:  # the first part in small pages: announced data that does not come costs little
            block.madvise(mmap.MADV_HUGEPAGE, HUGE)
        except OSError:
            pass  # a kernel without huge pages serves small ones
    return block


def _offset(block: mmap.mmap | bytearray) -> int:
    if isinstance(block, mmap.mmap):
        return 0
    return -ctypes.addressof(ctypes.c_char.from_buffer(block)) % _ALIGNMENT


class HeldBuffer:
    """Keeps a user's object exported, so that it cannot be resized, until it is deleted or `release()`."""

    __slots__ = ("_view", "nbytes")

    def __init__(self, obj: Any) -> None:
        self._view: memoryview | None = flat_view(obj)
        self.nbytes = self._view.nbytes

    def __len__(self) -> int:
        return self.nbytes

    @property
    def view(self) -> memoryview:
        """The object as flat bytes. Raises BufferError after `release`."""
        if self._view is None:
            raise BufferError("released")
        return self._view

    def release(self) -> None:
        """Releases the object. Idempotent."""
        self._view = None
