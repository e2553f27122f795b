"""Memory as PyTorch's expandable segments have it: a range of addresses, into which pieces are mapped."""

from __future__ import annotations

import ctypes
from typing import Any

from tests.cuda.null_driver import build

#: bytes of a piece; on a GPU they have 2 or 20 MiB
PIECE = 256 << 10


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("rest", ctypes.c_void_p * 3),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class Segment:
    """`pieces` of PIECE bytes. exportable: other processes can map them."""

    def __init__(self, pieces: int, *, device: int = 0, exportable: bool = True) -> None:
        self._library = ctypes.CDLL(str(build()))
        self._device, self._exportable = device, exportable
        self.nbytes = pieces * PIECE
        pointer = ctypes.c_uint64()
        self._call("cuMemAddressReserve", ctypes.byref(pointer), ctypes.c_size_t(self.nbytes), 0, 0, 0)
        self.pointer = pointer.value
        self._mapped: set[int] = set()
        for number in range(pieces):
            self.map(number)

    def map(self, number: int) -> None:
        """New memory for a piece."""
        handle = ctypes.c_uint64()
        wanted = _Properties(1, int(self._exportable), _Location(1, self._device))
        self._call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(PIECE), ctypes.byref(wanted), 0)
        address = ctypes.c_uint64(self.pointer + number * PIECE)
        self._call("cuMemMap", address, ctypes.c_size_t(PIECE), ctypes.c_size_t(0), handle, 0)
        access = _Access(_Location(1, self._device), 3)
        self._call(
            "cuMemSetAccess", address, ctypes.c_size_t(PIECE), ctypes.byref(access), ctypes.c_size_t(1)
        )
        self._call("cuMemRelease", handle)
        self._mapped.add(number)

    def unmap(self, number: int) -> None:
        """As torch.cuda.empty_cache() does with a piece that no tensor has."""
        self._call("cuMemUnmap", ctypes.c_uint64(self.pointer + number * PIECE), ctypes.c_size_t(PIECE))
        self._mapped.discard(number)

    def part(self, offset: int, nbytes: int) -> Part:
        """A tensor in it."""
        return Part(self, offset, nbytes)

    def close(self) -> None:
        for number in sorted(self._mapped):
            self.unmap(number)
        self._call("cuMemAddressFree", ctypes.c_uint64(self.pointer), ctypes.c_size_t(self.nbytes))

    def _call(self, name: str, *arguments: Any) -> None:
        assert not getattr(self._library, name)(*arguments), name


class Part:
    """An array of bytes in a segment."""

    def __init__(self, segment: Segment, offset: int, nbytes: int) -> None:
        self.segment, self.pointer, self.nbytes = segment, segment.pointer + offset, nbytes
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (self.pointer, False),
            "strides": None,
            "stream": None,
            "version": 3,
        }
