"""A dict of tensors with small metadata as one message.

The first frame carries an extended header of kind 2, fixed part 16 bytes:

    u32 length      of this header, these four bytes included
    u8  kind        2
    u8  where       0: the index follows in this header, 1: it is the beginning of the data
    u16 reserved    0
    u32 index       bytes
    u32 metadata    bytes

Its data is: index (where = 1 only), metadata (JSON, UTF-8; 0 bytes mean None), zeros up to a
multiple of 64, then the small tensors, each padded with zeros to a multiple of 64. Every other
tensor follows in a separate tensor frame, in the order of the index. The index:

    u32 count
    count times: u16 length of the name, u8 place (0 packed, 1 own frame), u8 reserved 0,
                 tensor header (see `header.py`), name (UTF-8)

Pure apart from joining bytes: no sockets.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any, Final

from transfer.json_text import check_plain, loads
from transfer.tensors.build import Recipe, recipe_for
from transfer.tensors.export import Exported, export
from transfer.tensors.header import EXTENDED_FLAGS, KIND_BUNDLE, kind_of, measure
from transfer.transports.core.wire import EXTENDED_MAX, EXTENDED_MIN
from transfer.transports.errors import ArgumentError, NotATensor, ProtocolError, UsageError
from transfer.transports.gpu import is_device_memory
from transfer.transports.sizes import LARGE

ALIGNMENT: Final = 64
MAX_TENSORS: Final = 65_536
MAX_NAME: Final = 1024
MAX_INDEX: Final = 16 << 20
MAX_METADATA: Final = 16 << 20
MAX_PACKED: Final = MAX_TENSORS * (LARGE + 64)

_FIXED: Final = struct.Struct("<IBBHII")
_COUNT: Final = struct.Struct("<I")
_ENTRY: Final = struct.Struct("<HBB")
_INLINE, _IN_DATA = 0, 1
_PADDING: Final = bytes(ALIGNMENT)
#: bytes of indexes that a cache keeps, all together and of one; one that was read takes ten times as much
_CACHED: Final = 1 << 20
_CACHED_OF_ONE: Final = _CACHED // 4
assert _FIXED.size == EXTENDED_MIN

_to_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode

OutFrame = tuple[int, int, bytes | None, bytes | None, Any]


class _Cache(dict[Any, Any]):
    """What was made of the last indexes: programs send the same names and shapes again and again."""

    nbytes = 0

    def keep(self, key: Any, made: Any, nbytes: int) -> Any:
        """Returns `made`. nbytes: of its index."""
        if nbytes <= _CACHED_OF_ONE:
            if self.nbytes + nbytes > _CACHED:
                self.clear()
                self.nbytes = 0
            self[key] = made
            self.nbytes += nbytes
        return made


# --- sending ----------------------------------------------------------------------------------

#: (index, header with the index in it or None, own frame?, packed?)
_Layout = tuple[bytes, bytes | None, list[bool], list[bool]]
_layouts = _Cache()


def frames_of(
    tensors: Mapping[str, Any],
    metadata: Any,
    topic: bytes | None,
    export: Callable[[Any], Exported] = export,
) -> list[OutFrame]:
    """Makes the frames of one message. Dense tensors of LARGE bytes or more are not copied.

    Raises NotATensor, or UsageError for names and metadata that cannot travel.
    """
    if not isinstance(tensors, Mapping):
        raise ArgumentError(
            f"send_tensors takes a dict of tensors by name, not {type(tensors).__name__}",
            hint='send_tensor(x) sends one tensor, send_tensors({"x": x}) several',
        )
    exported: list[Exported] = []
    try:
        for name, tensor in tensors.items():  # noqa: B007 - the error names it
            exported.append(export(tensor))
    except NotATensor as error:
        reason = str(error).partition("\n")[0]
        raise NotATensor(
            f"{name!r} of a dict of tensors: {reason}",
            hint="send_json() sends other dicts; meta= sends other values together with tensors",
        ) from error
    headers = [header for _, header, _ in exported]
    key = (*tensors, *headers)
    layout: _Layout | None = _layouts.get(key)
    if layout is None:
        layout = _lay_out(list(tensors), exported)
        _layouts.keep(key, layout, len(layout[0]))
    index, complete, own, packed = layout
    described = b"" if metadata is None else _encode(metadata)
    buffers = [buffer for _, _, buffer in exported]
    if complete is not None and not described:
        header: bytes = complete
        data = _first_data(b"", compress(buffers, packed))
    else:
        where = _INLINE if complete is not None else _IN_DATA
        header = _header(index, where, len(described))
        data = _first_data(index + described if where else described, compress(buffers, packed))
    first: OutFrame = (EXTENDED_FLAGS, 0, topic, header, data)
    return [first, *[(flags, 0, None, single, buffer) for flags, single, buffer in compress(exported, own)]]


def _lay_out(names: list[str], exported: Sequence[Exported]) -> _Layout:
    if len(names) > MAX_TENSORS:
        raise UsageError(f"{len(names)} tensors in one message; at most {MAX_TENSORS} can travel")
    parts = [_COUNT.pack(len(names))]
    own: list[bool] = []
    for name, (_, single, buffer) in zip(names, exported, strict=True):
        alone = (buffer.nbytes if is_device_memory(buffer) else memoryview(buffer).nbytes) >= LARGE
        encoded = _encode_name(name)
        parts += (_ENTRY.pack(len(encoded), alone, 0), single, encoded)
        own.append(alone)
    index = b"".join(parts)
    if len(index) > MAX_INDEX:
        raise UsageError(f"the index of this message has {len(index)} bytes; at most {MAX_INDEX} can travel")
    inline = len(index) <= EXTENDED_MAX - EXTENDED_MIN
    header = _header(index, _INLINE, 0) if inline else None
    return index, header, own, [not alone for alone in own]


def _header(index: bytes, where: int, metadata: int) -> bytes:
    inline = index if where == _INLINE else b""
    length = EXTENDED_MIN + len(inline)
    return _FIXED.pack(length, KIND_BUNDLE, where, 0, len(index), metadata) + inline


def _encode_name(name: Any) -> bytes:
    if not isinstance(name, str):
        raise UsageError(f"the name of a tensor is a str, not {type(name).__name__}")
    try:
        encoded = name.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{name!r} is no UTF-8") from error
    if len(encoded) > MAX_NAME:
        raise UsageError(f"a name of {len(encoded)} bytes; at most {MAX_NAME} can travel")
    return encoded


def _encode(metadata: Any) -> bytes:
    try:
        check_plain(metadata)
        encoded = _to_json(metadata).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"metadata cannot be written as JSON: {error}",
            hint="dicts with text as keys, lists, strings, numbers, booleans and None travel; no pickle",
        ) from error
    if len(encoded) > MAX_METADATA:
        raise UsageError(f"{len(encoded)} bytes of metadata; at most {MAX_METADATA} can travel")
    return encoded


def _first_data(head: bytes, packed: Any) -> bytes:
    parts: list[Any] = [head, _PADDING[: -len(head) % ALIGNMENT]]
    for buffer in packed:
        parts += (buffer, _PADDING[: -memoryview(buffer).nbytes % ALIGNMENT])
    return b"".join(parts) if len(parts) > 2 else head + parts[1]


# --- receiving --------------------------------------------------------------------------------


class Entry:
    """One tensor of an index. `offset` counts from the first packed tensor; None: it has a separate frame."""

    __slots__ = ("header", "name", "offset", "recipe")

    def __init__(self, name: str, header: bytes, recipe: Recipe, offset: int | None) -> None:
        self.name = name
        self.header = header
        self.recipe = recipe
        self.offset = offset


class Index:
    """A validated index.

    `entries` in order; `own` those with a separate frame; `packed` the bytes of the others; `built_by` the
    builder that last checked that it can build all of them.
    """

    __slots__ = ("built_by", "entries", "own", "packed")

    def __init__(self, entries: list[Entry], packed: int) -> None:
        self.entries = entries
        self.own = [entry for entry in entries if entry.offset is None]
        self.packed = packed
        self.built_by: Any = None


class BundleHeader:
    """The header of the first frame. `index` is None if the data contains it."""

    __slots__ = ("_data_index", "index", "metadata_bytes")

    def __init__(self, index: Index | None, data_index: int, metadata_bytes: int) -> None:
        self.index = index
        self._data_index = data_index
        self.metadata_bytes = metadata_bytes

    def index_of(self, data: Any) -> Index:
        """Returns the index, from the header or from the data. Raises ProtocolError."""
        if self.index is not None:
            return self.index
        view = memoryview(data)
        if view.nbytes < self._data_index:
            raise ProtocolError("length", "the index of a bundle is cut off")
        return _index(bytes(view[: self._data_index]))

    @property
    def start(self) -> int:
        """The offset of the packed tensors in the data."""
        head = self._data_index + self.metadata_bytes
        return head + -head % ALIGNMENT

    @property
    def limit(self) -> int | None:
        """Bytes of the first frame's data, if the header alone determines them."""
        return None if self.index is None else self.start + self.index.packed

    def metadata_of(self, data: Any) -> Any:
        """Decodes the metadata. Raises ProtocolError("tensor") if it is not JSON."""
        if not self.metadata_bytes:
            return None
        at = self._data_index
        text = bytes(memoryview(data)[at : at + self.metadata_bytes])
        try:
            return loads(text, strict=False)
        except (ValueError, RecursionError) as error:
            raise ProtocolError("tensor", "the metadata of a bundle is not JSON") from error


_headers = _Cache()
_indexes = _Cache()


def unpack_bundle(meta: bytes) -> BundleHeader:
    """Reads and validates the header of a bundle. Raises ProtocolError. Thread-safe."""
    header: BundleHeader | None = _headers.get(meta)
    return header or _headers.keep(meta, _unpack(meta), len(meta))


def _unpack(meta: bytes) -> BundleHeader:
    if kind_of(meta) != KIND_BUNDLE:
        raise ProtocolError("tensor", "a single tensor where a bundle is expected")
    _, _, where, reserved, index_bytes, metadata_bytes = _FIXED.unpack_from(meta)
    inline = meta[EXTENDED_MIN:]
    if where not in (_INLINE, _IN_DATA) or reserved:
        raise ProtocolError("tensor", "a bundle with unknown bits")
    if index_bytes > MAX_INDEX or metadata_bytes > MAX_METADATA:
        raise ProtocolError("too_large", f"a bundle with {index_bytes + metadata_bytes} bytes of description")
    if len(inline) != (index_bytes if where == _INLINE else 0):
        raise ProtocolError("tensor", "the index of a bundle has another length than in its header")
    if where == _INLINE:
        return BundleHeader(_index(inline), 0, metadata_bytes)
    return BundleHeader(None, index_bytes, metadata_bytes)


def _index(raw: bytes) -> Index:
    index: Index | None = _indexes.get(raw)
    return index or _indexes.keep(raw, _read_index(raw), len(raw))


def _read_index(raw: bytes) -> Index:
    if len(raw) < _COUNT.size:
        raise ProtocolError("tensor", "the index of a bundle is cut off")
    count: int = _COUNT.unpack_from(raw)[0]
    if count > MAX_TENSORS:
        raise ProtocolError("too_large", f"{count} tensors in one message")
    entries: list[Entry] = []
    names: set[str] = set()
    at, packed = _COUNT.size, 0
    for _ in range(count):
        name, header, own, at = _read_entry(raw, at)
        recipe = recipe_for(header)
        if name in names:
            raise ProtocolError("tensor", f"the name {name!r} appears twice in a bundle")
        names.add(name)
        entries.append(Entry(name, header, recipe, None if own else packed))
        if not own:
            packed += recipe.nbytes + -recipe.nbytes % ALIGNMENT
    if at != len(raw):
        raise ProtocolError("tensor", f"{len(raw) - at} bytes too many in the index of a bundle")
    return Index(entries, packed)


def _read_entry(raw: bytes, at: int) -> tuple[str, bytes, int, int]:
    if len(raw) - at < _ENTRY.size:
        raise ProtocolError("tensor", "the index of a bundle is cut off")
    length, own, reserved = _ENTRY.unpack_from(raw, at)
    at += _ENTRY.size
    end = at + measure(raw, at)
    if own > 1 or reserved or length > MAX_NAME or end + length > len(raw):
        raise ProtocolError("tensor", "an entry of a bundle is malformed")
    try:
        return raw[end : end + length].decode(), raw[at:end], own, end + length
    except UnicodeDecodeError as error:
        raise ProtocolError("tensor", "a name in a bundle is not UTF-8") from error
