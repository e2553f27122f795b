"""Converts any tensor to (frame flags, header, C-contiguous buffer), without a copy if it is dense.

Types of torch, numpy and others are recognized only after the caller has imported them; this module imports
only the library of the object itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pickle import PickleBuffer
from typing import Any, Final

from transfer.tensors import device, dtypes
from transfer.tensors.gpu_array import Flat, export_array, export_capsule
from transfer.tensors.header import HOST, MAX_DIMS, TensorSpec, fortran_axes, pack
from transfer.transports.errors import NotATensor, NotSupported, missing_library
from transfer.transports.gpu import CUDA
from transfer.transports.sizes import LARGE

#: (frame flags, header as on the wire, object with the buffer protocol, C-contiguous)
Exported = tuple[int, bytes, Any]
_Exporter = Callable[[Any], Exported]
_Flat = tuple[int, bytes, Any]

#: headers, which repeat from message to message. The key is (dtype, shape), and the axes if not in C order;
#: the entry (flags, header, how to get at the memory)
_Entry = tuple[int, bytes, Any]
_CACHE_LIMIT: Final = 4096
_numpy_entries: dict[tuple[Any, ...], _Entry] = {}
_torch_entries: dict[tuple[Any, ...], _Entry] = {}

_exporters: dict[type, _Exporter] = {}

#: how an array is converted before it is exported, if needed
_BYTES: Final = "|u1"
_EMPTY: Final = ""

#: DLPack devices whose memory the host can read
_HOST_DEVICES: Final = (1, 3, 11, 13)


def export(tensor: Any) -> Exported:
    """Returns (flags, header, buffer) of a tensor.

    Dense memory in any order of axes is used without a copy; other memory is copied once. The buffer keeps
    the memory alive, which must not change until it is sent. Raises NotATensor. Thread-safe.
    """
    exporter = _exporters.get(type(tensor))
    return exporter(tensor) if exporter is not None else _exporter_for(tensor)(tensor)


def _exporter_for(tensor: Any) -> _Exporter:
    """Finds the exporter of an object, and caches it for frequent types."""
    if on_device(tensor) and not hasattr(tensor, "is_cuda"):
        return export_staged
    numpy = sys.modules.get("numpy")  # another thread may still be importing it
    if numpy is not None and hasattr(numpy, "ma") and isinstance(tensor, (numpy.ndarray, numpy.generic)):
        if isinstance(tensor, numpy.ma.MaskedArray):
            raise NotATensor("a masked array would lose its mask", hint="send x.filled(value)")
        if type(tensor) is numpy.ndarray:
            _exporters[numpy.ndarray] = _export_numpy
        return _export_numpy if isinstance(tensor, numpy.ndarray) else _export_scalar
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        if type(tensor) in (torch.Tensor, torch.nn.Parameter):
            _exporters[type(tensor)] = _export_torch
        return _export_torch
    if hasattr(type(tensor), "__dlpack__"):
        return _export_dlpack
    return _export_buffer


def _remember(cache: dict[Any, _Entry], key: Any, entry: _Entry) -> _Entry:
    if len(cache) >= _CACHE_LIMIT:
        cache.clear()
    cache[key] = entry
    return entry


# --- numpy ------------------------------------------------------------------------------------


def _export_numpy(array: Any) -> Exported:
    if array.flags.c_contiguous:
        key = (array.dtype, array.shape)
        entry = _numpy_entries.get(key)
        if entry is None:
            entry = _remember(_numpy_entries, key, _numpy_entry(array.dtype, array.shape, None))
        flags, header, view = entry
        return flags, header, array if view is None else _viewed(array, view)
    return _export_ordered(array)


def _export_ordered(array: Any) -> Exported:
    """Exports dense memory in another order of axes without a copy; memory with gaps is copied."""
    axes = _dense_axes(array.shape, array.strides)
    ordered = array.transpose(axes) if axes is not None else None
    if axes is None or ordered is None or not ordered.flags.c_contiguous:
        import numpy

        return _export_numpy(numpy.array(array, order="C", copy=True, subok=False))
    key = (array.dtype, array.shape, axes)
    entry = _numpy_entries.get(key)
    if entry is None:
        entry = _remember(_numpy_entries, key, _numpy_entry(array.dtype, array.shape, axes))
    flags, header, view = entry
    return flags, header, ordered if view is None else _viewed(ordered, view)


def _numpy_entry(dtype: Any, shape: tuple[int, ...], axes: tuple[int, ...] | None) -> _Entry:
    code, text, itemsize = dtypes.describe_numpy(dtype)
    spec = TensorSpec(code, shape, itemsize, axes, text)
    flags, header = pack(spec)
    if not spec.nbytes:
        return flags, header, _EMPTY
    return flags, header, None if code in dtypes.EXPORTABLE else _BYTES


def _viewed(array: Any, view: str) -> Any:
    """The same memory in a form that any reader can flatten."""
    return b"" if view == _EMPTY else array.reshape(-1).view(view)


def _export_scalar(scalar: Any) -> Exported:
    import numpy

    return _export_numpy(numpy.asarray(scalar))


def _dense_axes(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """Returns the axes from the slowest to the fastest, if that order could make the memory contiguous.

    None for too many dimensions and for negative strides. The caller must check the transposed tensor for
    gaps.
    """
    ndim = len(shape)
    if ndim > MAX_DIMS or min(strides, default=0) < 0:
        return None
    fortran = fortran_axes(ndim)
    if all(strides[i] <= strides[i + 1] for i in range(ndim - 1)):
        return fortran
    return tuple(sorted(range(ndim), key=lambda axis: -strides[axis]))


# --- torch ------------------------------------------------------------------------------------


def _export_torch(tensor: Any) -> Exported:
    try:
        if tensor.is_contiguous():
            entry = _torch_entries.get((tensor.dtype, tensor.shape))
            if entry is not None:
                flags, header, plain = entry
                return flags, header, tensor.numpy() if plain is None else plain(tensor)
    except (RuntimeError, TypeError):
        pass  # grad, conjugate, sparse, on a device ...: the slow path handles them
    return _export_any_torch(tensor)


def _export_any_torch(tensor: Any) -> Exported:
    import torch

    if tensor.is_cuda:
        return export_staged(tensor)
    tensor = _plain_torch(torch, tensor)
    where = (HOST, 0)
    if tensor.device.type != "cpu":
        kind, index = tensor.__dlpack_device__()
        where = (int(kind), int(index))
        tensor = tensor.cpu()
    shape = tuple(tensor.shape)
    tensor, axes = _dense(tensor)
    row = dtypes.describe_torch(tensor.dtype)
    spec = TensorSpec(row.code, shape, row.itemsize, axes, "", where)
    flags, header = pack(spec)
    plain = _torch_plain(torch, row, spec.nbytes)
    if axes is not None:
        tensor = tensor.permute(axes)
    elif where == (HOST, 0):
        _remember(_torch_entries, (tensor.dtype, tensor.shape), (flags, header, plain))
    try:
        return flags, header, tensor.numpy() if plain is None else plain(tensor)
    except RuntimeError as error:
        if "umpy is not available" in str(error):
            raise NotSupported("torch was built without numpy, or numpy is missing") from error
        text = f"{type(tensor).__name__}: no memory that can be read: {str(error).partition(chr(10))[0]}"
        raise NotATensor(text) from error


def _dense(tensor: Any) -> tuple[Any, Any]:
    """Returns (a torch tensor without gaps, the order of its axes; None: C order). Copies if needed."""
    if tensor.is_contiguous():
        return tensor, None
    axes = _dense_axes(tuple(tensor.shape), tensor.stride())
    if axes is None or not tensor.permute(axes).is_contiguous():
        return tensor.contiguous(), None
    return tensor, axes


def on_device(tensor: Any) -> bool:
    """Whether it is in a GPU's memory: of torch, CuPy, by `__cuda_array_interface__` or DLPack."""
    cuda = getattr(tensor, "is_cuda", None)
    if cuda is not None:
        return bool(cuda)
    return device.is_cupy(tensor) or hasattr(tensor, "__cuda_array_interface__") or _only_dlpack(tensor)


def _only_dlpack(tensor: Any) -> bool:
    kind = type(tensor)
    if not hasattr(kind, "__dlpack_device__") or hasattr(kind, "__array_interface__"):  # as numpy's
        return False
    asked = tensor.__dlpack_device__
    try:
        where, _ = asked()
        return bool(where == CUDA)
    except (AttributeError, TypeError, ValueError):  # `_export_dlpack` says what is wrong
        return False


def export_flat(tensor: Any) -> Exported:
    """As `export` for a tensor on a device, with its memory there as bytes; None: there are none."""
    if device.is_cupy(tensor):
        return _flat_cupy(tensor)
    if hasattr(tensor, "is_cuda"):
        return _flat_cuda(tensor)
    return export_array(tensor) if hasattr(tensor, "__cuda_array_interface__") else export_capsule(tensor)


def export_pointer(tensor: Any) -> Exported:
    """As `export` for a tensor on a device, with flat device memory instead of a buffer.

    It waits for the work of the current stream, since the transport may read at any time.
    """
    return settled(tensor, export_flat(tensor))


def settled(tensor: Any, exported: Exported) -> Exported:
    """The same of a tensor whose memory `export_flat` returned."""
    flags, header, flat = exported
    if flat is None:
        return flags, header, b""
    device.settle(gpu_of_flat(tensor, flat))
    return flags, header, flat


def gpu_of_flat(tensor: Any, flat: Any) -> device.GpuDevice:
    """The device that has the memory of `export_flat`."""
    return flat.device if isinstance(flat, Flat) else device.device_of(tensor)


def export_staged(tensor: Any) -> Exported:
    """As `export` for a tensor on a device: a copy in host memory that nobody else has."""
    return staged(tensor, export_flat(tensor))


def staged(tensor: Any, exported: Exported) -> Exported:
    """The same of a tensor whose memory `export_flat` returned."""
    flags, header, flat = exported
    return flags, header, b"" if flat is None else device.to_host(gpu_of_flat(tensor, flat), flat)


def begun(tensor: Any, exported: Exported) -> Exported:
    """As `staged`, but the copy of a large tensor has only begun: see `device.begin_to_host`."""
    flags, header, flat = exported
    if flat is None or flat.nbytes < LARGE:
        return staged(tensor, exported)
    return flags, header, device.begin_to_host(gpu_of_flat(tensor, flat), flat)


def _flat_cuda(tensor: Any) -> _Flat:
    """Returns flags, header, the memory as bytes on the device (None: no bytes)."""
    torch = sys.modules["torch"]
    tensor = _plain_torch(torch, tensor)
    kind, index = tensor.__dlpack_device__()
    where = int(kind), int(index)
    shape = tuple(tensor.shape)
    tensor, axes = _dense(tensor)
    row = dtypes.describe_torch(tensor.dtype)
    spec = TensorSpec(row.code, shape, row.itemsize, axes, "", where)
    flags, header = pack(spec)
    if not spec.nbytes:
        return flags, header, None
    ordered = tensor if axes is None else tensor.permute(axes)
    return flags, header, ordered.reshape(-1).view(torch.uint8)


def _flat_cupy(array: Any) -> _Flat:
    """As `_flat_cuda`, for CuPy, whose arrays have numpy's descriptions."""
    kind, index = (int(number) for number in array.__dlpack_device__())
    axes = None
    if not array.flags.c_contiguous:
        axes = _dense_axes(array.shape, array.strides)
        if axes is None or not array.transpose(axes).flags.c_contiguous:
            with array.device:
                axes, array = None, array.copy(order="C")
    code, text, itemsize = dtypes.describe_numpy(array.dtype)
    spec = TensorSpec(code, tuple(array.shape), itemsize, axes, text, (kind, index))
    flags, header = pack(spec)
    if not spec.nbytes:
        return flags, header, None
    ordered = array if axes is None else array.transpose(axes)
    return flags, header, ordered.reshape(-1).view(_BYTES)


def _torch_plain(torch: Any, row: dtypes.ElementType, nbytes: int) -> Callable[[Any], Any] | None:
    """Returns a function that makes a buffer which any reader can flatten; None: `numpy()` suffices."""
    if not nbytes:
        return lambda tensor: b""
    if row.code in dtypes.EXPORTABLE:
        return None
    if not row.view:
        return lambda tensor: torch.view_as_real(tensor).numpy()
    integers = getattr(torch, dtypes.TORCH_VIEWS[row.itemsize])
    return lambda tensor: tensor.view(integers).numpy()


def _plain_torch(torch: Any, tensor: Any) -> Any:
    """Removes grad, conjugate and negative bit. Raises NotATensor for a tensor without plain memory."""
    if tensor.is_nested:
        raise NotATensor("a nested tensor", hint="send its parts: x.unbind(), or x.to_padded_tensor(0)")
    if tensor.layout is not torch.strided:
        raise NotATensor(f"a tensor of layout {tensor.layout}", hint="send x.to_dense()")
    if tensor.is_quantized:
        raise NotATensor("a quantized tensor", hint="send x.int_repr() and the scale, or x.dequantize()")
    if tensor.device.type == "meta":
        raise NotATensor("a tensor on the meta device has no data")
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_conj():
        tensor = tensor.resolve_conj()
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    return tensor


# --- other libraries --------------------------------------------------------------------------


def _export_dlpack(tensor: Any) -> Exported:
    try:
        kind, index = (int(number) for number in tensor.__dlpack_device__())
    except (AttributeError, TypeError, ValueError) as error:
        raise NotATensor(f"{type(tensor).__name__} has a broken DLPack interface") from error
    if kind not in _HOST_DEVICES:
        raise NotATensor(
            f"{type(tensor).__name__} is on device ({kind}, {index}), not in host memory",
            hint="copy it to the host first",
        )
    try:
        import numpy
    except ImportError as error:
        raise missing_library("a tensor by DLPack", error, "numpy") from error
    try:
        array = numpy.from_dlpack(tensor)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise NotATensor(f"{type(tensor).__name__} of {getattr(tensor, 'dtype', '?')}: {error}") from error
    return _export_numpy(array)


#: format character and size of the buffer protocol -> the name of the type
_BUFFER_KINDS: Final = {"i": "bhilqn", "u": "BHILQNc", "f": "efd"}
_BUFFER_NAMES: Final = {"i": "int", "u": "uint", "f": "float"}


def _export_buffer(tensor: Any) -> Exported:
    try:
        view = memoryview(tensor)
    except TypeError as error:
        raise NotATensor(
            f"{type(tensor).__name__} is no tensor",
            hint="numpy, torch, DLPack and the buffer protocol are understood; for others use send()",
        ) from error
    except (BufferError, ValueError) as error:
        raise NotATensor(f"{type(tensor).__name__} cannot export its memory: {error}") from error
    row = dtypes.BY_NAME.get(_buffer_type(view.format, view.itemsize))
    if row is None:
        raise NotATensor(f"{type(tensor).__name__} has elements of format {view.format!r}")
    flags, header = pack(TensorSpec(row.code, tuple(view.shape or ()), row.itemsize))
    if not view.nbytes:
        return flags, header, b""
    if not view.c_contiguous:
        return flags, header, view.tobytes()
    # ctypes and complex formats are more than one character, which memoryview cannot flatten
    return flags, header, tensor if len(view.format) == 1 else PickleBuffer(tensor).raw()


def _buffer_type(described: str, itemsize: int) -> str:
    character = described.lstrip("@=" + ("<" if sys.byteorder == "little" else ">"))
    if character == "?":
        return "bool"
    if character in ("Zf", "Zd"):
        return f"complex{8 * itemsize}"
    for kind, characters in _BUFFER_KINDS.items():
        if character and character in characters:
            return f"{_BUFFER_NAMES[kind]}{8 * itemsize}"
    return ""
