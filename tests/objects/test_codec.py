"""Objects are the same after encode and decode, in type and value; other bytes raise ProtocolError."""

from __future__ import annotations

import math
import random
import struct
import tracemalloc
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from uuid import UUID, uuid1
from zoneinfo import ZoneInfo

import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.objects.classes import Message
from transfer.objects import decode, decoding, encode, format as form
from transfer.objects.tensor import header_and_buffer
from transfer.transports.errors import ArgumentError, NotATensor, PickleRefused, ProtocolError

torch = pytest.importorskip("torch", reason="pip install torch")


def same(left, right):
    """Whether type and value are equal, down to each part; a NaN equals itself."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float | complex):
        return struct.pack("<dd", left.real, left.imag) == struct.pack("<dd", right.real, right.imag)
    if isinstance(left, Decimal):
        return left.as_tuple() == right.as_tuple()
    if isinstance(left, dict):
        return len(left) == len(right) and all(map(same, _flat(left), _flat(right)))
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, datetime | time):
        return (left.replace(tzinfo=None), left.fold) == (right.replace(tzinfo=None), right.fold) and same(
            left.tzinfo, right.tzinfo
        )
    if isinstance(left, timezone):
        return left.__getinitargs__() == right.__getinitargs__()
    if isinstance(left, np.ndarray | np.generic):
        alike = (left.dtype, left.shape) == (right.dtype, right.shape)
        return alike and (left.tobytes() == right.tobytes() or np.array_equal(left, right))
    if isinstance(left, torch.Tensor):
        flags = "dtype", "shape", "requires_grad"
        return [getattr(left, name) for name in flags] == [getattr(right, name) for name in flags] and bool(
            torch.equal(left, right)
        )
    return left == right


def _flat(pairs):
    return [part for pair in pairs.items() for part in pair]


def passed(value):
    return decode(bytearray(encode(value)))


zones = st.one_of(
    st.none(),
    st.builds(timezone, st.timedeltas(timedelta(hours=-23), timedelta(hours=23))),
    st.just(timezone(timedelta(hours=1), "CET")),
    st.just(ZoneInfo("UTC")),
)
hashable = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(1 << 200), 1 << 200),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.binary(),
    st.binary(min_size=form.INLINE, max_size=form.INLINE + 2),
    st.datetimes(timezones=zones),
    st.dates(),
    st.times(timezones=zones),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.uuids(),
)
keys = st.recursive(hashable, lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner))
leaves = (
    keys | st.binary().map(bytearray) | st.binary(max_size=100).map(lambda data: np.frombuffer(data, "u1"))
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.sets(keys, max_size=4)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(st.text("abc"), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(deadline=None, max_examples=150)
@given(values)
def test_a_round_trip(value):
    encoded = encode(value)
    assert same(decode(encoded), value)
    assert same(decode(bytearray(encoded)), value)


@pytest.mark.parametrize(
    "value",
    [
        1 << 64, -(1 << 63), -(1 << 63) - 1, 1 << 9000, math.nan, -0.0, Decimal("sNaN12"),
        Decimal("-Infinity"),
        Decimal("1e-5"), uuid1(), UUID(int=0),
        range(5, 1, -2), slice(None, 1 << 70), datetime(2024, 10, 27, 2, 30, fold=1), date.min,  # noqa: DTZ001
        time(23, tzinfo=UTC), timedelta.min, UTC, ZoneInfo("Europe/Berlin"), "\0", "ä" * 9000,
        {"a": {1: (2, [3])}, (): {frozenset()}}, bytearray(form.INLINE), [b"x" * 5000, bytearray(5000), b""],
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_values_at_the_limits(value):
    assert same(passed(value), value)


def test_a_memoryview_arrives_as_bytes():
    for data in (b"abc", bytes(range(256)) * 40):
        assert passed(memoryview(data)) == data
        assert passed(memoryview(data)[::2]) == data[::2]


def test_the_order_of_a_dict():
    assert list(passed({"b": 1, "a": 2, 3: 4, None: 5})) == ["b", "a", 3, None]


# --- arrays and tensors ------------------------------------------------------------------------

ARRAYS = [
    np.arange(24).astype(kind).reshape(2, 3, 4)
    for kind in ("?", "i1", "u2", "<i4", ">i4", "u8", "f2", "f4", ">f8", "c8", "c16", "g")
] + [
    np.array(5),
    np.zeros((0, 3)),
    np.zeros((2, 0), "M8[ns]"),
    np.array(["2020-01-01"], "M8[D]"),
    np.array([1, 2], "m8[us]"),
    np.array(["ab", "c"]),
    np.array([b"a\0", b"bc"]),
    np.zeros(3, [("a", "<i4"), ("b", ">f8", (2,)), ("c", [("d", "u1")])]),
    np.zeros(3, np.dtype([("a", "u1"), ("b", "f8")], align=True)),
    np.arange(3).astype(ml_dtypes.bfloat16),
    np.ones(1 << 15),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
def test_arrays(array):
    for got in (passed(array), decode(encode({"x": [array]}))["x"][0]):
        assert same(got, array) and got.flags.writeable


def test_the_order_of_axes_stays_and_gaps_do_not():
    fortran = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    assert passed(fortran).flags.f_contiguous and same(passed(fortran), fortran)
    for array in (
        np.arange(16).reshape(4, 4)[::2, 1::2],
        np.arange(5)[::-1],
        np.broadcast_to(np.int8(3), (2, 3)),
    ):
        assert same(passed(array), array)


@pytest.mark.parametrize(
    "scalar",
    [
        np.float64(1.5), np.int8(-1), np.bool_(True), np.complex64(1j), np.str_("ab"), np.bytes_(b"ab"),
        np.datetime64("2020-01-01T00:00", "s"), np.timedelta64(3, "D"), ml_dtypes.bfloat16(1.5),
        np.longdouble(3),
        np.zeros(1, [("a", "i4"), ("b", "f4")])[0],
    ],
    ids=lambda scalar: type(scalar).__name__,
)  # fmt: skip
def test_scalars(scalar):
    assert same(passed(scalar), scalar)
    assert same(passed({"a": [scalar, 1.5]}), {"a": [scalar, 1.5]})


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).reshape(2, 3),
        torch.tensor(1.5),
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(3, dtype=torch.float8_e4m3fn).view(torch.uint8),
        torch.ones(2, 3, dtype=torch.complex64),
        torch.arange(6).reshape(2, 3).t(),
        torch.ones(6)[::2],
        torch.zeros(0, 3),
        torch.ones(3, requires_grad=True),
        torch.nn.Parameter(torch.ones(2)),
        torch.nn.Parameter(torch.ones(2), requires_grad=False),
        torch.ones(1 << 15),
    ],
    ids=lambda tensor: f"{tensor.dtype}{tuple(tensor.shape)}",
)
def test_tensors(tensor):
    assert same(passed(tensor), tensor)
    assert same(decode(encode((tensor, 1)))[0], tensor)


def test_what_no_array_and_no_tensor_can_be():
    for value in (
        np.array([object()]),
        torch.ones(2).to_sparse(),
        torch.ones(2, device="meta"),
    ):
        with pytest.raises(NotATensor):
            encode([value])
    with pytest.raises(ArgumentError, match="zeros"):
        encode(np.bytes_(b"a\0"))
    for value in (np.ma.array([1], mask=[True]), torch.nn.Linear(1, 1), torch.float32):
        with pytest.raises(PickleRefused):
            encode(value)


def test_a_large_array_lies_in_the_message_and_a_small_one_does_not():
    message = bytearray(encode([np.zeros(1 << 14), np.zeros(4)]))
    large, small = decode(message)
    large[:], small[:] = 7, 7
    start = message.index(struct.pack("<d", 7.0))
    assert start % form.ALIGNMENT == 0 and message.count(struct.pack("<d", 7.0)) == 1 << 14


# --- what cannot be sent -----------------------------------------------------------------------


def nested(levels, wrap=lambda inner: [inner]):
    value = 1
    for _ in range(levels):
        value = wrap(value)
    return value


WRAPS = [lambda inner: [inner], lambda inner: (inner,), lambda inner: {"a": inner}, lambda inner: {1: inner}]


@pytest.mark.parametrize("wrap", WRAPS)
def test_depth(wrap):
    assert same(passed(nested(form.MAX_DEPTH, wrap)), nested(form.MAX_DEPTH, wrap))
    for levels in (form.MAX_DEPTH + 2, 5000):
        with pytest.raises(ArgumentError, match="levels"):
            encode(nested(levels, wrap))


def test_an_object_that_contains_itself():
    ring = []
    ring.append({"ring": (ring,)})
    with pytest.raises(ArgumentError, match="contains itself"):
        encode(ring)


@pytest.mark.parametrize("value", ["\ud800", ["a", ("\udfff",)], {"\ud800": 1}])
def test_lone_surrogates(value):
    with pytest.raises(ArgumentError, match="surrogate"):
        encode(value)


def test_other_classes(monkeypatch):
    monkeypatch.delenv("TRANSFER_PICKLE_ALLOW", raising=False)
    for value in (
        Message("a"),
        [1, {"x": (Message("a"),)}],
        object(),
        Message,
        print,
        type,
        ...,
        Fraction(1),
    ):
        with pytest.raises(PickleRefused, match="TRANSFER_PICKLE_ALLOW"):
            encode(value)


# --- what arrives ------------------------------------------------------------------------------


def extension(code, payload):
    return form.ALONE + msgspec.msgpack.encode(msgspec.msgpack.Ext(code, payload))


def of_fields(code, *fields):
    return extension(code, msgspec.msgpack.encode(list(fields)))


def of_depth(levels):
    packed = b"\x01"
    for _ in range(levels):
        packed = msgspec.msgpack.encode(msgspec.msgpack.Ext(form.TUPLE, b"\x91" + packed))
    return form.ALONE + packed


def tensor_of(kind, array):
    """An array's message, with another kind of tensor in it."""
    encoded, described = encode(array), header_and_buffer(array)[0]
    return encoded.replace(described, bytes((kind,)) + described[1:], 1)


BUFFERS = form.WITH_BUFFERS + form.LENGTH.pack(1) + b"\x01"
SPEC = struct.pack("<IBBBBBBHI", 24, 1, 8, 1, 0, 1, 0, 0, 1)  # an extended header of u1, before its shape

MALFORMED = {
    "nothing": b"",
    "text": b"hello",
    "magic alone": form.MAGIC,
    "no value": form.ALONE,
    "later version": form.MAGIC + b"\x03\x01",
    "trailing": form.ALONE + b"\x01\x01",
    "never used": form.ALONE + b"\xc1",
    "endless list": form.ALONE + b"\xdd\xff\xff\xff\xff",
    "endless dict": form.ALONE + b"\xdf\xff\xff\xff\xff\x01",
    "endless key": form.ALONE + b"\x81\xdd\xff\xff\xff\xff",
    "endless bytes": form.ALONE + b"\xc6\xff\xff\xff\xff",
    "endless extension": form.ALONE + b"\xc9\xff\xff\xff\xff\x04",
    "no UTF-8": form.ALONE + b"\xa1\xff",
    "unhashable key": form.ALONE + b"\x81\x80\x01",
    "unknown extension": extension(99, b"x"),
    "deep lists": form.ALONE + b"\x91" * 100_000 + b"\x01",
    "deep tuples": of_depth(5000),
    "tuple of an integer": extension(form.TUPLE, b"\x01"),
    "endless tuple": extension(form.TUPLE, b"\xdd\xff\xff\xff\xff"),
    "odd dict": of_fields(form.DICT, 1, 2, 3),
    "set of lists": of_fields(form.SET, [1]),
    "dict of lists": of_fields(form.DICT, [1], 2),
    "complex": extension(form.COMPLEX, b"x"),
    "month 13": of_fields(form.DATE, 2024, 13, 1),
    "date by state": of_fields(form.DATE, b"\x07\xe8\x0c\xff"),
    "date by state and more": of_fields(form.DATE, b"\x07\xe8\x0c\xff", None, None),
    "datetime by state": of_fields(form.DATETIME, b"\x07\xe8\x01\xff\xff\xff\xff\xff\xff\xff", None),
    "time by state": of_fields(form.TIME, b"\xff\xff\xff\xff\xff\xff", None),
    "zone of a number": of_fields(form.TIME, 1, 2, 3, 4, 0, 5),
    "endless timedelta": of_fields(form.TIMEDELTA, 1 << 60, 0, 0),
    "timezone of a number": of_fields(form.TIMEZONE, 5),
    "path of a zone": extension(form.ZONE, b"../../etc/passwd"),
    "folder of zones": extension(form.ZONE, b"Europe"),
    "unknown zone": extension(form.ZONE, b"Nowhere"),
    "range of text": of_fields(form.RANGE, "a"),
    "slice of nothing": of_fields(form.SLICE),
    "decimal": extension(form.DECIMAL, b"1x"),
    "short UUID": of_fields(form.UUID, b"x", 0),
    "UUID of text": of_fields(form.UUID, "a" * 16, 0),
    "UUID of numbers": of_fields(form.UUID, [1] * 16, 0),
    "range of one number": of_fields(form.RANGE, 3),
    "slice of one number": of_fields(form.SLICE, 3),
    "text as a torch tensor": tensor_of(2, np.array(["ab"])),
    "unsafe UUID": of_fields(form.UUID, bytes(16), 7),
    "no buffer": extension(form.BUFFER, form.BUFFER_HEAD.pack(0, 1)),
    "endless buffer": extension(form.BUFFER, form.BUFFER_HEAD.pack(1, (1 << 64) - 1)),
    "short head": form.WITH_BUFFERS + b"\x01",
    "endless msgpack": form.WITH_BUFFERS + form.LENGTH.pack((1 << 64) - 1) + b"\x01",
    "no padding": BUFFERS,
    "unused buffer": BUFFERS + bytes(64 - len(BUFFERS)) + b"x",
    "tensor without header": extension(form.TENSOR, b""),
    "unknown kind": extension(form.TENSOR, b"\x09" + SPEC + struct.pack("<q", 1)),
    "endless tensor": extension(form.TENSOR, b"\x00" + SPEC + struct.pack("<q", 1 << 40)),
    "negative shape": extension(form.TENSOR, b"\x00" + SPEC + struct.pack("<q", -1)),
    "scalar of one axis": extension(form.TENSOR, b"\x01" + SPEC + struct.pack("<q", 0)),
    "gradient of integers": extension(form.TENSOR, b"\x03" + SPEC + struct.pack("<q", 0)),
    "parameter of integers": extension(form.TENSOR, b"\x04" + SPEC + struct.pack("<q", 0)),
    "class of a number": of_fields(form.CLASS, 1, 2),
    "object of nothing": of_fields(form.OBJECT),
    "object of a number": of_fields(form.OBJECT, 1, 2, 0, [], None, None, None, None),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_bytes(name):
    with pytest.raises(ProtocolError):
        decode(MALFORMED[name])


def test_no_stated_length_is_allocated():
    for data in MALFORMED.values():
        tracemalloc.start()
        with pytest.raises(ProtocolError):
            decode(data)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4_000_000 + 100 * len(data)


SAMPLES = [
    {
        "a": 1,
        "b": [1, 2.5, None, True],
        "c": ("x", {1, 2}),
        3: frozenset({b"y"}),
        "t": datetime.now(UTC),
    },
    {"x": np.arange(10), "y": torch.ones(2, 3), "z": [np.float32(1), bytearray(b"ab"), b"x" * 5000, 1 << 70]},
    [Decimal("1.5"), UUID(int=5), timedelta(1), date.max, 1j, time(1, tzinfo=ZoneInfo("UTC"))],
]


@pytest.mark.parametrize("sample", range(len(SAMPLES)))
def test_changed_bytes(sample):
    """Each gives an object or a typed error, and never an object that cannot be looked at."""
    encoded = encode(SAMPLES[sample])
    random_ = random.Random(sample)
    for _ in range(3000):
        changed = bytearray(encoded)
        for _ in range(random_.randrange(1, 4)):
            at = random_.randrange(len(form.MAGIC), min(len(changed), 400))
            choice = random_.randrange(4)
            if choice == 0:
                changed[at] = random_.randrange(256)
            elif choice == 1:
                del changed[at : at + random_.randrange(1, 9)]
            elif choice == 2:
                changed[at:at] = random_.randbytes(random_.randrange(1, 9))
            else:
                changed[at] ^= 1 << random_.randrange(8)
        with suppress(ProtocolError, PickleRefused):
            repr(decode(changed))


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=200))
def test_random_bytes(data):
    with suppress(ProtocolError, PickleRefused):
        decode(form.ALONE + data)


CODES = range(form.INT, form.SLICE + 1)
of_msgpack = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(1 << 63), (1 << 64) - 1),
        st.floats(),
        st.text(max_size=4),
        st.binary(max_size=17),
        st.just("a" * 16),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=9),
        st.dictionaries(st.text(max_size=2), inner, max_size=2),
        st.builds(
            lambda code, values: msgspec.msgpack.Ext(code, msgspec.msgpack.encode(values)),
            st.sampled_from(CODES),
            st.lists(inner, max_size=9),
        ),
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=500)
@given(st.sampled_from(CODES), st.lists(of_msgpack, max_size=9))
def test_extensions_of_other_fields(code, values):
    with suppress(ProtocolError, PickleRefused):
        decode(of_fields(code, *values))


@pytest.mark.parametrize("code", CODES)
def test_extensions_with_the_payload_of_others(code):
    samples = [
        *MALFORMED.values(),
        *map(encode, [*(part for sample in SAMPLES for part in sample), *SAMPLES]),
    ]
    for other in [
        *samples,
        *(encode([value]) for value in (range(3), slice(1), uuid1(), 1 << 70, UTC)),
    ]:
        start = other[len(form.ALONE) :]
        for payload in (
            start,
            b"\x91" + start,
            b"\x99" + start * 9,
            b"\x92" + b"\xd9\x10" + b"a" * 16 + start,
        ):
            with suppress(ProtocolError, PickleRefused):
                decode(extension(code, payload))


def test_an_object_for_which_there_is_no_memory(monkeypatch):
    def no_memory(*_):
        raise MemoryError

    monkeypatch.setitem(decoding._READERS, form.TUPLE, no_memory)
    with pytest.raises(ProtocolError) as caught:
        decode(encode((1,)))
    assert caught.value.reason == "no_memory"
