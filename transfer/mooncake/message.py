"""The forms of a message: bytes, text, JSON, an object, parts.

The wire does not show which of these a message is, except for a tensor. The receiver decides by its choice of
callback, or of `recv_...`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from transfer.objects.pyobj import loads
from transfer.transports.arguments import octets, text, wrong
from transfer.transports.errors import ArgumentError, NotATensor, UsageError


class CallbackCodec(Protocol):
    """Converts the program's values to bytes and back, for instance with Protocol Buffers."""

    def encode(self, value: Any) -> Any:
        """Returns the bytes, or a buffer, to send for a value."""

    def decode(self, data: bytes) -> Any:
        """Returns the value of these bytes."""


class Form(StrEnum):
    """The forms that a message can be received in."""

    DATA = "data"
    STRING = "string"
    JSON = "json"
    PYOBJ = "pyobj"
    MULTIPART = "multipart"
    TENSOR = "tensor"


@dataclass(slots=True)
class IncomingMessage:
    """One message as it arrived.

    source: the peer's address. topic: empty if there is none. parts: bytes, without a topic of the header.
    tensor: the tensor or the dict of tensors, if `is_tensor`. split: how many of the parts are topic and not
    data. request: a REP's number for it, else 0.
    """

    source: str
    topic: str
    parts: Sequence[bytes]
    tensor: Any = None
    is_tensor: bool = False
    split: int = 0
    request: int = 0

    @property
    def data(self) -> bytes:
        """All parts after the topic, joined."""
        return b"".join(self.parts[self.split :])

    @property
    def plain(self) -> Any:
        """The tensor, or the dict of them, or the data."""
        return self.tensor if self.is_tensor else self.data


#: an arrived message, or for a plain one the callback's dict: {source, data, topic, and maybe request}
Message = IncomingMessage | dict[str, Any]


def as_incoming(message: Message) -> IncomingMessage:
    if isinstance(message, IncomingMessage):
        return message
    request = message.get("request", 0)
    return IncomingMessage(message["source"], message["topic"], (message["data"],), request=request)


# --- sending ----------------------------------------------------------------------------------


def is_tensor(value: Any) -> bool:
    """Whether it travels with dtype and shape: objects with DLPack on any device, numpy's numbers, and dicts
    of tensors."""
    if type(value) is bytes:  # most messages
        return False
    return isinstance(value, Mapping) or hasattr(value, "__dlpack__") or hasattr(value, "__array_interface__")


def encode_data(value: Any) -> Any:
    """Returns bytes, or a contiguous buffer; text is encoded as UTF-8. Raises ArgumentError."""
    if type(value) is bytes:
        return value
    if isinstance(value, str):
        return octets(value, "data")
    try:
        with memoryview(value) as view:
            if view.contiguous:
                return value
    except (TypeError, ValueError, BufferError):
        raise wrong("data", value, "bytes, text, a buffer, a tensor, or a dict of tensors") from None
    raise ArgumentError("data of a buffer that is not in one piece", hint="send bytes(data), or a copy of it")


def encode_json(value: Any) -> bytes:
    """Encodes JSON in UTF-8. Raises TypeError or ValueError for other objects."""
    return json.dumps(value).encode()


def encode_string(value: str) -> bytes:
    """Encodes text as UTF-8. Raises ArgumentError for anything else."""
    return text(value, "text").encode()


# --- receiving --------------------------------------------------------------------------------


def _as_data(message: IncomingMessage) -> dict[str, Any]:
    return {"source": message.source, "data": message.data, "topic": message.topic}


def _as_string(message: IncomingMessage) -> dict[str, Any]:
    return {"string": message.data.decode(), "topic": message.topic}


def _as_json(message: IncomingMessage) -> dict[str, Any]:
    return {"obj": json.loads(message.data), "topic": message.topic}


def _as_pyobj(message: IncomingMessage) -> dict[str, Any]:
    return {"obj": loads(message.data), "topic": message.topic}


def _as_multipart(message: IncomingMessage) -> dict[str, Any]:
    return {"frames": list(message.parts)}


def _as_tensor(message: IncomingMessage) -> dict[str, Any]:
    if not message.is_tensor:
        raise NotATensor(
            f"a message of {len(message.data)} bytes arrived, which is no tensor",
            hint="receive it with recv or recv_json, as its sender meant it; it is still unread",
        )
    return {"source": message.source, "tensor": message.tensor, "topic": message.topic}


_READERS: dict[Form, Callable[[IncomingMessage], dict[str, Any]]] = {
    Form.DATA: _as_data,
    Form.STRING: _as_string,
    Form.JSON: _as_json,
    Form.PYOBJ: _as_pyobj,
    Form.MULTIPART: _as_multipart,
    Form.TENSOR: _as_tensor,
}


def decoded(message: dict[str, Any], codec: CallbackCodec) -> dict[str, Any]:
    """Returns the message with the codec's value as its data; tensors stay. Raises as the codec."""
    return {**message, "data": codec.decode(message["data"])} if "data" in message else message


def plainly(message: IncomingMessage) -> dict[str, Any]:
    """Returns {source, data, topic}, or {source, tensor, topic} for a tensor."""
    return _as_tensor(message) if message.is_tensor else _as_data(message)


def read(message: IncomingMessage, form: Form) -> dict[str, Any]:
    """Returns the message as a dict in the requested form.

    A tensor whose receiver wants data is {source, tensor, topic}, so that a program needs one callback.
    Raises UsageError for a tensor where another form is wanted, NotATensor for the opposite, PickleRefused,
    and ValueError (UnicodeDecodeError, JSONDecodeError) for bytes of another form.
    """
    if message.is_tensor and form is Form.DATA:
        form = Form.TENSOR
    if message.is_tensor and form is not Form.TENSOR:
        raise UsageError("a tensor arrived", hint="receive it with recv_tensor; it is still unread")
    got = _READERS[form](message)
    if message.request:
        got["request"] = message.request
    return got
