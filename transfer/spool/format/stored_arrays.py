"""The layout of a dict of arrays with metadata in the log: its first frame is the body, large arrays are the
blob. Pure."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from transfer.tensors.build import NUMPY
from transfer.tensors.bundle import ALIGNMENT, frames_of, unpack_bundle
from transfer.transports.errors import LogDamaged

if TYPE_CHECKING:
    from transfer.spool.format.rows import Array, Arrays

_LENGTH = struct.Struct("<I")
_PADDING = bytes(ALIGNMENT)


def encode(arrays: Mapping[str, Array], meta: Any) -> tuple[bytes, list[Any]]:
    """Returns (body, the buffers of the blob). The buffers are the arrays' memory."""
    first, *others = frames_of(arrays, meta, None)
    header, data = first[3] or b"", first[4]
    blob = []
    for frame in others:
        blob += [frame[4], _PADDING[: -memoryview(frame[4]).nbytes % ALIGNMENT]]
    return b"".join((_LENGTH.pack(len(header)), header, data)), [part for part in blob if len(part)]


def decode(body: memoryview, blob: memoryview | None) -> tuple[Arrays, Any]:
    """Returns the arrays, as read-only views of the arguments, and the metadata. Raises LogDamaged."""
    start = _LENGTH.size + _LENGTH.unpack_from(body)[0]
    header = unpack_bundle(bytes(body[_LENGTH.size : start]))
    data = body[start:]
    index = header.index_of(data)
    arrays: Arrays = {}
    position = 0
    for entry in index.entries:
        NUMPY.check(entry.recipe)
        if entry.offset is not None:
            arrays[entry.name] = NUMPY.build(entry.recipe, data, header.start + entry.offset)
            continue
        if blob is None or position + entry.recipe.nbytes > len(blob):
            raise LogDamaged(f"the rows of column {entry.name!r} are missing")
        arrays[entry.name] = NUMPY.build(entry.recipe, blob, position)
        position += -(-entry.recipe.nbytes // ALIGNMENT) * ALIGNMENT
    return arrays, header.metadata_of(data)


def metadata(body: memoryview) -> Any:
    """Returns the metadata alone."""
    start = _LENGTH.size + _LENGTH.unpack_from(body)[0]
    return unpack_bundle(bytes(body[_LENGTH.size : start])).metadata_of(body[start:])


def nbytes_of(body: memoryview) -> int:
    """Returns the bytes of all arrays, even if the blob is deleted."""
    start = _LENGTH.size + _LENGTH.unpack_from(body)[0]
    index = unpack_bundle(bytes(body[_LENGTH.size : start])).index_of(body[start:])
    return sum(entry.recipe.nbytes for entry in index.entries)
