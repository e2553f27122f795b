"""Messages of texts, JSON and objects, for blocking and asyncio sockets.

The types are those of a blocking socket; `asyncio.Socket` declares futures of the results.
"""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from transfer.json_text import decoder
from transfer.objects.pyobj import DEFAULT_PROTOCOL, dumps, loads
from transfer.sockets.parts import encoded, json_of
from transfer.transports.arguments import decoder_of
from transfer.zmq.utils import jsonapi

if TYPE_CHECKING:
    from transfer.transports.core.contract import Buffer
    from transfer.zmq.tracker import MessageTracker

T = TypeVar("T")


class Serialising:
    """Methods over `send`, `recv` and their multipart forms, which the derived class has."""

    send: Callable[..., Any]
    recv: Callable[..., Any]
    send_multipart: Callable[..., Any]
    recv_multipart: Callable[..., Any]

    def _deserialize(self, recvd: Any, load: Callable[[Any], Any]) -> Any:
        """Applies `load` to a message; asyncio sockets wait for the message first."""
        return load(recvd)

    def send_string(
        self, u: str, flags: int = 0, copy: bool = True, encoding: str = "utf-8", **kwargs: Any
    ) -> MessageTracker | None:
        """Sends a text as one part."""
        return self.send(encoded(u, encoding), flags=flags, copy=copy, **kwargs)

    def recv_string(self, flags: int = 0, encoding: str = "utf-8") -> str:
        """Receives one part as text."""
        decoder_of(encoding)
        return self._deserialize(self.recv(flags=flags), lambda part: part.decode(encoding))

    send_unicode = send_string
    recv_unicode = recv_string

    def send_json(self, obj: object, flags: int = 0, **kwargs: Any) -> None:
        """Sends an object as JSON; keyword arguments go to `json.dumps`."""
        return self.send(json_of(obj, kwargs), flags=flags)

    def recv_json(self, flags: int = 0, **kwargs: Any) -> Any:
        """Receives one part of JSON; keyword arguments go to `json.loads`."""
        decode = decoder(kwargs, jsonapi.loads)
        return self._deserialize(self.recv(flags), decode)

    def send_pyobj(
        self, obj: object, flags: int = 0, protocol: int = DEFAULT_PROTOCOL, **kwargs: Any
    ) -> MessageTracker | None:
        """Sends an object: by a codec of plain types, arrays and tensors, without pickle.

        Other classes need TRANSFER_PICKLE_ALLOW, else it raises PickleRefused. `protocol` is that of pickle,
        with MOONCAKE_ALLOW_PICKLE=1. Raises MissingLibrary without msgspec.
        """
        return self.send(dumps(obj, protocol), flags=flags, **kwargs)

    def recv_pyobj(self, flags: int = 0) -> Any:
        """Receives an object. Raises ProtocolError for other bytes, PickleRefused for a pickle or a class
        that is not allowed; the next receive returns the next message."""
        return self._deserialize(self.recv(flags, copy=False), loads)

    def send_serialized(
        self,
        msg: T,
        serialize: Callable[[T], Sequence[Buffer]],
        flags: int = 0,
        copy: bool = True,
        **kwargs: Any,
    ) -> MessageTracker | None:
        """Sends the parts that `serialize(msg)` returns."""
        return self.send_multipart(serialize(msg), flags=flags, copy=copy, **kwargs)

    def recv_serialized(self, deserialize: Callable[[list[Any]], T], flags: int = 0, copy: bool = True) -> T:
        """Receives a message and returns `deserialize(parts)`."""
        return self._deserialize(self.recv_multipart(flags=flags, copy=copy), deserialize)
