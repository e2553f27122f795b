"""ColumnReader against plain Python: whatever the rows, wherever slices begin, however Arrow keeps them."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

pa = pytest.importorskip("pyarrow", reason="pip install tensor-transfer[spark]")

from transfer.spark.columns import ColumnReader  # noqa: E402
from transfer.spark.schema import NULLS, Column  # noqa: E402
from transfer.spool.format.rows import blobs, check  # noqa: E402
from transfer.transports.errors import NotATensor  # noqa: E402

#: numpy's name -> Arrow's type, values that it can hold, and what stands for a null
LEAVES = {
    "int16": (pa.int16(), st.integers(-9, 9), 0),
    "float32": (pa.float32(), st.integers(-9, 9).map(float), math.nan),
    "float64": (pa.float64(), st.just(0.5), math.nan),
    "bool": (pa.bool_(), st.booleans(), False),
}
BYTES = {
    "string": (["string", "large_string", "string_view"], st.text("aä€", max_size=3)),
    "binary": (["binary", "large_binary", "binary_view"], st.binary(max_size=3)),
}
VECTOR = [("type", pa.int8()), ("size", pa.int32()), ("indices", pa.list_(pa.int32()))]


# --- the model ----------------------------------------------------------------------------------


class Refused(Exception):
    pass


def shape_of(items, depth, known):
    """The shape of nested lists below their first axis, nulls left out."""
    kept = [item for item in items if item is not None]
    if depth == 0:
        return ()
    if items and not kept:
        if known is None:
            raise Refused
        return known
    lengths = {len(item) for item in kept} or {0}
    if len(lengths) > 1:
        raise Refused
    below = [item for whole in kept for item in whole]
    return (*lengths, *shape_of(below, depth - 1, known[1:] if known else None))


def full(shape, fill):
    return [full(shape[1:], fill) for _ in range(shape[0])] if shape else fill


def filled(item, shape, fill):
    if item is None:
        return full(shape, fill)
    return [filled(below, shape[1:], fill) for below in item] if shape else item


def has_null(item):
    return item is None or (isinstance(item, list) and any(map(has_null, item)))


def model(rows, column, known):
    """(the rows as they travel, the shape): Python lists. Raises Refused."""
    inside = any(has_null(row) for row in rows if row is not None)
    if (column.nulls == "refuse" and (inside or None in rows)) or (column.nulls == "mask" and inside):
        raise Refused
    if column.kind in BYTES:
        return [(b"" if row is None else row.encode() if isinstance(row, str) else row) for row in rows], ()
    fill = LEAVES[column.dtype][2]
    if column.kind == "ragged":
        rows = [row or [] for row in rows]
        values = [value for row in rows for value in row]
        if rows and not values and column.depth > 1 and known is None:
            raise Refused
        shape = shape_of(values, column.depth - 1, known) if values else known
    else:
        shape = shape_of(rows, column.depth, known)
    if rows and known is not None and shape != known:
        raise Refused
    if column.kind == "ragged":
        return [[filled(value, shape, fill) for value in row] for row in rows], shape
    return [filled(row, shape, fill) for row in rows], shape


# --- what it is given ---------------------------------------------------------------------------


@st.composite
def columns(draw):
    nulls = draw(st.sampled_from(NULLS))
    kind = draw(st.sampled_from(["dense", "dense", "ragged", "ragged", "string", "binary", "vector"]))
    if kind in BYTES:
        return Column("x", 0, "uint8", 0, kind, nulls)
    if kind == "vector":
        return Column("x", 0, "float64", 1, kind, nulls)
    return Column(
        "x", 0, draw(st.sampled_from(list(LEAVES))), draw(st.integers(kind == "ragged", 3)), kind, nulls
    )


@st.composite
def column_and_values(draw):
    """A column and its rows, mostly such as can travel, in one of the ways in which Arrow has them."""
    column = draw(columns())
    nulls = draw(st.sampled_from(["no", "rows", "inside"]))
    if column.kind in BYTES:
        types, leaf = BYTES[column.kind]
        kind = getattr(pa, draw(st.sampled_from(types)))()
    else:
        kind, leaf, _ = LEAVES[column.dtype]
    item = st.none() | leaf if nulls == "inside" and column.kind != "vector" else leaf
    even = draw(st.integers(0, 9)) > 0
    for level in range(column.depth):
        outer = level == column.depth - 1
        width = draw(st.integers(0, 3)) if even and not (outer and column.kind == "ragged") else None
        item = st.lists(item, min_size=width or 0, max_size=3 if width is None else width)
        if not outer and nulls == "inside":
            item = st.none() | item
        makers = [pa.list_, pa.large_list]
        if width is not None and column.kind != "vector":
            makers.append(lambda inner, width=width: pa.list_(inner, width))
        kind = draw(st.sampled_from(makers))(kind)
    if nulls != "no":
        item = st.none() | item
    rows = draw(st.lists(item, min_size=1, max_size=8))
    if column.kind == "vector":
        kind = pa.struct([*VECTOR, ("values", kind)])
        return column, pa.array([None if row is None else {"type": 1, "values": row} for row in rows], kind)
    return column, pa.array(rows, kind)


def rows_of(values, column):
    rows = values.to_pylist()
    return [row and row["values"] for row in rows] if column.kind == "vector" else rows


def travelled(arrays, column):
    """The rows in the arrays, as the model has them."""
    if column.kind in BYTES:
        return blobs(arrays, "x")
    values = arrays["x"].tolist()
    if column.kind == "dense" or column.kind == "vector":
        return values
    ends = arrays["x.offsets"].tolist()
    return [values[start:stop] for start, stop in pairwise(ends)]


def same(one, other):
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other or (isinstance(one, float) and math.isnan(one) and math.isnan(other))


@given(column_and_values(), st.data())
def test_batches_are_read_as_the_model_reads_them(drawn, data):
    column, values = drawn
    reader = ColumnReader([column])
    known = column.shape
    assert reader.layouts == (() if known is None else (column.layout(known),))
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(values) - 1))
        left = len(values) - start
        part = values.slice(start, data.draw(st.integers(1, left) | st.integers(0, left)))
        rows = rows_of(part, column)
        batch = pa.record_batch([part], names=["x"])
        try:
            expected, shape = model(rows, column, known)
        except Refused:
            with pytest.raises(NotATensor, match="column 'x' has"):
                reader.read(batch)
            return
        arrays = reader.read(batch)
        assert same(travelled(arrays, column), expected)
        assert all(array.flags.c_contiguous for array in arrays.values())
        if column.nulls == "mask":
            assert arrays["x.valid"].tolist() == [row is not None for row in rows]
        if rows:
            known = shape
        if known is not None:
            assert reader.layouts == (column.layout(known),)
            check(arrays, reader.layouts, len(rows))
        else:
            assert reader.layouts == () and not rows
