"""LZ4 in abtp/1: decompresses frames and blocks, up to a limit. Pure."""

from __future__ import annotations

from transfer.broker.protocols.abtp_words import Code
from transfer.transports.errors import ProtocolError

#: the first bytes of an LZ4 frame
FRAME_MAGIC = b"\x04\x22\x4d\x18"
#: the largest ratio of an LZ4 block
_MAX_RATIO = 255
#: the smallest first guess of an LZ4 block's decompressed size
_FIRST_GUESS = 64 << 10


def decompress(data: bytes, limit: int) -> bytes:
    """Decompresses an LZ4 frame, or a block without a size in front.

    Never takes more memory than `limit` and a frame's own buffers. Raises ProtocolError: oversized_payload,
    malformed_envelope.
    """
    return _frame(data, limit) if data.startswith(FRAME_MAGIC) else _block(data, limit)


def compress(data: bytes) -> bytes:
    """Compresses into an LZ4 frame."""
    import lz4.frame

    compressed: bytes = lz4.frame.compress(data)
    return compressed


def _frame(data: bytes, limit: int) -> bytes:
    import lz4.frame

    decompressor = lz4.frame.LZ4FrameDecompressor()
    try:
        plain: bytes = decompressor.decompress(data, max_length=limit + 1)
    except RuntimeError as error:
        raise ProtocolError(Code.MALFORMED_ENVELOPE, f"a damaged LZ4 frame: {error}") from error
    if len(plain) > limit:
        raise ProtocolError(Code.OVERSIZED_PAYLOAD, f"more than {limit:,} bytes when decompressed")
    if not decompressor.eof or decompressor.unused_data:
        raise ProtocolError(Code.MALFORMED_ENVELOPE, "the LZ4 frame is incomplete, or bytes follow it")
    return plain


def _block(data: bytes, limit: int) -> bytes:
    """Decompresses a block of unknown size: it tries buffers of growing size, up to the largest possible
    one."""
    import lz4.block

    most = min(limit, _MAX_RATIO * len(data))
    room = min(most, max(4 * len(data), _FIRST_GUESS))
    while True:
        try:
            plain: bytes = lz4.block.decompress(data, uncompressed_size=room)
            return plain
        except lz4.block.LZ4BlockError as error:
            if room < most:
                room = min(4 * room, most)
                continue
            if limit < _MAX_RATIO * len(data) and _begins(data, limit):
                text = f"more than {limit:,} bytes when decompressed"
                raise ProtocolError(Code.OVERSIZED_PAYLOAD, text) from error
            raise ProtocolError(Code.MALFORMED_ENVELOPE, "neither an LZ4 frame nor an LZ4 block") from error


def _begins(data: bytes, size: int) -> bool:
    """Returns whether an LZ4 block becomes more than `size` bytes before its first error.

    It reads only lengths and offsets; a block of n bytes has at most n / 3 of these sequences.
    """
    at, made, end = 0, 0, len(data)
    while at < end and made <= size:
        token = data[at]
        at, literals = _length(data, at + 1, token >> 4)
        made += literals
        at += literals
        if at + 2 > end:
            return made > size and at <= end
        offset = data[at] | data[at + 1] << 8
        if not 0 < offset <= made:
            return False
        at, match = _length(data, at + 2, token & 15)
        made += match + 4
    return made > size


def _length(data: bytes, at: int, first: int) -> tuple[int, int]:
    """Returns where a length ends, and the length: 15 continues in the next bytes, while they are 255."""
    if first < 15:
        return at, first
    more = at
    while more < len(data) and data[more] == 255:
        more += 1
    last = data[more] if more < len(data) else 0
    return more + 1, 15 + 255 * (more - at) + last
