"""LZ4 frames: compresses only when it pays, and never allocates more than the limit.

The format is the LZ4 frame with its content size, so any LZ4 library can read it.
"""

from __future__ import annotations

import struct
from types import ModuleType
from typing import Any, Final

from transfer.transports.errors import NotSupported, ProtocolError, missing_library
from transfer.transports.forking import undivided

#: smaller frames are not worth the call
MIN_SIZE: Final = 512
#: a sample must shrink to this share, and so must the whole
WORTHWHILE: Final = 0.9
_SAMPLE: Final = 4096
_SAMPLE_FROM: Final = 64 * 1024

_MAGIC: Final = 0x184D2204
_START: Final = struct.Struct("<IBBQ")
_VERSION_MASK, _VERSION, _HAS_SIZE, _HAS_DICTIONARY = 0xC0, 0x40, 0x08, 0x01
#: LZ4's best ratio; a frame that claims a better one has a forged content size
_BEST_RATIO: Final = 256


def _lz4() -> ModuleType:
    try:
        with undivided():
            import lz4.frame
    except ImportError as error:
        raise missing_library("compression", error, "lz4") from error
    return lz4.frame  # type: ignore[no-any-return]


def available() -> bool:
    """Whether `lz4` is installed."""
    try:
        _lz4()
    except NotSupported:
        return False
    return True


def compress(data: Any, threshold: int = MIN_SIZE) -> bytes | None:
    """Returns `data` (a contiguous buffer) as an LZ4 frame, or None when it should be sent uncompressed.

    None for less than `threshold` bytes, and when a sample or the whole does not shrink by a
    tenth. Raises NotSupported without `lz4`. Thread-safe; works without the GIL.
    """
    view = memoryview(data)
    if view.nbytes < max(threshold, 1):
        return None
    view = view.cast("B")
    lz4 = _lz4()
    if view.nbytes >= _SAMPLE_FROM:
        middle = view.nbytes // 2
        sample = b"".join((view[:_SAMPLE], view[middle : middle + _SAMPLE], view[-_SAMPLE:]))
        if len(lz4.compress(sample)) > WORTHWHILE * len(sample):
            return None
    packed: bytes = lz4.compress(view, store_size=True)
    return packed if len(packed) < WORTHWHILE * view.nbytes else None


def decompress(data: Any, limit: int) -> bytes:
    """Returns the content of one LZ4 frame of at most `limit` bytes.

    The frame must store its content size. It is checked against `limit`, and against LZ4's best ratio,
    before anything is allocated. Raises ProtocolError("compression").
    """
    return bytes(_decompressed(data, limit, writable=False))


def decompress_writable(data: Any, limit: int) -> bytearray:
    """As `decompress`, into memory that may be written to."""
    content = _decompressed(data, limit, writable=True)
    assert isinstance(content, bytearray)
    return content


def _decompressed(data: Any, limit: int, *, writable: bool) -> bytes | bytearray:
    lz4 = _lz4()
    view = memoryview(data).cast("B")
    size = content_size(view)
    if size > limit:
        raise ProtocolError("compression", f"{size} bytes when decompressed; at most {limit} are allowed")
    if size > _BEST_RATIO * view.nbytes:
        raise ProtocolError("compression", f"{view.nbytes} bytes cannot hold {size}")
    decompressor = lz4.LZ4FrameDecompressor(return_bytearray=writable)
    try:
        # one byte more than the size, so that the same call sees the end of the frame
        content: bytes | bytearray = decompressor.decompress(view, max_length=size + 1)
    except (RuntimeError, ValueError, EOFError) as error:
        raise ProtocolError("compression", f"no LZ4 frame: {error}") from error
    if len(content) != size or not decompressor.eof or decompressor.unused_data:
        raise ProtocolError("compression", f"{len(content)} bytes where {size} were promised")
    return content


def content_size(data: Any) -> int:
    """Returns the content size that an LZ4 frame states. Raises ProtocolError("compression") without one."""
    view = memoryview(data).cast("B")
    if view.nbytes < _START.size:
        raise ProtocolError("compression", f"an LZ4 frame of {view.nbytes} bytes")
    magic, flags, _, size = _START.unpack_from(view)
    if magic != _MAGIC or flags & _VERSION_MASK != _VERSION:
        raise ProtocolError("compression", "no LZ4 frame")
    if not flags & _HAS_SIZE or flags & _HAS_DICTIONARY:
        raise ProtocolError("compression", "an LZ4 frame without content size, or with a dictionary")
    return int(size)
