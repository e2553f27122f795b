"""Rows as dicts of arrays, against lists of Python values."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.spool.fake_source import pick
from transfer.spool.format import rows as tables
from transfer.spool.format.rows import Layout
from transfer.transports.errors import OptionError, ProtocolError

LAYOUTS = (
    Layout("number", "dense", "int64"),
    Layout("pair", "dense", "float32", (2,)),
    Layout("maybe", "dense", "int16", (), True),
    Layout("tokens", "ragged", "int32"),
    Layout("boxes", "ragged", "uint8", (3,), True),
    Layout("text", "string", "uint8"),
    Layout("blob", "binary", "uint8", (), True),
)

_byte = st.integers(0, 255)
#: a row as Python values, in the order of LAYOUTS; None where a value may be missing
ROW = st.tuples(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.tuples(st.integers(-99, 99), st.integers(-99, 99)),
    st.none() | st.integers(-99, 99),
    st.lists(st.integers(-99, 99), max_size=4),
    st.none() | st.lists(st.tuples(_byte, _byte, _byte), max_size=3),
    st.text(max_size=5),
    st.none() | st.binary(max_size=5),
)
TABLE = st.lists(ROW, max_size=6)


def arrays_of(rows):
    """The model's rows as arrays, made value by value."""
    arrays = {}
    for position, layout in enumerate(LAYOUTS):
        column = [row[position] for row in rows]
        if layout.nulls:
            arrays[layout.name + tables.VALID] = np.array([value is not None for value in column], bool)
        if layout.kind == "dense":
            filled = [0 if value is None else value for value in column]
            arrays[layout.name] = np.array(filled, layout.dtype).reshape(len(rows), *layout.shape)
            continue
        values = [list(_items(value)) for value in column]
        flat = [item for one in values for item in one]
        arrays[layout.name] = np.array(flat, layout.dtype).reshape(len(flat), *layout.shape)
        ends = [sum(map(len, values[:count])) for count in range(len(rows) + 1)]
        arrays[layout.name + tables.OFFSETS] = np.array(ends, np.int64)
    return arrays


def _items(value):
    return () if value is None else value.encode() if isinstance(value, str) else value


def rows_of(arrays, count):
    """Back again."""
    columns = []
    for layout in LAYOUTS:
        values = arrays[layout.name]
        column = []
        for row in range(count):
            if layout.nulls and not arrays[layout.name + tables.VALID][row]:
                column.append(None)
            elif layout.kind == "dense":
                value = values[row]
                column.append(tuple(value.tolist()) if layout.shape else value.item())
            else:
                start, stop = arrays[layout.name + tables.OFFSETS][row : row + 2]
                value = values[start:stop]
                if layout.kind == "string":
                    column.append(value.tobytes().decode())
                elif layout.kind == "binary":
                    column.append(value.tobytes())
                else:
                    column.append([tuple(one) if layout.shape else one for one in value.tolist()])
        columns.append(column)
    return [tuple(row) for row in zip(*columns, strict=True)]


@given(TABLE)
def test_what_is_well_formed_passes(rows):
    arrays = arrays_of(rows)
    tables.check(arrays, LAYOUTS, len(rows))
    assert rows_of(arrays, len(rows)) == rows


@given(TABLE, st.data())
def test_a_cut_is_those_rows_as_views(rows, data):
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    arrays = arrays_of(rows)
    piece = tables.cut(arrays, LAYOUTS, start, stop)
    tables.check(piece, LAYOUTS, stop - start)
    assert rows_of(piece, stop - start) == rows[start:stop]
    for name, values in piece.items():
        if values.nbytes and not name.endswith(tables.OFFSETS):
            assert np.shares_memory(values, arrays[name])
        elif values.nbytes:
            assert not np.shares_memory(values, arrays[name])


@given(st.lists(TABLE, min_size=1, max_size=4))
def test_joined_rows_stand_one_behind_the_other(parts):
    pieces = [arrays_of(part) for part in parts]
    rows = [row for part in parts for row in part]
    made = []

    def allocate(shape, dtype):
        made.append(np.empty(shape, dtype))
        return made[-1]

    whole = tables.join(pieces, LAYOUTS, allocate)
    tables.check(whole, LAYOUTS, len(rows))
    assert rows_of(whole, len(rows)) == rows
    if len(pieces) == 1:
        assert all(whole[name] is pieces[0][name] for name in whole)
        assert not made
    else:
        assert {name for name in whole if not any(whole[name] is one for one in made)} == {
            layout.name + tables.OFFSETS for layout in LAYOUTS if layout.kind != "dense"
        }


@given(TABLE, st.data())
def test_picked_rows_are_copies_in_that_order(rows, data):
    numbers = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8) if rows else st.just([]))
    arrays = arrays_of(rows)
    picked = pick(arrays, LAYOUTS, np.array(numbers, np.int64))
    tables.check(picked, LAYOUTS, len(numbers))
    assert rows_of(picked, len(numbers)) == [rows[number] for number in numbers]
    assert not any(np.shares_memory(values, arrays[name]) for name, values in picked.items() if values.nbytes)


@given(TABLE, st.data())
def test_cutting_joining_and_picking_agree(rows, data):
    """Pieces of pieces, joined and permuted: what a fetch does."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    bounds = [0, *cuts, len(rows)]
    arrays = arrays_of(rows)
    pieces = [tables.cut(arrays, LAYOUTS, start, stop) for start, stop in itertools.pairwise(bounds)]
    order = data.draw(st.permutations(range(len(rows))))
    found = pick(tables.join(pieces, LAYOUTS), LAYOUTS, np.array(order, np.int64))
    assert rows_of(found, len(rows)) == [rows[number] for number in order]


@given(TABLE)
def test_texts_and_bytes_come_back(rows):
    arrays = arrays_of(rows)
    assert tables.strings(arrays, "text") == [row[5] for row in rows]
    assert tables.blobs(arrays, "blob") == [row[6] or b"" for row in rows]
    with pytest.raises(OptionError):
        tables.strings(arrays, "number")


THREE = [
    (1, (1, 2), None, [1], None, "a", b"x"),
    (2, (3, 4), 5, [], [(1, 2, 3)], "", None),
    (3, (5, 6), 7, [2, 3], [], "bc", b""),
]


def _without(name):
    return lambda arrays: arrays.pop(name)


def _as(name, change):
    return lambda arrays: arrays.update({name: change(arrays[name])})


def _at(name, index, value):
    def change(array):
        array = array.copy()
        array[index] = value
        return array

    return _as(name, change)


WRONG = {
    "a column is missing": _without("number"),
    "offsets are missing": _without("tokens.offsets"),
    "valid is missing": _without("maybe.valid"),
    "a column too many": lambda arrays: arrays.update(more=np.zeros(3)),
    "offsets of a dense column": lambda arrays: arrays.update({"number.offsets": np.arange(4)}),
    "another dtype": _as("number", lambda array: array.astype(np.int32)),
    "another byte order": _as("number", lambda array: array.astype(">i8")),
    "a number": _as("number", lambda array: np.int64(3) + np.zeros((), np.int64)),
    "another shape": _as("pair", lambda array: array.reshape(3, 2, 1)),
    "a flat shape": _as("pair", lambda array: array.reshape(-1)),
    "too few rows": _as("number", lambda array: array[:2]),
    "too many rows": _as("number", lambda array: np.arange(4)),
    "too few values": _as("tokens", lambda array: array[:-1]),
    "too many values": _as("text", lambda array: np.zeros(9, np.uint8)),
    "other values": _as("boxes", lambda array: array.reshape(-1)),
    "offsets of another type": _as("tokens.offsets", lambda array: array.astype(np.int32)),
    "offsets without sign": _as("tokens.offsets", lambda array: array.astype(np.uint64)),
    "too few offsets": _as("tokens.offsets", lambda array: array[:-1]),
    "too many offsets": _as("tokens.offsets", lambda array: np.append(array, array[-1])),
    "offsets with two dimensions": _as("tokens.offsets", lambda array: array.reshape(4, 1)),
    "offsets that do not begin with 0": _at("tokens.offsets", 0, 1),
    "offsets below 0": _at("tokens.offsets", 0, -1),
    "offsets that fall": _at("tokens.offsets", 1, 3),
    "offsets that fall below 0": _at("tokens.offsets", 1, -(1 << 62)),
    "offsets beyond the end": _at("tokens.offsets", 3, 4),
    "offsets beyond all": _at("tokens.offsets", 3, (1 << 63) - 1),
    "valid as numbers": _as("maybe.valid", lambda array: array.astype(np.uint8)),
    "too few valid": _as("maybe.valid", lambda array: array[:2]),
    "valid with two dimensions": _as("maybe.valid", lambda array: array.reshape(3, 1)),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_refused(wrong):
    arrays = arrays_of(THREE)
    WRONG[wrong](arrays)
    with pytest.raises(ProtocolError):
        tables.check(arrays, LAYOUTS, 3)


@pytest.mark.parametrize("rows", [0, 2, 4, 1 << 40, (1 << 63) - 1])
def test_another_number_of_rows_is_refused(rows):
    with pytest.raises(ProtocolError):
        tables.check(arrays_of(THREE), LAYOUTS, rows)


def test_rows_without_columns_are_none():
    tables.check({}, (), 0)
    with pytest.raises(ProtocolError):
        tables.check({}, (), 1)


def test_more_rows_than_can_be_counted_are_refused():
    layouts = (Layout("nothing", "dense", "int8", (0,)),)
    with pytest.raises(ProtocolError):
        tables.check({"nothing": np.empty((1 << 40, 0), np.int8)}, layouts, 1 << 40)


def test_layouts_travel():
    assert tables.from_json(json.loads(json.dumps(tables.to_json(LAYOUTS)))) == LAYOUTS
    assert tables.from_json([]) == ()


def _described(**changes):
    return [{**tables.to_json([Layout("a", "dense", "int64")])[0], "shape": [], **changes}]


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        3,
        {},
        "a",
        [None],
        [[]],
        [{}],
        _described(more=1),
        [{key: value for key, value in _described()[0].items() if key != "nulls"}],
        _described(name=3),
        _described(kind="other"),
        _described(kind=None),
        _described(kind=["dense"]),
        _described(dtype=None),
        _described(dtype="nonsense"),
        _described(dtype="O"),
        _described(dtype="i8,O"),
        _described(dtype="U0"),
        _described(dtype="[" * 1000),
        _described(shape=3),
        _described(shape=[-1]),
        _described(shape=[1.0]),
        _described(shape=[True]),
        _described(shape=["3"]),
        _described(shape=[1] * 33),
        _described(shape=[1 << 70]),
        _described(nulls=1),
        _described(nulls=None),
        _described(kind="string"),
        _described(kind="binary", dtype="uint8", shape=[2]),
        _described() * 2,
        _described(kind="ragged") + _described(name="a.offsets"),
        _described(nulls=True) + _described(name="a.valid", dtype="bool"),
    ],
)
def test_a_description_that_is_none_is_refused(wrong):
    with pytest.raises(ProtocolError):
        tables.from_json(wrong)
