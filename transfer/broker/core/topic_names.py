"""Topics on the wire: text of 1 to 255 bytes. Pure."""

from __future__ import annotations

from transfer.transports.arguments import wrong
from transfer.transports.errors import ProtocolError, UsageError

#: limit on the bytes of a topic
MAX_TOPIC = 255


def read_topic(name: bytes | bytearray | memoryview) -> str:
    """Decodes a peer's topic. Raises ProtocolError: it is empty, too long, not UTF-8, or has a NUL."""
    if len(name) > MAX_TOPIC:
        raise ProtocolError("topic", f"{len(name)} bytes exceed the limit of {MAX_TOPIC}")
    try:
        topic = str(name, "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError("topic", f"not UTF-8: {bytes(name)!r}") from error
    if not topic or "\0" in topic:
        raise ProtocolError("topic", f"{topic!r} is empty or has a NUL")
    return topic


def encode_topic(topic: str, what: str = "topic") -> bytes:
    """Encodes a caller's topic, or another name with its limits. Raises UsageError: it is not text, empty,
    too long, not UTF-8, or has a NUL."""
    if not isinstance(topic, str):
        raise wrong(f"a {what}", topic, f"text of 1 to {MAX_TOPIC} bytes")
    try:
        name = topic.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"the {what} {topic!r:.80} is not UTF-8") from error
    if not 0 < len(name) <= MAX_TOPIC or "\0" in topic:
        raise UsageError(f"the {what} is {topic!r:.80}", hint=f"it has 1 to {MAX_TOPIC} bytes, without NUL")
    return name
