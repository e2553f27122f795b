"""Schema checks and the way from Arrow to numpy; no Spark session."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

pa = pytest.importorskip("pyarrow", reason="pip install tensor-transfer[spark]")
types = pytest.importorskip("pyspark.sql.types", reason="pip install tensor-transfer[spark]")

from transfer.spark.columns import ColumnReader, split  # noqa: E402
from transfer.spark.schema import Column, check_schema  # noqa: E402
from transports.errors import NotATensor, OptionError  # noqa: E402


def schema(**kinds):
    return types.StructType([types.StructField(name, kind) for name, kind in kinds.items()])


# --- schema -------------------------------------------------------------------------------------


def test_numbers_and_arrays_of_numbers_travel():
    found = check_schema(
        schema(
            b=types.ByteType(),
            s=types.ShortType(),
            i=types.IntegerType(),
            n=types.LongType(),
            f=types.FloatType(),
            d=types.DoubleType(),
            t=types.BooleanType(),
            x=types.ArrayType(types.FloatType()),
            m=types.ArrayType(types.ArrayType(types.ShortType())),
        )
    )
    assert [c.dtype for c in found] == [
        "int8", "int16", "int32", "int64", "float32", "float64", "bool", "float32", "int16",
    ]  # fmt: skip
    assert [c.depth for c in found] == [0] * 7 + [1, 2]
    assert [c.index for c in found] == list(range(9))


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        (types.StringType(), "Index or hash"),
        (types.BinaryType(), "Decode it"),
        (types.DecimalType(10, 2), "cast\\('double'\\)"),
        (types.TimestampType(), "unix_micros\\('bad'\\)"),
        (types.DateType(), "unix_date"),
        (types.StructType([types.StructField("y", types.FloatType())]), "Select its fields"),
        (types.MapType(types.StringType(), types.FloatType()), "Only numbers"),
        (types.ArrayType(types.StringType()), "array<string>"),
        (types.NullType(), "Only numbers"),
    ],
    ids=lambda value: value.simpleString() if hasattr(value, "simpleString") else "",
)
def test_other_types_are_refused_with_the_columns_name(kind, hint):
    with pytest.raises(NotATensor, match="column 'bad' is") as caught:
        check_schema(schema(good=types.FloatType(), bad=kind))
    assert caught.match(hint)
    assert check_schema(schema(good=types.FloatType(), bad=kind), ["good"])[0].name == "good"


def test_a_vector_is_refused_with_the_way_out():
    linalg = pytest.importorskip("pyspark.ml.linalg")
    with pytest.raises(NotATensor, match="vector_to_array\\('v'"):
        check_schema(schema(v=linalg.VectorUDT()))


def test_columns_are_chosen_by_name_and_in_that_order():
    found = check_schema(schema(a=types.LongType(), b=types.FloatType(), c=types.StringType()), ["b", "a"])
    assert found == (Column("b", 1, "float32", 0), Column("a", 0, "int64", 0))
    with pytest.raises(OptionError, match=r"no column 'd'[\s\S]*a, b, c"):
        check_schema(schema(a=types.LongType(), b=types.FloatType(), c=types.StringType()), ["d"])


def test_a_name_that_is_there_twice_is_refused():
    twice = types.StructType([types.StructField("a", types.LongType())] * 2)
    with pytest.raises(OptionError, match="'a' is there twice"):
        check_schema(twice)


# --- Arrow to numpy -----------------------------------------------------------------------------


def batch(**columns):
    return pa.record_batch(list(columns.values()), names=list(columns))


def read(given, **depths):
    columns = []
    for index, name in enumerate(given.schema.names):
        kind = given.column(index).type
        while pa.types.is_nested(kind):
            kind = kind.value_type
        dtype = "bool" if pa.types.is_boolean(kind) else str(kind)
        columns.append(Column(name, index, dtype, depths.get(name, 0)))
    return ColumnReader(columns).read(given)


def address(array):
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "float32", "float64"])
def test_numbers_are_views_of_arrows_memory(kind):
    values = pa.array([1, 2, 3, 4], getattr(pa, kind)())
    found = read(batch(x=values).slice(1, 2))["x"]
    assert found.dtype == kind and found.tolist() == [2, 3]
    assert address(found) == values.buffers()[1].address + found.itemsize


def test_booleans_are_unpacked():
    values = pa.array([True, False, True] * 5)
    assert read(batch(x=values).slice(7, 4))["x"].tolist() == [False, True, True, False]


@given(st.integers(1, 20), st.integers(0, 5), st.data())
def test_arrays_become_a_matrix_wherever_the_slice_begins(rows, width, data):
    start = data.draw(st.integers(0, rows - 1))
    count = data.draw(st.integers(1, rows - start))
    whole = np.arange(rows * width, dtype=np.float32).reshape(rows, width)
    for kind in (pa.list_(pa.float32()), pa.large_list(pa.float32()), pa.list_(pa.float32(), width)):
        sliced = batch(x=pa.array(whole.tolist(), kind)).slice(start, count)
        found = read(sliced, x=1)["x"]
        assert found.shape == (count, width)
        assert np.array_equal(found, whole[start : start + count])


def test_a_matrix_is_no_copy():
    values = pa.array(np.arange(12).reshape(4, 3).tolist(), pa.list_(pa.float32()))
    found = read(batch(x=values).slice(1, 2), x=1)["x"]
    assert address(found) == values.values.buffers()[1].address + 3 * 4
    assert found.flags.c_contiguous


def test_arrays_of_arrays():
    values = pa.array(np.arange(24).reshape(4, 2, 3).tolist(), pa.list_(pa.list_(pa.int16())))
    found = read(batch(x=values).slice(1, 3), x=2)["x"]
    assert np.array_equal(found, np.arange(24).reshape(4, 2, 3)[1:])


@pytest.mark.parametrize(
    ("values", "depth"),
    [
        (pa.array([1.0, None, 3.0]), 0),
        (pa.array([[1.0], None, [3.0]]), 1),
        (pa.array([[1.0, 2.0], [None, 4.0]]), 1),
    ],
    ids=["number", "array", "element"],
)
def test_nulls_are_refused_with_the_columns_name(values, depth):
    with pytest.raises(NotATensor, match=r"column 'x' has 1 null[\s\S]*na.drop"):
        read(batch(x=values), x=depth)


def test_a_null_outside_the_slice_does_no_harm():
    assert read(batch(x=pa.array([None, 2.0, 3.0])).slice(1, 2))["x"].tolist() == [2, 3]
    lists = pa.array([None, [1.0, 2.0], [None, 3.0], [4.0, 5.0]])
    assert read(batch(x=lists).slice(3, 1), x=1)["x"].tolist() == [[4, 5]]


def test_ragged_arrays_are_refused_with_the_columns_name():
    with pytest.raises(NotATensor, match="column 'x' has arrays of different lengths: 1 to 2"):
        read(batch(x=pa.array([[1.0], [2.0, 3.0]])), x=1)


def test_lengths_that_differ_between_batches_are_refused():
    reader = ColumnReader([Column("x", 0, "float32", 1)])
    reader.read(batch(x=pa.array([[1.0, 2.0]], pa.list_(pa.float32()))))
    with pytest.raises(NotATensor, match=r"column 'x' .* 2 before and 3 now"):
        reader.read(batch(x=pa.array([[1.0, 2.0, 3.0]], pa.list_(pa.float32()))))


def test_split():
    whole = batch(x=pa.array(range(10)))
    assert [len(part) for part in split(whole, 4)] == [4, 4, 2]
    assert [len(part) for part in split(whole, 0)] == [10]
    assert list(split(whole.slice(0, 0), 4)) == list(split(whole.slice(0, 0), 0)) == []
