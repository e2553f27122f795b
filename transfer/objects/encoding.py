"""Makes bytes of objects: msgpack, with extensions for what it lacks, and buffers behind it.

msgpack's encoder takes only what it gives back with the same type. So containers are looked through first;
those of plain values alone, as most, are passed on as they are. Types count exactly: an object of a derived
class is none of its base.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from msgspec.msgpack import Encoder, Ext

from transfer.objects import format as form, reduced, tensor
from transfer.objects.allow_list import AllowList, allow_list
from transfer.transports.errors import ArgumentError

#: what msgpack gives back as it was; integers only up to 64 bits
_PLAIN: Final = frozenset((type(None), bool, int, float, str))
_TEXT: Final = frozenset((str,))

_pack: Final = Encoder().encode


class _Message(list[Any]):
    """The buffers of one message while it is made: what follows the msgpack."""

    #: types that need no look
    plain = _PLAIN
    _allowed: AllowList | None = None

    def allowed(self) -> AllowList:
        """Returns the allow list, read once."""
        self._allowed = self._allowed or allow_list()
        return self._allowed

    def convert_all(self, values: Any, depth: int) -> Any:
        """Returns a list for msgpack's encoder."""
        plain = self.plain
        if type(values) is not list:
            values = list(values)
        if plain.issuperset(map(type, values)):
            return values
        depth = _deeper(depth)
        return [
            value if (kind := type(value)) in plain else _CONVERTERS[kind](self, value, depth)
            for value in values
        ]

    def add(self, buffer: Any, nbytes: int) -> None:
        """Adds a buffer, with zeros behind it."""
        if nbytes:
            self += (buffer, form.PADDING[: -nbytes % form.ALIGNMENT])


class _MessageOfAnyInt(_Message):
    plain = _PLAIN - {int}


_Converter = Callable[[_Message, Any, int], Any]


def _deeper(depth: int) -> int:
    if depth == form.MAX_DEPTH:
        raise ArgumentError(
            f"an object of more than {form.MAX_DEPTH} levels",
            hint="or it contains itself; such an object cannot be sent",
        )
    return depth + 1


def encode(value: Any) -> bytes:
    """Returns the bytes of an object: of docs/pyobj.md.

    Raises PickleRefused for an object of a class that is not allowed, NotATensor for an array that cannot be
    sent, and ArgumentError for text with lone surrogates, and for objects that are nested too deep.
    """
    try:
        try:
            return _encoded(value, _Message())
        except OverflowError:  # an integer beyond 64 bits: look at each
            return _encoded(value, _MessageOfAnyInt())
    except UnicodeEncodeError as error:
        raise ArgumentError("text with a lone surrogate", hint="send it as bytes") from error
    except RecursionError as error:
        raise ArgumentError("an object that is nested too deep for this call's stack") from error


def _encoded(value: Any, message: _Message) -> bytes:
    packed: bytes = _pack(_CONVERTERS[type(value)](message, value, 0))
    if not message:
        return form.ALONE + packed
    head = form.WITH_BUFFERS + form.LENGTH.pack(len(packed))
    padding = form.PADDING[: -(len(head) + len(packed)) % form.ALIGNMENT]
    return b"".join((head, packed, padding, *message))


# --- containers ------------------------------------------------------------------------------


def _dict(message: _Message, value: dict[Any, Any], depth: int) -> Any:
    if not _TEXT.issuperset(map(type, value)):
        flat = [part for pair in value.items() for part in pair]
        return Ext(form.DICT, _pack(message.convert_all(flat, depth)))
    plain, made, depth = message.plain, value, _deeper(depth)
    for key, item in value.items():
        if (kind := type(item)) not in plain:
            converted = _CONVERTERS[kind](message, item, depth)
            if converted is not item:
                made = value.copy() if made is value else made
                made[key] = converted
    return made


def _packed(code: int) -> _Converter:
    """Converts a container to an extension with a list of its items."""
    return lambda message, value, depth: Ext(code, _pack(message.convert_all(value, depth)))


# --- numbers and bytes -------------------------------------------------------------------------


def _int(message: _Message, value: int, depth: int) -> Any:
    if -(1 << 63) <= value < 1 << 64:
        return value
    return Ext(form.INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))


def _bytes(message: _Message, value: bytes, depth: int) -> Any:
    return value if len(value) < form.INLINE else _long(message, value, False)


def _bytearray(message: _Message, value: bytearray, depth: int) -> Any:
    if len(value) < form.INLINE:
        return Ext(form.BYTEARRAY, bytes(value))
    return _long(message, value, True)


def _memoryview(message: _Message, value: memoryview, depth: int) -> Any:
    if value.nbytes < form.INLINE or not value.c_contiguous:
        return _bytes(message, value.tobytes(), depth)
    return _long(message, value, False)


def _long(message: _Message, value: Any, mutable: bool) -> Ext:
    nbytes = memoryview(value).nbytes
    message.add(value, nbytes)
    return Ext(form.BUFFER, form.BUFFER_HEAD.pack(mutable, nbytes))


def _tensor(message: _Message, value: Any, depth: int) -> Ext:
    described, buffer = tensor.header_and_buffer(value)
    message.add(buffer, memoryview(buffer).nbytes)
    return Ext(form.TENSOR, described)


# --- values with fields -------------------------------------------------------------------------------------


def _of_fields(code: int, fields: Callable[[Any], tuple[Any, ...]]) -> _Converter:
    """Converts a value to an extension with its fields."""
    return lambda message, value, depth: Ext(code, _pack(message.convert_all(fields(value), depth)))


def _time_fields(value: Any) -> tuple[Any, ...]:
    return value.hour, value.minute, value.second, value.microsecond, value.fold, value.tzinfo


def _date_fields(value: Any) -> tuple[Any, ...]:
    return value.year, value.month, value.day


def _steps(value: Any) -> tuple[Any, ...]:
    return value.start, value.stop, value.step


def _zone(message: _Message, value: ZoneInfo, depth: int) -> Any:
    if value.key is None:
        raise ArgumentError("a ZoneInfo without a key", hint="ZoneInfo.from_file(file, key=...)")
    return Ext(form.ZONE, value.key.encode())


# --- classes of the allow list -----------------------------------------------------------------


def _class(message: _Message, value: type, depth: int) -> Ext:
    return Ext(form.CLASS, _pack(reduced.class_name(value, message.allowed())))


def _object(message: _Message, value: Any, depth: int) -> Ext:
    return Ext(form.OBJECT, _pack(message.convert_all(reduced.parts_of(value, message.allowed()), depth)))


_KNOWN: Final[dict[type, Any]] = {
    **dict.fromkeys(_PLAIN, lambda message, value, depth: value),
    int: _int,
    complex: lambda message, value, depth: Ext(form.COMPLEX, form.PAIR.pack(value.real, value.imag)),
    bytes: _bytes,
    bytearray: _bytearray,
    memoryview: _memoryview,
    list: _Message.convert_all,
    tuple: _packed(form.TUPLE),
    set: _packed(form.SET),
    frozenset: _packed(form.FROZENSET),
    dict: _dict,
    datetime: _of_fields(form.DATETIME, lambda value: (*_date_fields(value), *_time_fields(value))),
    time: _of_fields(form.TIME, _time_fields),
    date: _of_fields(form.DATE, _date_fields),
    timedelta: _of_fields(form.TIMEDELTA, lambda value: (value.days, value.seconds, value.microseconds)),
    timezone: _of_fields(form.TIMEZONE, lambda value: value.__getinitargs__()),
    ZoneInfo: _zone,
    Decimal: lambda message, value, depth: Ext(form.DECIMAL, str(value).encode()),
    range: _of_fields(form.RANGE, _steps),
    slice: _of_fields(form.SLICE, _steps),
    UUID: _of_fields(form.UUID, lambda value: (value.bytes, value.is_safe.value)),
    type: _class,
}


class _Converters(dict[type, _Converter]):
    def __missing__(self, kind: type) -> _Converter:
        """Of a class that is met for the first time: only classes of numpy and torch are remembered."""
        if tensor.is_tensor_class(kind):
            self[kind] = _tensor
            return _tensor
        return _class if issubclass(kind, type) else _object


_CONVERTERS: Final = _Converters(_KNOWN)
