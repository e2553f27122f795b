"""Fan-out of abtp/1: sends everything that SUB sockets subscribed to, as envelopes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from transfer.broker.core.message import Front
from transfer.broker.core.topic_patterns import MAX_BYTES, Kind, TopicPattern, pattern
from transfer.broker.delivery.subscriber import BrokerSubscriber, Overflow
from transfer.broker.protocols.abtp_envelope import is_json, make_head, write_envelope

if TYPE_CHECKING:
    from transfer.broker.core.message import Buffer, Message
    from transfer.broker.delivery.hub import Hub

#: prefixes that are distinguished; a further one subscribes to all topics of the hub
MOST_PREFIXES = 10_000
_JSON = "application/json"


def codec_of(message: Message) -> str:
    """Returns the codec of a message of any protocol."""
    headers = message.headers or {}
    if message.front is Front.ABTP and message.head:
        return str(headers.get("codec", "json"))
    return "json" if headers.get("content_type") == _JSON and is_json(bytes(message.payload)) else "raw"


def envelope_of(message: Message, codec: str) -> tuple[bytes, bytes, str]:
    """Returns head, payload and codec of a message whose codec is known."""
    payload, headers = bytes(message.payload), message.headers or {}
    if message.front is Front.ABTP and message.head:
        return message.head, payload, codec
    fields = {name: value for name, value in headers.items() if name not in ("message_id", "compression")}
    fields["codec"] = codec
    message_id = headers.get("message_id")
    if not isinstance(message_id, str) or not message_id:
        kept = message.offset is not None
        message_id = f"{message.topic}/{message.offset}" if kept else uuid.uuid4().hex
    producer = message.front.name.lower()
    return make_head(message_id, producer, message.topic, int(time.time() * 1000), fields), payload, codec


class PubSubscriber(BrokerSubscriber):
    """The hub's subscriber for all SUB sockets. send: puts topic and envelope on the PUB socket, which
    silently drops messages for which a SUB has no room. It gathers a large message that comes in pieces, one
    at a time. Another one meanwhile is read from the log if its topic is kept, else dropped and counted.
    max_payload: bytes of a payload; larger ones are dropped. published: messages that were put on the
    socket."""

    overflow = Overflow.SPILL
    queued = 0

    def __init__(self, hub: Hub, send: Callable[[bytes, bytes], None], max_payload: int) -> None:
        self._hub = hub
        self._send = send
        self._max_payload = max_payload
        self._prefixes: dict[bytes, TopicPattern] = {}
        self._wanted: dict[TopicPattern, int] = {}
        self._gathered: tuple[Message, bytearray] | None = None
        self.published = 0

    # -- subscriptions -----------------------------------------------------------------------------------

    def on_subscription(self, frame: bytes) -> None:
        """Handles an event of the PUB socket: 1 and a prefix for the first SUB that wants it, 0 after the
        last one."""
        wanted, prefix = frame[:1] == b"\x01", frame[1:]
        if wanted and prefix not in self._prefixes:
            found = _pattern_of(prefix) if len(self._prefixes) < MOST_PREFIXES else pattern(Kind.PREFIX, "")
            self._prefixes[prefix] = found
            self._wanted[found] = self._wanted.get(found, 0) + 1
            self._hub.fanout.subscribe(self, found)
        elif not wanted and prefix in self._prefixes:
            found = self._prefixes.pop(prefix)
            self._wanted[found] -= 1
            if not self._wanted[found]:
                del self._wanted[found]
                self._hub.fanout.unsubscribe(self, found)

    # -- messages ----------------------------------------------------------------------------------------

    def offer(self, message: Message) -> None:
        if message.nbytes > self._max_payload:
            self.dropped += 1
            return
        self._publish(message, *envelope_of(message, codec_of(message)))

    def begin(self, message: Message, nbytes: int) -> bool:
        if self._gathered is not None or nbytes > self._max_payload:
            return False
        self._gathered = message, bytearray()
        return True

    def piece(self, data: Buffer) -> None:
        if self._gathered is not None:
            self._gathered[1].extend(data)

    def finish(self) -> None:
        if self._gathered is None:
            return
        (message, data), self._gathered = self._gathered, None
        whole = type(message)(
            message.topic, (bytes(data),), message.front, message.head, message.headers, None, message.offset
        )
        self._publish(whole, *envelope_of(whole, codec_of(whole)))

    def close(self, reason: str) -> None:
        """Drops the message that was begun, of which nothing was sent yet: the rest will not come."""
        if self._gathered is not None:
            self._gathered = None
            self.dropped += 1

    def _publish(self, message: Message, head: bytes, payload: bytes, codec: str) -> None:
        self.published += 1
        self._send(message.topic.encode(), write_envelope(head, payload, codec))


def _pattern_of(prefix: bytes) -> TopicPattern:
    """Returns a pattern of topics that could match; a prefix may end within a letter, and the SUB filters
    again."""
    text = prefix[: MAX_BYTES - 4].decode(errors="ignore")
    if len(text.encode()) < min(len(prefix), MAX_BYTES - 4) - 3:
        text = ""  # not UTF-8: no topic begins so, but a SUB may subscribe to it
    return pattern(Kind.PREFIX, "" if "\0" in text else text)
