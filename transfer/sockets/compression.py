"""Compression of messages, decided for each frame: only where it pays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transfer.transports.core.wire import Flag

if TYPE_CHECKING:
    from transfer.patterns.base import OutFrame

#: smaller payloads are sent uncompressed: the call costs more than the bytes
_SMALLEST = 512


def compressed(frames: Sequence[OutFrame], published: bool = False) -> list[OutFrame]:
    """The frames with their data compressed where that makes them smaller.

    published: without a topic the first part stays uncompressed, since subscribers match it as the topic.
    """
    from transfer.lz4_frame import compress

    result: list[OutFrame] = []
    for index, frame in enumerate(frames):
        if published and index == 0 and frame[2] is None:
            result.append(frame)
            continue
        flags, sequence, topic, meta, data = frame
        if len(memoryview(data).cast("B") if type(data) is not bytes else data) >= _SMALLEST:
            smaller = compress(data)
            if smaller is not None:
                frame = (flags | Flag.LZ4, sequence, topic, meta, smaller)
        result.append(frame)
    return result


def decompressed(frame: Any, make: Any, limit: int) -> Any:
    """Returns the frame as it was before `compressed`. Raises ProtocolError for a bomb or broken data."""
    if not frame.flags & Flag.LZ4:
        return frame
    from transfer.lz4_frame import decompress

    return make(
        decompress(frame.data, limit),
        flags=frame.flags & ~Flag.LZ4,
        sequence=frame.sequence,
        socket_type=frame.socket_type,
        topic=frame.topic,
        meta=frame.meta,
    )
