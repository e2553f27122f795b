"""The format of the broker's messages in the log: a head, then the payload; large payloads are blobs.

    version 1 | front 1 | flags 2 | head length 4 | headers length 4 | position 8 | head | headers | payload

Little-endian. position: of the payload's first byte in its topic's byte stream, the concatenation of all
payloads of the topic that are for everyone; retention does not change it. headers: JSON, or empty. flags: 1
the payload is the record's blob, in parts if the head says so; 2 the message is for one group only, which the
headers name (`transfer.only_for`; "": none). This module does no I/O.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

from transfer.broker.core.message import Buffer, Front, Message
from transfer.transports.errors import LogDamaged

if TYPE_CHECKING:
    from transfer.log import LogMessage

_HEAD = struct.Struct("<BBHIIQ")
_VERSION = 1
_IN_BLOB, _FOR_ONE_GROUP = 1, 2
_ONLY_FOR = "transfer.only_for"
#: payloads of at least this size are blobs, which are written without a copy
BLOB_FROM = 64 << 10


def record_of(message: Message, position: int, *, blob: bool) -> bytes:
    """Returns the record's body, which contains the payload unless that is a `blob`."""
    front, head = message.front, message.head
    if not (head or blob or message.headers or message.only_for is not None):  # most messages
        return b"".join((_HEAD.pack(_VERSION, front, 0, 0, 0, position), *message.parts))
    fields, flags = dict(message.headers or {}), _IN_BLOB if blob else 0
    if message.only_for is not None:
        fields[_ONLY_FOR] = message.only_for
        flags |= _FOR_ONE_GROUP
    headers = json.dumps(fields, separators=(",", ":")).encode() if fields else b""
    first = _HEAD.pack(_VERSION, front, flags, len(head), len(headers), position)
    return b"".join((first, head, headers) if blob else (first, head, headers, *message.parts))


def position_of(body: Buffer) -> int:
    """Returns where the payload begins in its topic's byte stream."""
    position: int = _HEAD.unpack_from(body)[5]
    return position


def message_of(topic: str, kept: LogMessage) -> Message:
    """Returns the message of a record; its payload is a view of the log's file.
    Raises LogDamaged, also if retention has removed the payload before the record."""
    body = kept.body
    try:
        version, front, flags, head_size, headers_size, _ = _HEAD.unpack_from(body)
        begin = _HEAD.size + head_size
        end = begin + headers_size
        if version != _VERSION or end > len(body):
            raise ValueError(f"version {version}")
        headers: dict[str, Any] | None = json.loads(bytes(body[begin:end])) if headers_size else None
        front = Front(front)
        only_for = headers.pop(_ONLY_FOR) if headers and flags & _FOR_ONE_GROUP else None
    except (struct.error, ValueError, LookupError) as error:
        raise LogDamaged(
            f"message {kept.offset} of topic {topic!r} has not the broker's format: {error}"
        ) from error
    head = bytes(body[_HEAD.size : begin])
    payload: Buffer = body[end:]
    if flags & _IN_BLOB:
        if kept.blob is None:
            raise LogDamaged(
                f"the payload of message {kept.offset} of topic {topic!r} is no longer in the log"
            )
        payload = kept.blob
    message = Message(topic, (payload,), front, head, headers or None, offset=kept.offset)
    message.only_for = only_for
    return message
