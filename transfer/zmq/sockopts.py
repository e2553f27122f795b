"""Options of a socket by pyzmq's numbers, and as attributes in lower and upper case."""

from __future__ import annotations

from enum import Enum
from typing import Any

from transfer.transports.core import wire
from transfer.transports.errors import NotSupported, OptionError
from transfer.zmq.constants import SocketOption, SocketType
from transfer.zmq.error import ZMQError

#: ZeroMQ's types that exist here, and those of `transfer`; a STREAM (see `patterns`) meets no peer
WIRE_TYPES = {SocketType[kind.name]: kind for kind in wire.SocketType}
WIRE_TYPES[SocketType.STREAM] = wire.SocketType.PAIR


class _OptionAttribute:
    """An option as an attribute. A descriptor, since `__getattr__` would disable the interpreter's fast path
    of `sock.send`."""

    def __init__(self, option: SocketOption) -> None:
        self._option = option

    def __get__(self, sock: Any, owner: type | None = None) -> Any:
        if sock is None:
            return self
        try:
            return sock.get(self._option)
        except OptionError as error:
            raise AttributeError(str(error)) from None

    def __set__(self, sock: Any, value: Any) -> None:
        sock.set(self._option, value)


def add_attributes(cls: type) -> None:
    """Adds every option in upper case, and in lower case where the class has no such name."""
    for name, option in SocketOption.__members__.items():
        for spelling in (name, name.lower()):
            if not hasattr(cls, spelling):
                setattr(cls, spelling, _OptionAttribute(option))


def our_type(socket_type: int | str | Enum) -> SocketType:
    """Returns the type for ZeroMQ's number, a name, or a member of any enumeration. Raises ZMQError (EINVAL),
    NotSupported."""
    if type(socket_type) is SocketType and socket_type in WIRE_TYPES:
        return socket_type
    name = socket_type.name if isinstance(socket_type, Enum) else socket_type
    try:
        kind = SocketType[name.upper()] if isinstance(name, str) else SocketType(name)
    except (KeyError, ValueError):
        raise ZMQError(22, f"there is no socket type {socket_type!r}") from None
    if kind not in WIRE_TYPES:
        raise NotSupported(f"{kind.name} sockets are not implemented", hint="see docs/zmq-compat.md")
    return kind
