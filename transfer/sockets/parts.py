"""The parts of messages: how they are made of frames, texts and JSON, and frames of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transfer.sockets.compression import decompressed
from transfer.transports.arguments import shown, wrong
from transfer.transports.core.copies import pour
from transfer.transports.core.wire import MAX_TOPIC, Flag, fits
from transfer.transports.errors import ArgumentError

if TYPE_CHECKING:
    from transfer.patterns.base import OutFrame
    from transfer.sockets.context import Context

#: flags that say how a frame's payload is encoded, and so travel with it
_KEPT = int(Flag.TENSOR | Flag.EXTENDED | Flag.LZ4)


def whole_parts(frames: Sequence[Any], make: Any, limit: int) -> list[Any]:
    """Returns the message's parts: the topic as the first one, and everything decompressed to frames of the
    class `make`. limit: bytes of the whole message. Raises ProtocolError."""
    first = frames[0]
    if len(frames) == 1 and type(first) is not bytes and first.topic is None:
        return [decompressed(first, make, limit)]
    parts: list[Any] = []
    for frame in frames:
        if type(frame) is bytes:
            parts.append(frame)
            continue
        if frame.topic is not None:
            parts.append(frame.topic)
        part = decompressed(frame, make, limit)
        parts.append(part)
        limit -= len(part)
    return parts


def as_bytes(parts: Sequence[Any]) -> list[bytes]:
    return [part if type(part) is bytes else part.bytes for part in parts]


def as_frames(parts: Sequence[Any], make: Any) -> list[Any]:
    last = len(parts) - 1
    return [
        make(part, flags=Flag.MORE if i < last else 0) if type(part) is bytes else part
        for i, part in enumerate(parts)
    ]


def pour_frame(frame: Any, target: memoryview) -> int:
    """Copies a frame's data as far as there is room. Returns its whole length, in bytes."""
    view = frame.buffer.cast("B")
    length = min(target.nbytes, view.nbytes)
    pour(target[:length], view[:length])
    return int(view.nbytes)


def owned_frame(frame: Any, context: Context) -> Any:
    """Copies the frame's data if a sink placed it in memory of the caller."""
    core = context.core
    if type(frame) is bytes or isinstance(frame.data, bytes | core.Lease):
        return frame
    lease = context.pool.lease(len(frame.data))
    pour(memoryview(lease), frame.buffer.cast("B"))
    return core.Frame(
        lease,
        flags=frame.flags,
        sequence=frame.sequence,
        socket_type=frame.socket_type,
        topic=frame.topic,
        meta=frame.meta,
    )


def frame_to_send(topic: bytes | None, meta: bytes | None, flags: int, data: Any) -> OutFrame:
    """Makes a frame to send of one as it arrived. Raises TypeError, ArgumentError."""
    if (topic is not None and type(topic) is not bytes) or (meta is not None and type(meta) is not bytes):
        raise TypeError
    if topic is not None and len(topic) > MAX_TOPIC:
        raise ArgumentError(f"a topic of {len(topic)} bytes", hint=f"at most {MAX_TOPIC} can travel")
    if (flags or meta is not None) and not fits(flags, meta):
        what = f"no frame has the flags {shown(flags)} and a tensor header of {len(meta or b'')} bytes"
        raise ArgumentError(what, hint="flags and meta of a frame that recv_frames() gave")
    return flags & _KEPT, 0, topic, meta, data


def encoded(given: Any, encoding: str) -> bytes:
    """Encodes a text. Raises ArgumentError."""
    if not isinstance(given, str):
        raise ArgumentError(f"text is wanted, not {type(given).__name__}", hint="send() sends bytes")
    try:
        return given.encode(encoding)
    except (LookupError, TypeError):
        raise wrong("encoding", encoding, 'the name of an encoding, for instance "utf-8"') from None
    except UnicodeEncodeError as error:
        what = f"{encoding} cannot encode this text: {error.reason}"
        raise ArgumentError(what, hint="send() sends bytes") from None


def json_of(given: Any, options: dict[str, Any]) -> bytes:
    """Encodes an object as JSON. Raises ArgumentError."""
    try:
        return json.dumps(given, **options).encode()
    except (TypeError, ValueError, RecursionError) as error:
        hint = "JSON has text, numbers, lists, dicts with text as keys, True, False, None; send() sends bytes"
        raise ArgumentError(f"it cannot be sent as JSON: {error}", hint=hint) from None
