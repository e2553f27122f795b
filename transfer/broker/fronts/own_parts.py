"""Messages of transfer's own sockets as the broker's, and back: topics, tensor headers, payloads. Pure."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transfer.broker.message import Buffer, Front, Message
from transfer.protocols.names import read_topic
from transports.errors import ProtocolError
from transports.wire import Flag

if TYPE_CHECKING:
    from transports.core_contract import Frame

_PART = struct.Struct("<IQ")
_OWN = Front.OWN
#: flags of a frame whose bytes are not just the payload
_SPECIAL = int(Flag.EXTENDED | Flag.LZ4)
#: bytes from which on a payload is sent from where it lies, however long that takes, instead of copied
HELD_FROM = 64 << 10

#: (topic or None, tensor header or None, flags, data), as `send_frames` takes it
OutPart = tuple[bytes | None, bytes | None, int, Any]


def message_of(topic: str, frames: Sequence[Frame]) -> Message:
    """A message of a topic from its frames. head: of each part its flags, the length of its tensor header,
    both with the payload's length; nothing for one plain part."""
    first = frames[0]
    if len(frames) == 1 and first.meta is None and not first.flags & _SPECIAL:
        data = first.data
        return Message(topic, (data if type(data) is bytes else _flat(data),), _OWN)
    parts = tuple(_flat(frame.data) for frame in frames)
    head = b"".join(
        _PART.pack(frame.flags << 24 | len(frame.meta or b""), len(part)) + (frame.meta or b"")
        for frame, part in zip(frames, parts, strict=True)
    )
    return Message(topic, parts, Front.OWN, head)


def parts_of(message: Message) -> list[OutPart]:
    """The parts of a message, as `send_frames` takes them. Raises ProtocolError for a head that is
    damaged."""
    if message.front is not Front.OWN or not message.head:
        return [(None, None, 0, part) for part in message.parts] or [(None, None, 0, b"")]
    head, payload = message.head, memoryview(message.payload)
    found: list[OutPart] = []
    at = begin = 0
    try:
        while at < len(head):
            what, size = _PART.unpack_from(head, at)
            at += _PART.size
            meta = head[at : at + (what & 0xFFFFFF)] or None
            at += what & 0xFFFFFF
            found.append((None, meta, what >> 24, payload[begin : begin + size]))
            begin += size
    except struct.error as error:
        raise ProtocolError("head", f"a message of topic {message.topic!r} cannot be taken apart") from error
    return found


def _flat(data: Any) -> Buffer:
    return data if type(data) is bytes else memoryview(data).cast("B")


def topic_and_rest(frames: list[Any]) -> tuple[str, list[Frame]]:
    """The topic is that of the first frame, or else the first part. Raises ProtocolError."""
    first = frames[0]
    if first.topic is not None:
        return read_topic(first.topic), frames
    if len(frames) < 2:
        raise ProtocolError("topic", "a message of one part: the first one is the topic")
    return read_topic(first.data), frames[1:]
