"""Makes objects of bytes: everything is checked before it is made.

Memory is allocated for bytes that arrived, not for a length that a message states: msgspec's decoder
allocates as it reads, and a tensor is made after its header is compared with the bytes that there are.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Final
from uuid import UUID, SafeUUID
from zoneinfo import ZoneInfo

from msgspec.msgpack import decode as unpack

from transfer.objects import format as form, reduced
from transfer.objects.allow_list import AllowList, allow_list
from transfer.objects.format import caused, malformed
from transfer.objects.tensor import Layout
from transfer.transports.errors import MissingLibrary, OptionError, PickleRefused, ProtocolError
from transfer.transports.sizes import LARGE

#: where the msgpack begins: in a message without buffers, and in one with them
_ALONE: Final = len(form.ALONE)
_BEHIND_LENGTH: Final = _ALONE + form.LENGTH.size

#: OptionError: of the allow list of this end
_TYPED: Final = (ProtocolError, PickleRefused, MissingLibrary, OptionError)


class _Message:
    """One message while it is read."""

    # what most messages do not change
    _depth = 0
    _allowed: AllowList | None = None
    #: where the next buffer begins
    at: int

    def __init__(self, view: memoryview) -> None:
        self.view = view

    def whole(self) -> Any:
        """Returns the object. Raises ProtocolError."""
        start = bytes(self.view[:_ALONE])
        if start == form.ALONE:
            self.at = self.view.nbytes
            return unpack(self.view[_ALONE:], ext_hook=self._extension)
        if start != form.WITH_BUFFERS or self.view.nbytes < _BEHIND_LENGTH:
            raise malformed("no object, or one of a later version")
        end = _BEHIND_LENGTH + form.LENGTH.unpack_from(self.view, _ALONE)[0]
        self.at = end + -end % form.ALIGNMENT
        if self.at > self.view.nbytes:
            raise malformed("an object that is cut off")
        value = unpack(self.view[_BEHIND_LENGTH:end], ext_hook=self._extension)
        if self.at != self.view.nbytes:
            raise malformed("bytes that belong to no part of the object")
        return value

    def _extension(self, code: int, payload: memoryview) -> Any:
        read = _READERS.get(code)
        if read is None:
            raise malformed(f"an extension of unknown code {code}")
        self._depth += 1
        if self._depth > form.MAX_DEPTH + 1:
            raise malformed(f"an object of more than {form.MAX_DEPTH} levels")
        value = read(self, payload)
        self._depth -= 1
        return value

    def items(self, payload: memoryview) -> list[Any]:
        """Returns the list that an extension consists of."""
        items = unpack(payload, ext_hook=self._extension)
        if type(items) is not list:
            raise malformed("an extension without a list")
        return items

    def allowed(self) -> AllowList:
        """Returns the allow list, read once."""
        self._allowed = self._allowed or allow_list()
        return self._allowed

    def take(self, nbytes: int) -> memoryview:
        """Returns the next buffer."""
        start, end = self.at, self.at + nbytes
        if end > self.view.nbytes:
            raise malformed(f"a buffer of {nbytes} bytes, of which {self.view.nbytes - start} arrived")
        self.at = end + -nbytes % form.ALIGNMENT
        return self.view[start:end]


def decode(data: Any) -> Any:
    """Returns the object of these bytes.

    data: any buffer. Large arrays and tensors lie in it if it is writable; all else is copied out of it.
    Raises ProtocolError for bytes that are no object, PickleRefused for a class that is not allowed,
    MissingLibrary for an array or a tensor without its library, and OptionError for a wrong allow list.
    """
    view = memoryview(data)
    try:
        return _Message(view).whole()
    except _TYPED:
        raise
    except MemoryError as error:
        raise ProtocolError(
            "no_memory", "an object that is too large", hint="maxmsgsize limits it"
        ) from error
    except RecursionError as error:
        raise malformed("an object that is nested too deep") from error
    except Exception as error:
        # any: a key of a dict has the `__hash__` of its class, and numpy and torch raise what they like
        raise malformed(f"no object: {caused(error)}") from error


# --- extensions --------------------------------------------------------------------------------


def _dict(message: _Message, payload: memoryview) -> dict[Any, Any]:
    items = message.items(payload)
    return dict(zip(items[::2], items[1::2], strict=True))


def _buffer(message: _Message, payload: memoryview) -> bytes | bytearray:
    mutable, nbytes = form.BUFFER_HEAD.unpack(payload)
    return bytearray(message.take(nbytes)) if mutable else bytes(message.take(nbytes))


def _tensor(message: _Message, payload: memoryview) -> Any:
    layout = Layout(bytes(payload))
    memory = message.take(layout.nbytes)
    # What is small must not keep all of a large message; what is read-only is not for arrays.
    return layout.build(bytearray(memory) if layout.nbytes < LARGE or memory.readonly else memory)


def _datetime(message: _Message, payload: memoryview) -> datetime:
    # each by name: a single argument of bytes would be a state that datetime does not check
    year, month, day, hour, minute, second, microsecond, fold, zone = message.items(payload)
    return datetime(year, month, day, hour, minute, second, microsecond, zone, fold=fold)


def _time(message: _Message, payload: memoryview) -> time:
    hour, minute, second, microsecond, fold, zone = message.items(payload)
    return time(hour, minute, second, microsecond, zone, fold=fold)


def _date(message: _Message, payload: memoryview) -> date:
    year, month, day = message.items(payload)
    return date(year, month, day)


def _timedelta(message: _Message, payload: memoryview) -> timedelta:
    days, seconds, microseconds = message.items(payload)
    return timedelta(days, seconds, microseconds)


def _uuid(message: _Message, payload: memoryview) -> UUID:
    octets, safe = message.items(payload)
    if type(octets) is not bytes:
        raise malformed("a UUID without bytes")
    return UUID(bytes=octets, is_safe=SafeUUID(safe))


def _range(message: _Message, payload: memoryview) -> range:
    start, stop, step = message.items(payload)
    return range(start, stop, step)


def _slice(message: _Message, payload: memoryview) -> slice:
    start, stop, step = message.items(payload)
    return slice(start, stop, step)


def _object(message: _Message, payload: memoryview) -> Any:
    return reduced.made_of(message.items(payload), message.allowed())


_READERS: Final[dict[int, Callable[[_Message, memoryview], Any]]] = {
    form.INT: lambda message, payload: int.from_bytes(payload, "little", signed=True),
    form.COMPLEX: lambda message, payload: complex(*form.PAIR.unpack(payload)),
    form.BYTEARRAY: lambda message, payload: bytearray(payload),
    form.TUPLE: lambda message, payload: tuple(message.items(payload)),
    form.SET: lambda message, payload: set(message.items(payload)),
    form.FROZENSET: lambda message, payload: frozenset(message.items(payload)),
    form.DICT: _dict,
    form.DATETIME: _datetime,
    form.TIME: _time,
    form.DATE: _date,
    form.TIMEDELTA: _timedelta,
    form.TIMEZONE: lambda message, payload: timezone(*message.items(payload)),
    form.ZONE: lambda message, payload: ZoneInfo(str(payload, "ascii")),
    form.DECIMAL: lambda message, payload: Decimal(str(payload, "ascii")),
    form.UUID: _uuid,
    form.RANGE: _range,
    form.SLICE: _slice,
    form.BUFFER: _buffer,
    form.TENSOR: _tensor,
    form.CLASS: lambda message, payload: reduced.find_class(message.items(payload), message.allowed()),
    form.OBJECT: _object,
}
