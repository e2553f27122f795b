"""Arrays and scalars of numpy and tensors of torch, as parts of an object.

Header and memory are those of `transfer.tensors`. Neither library is imported here before a value needs it.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from transfer.objects.format import malformed
from transfer.tensors.build import NUMPY, TORCH, recipe_for
from transfer.tensors.export import export
from transfer.transports.errors import ArgumentError

_ARRAY, _SCALAR, _TENSOR, _GRADIENT, _PARAMETER, _FROZEN_PARAMETER = range(6)
_KINDS: Final = range(6)

#: text and bytes of numpy lose zeros at their ends
_FLEXIBLE: Final = "SU"


def is_tensor_class(kind: type) -> bool:
    """Whether objects of exactly this class are arrays, scalars or tensors that this module knows."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    # another thread may still be importing them
    if numpy is not None and hasattr(numpy, "generic") and _is_of_numpy(numpy, kind):
        return True
    return torch is not None and hasattr(torch, "nn") and kind in (torch.Tensor, torch.nn.Parameter)


def _is_of_numpy(numpy: Any, kind: type) -> bool:
    """Whether it is numpy's array, or a scalar of numpy or ml_dtypes that no program derived a class from."""
    if not issubclass(kind, numpy.generic):
        return kind is numpy.ndarray
    return kind.__module__.partition(".")[0] in ("numpy", "ml_dtypes")


def header_and_buffer(value: Any) -> tuple[bytes, Any]:
    """Returns (kind and header, buffer). Raises NotATensor, ArgumentError."""
    _, header, buffer = export(value)
    return bytes((_kind_of(value),)) + header, buffer


def _kind_of(value: Any) -> int:
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        if isinstance(value, numpy.ndarray):
            return _ARRAY
        if isinstance(value, numpy.generic):
            if value.dtype.kind in _FLEXIBLE and numpy.asarray(value)[()] != value:
                raise ArgumentError(
                    "numpy text or bytes that end with zeros", hint="send str(x), or bytes(x)"
                )
            return _SCALAR
    if type(value).__name__ == "Parameter":
        return _PARAMETER if value.requires_grad else _FROZEN_PARAMETER
    return _GRADIENT if value.requires_grad else _TENSOR


class Layout:
    """What the header of a received tensor says, checked."""

    __slots__ = ("_kind", "_recipe", "nbytes")

    def __init__(self, described: bytes) -> None:
        self._kind = described[0] if described else -1
        if self._kind not in _KINDS:
            raise malformed("a tensor of unknown kind")
        self._recipe = recipe_for(described[1:])
        self.nbytes = self._recipe.nbytes
        if self._kind == _SCALAR and self._recipe.shape:
            raise malformed("a scalar with dimensions")

    def build(self, memory: Any) -> Any:
        """Makes it over this writable memory of `nbytes`. Raises ProtocolError, MissingLibrary."""
        builder = NUMPY if self._kind in (_ARRAY, _SCALAR) else TORCH
        builder.check(self._recipe)
        made = builder.build(self._recipe, memory)
        if self._kind in (_ARRAY, _TENSOR):
            return made
        if self._kind == _SCALAR:
            return made[()]
        if self._kind == _GRADIENT:
            return made.requires_grad_()
        return sys.modules["torch"].nn.Parameter(made, self._kind == _PARAMETER)
