"""A message as the broker knows it, from any protocol."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transfer.log.blob_writer import BlobWriter

#: what a payload consists of: flat buffers of bytes
Buffer = bytes | memoryview


class Front(IntEnum):
    """The protocol that a message came by. The numbers stand in the log: they never change."""

    BROKER = 0  # the broker itself: dead letters, messages without a route
    NATIVE = 1
    TTP = 2
    PYBROKER = 3
    RQUEUE = 4
    ABTP = 5
    HTTP = 6


class Message:
    """A message in the broker. Its attributes do not change, except `offset` and `only_for`, set once.

    topic: text, at most 255 bytes of UTF-8. parts: the payload in flat buffers, mostly one; they stay valid
    while they are referenced. nbytes: of the payload. front, head: the protocol that it came by, and that
    protocol's own fields apart from topic and payload (flags, metadata, a tensor header), which no other
    protocol reads. headers: fields for all protocols: `message_id`, `priority`, `ttl_ms`, `content_type`,
    `dtype`, `shape`, and what the producer added; JSON's types; None: nothing. raw: the whole message as the
    same protocol forwards it, if it is known. offset: in the topic's log, from 0; None: it is not kept.
    only_for: the one group that receives it (a replayed dead letter); "": no group; None: everyone.
    """

    __slots__ = ("front", "head", "headers", "nbytes", "offset", "only_for", "parts", "raw", "topic")

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
        self.only_for: str | None = None
        self.nbytes = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))

    @property
    def payload(self) -> Buffer:
        """The payload in one buffer; copied if it has several parts."""
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)


class Written(Message):
    """A message whose large payload is in the log already; only its record is missing. blob: that payload, in
    the log of the message's topic. parts: the same bytes, from any source."""

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
