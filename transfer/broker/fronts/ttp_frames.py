"""Messages as TTP's frames, and the fields of TTP that are kept with a message. Pure.

A message's head: the type of the frame that it came by (PUBLISH or META), flags, stream id; then, for a
PUBLISH, the metadata; for META, the length of the metadata, the metadata, and one cut for each CHUNK: flags,
length of its metadata, length of its data, its metadata. A stream without cuts is a run of bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

from transfer.broker.core.message import Buffer, Front, Message
from transfer.broker.protocols.ttp import EOF, TtpKind, decode_meta, encode_head, encode_meta
from transfer.transports.errors import OptionError

_HEAD = struct.Struct(">BBQ")
#: the part of a frame's header that a message's head begins with
WORDS = slice(6, 16)
_SIZE = struct.Struct(">I")
_CUT = struct.Struct(">BIQ")
#: types of the headers that all protocols know; others are not passed on
_KNOWN: dict[str, type] = {
    "message_id": str, "priority": int, "ttl_ms": int, "content_type": str, "dtype": str, "shape": list,
}  # fmt: skip


class Meta(Mapping[str, Any]):
    """Metadata of a frame as headers: JSON that is parsed on first use. Anything but a JSON object has no
    headers. Headers that all protocols know are left out if they have a wrong type."""

    __slots__ = ("_text", "_values")

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._values: dict[str, Any] | None = None

    def _read(self) -> dict[str, Any]:
        if self._values is None:
            values = decode_meta(self._text) or {}
            self._values = {name: value for name, value in values.items() if _is_fit(name, value)}
        return self._values

    def __getitem__(self, name: str) -> Any:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())


def headers_of(meta: bytes) -> Meta | None:
    """Returns metadata as a message's headers."""
    return Meta(meta) if meta else None


def _is_fit(name: str, value: object) -> bool:
    known = _KNOWN.get(name)
    if known is None:
        return True
    if known is list:
        return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)
    return type(value) is known


def publish_head(flags: int, stream_id: int, meta: bytes) -> bytes:
    """Returns the head of a message that came by PUBLISH."""
    return _HEAD.pack(TtpKind.PUBLISH, flags, stream_id) + meta


def stream_head(flags: int, stream_id: int, meta: bytes, cuts: bytes | bytearray = b"") -> bytes:
    """Returns the head of a message that came as a stream. cuts: see `cut`."""
    return b"".join((_HEAD.pack(TtpKind.META, flags, stream_id), _SIZE.pack(len(meta)), meta, cuts))


def cut(flags: int, size: int, meta: bytes) -> bytes:
    """Returns what is kept of a CHUNK in addition to its data."""
    return _CUT.pack(flags, len(meta), size) + meta


def publish_fields(head: bytes) -> tuple[int, int]:
    """Returns (flags, stream id) of a message that came by PUBLISH."""
    _, flags, stream_id = _HEAD.unpack_from(head)
    return flags, stream_id


def stream_of(message: Message) -> int | None:
    """Returns the stream id of a message that came as a stream, else None."""
    if message.front is not Front.TTP:
        return None
    kind, _, stream_id = _HEAD.unpack_from(message.head)
    return stream_id if kind == TtpKind.META else None


def opening(message: Message, nbytes: int) -> bytes:
    """Returns the first frame of a message of `nbytes` bytes: PUBLISH up to its data, or the META of a
    stream."""
    topic = message.topic.encode()
    if message.front is not Front.TTP:
        return encode_head(TtpKind.PUBLISH, topic, _meta_of(message.headers), nbytes)
    kind, flags, stream_id = _HEAD.unpack_from(message.head)
    if kind == TtpKind.META:
        return encode_head(TtpKind.META, topic, _stream_meta(message.head), 0, flags, stream_id)
    return encode_head(TtpKind.PUBLISH, topic, message.head[_HEAD.size :], nbytes, flags, stream_id)


def frames_of(message: Message) -> list[Buffer]:
    """Returns the frames of a whole message, as consecutive buffers."""
    frames: list[Buffer] = [opening(message, message.nbytes)]
    stream_id = stream_of(message)
    if stream_id is None:
        frames += message.parts
        return frames
    head = message.head
    at = _HEAD.size + _SIZE.size + len(_stream_meta(head))
    if at < len(head):
        frames += _chunks(head, at, memoryview(message.payload), stream_id)
    elif not head[1] & EOF:
        frames += (
            encode_head(TtpKind.CHUNK, size=message.nbytes, flags=EOF, stream_id=stream_id),
            *message.parts,
        )
    return frames


def _chunks(head: bytes, at: int, payload: memoryview, stream_id: int) -> Iterator[Buffer]:
    begin = 0
    while at < len(head):
        flags, meta_size, size = _CUT.unpack_from(head, at)
        at += _CUT.size + meta_size
        yield encode_head(TtpKind.CHUNK, b"", head[at - meta_size : at], size, flags, stream_id)
        yield payload[begin : begin + size]
        begin += size


def _stream_meta(head: bytes) -> bytes:
    begin = _HEAD.size + _SIZE.size
    size: int = _SIZE.unpack_from(head, _HEAD.size)[0]
    return head[begin : begin + size]


def _meta_of(headers: Mapping[str, Any] | None) -> bytes:
    """Returns headers as metadata; values that JSON does not support (another protocol's bytes) are left
    out."""
    if headers is None:
        return b""
    try:
        return encode_meta(headers)
    except OptionError:
        return encode_meta({name: value for name, value in headers.items() if _is_json(value)})


def _is_json(value: object) -> bool:
    try:
        encode_meta({"": value})
    except OptionError:
        return False
    return True
