"""What a message is to its sender and to its receiver: bytes, text, JSON, a pickled object, parts.

Nothing on the wire says which of these a message is (a tensor says so): the receiver's choice of
callback, or of `recv_...`, decides how it is read.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from transfer.config import pickle_allowed
from transfer.transports.arguments import octets, text, wrong
from transfer.transports.errors import ArgumentError, NotATensor, PickleRefused, UsageError


class Codec(Protocol):
    """Makes bytes of the program's values, and values of the bytes that come: Protocol Buffers, say."""

    def encode(self, value: Any) -> Any:
        """The bytes, or a buffer, that are sent for a value."""

    def decode(self, data: bytes) -> Any:
        """The value that these bytes are."""


class Form(StrEnum):
    """The forms that a message can be received in."""

    DATA = "data"
    STRING = "string"
    JSON = "json"
    PYOBJ = "pyobj"
    MULTIPART = "multipart"
    TENSOR = "tensor"


@dataclass(slots=True)
class Incoming:
    """One message as it arrived.

    source: where the peer is. topic: empty if there is none. parts: bytes; a topic of the header is
    none of them. tensor: the tensor or the dict of tensors, and `is_tensor` tells an absent one from any
    value. split: how many of the parts are topic and not data. request: a REP's number for it, else 0.
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
        """All parts behind the topic as one piece of bytes."""
        return b"".join(self.parts[self.split :])

    @property
    def plain(self) -> Any:
        """The tensor, or the dict of them, or the data."""
        return self.tensor if self.is_tensor else self.data


#: one that arrived, or of a plain one at once what a callback gets: {source, data, topic, and maybe request}
Message = Incoming | dict[str, Any]


def as_incoming(message: Message) -> Incoming:
    if isinstance(message, Incoming):
        return message
    request = message.get("request", 0)
    return Incoming(message["source"], message["topic"], (message["data"],), request=request)


# --- out --------------------------------------------------------------------------------------


def is_tensor(value: Any) -> bool:
    """Whether it travels with dtype and shape: what has DLPack, on whatever device, numpy's numbers, and a
    dict of tensors."""
    if type(value) is bytes:  # most messages
        return False
    return isinstance(value, Mapping) or hasattr(value, "__dlpack__") or hasattr(value, "__array_interface__")


def encode_data(value: Any) -> Any:
    """Bytes, or what exports a buffer in one piece; text travels as UTF-8. Raises ArgumentError."""
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
    """JSON in UTF-8. Raises TypeError or ValueError for what JSON cannot say."""
    return json.dumps(value).encode()


def encode_string(value: str) -> bytes:
    """UTF-8. Raises ArgumentError for anything but text."""
    return text(value, "text").encode()


def encode_pyobj(value: Any) -> bytes:
    """The pickled object. Raises PickleRefused unless pickle is allowed."""
    require_pickle()
    return pickle.dumps(value)


def require_pickle() -> None:
    """Raises PickleRefused unless the environment allows pickle."""
    if not pickle_allowed():
        raise PickleRefused(
            "pickle is off: unpickling runs whatever code the sender chose",
            hint="use JSON or tensors; MOONCAKE_ALLOW_PICKLE=1 turns it on among peers that you trust",
        )


# --- in ---------------------------------------------------------------------------------------


def as_data(message: Incoming) -> dict[str, Any]:
    return {"source": message.source, "data": message.data, "topic": message.topic}


def as_string(message: Incoming) -> dict[str, Any]:
    return {"string": message.data.decode(), "topic": message.topic}


def as_json(message: Incoming) -> dict[str, Any]:
    return {"obj": json.loads(message.data), "topic": message.topic}


def as_pyobj(message: Incoming) -> dict[str, Any]:
    require_pickle()
    return {"obj": pickle.loads(message.data), "topic": message.topic}


def as_multipart(message: Incoming) -> dict[str, Any]:
    return {"frames": list(message.parts)}


def as_tensor(message: Incoming) -> dict[str, Any]:
    if not message.is_tensor:
        raise NotATensor(
            f"a message of {len(message.data)} bytes arrived, which is no tensor",
            hint="receive it with recv, recv_json or whatever its sender meant; it is still unread",
        )
    return {"source": message.source, "tensor": message.tensor, "topic": message.topic}


READERS: dict[Form, Callable[[Incoming], dict[str, Any]]] = {
    Form.DATA: as_data,
    Form.STRING: as_string,
    Form.JSON: as_json,
    Form.PYOBJ: as_pyobj,
    Form.MULTIPART: as_multipart,
    Form.TENSOR: as_tensor,
}


def decoded(message: dict[str, Any], codec: Codec) -> dict[str, Any]:
    """The same message with the codec's value as its data; a tensor stays one. Raises what the codec does."""
    return {**message, "data": codec.decode(message["data"])} if "data" in message else message


def plainly(message: Incoming) -> dict[str, Any]:
    """{source, data, topic}, or {source, tensor, topic} of what is a tensor."""
    return as_tensor(message) if message.is_tensor else as_data(message)


def read(message: Incoming, form: Form) -> dict[str, Any]:
    """The message as a dict in the form wanted.

    A tensor whose receiver wants data is {source, tensor, topic}, so that a program needs one callback.
    Raises UsageError if it is a tensor and something else is wanted, NotATensor for the opposite,
    PickleRefused, and ValueError (UnicodeDecodeError, JSONDecodeError) for bytes of another form.
    """
    if message.is_tensor and form is Form.DATA:
        form = Form.TENSOR
    if message.is_tensor and form is not Form.TENSOR:
        raise UsageError("a tensor arrived", hint="receive it with recv_tensor; it is still unread")
    got = READERS[form](message)
    if message.request:
        got["request"] = message.request
    return got
