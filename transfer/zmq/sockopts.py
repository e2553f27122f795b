"""Options of a socket by pyzmq's numbers, and as attributes in lower and upper case."""

from __future__ import annotations

from abc import abstractmethod
from enum import Enum
from typing import Any

from transfer.sockets.socket import SocketMethods
from transfer.transports.errors import NotSupported, OptionError
from transfer.zmq.constants import SocketOption, SocketType
from transfer.zmq.error import ZMQError
from transfer.zmq.options import Effect, Rule, checked, refuse, rule


class OptionAccess:
    """Access to options by number. `_base_set` and `_base_get` access those of `transfer`."""

    #: values of options that are stored and have no effect
    _ignored: dict[SocketOption, int | bytes]

    @abstractmethod
    def _base_set(self, name: str, value: Any) -> None:
        """Sets the option of `transfer` with this name."""

    @abstractmethod
    def _base_get(self, name: str) -> Any:
        """Returns the option of `transfer` with this name."""

    def set(self, option: int, optval: Any) -> None:
        """Sets an option. Raises TypeError for text, OptionError (EINVAL), NotSupported (ENOTSUP)."""
        known, how = rule(option)
        if not how.writable:
            raise OptionError(f"{known.name} can only be read")
        value = checked(known, how, optval)
        if how.effect is Effect.FORWARDED:
            self._forward(known, how, value)
            return
        refuse(known, how, value)
        self._check_open()
        self._ignored[known] = value

    def _forward(self, option: SocketOption, how: Rule, value: int | bytes) -> None:
        try:
            self._base_set(how.attribute, value)
        except NotSupported as error:  # SUBSCRIBE on another type than SUB
            raise OptionError(f"{option.name}: {error}") from error

    def get(self, option: int) -> Any:
        """Returns an option, an int or bytes. Raises OptionError (EINVAL) if it cannot be read."""
        known, how = rule(option)
        if not how.readable:
            raise OptionError(f"{known.name} can only be set")
        self._check_open()
        if how.effect is not Effect.FORWARDED:
            return self._ignored.get(known, how.default)
        value = self._base_get(how.attribute)
        return value if how.kind is bytes else int(value)

    setsockopt = set
    getsockopt = get

    def set_string(self, option: int, optval: str, encoding: str = "utf-8") -> None:
        """Sets an option of bytes to a text."""
        if not isinstance(optval, str):
            raise TypeError(f"text is wanted, not {type(optval).__name__}")
        self.set(option, optval.encode(encoding))

    def get_string(self, option: int, encoding: str = "utf-8") -> str:
        """Returns an option of bytes as text. Raises TypeError for options that are numbers."""
        known, how = rule(option)
        if how.kind is not bytes:
            raise TypeError(f"{known.name} is a number")
        text: str = self.get(option).decode(encoding)
        return text

    setsockopt_string = setsockopt_unicode = set_string
    getsockopt_string = getsockopt_unicode = get_string

    def get_hwm(self) -> int:
        """Returns the high-water mark for sending, in messages."""
        return int(self.get(SocketOption.SNDHWM))

    def set_hwm(self, value: int) -> None:
        """Sets both high-water marks."""
        self.set(SocketOption.SNDHWM, value)
        self.set(SocketOption.RCVHWM, value)

    hwm = property(get_hwm, set_hwm, None, "Both high-water marks; reading returns the one for sending.")

    def _check_open(self) -> None:
        """Raises Closed if the socket is closed."""

    # -- as attributes -------------------------------------------------------------------------

    def _set_attribute(self, name: str, value: Any) -> bool:
        """Sets the option of this name; returns False if there is none."""
        option = SocketOption.__members__.get(name.upper())
        if option is None or name == "hwm":
            return False
        if option in (SocketOption.SUBSCRIBE, SocketOption.UNSUBSCRIBE) and isinstance(value, str):
            value = value.encode()
        self.set(option, value)
        return True


class OptionAttribute:
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


def _add_attributes() -> None:
    """Adds every option in upper case, and in lower case where `transfer.Socket` has none."""
    known = {*dir(SocketMethods), *dir(OptionAccess)}
    for name, option in SocketOption.__members__.items():
        for spelling in (name, name.lower()):
            if spelling not in known:
                setattr(OptionAccess, spelling, OptionAttribute(option))


_add_attributes()


def our_type(socket_type: int | str) -> SocketType:
    """Returns the type for ZeroMQ's number, a name, or a member of any enumeration. Raises ZMQError (EINVAL),
    NotSupported."""
    name = socket_type.name if isinstance(socket_type, Enum) else socket_type
    try:
        kind = SocketType[name.upper()] if isinstance(name, str) else SocketType(name)
    except (KeyError, ValueError):
        raise ZMQError(22, f"there is no socket type {socket_type!r}") from None
    if kind > SocketType.PUSH:
        raise NotSupported(f"{kind.name} sockets are not implemented", hint="see docs/zmq-compat.md")
    return kind
