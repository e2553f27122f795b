"""Views of users' memory, and the sizes of blocks."""

from __future__ import annotations

from pickle import PickleBuffer
from typing import Any

#: a block is at most a quarter larger than requested: four size classes an octave
_STEPS = 4
_SMALLEST = 256


def flat_view(obj: Any) -> memoryview:
    """The bytes of a contiguous object (row- or column-major) as a view of format "B".

    The object stays exported while the view lives. Raises TypeError without the buffer protocol,
    BufferError when the memory is not contiguous.
    """
    if type(obj) is memoryview and obj.c_contiguous:
        # Another view of the same export. An export of the view itself crashes the process if the collector
        # clears the view first (CPython 3.11, `_memory_release`).
        try:
            return obj.cast("B")
        except TypeError:  # zeros in its shape, or a format that is not native
            pass
    # Only this flattens any format and any order in the standard library; it pickles nothing.
    return PickleBuffer(obj).raw()


def size_class(nbytes: int) -> int:
    """The block size for a lease of `nbytes`."""
    if nbytes <= _SMALLEST:
        return _SMALLEST
    step = 1 << max(0, (nbytes - 1).bit_length() - 1)
    step //= _STEPS
    return -(-nbytes // step) * step
