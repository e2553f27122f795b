"""Converts messages between transfer's sockets and the broker: topics, tensor headers, payloads. Pure."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transfer.broker.core.message import Buffer, Front, Message
from transfer.broker.core.topic_names import read_topic
from transfer.broker.protocols.native_pieces import Part, pack_part, unpack_parts
from transfer.transports.core.wire import Flag, fits
from transfer.transports.errors import ProtocolError

if TYPE_CHECKING:
    from transfer.transports.core.contract import Frame

_log = logging.getLogger("transfer.broker")

_NATIVE = Front.NATIVE
#: flags of a frame that has more than the payload
_SPECIAL = int(Flag.EXTENDED | Flag.LZ4)
#: payloads from this size on are sent without a copy, however long that takes
HELD_FROM = 64 << 10

#: (topic or None, tensor header or None, flags, data), as `send_frames` takes it
OutPart = tuple[bytes | None, bytes | None, int, Any]


def message_of(topic: str, frames: Sequence[Frame]) -> Message:
    """Makes a message of a topic from its frames. head: of each part its flags, the lengths of its tensor
    header and payload, and the header; empty for one plain part."""
    first = frames[0]
    if len(frames) == 1 and first.meta is None and not first.flags & _SPECIAL:
        data = first.data
        return Message(topic, (data if type(data) is bytes else flat(data),), _NATIVE)
    parts = tuple(flat(frame.data) for frame in frames)
    head = b"".join(
        pack_part(Part(frame.flags, frame.meta or b"", len(part)))
        for frame, part in zip(frames, parts, strict=True)
    )
    return Message(topic, parts, Front.NATIVE, head)


def parts_of(message: Message) -> list[OutPart]:
    """Returns the parts of a message, as `send_frames` takes them. Raises ProtocolError for a damaged
    head."""
    if message.front is not Front.NATIVE or not message.head:
        return [(None, None, 0, part) for part in message.parts] or [(None, None, 0, b"")]
    described = check_head(message)
    payload = memoryview(message.payload)
    found: list[OutPart] = []
    begin = 0
    for flags, meta, size in described:
        found.append((None, meta or None, flags, payload[begin : begin + size]))
        begin += size
    return found


def check_head(message: Message) -> list[Part]:
    """Returns the parts that a message's head describes; none for one plain part. Raises ProtocolError for a
    head that is damaged, or that a later version wrote: such frames would break their receiver's
    connection."""
    if message.front is not Front.NATIVE:
        return []
    parts = unpack_parts(message.head)
    whole = not parts or sum(part.nbytes for part in parts) == message.nbytes
    if not whole or not all(fits(part.flags, part.meta or None) for part in parts):
        raise ProtocolError("head", "the head does not match the parts")
    return parts


def unreadable(message: Message, error: ProtocolError, counts: Counter[str]) -> str:
    """Counts and logs a message whose head cannot be read. Returns the reason."""
    counts["unreadable"] += 1
    _log.error("message %s of topic %r cannot be split into parts: %s", message.offset, message.topic, error)
    return f"the message cannot be split into parts: {error}"


def flat(data: Any) -> Buffer:
    """Returns a frame's data as the bytes of a payload."""
    return data if type(data) is bytes else memoryview(data).cast("B")


def topic_and_rest(frames: list[Any]) -> tuple[str, list[Frame]]:
    """Returns the topic and the frames of the payload. The topic is that of the first frame, or else the
    first part. Raises ProtocolError."""
    first = frames[0]
    if first.topic is not None:
        return read_topic(first.topic), frames
    if len(frames) < 2:
        raise ProtocolError("topic", "the message has only one part, which is the topic")
    return read_topic(first.data), frames[1:]
