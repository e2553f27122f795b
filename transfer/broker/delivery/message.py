"""A message as the broker knows it, whichever protocol it came by."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transfer.log.blob_writer import BlobWriter

#: what a payload consists of: flat buffers of bytes
Buffer = bytes | memoryview


class Front(IntEnum):
    """Which protocol a message came by. The numbers stand in the log: they never change."""

    BROKER = 0  # the broker's own words: dead letters, messages without a route
    OWN = 1
    TTP = 2
    PYBROKER = 3
    RQUEUE = 4
    ABTP = 5
    HTTP = 6


class Message:
    """A message on its way through the broker. Nobody changes it, but for `offset`, which is given once.

    topic: text, at most 255 bytes of UTF-8. parts: the payload, flat buffers that stay as they are as long
    as somebody holds them; most messages have one. nbytes: of the payload. front, head: the protocol that it
    came by, and that protocol's own words beside topic and payload (flags, metadata, a tensor header), which
    only the same protocol reads. headers: what all protocols may know: `message_id`, `priority`, `ttl_ms`,
    `content_type`, `dtype`, `shape`, and what a producer added; JSON's types; None: nothing. raw: the whole
    message as the same protocol sends it on, if it is known. offset: in the topic's log, from 0; None: it is
    not kept.
    """

    __slots__ = ("front", "head", "headers", "nbytes", "offset", "parts", "raw", "topic")

    def __init__(
        self,
        topic: str,
        parts: tuple[Buffer, ...],
        front: Front,
        head: bytes = b"",
        headers: Mapping[str, Any] | None = None,
        raw: Buffer | None = None,
        offset: int | None = None,
    ) -> None:
        self.topic = topic
        self.parts = parts
        self.front = front
        self.head = head
        self.headers = headers
        self.raw = raw
        self.offset = offset
        self.nbytes = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))

    @property
    def payload(self) -> Buffer:
        """The payload in one piece; copied if it has several."""
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)


class Written(Message):
    """A message whose large payload lies in the log already: its record alone is missing. blob: that payload,
    of the topic to which the message is appended. parts: the same bytes, wherever they came from."""

    __slots__ = ("blob",)

    def __init__(
        self,
        topic: str,
        parts: tuple[Buffer, ...],
        front: Front,
        head: bytes,
        headers: Mapping[str, Any] | None,
        blob: BlobWriter,
    ) -> None:
        super().__init__(topic, parts, front, head, headers)
        self.blob = blob
