"""LZ4 in abtp/1: frames and blocks, never larger than allowed when decompressed. Pure."""

from __future__ import annotations

from transfer.broker.protocols.abtp_words import Code
from transfer.transports.errors import ProtocolError

#: what an LZ4 frame begins with
FRAME_MAGIC = b"\x04\x22\x4d\x18"
#: how much larger an LZ4 block can become at most
_MAX_RATIO = 255
#: bytes that an LZ4 block is first expected to become at least
_FIRST_GUESS = 64 << 10


def decompress(data: bytes, limit: int) -> bytes:
    """What an LZ4 frame, or a block without a size in front, contains.

    Never takes more memory than `limit` and a frame's own buffers. Raises ProtocolError:
    oversized_payload, malformed_envelope.
    """
    return _frame(data, limit) if data.startswith(FRAME_MAGIC) else _block(data, limit)


def compress(data: bytes) -> bytes:
    """An LZ4 frame."""
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
        raise ProtocolError(Code.MALFORMED_ENVELOPE, "an LZ4 frame that is not whole, or not alone")
    return plain


def _block(data: bytes, limit: int) -> bytes:
    """Its size is not known: room for it is tried, and made larger until it is enough, or more than it
    can need."""
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
            raise ProtocolError(Code.MALFORMED_ENVELOPE, "no LZ4 frame, and no LZ4 block") from error


def _begins(data: bytes, size: int) -> bool:
    """Whether an LZ4 block becomes more than `size` bytes before anything is wrong with it.

    Only its lengths and offsets are looked at; a block of n bytes has at most n / 3 of these sequences.
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
    """Where a length ends, and what it is: 15 goes on in the bytes behind, while they are 255."""
    if first < 15:
        return at, first
    more = at
    while more < len(data) and data[more] == 255:
        more += 1
    last = data[more] if more < len(data) else 0
    return more + 1, 15 + 255 * (more - at) + last
