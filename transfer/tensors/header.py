"""Tensor headers, packed and unpacked. Pure: no numpy, no I/O.

A tensor of 1 to 4 dimensions, none of them empty, of an original dtype, in C or Fortran order and in host
memory has the original header of 48 bytes. All others have an extended header:

    u32 length   of this header, these four bytes included
    u8  kind     1 tensor, 2 bundle (see `bundle.py`)
    u8  dtype    number, or 0: a text at the end describes it
    u8  ndim     0 to 32
    u8  layout   0 C order, 1 Fortran order, 2 an order of axes follows the shape
    u8  device   DLPack's number of the device that the tensor was on (1 host, 2 CUDA, ...)
    u8  reserved 0
    u16 index    of that device
    u32 itemsize
    i64 shape[ndim]
    u8  axes[ndim]  with layout 2 only: the axes from the slowest to the fastest in memory
    text         UTF-8, with dtype 0 only

The first u32 distinguishes the two, also inside an index: the original header begins with a dtype below 16,
the other with a length of at least 16. Received headers are validated before memory is allocated for them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from typing import Final

from transfer.tensors.dtypes import BY_CODE, LAST_SEED_CODE, MAX_TEXT, TEXT
from transfer.transports.core.wire import (
    EXTENDED_LENGTH,
    EXTENDED_MAX,
    EXTENDED_MIN,
    TENSOR_HEADER,
    TENSOR_HEADER_SIZE,
    Flag,
)
from transfer.transports.errors import NotATensor, ProtocolError

TENSOR_FLAGS: Final = int(Flag.TENSOR)
EXTENDED_FLAGS: Final = int(Flag.TENSOR | Flag.EXTENDED)

KIND_TENSOR: Final = 1
KIND_BUNDLE: Final = 2
MAX_DIMS: Final = 32
#: bytes of one tensor; also the limit of numpy and torch
MAX_BYTES: Final = (1 << 63) - 1
HOST: Final = 1

_FIXED: Final = struct.Struct("<IBBBBBBHI")
_C_ORDER, _F_ORDER, _AXES = 0, 1, 2
assert _FIXED.size == EXTENDED_MIN


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The contents of a tensor header.

    `axes` is None for C order, else the axes from the slowest to the fastest in memory (Fortran order is
    (n-1, ..., 0)). `text` describes a dtype without a number. `device` is the sender's.
    """

    code: int
    shape: tuple[int, ...]
    itemsize: int
    axes: tuple[int, ...] | None = None
    text: str = ""
    device: tuple[int, int] = (HOST, 0)

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.itemsize

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape in memory order, slowest axis first."""
        if self.axes is None:
            return self.shape
        return tuple(self.shape[axis] for axis in self.axes)


def fortran_axes(ndim: int) -> tuple[int, ...]:
    return tuple(range(ndim - 1, -1, -1))


def pack(spec: TensorSpec) -> tuple[int, bytes]:
    """Returns (frame flags, header) of a tensor. Raises NotATensor if no header can describe it."""
    ndim = len(spec.shape)
    layout = _layout(spec)
    if (
        1 <= spec.code <= LAST_SEED_CODE
        and 1 <= ndim <= 4
        and layout != _AXES
        and spec.device[0] == HOST
        and all(spec.shape)
    ):
        shape = spec.shape + (0,) * (4 - ndim)
        return TENSOR_FLAGS, TENSOR_HEADER.pack(spec.code, ndim, *shape, layout)
    if ndim > MAX_DIMS:
        raise NotATensor(f"{ndim} dimensions; at most {MAX_DIMS} can travel")
    rest = struct.pack(f"<{ndim}q", *spec.shape)
    if layout == _AXES:
        rest += bytes(spec.axes or ())
    rest += spec.text.encode()
    length = EXTENDED_MIN + len(rest)
    if length > EXTENDED_MAX:
        raise NotATensor(f"a tensor header of {length} bytes; at most {EXTENDED_MAX} can travel")
    kind, index = spec.device
    fixed = _FIXED.pack(length, KIND_TENSOR, spec.code, ndim, layout, kind, 0, index, spec.itemsize)
    return EXTENDED_FLAGS, fixed + rest


def _layout(spec: TensorSpec) -> int:
    if spec.axes is None:
        return _C_ORDER
    return _F_ORDER if spec.axes == fortran_axes(len(spec.shape)) else _AXES


# --- receiving --------------------------------------------------------------------------------


def is_extended(meta: bytes) -> bool:
    """Whether the header begins with its length. Raises ProtocolError("tensor") for neither kind."""
    length = len(meta)
    if length >= EXTENDED_MIN and EXTENDED_LENGTH.unpack_from(meta)[0] == length:
        return True
    if length != TENSOR_HEADER_SIZE:
        raise ProtocolError("tensor", f"a tensor header of {length} bytes with another length in it")
    return False


def kind_of(meta: bytes) -> int:
    """Returns KIND_TENSOR or KIND_BUNDLE. Raises ProtocolError("tensor")."""
    if not is_extended(meta):
        return KIND_TENSOR
    kind = meta[4]
    if kind not in (KIND_TENSOR, KIND_BUNDLE):
        raise ProtocolError("tensor", f"an extended tensor header of unknown kind {kind}")
    return kind


def unpack(meta: bytes) -> TensorSpec:
    """Reads and validates the header of one tensor.

    Raises ProtocolError with the reason "tensor" (form), "dtype" or "shape".
    """
    if not is_extended(meta):
        return _unpack_seed(meta)
    if kind_of(meta) != KIND_TENSOR:
        raise ProtocolError("tensor", "a bundle where a single tensor is expected")
    return _unpack_extended(meta)


def measure(data: bytes, offset: int) -> int:
    """Returns the length of the tensor header at `offset`. Raises ProtocolError("tensor")."""
    if len(data) - offset < EXTENDED_LENGTH.size:
        raise ProtocolError("tensor", "a tensor header is cut off")
    first: int = EXTENDED_LENGTH.unpack_from(data, offset)[0]
    length = first if first >= EXTENDED_MIN else TENSOR_HEADER_SIZE
    if length > EXTENDED_MAX or offset + length > len(data):
        raise ProtocolError("tensor", "a tensor header is cut off")
    return length


def _unpack_seed(meta: bytes) -> TensorSpec:
    code, ndim, a, b, c, d, layout = TENSOR_HEADER.unpack(meta)
    row = BY_CODE.get(code)
    if row is None or code > LAST_SEED_CODE:
        raise ProtocolError("dtype", f"unknown dtype {code}")
    if ndim > 4:
        raise ProtocolError("shape", f"{ndim} dimensions in a header that has room for 4")
    if layout not in (_C_ORDER, _F_ORDER):
        raise ProtocolError("tensor", f"unknown layout {layout}")
    shape = (a, b, c, d)[:ndim]
    _check_shape(shape, row.itemsize)
    axes = fortran_axes(ndim) if layout == _F_ORDER and ndim > 1 else None
    return TensorSpec(code, shape, row.itemsize, axes)


def _unpack_extended(meta: bytes) -> TensorSpec:
    _, _, code, ndim, layout, device, reserved, index, itemsize = _FIXED.unpack_from(meta)
    if ndim > MAX_DIMS:
        raise ProtocolError("shape", f"{ndim} dimensions; at most {MAX_DIMS} are allowed")
    if layout > _AXES or reserved:
        raise ProtocolError("tensor", f"unknown layout {layout} or reserved byte {reserved}")
    at = EXTENDED_MIN + 8 * ndim
    end = at + (ndim if layout == _AXES else 0)
    if end > len(meta):
        raise ProtocolError("tensor", "an extended tensor header is cut off")
    text = _dtype_text(code, itemsize, meta[end:])
    shape = struct.unpack_from(f"<{ndim}q", meta, EXTENDED_MIN)
    _check_shape(shape, itemsize)
    axes: tuple[int, ...] | None = None
    if layout == _F_ORDER and ndim > 1:
        axes = fortran_axes(ndim)
    elif layout == _AXES:
        axes = tuple(meta[at:end])
        if sorted(axes) != list(range(ndim)):
            raise ProtocolError("tensor", f"{axes} is no order of {ndim} axes")
    return TensorSpec(code, shape, itemsize, axes, text, (device, index))


def _dtype_text(code: int, itemsize: int, rest: bytes) -> str:
    if code != TEXT:
        row = BY_CODE.get(code)
        if row is None:
            raise ProtocolError("dtype", f"unknown dtype {code}")
        if row.itemsize != itemsize:
            raise ProtocolError("dtype", f"{row.name} has items of {row.itemsize} bytes, not {itemsize}")
        if rest:
            raise ProtocolError("tensor", f"{len(rest)} bytes too many in an extended tensor header")
        return ""
    if not rest or len(rest) > MAX_TEXT or not itemsize:
        raise ProtocolError("dtype", "a dtype without description or size")
    try:
        return rest.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError("dtype", "the description of a dtype is not UTF-8") from error


def _check_shape(shape: tuple[int, ...], itemsize: int) -> None:
    """Rejects negative and overflowing shapes. Leaves empty axes out of the product: numpy and torch compute
    strides from the other axes and overflow there."""
    total = itemsize
    for size in shape:
        if size < 0:
            raise ProtocolError("shape", f"negative dimension in {shape}")
        total *= size or 1
        if total > MAX_BYTES:
            raise ProtocolError("shape", f"the shape {shape} has more than 2^63 bytes")
