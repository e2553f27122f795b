"""Topics as bytes on the wire, where they are text of 1 to 255 bytes. Pure."""

from __future__ import annotations

from transfer.transports.arguments import wrong
from transfer.transports.errors import ProtocolError, UsageError

#: bytes of a topic at most
MAX_TOPIC = 255


def read_topic(name: bytes | bytearray | memoryview) -> str:
    """The topic that a peer named. Raises ProtocolError: it is empty, too long, no UTF-8, or has a NUL."""
    if len(name) > MAX_TOPIC:
        raise ProtocolError("topic", f"{len(name)} bytes, of {MAX_TOPIC} at most")
    try:
        topic = str(name, "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError("topic", f"no UTF-8: {bytes(name)!r}") from error
    if not topic or "\0" in topic:
        raise ProtocolError("topic", f"{topic!r} is empty or has a NUL")
    return topic


def encode_topic(topic: str) -> bytes:
    """The bytes of a topic that a caller named.

    Raises UsageError: it is no text, empty, too long, no UTF-8, or has a NUL.
    """
    if not isinstance(topic, str):
        raise wrong("a topic", topic, f"text of 1 to {MAX_TOPIC} bytes")
    try:
        name = topic.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"the topic {topic!r:.80} is no UTF-8") from error
    if not 0 < len(name) <= MAX_TOPIC or "\0" in topic:
        raise UsageError(f"the topic {topic!r:.80}", hint=f"1 to {MAX_TOPIC} bytes, without NUL")
    return name
