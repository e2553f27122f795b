"""The way from Arrow to numpy, case by case; no Spark session. The model: test_columns_model.py."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

pa = pytest.importorskip("pyarrow", reason="pip install tensor-transfer[spark]")

from transfer.spark.columns import ColumnReader, split  # noqa: E402
from transfer.spark.schema import Column  # noqa: E402
from transfer.spool.format.rows import Layout, check  # noqa: E402
from transfer.transports.errors import NotATensor  # noqa: E402

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
    ("values", "depth", "hint"),
    [
        (pa.array([1.0, None, 3.0]), 0, r"na.drop[\s\S]*nulls='fill'"),
        (pa.array([[1.0], None, [3.0]]), 1, r"na.drop[\s\S]*nulls='fill'"),
        (pa.array([[1.0, 2.0], [None, 4.0]]), 1, "inside its arrays"),
    ],
    ids=["number", "array", "element"],
)
def test_nulls_are_refused_with_the_columns_name(values, depth, hint):
    with pytest.raises(NotATensor, match="column 'x' has 1 null") as caught:
        read(batch(x=values), x=depth)
    assert caught.match(hint)


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


@pytest.mark.parametrize(
    ("values", "depth", "kind", "row"),
    [
        (pa.array([1.0, 2.0, None, None]), 0, "dense", 2),
        (pa.array([[1.0], [2.0], [3.0, 4.0]]), 1, "dense", 2),
        (pa.array([[1.0, 2.0], [3.0, None]]), 1, "dense", 1),
        (pa.array([[[1.0], [2.0]], [[3.0], [None]]]), 2, "dense", 1),
        (pa.array([[[1.0], [2.0]], [[3.0], [4.0, 5.0]]]), 2, "dense", 1),
        (pa.array([[1.0], [], [2.0, None]]), 1, "ragged", 2),
        (pa.array([[[1.0]], [], [[2.0], [3.0, 4.0]]]), 2, "ragged", 2),
        (pa.array(["a", None]), 0, "string", 1),
    ],
)
def test_a_wrong_value_is_named_by_its_row_of_the_partition(values, depth, kind, row):
    reader = ColumnReader([Column("x", 0, "float64", depth, kind)], partition=7)
    reader.read(batch(x=values.slice(0, 1)))
    with pytest.raises(NotATensor, match=rf", first in row {row + 1} of partition 7\n"):
        reader.read(batch(x=values))


def test_a_row_is_counted_with_the_nulls_before_it_that_are_filled():
    values = pa.array([None, [1.0, 2.0], None, [3.0], [4.0, 5.0]])
    reader = ColumnReader([Column("x", 0, "float64", 1, nulls="fill")])
    with pytest.raises(NotATensor, match=r"1 to 2 values, 1 unlike the first, first in row 3\n"):
        reader.read(batch(x=values))


def test_split():
    whole = batch(x=pa.array(range(10)))
    assert [len(part) for part in split(whole, 4)] == [4, 4, 2]
    assert [len(part) for part in split(whole, 0)] == [10]
    assert list(split(whole.slice(0, 0), 4)) == list(split(whole.slice(0, 0), 0)) == []


# --- strings, ragged arrays, vectors ------------------------------------------------------------

STRING = Column("x", 0, "uint8", 0, "string")
RAGGED = Column("x", 0, "float32", 1, "ragged")
TENSORS = Column("x", 0, "float32", 2, "ragged")
VECTOR = Column("x", 0, "float64", 1, "vector")
VECTOR_TYPE = pa.struct(
    [
        pa.field("type", pa.int8()),
        pa.field("size", pa.int32()),
        pa.field("indices", pa.list_(pa.int32())),
        pa.field("values", pa.list_(pa.float64())),
    ]
)


def read_one(column, values):
    """The column's arrays, checked against what the reader says of them."""
    reader = ColumnReader([column])
    arrays = reader.read(batch(x=values))
    check(arrays, reader.layouts, len(values))
    assert all(array.flags.c_contiguous for array in arrays.values())
    return arrays


@pytest.mark.parametrize("kind", ["string", "large_string"])
def test_strings_are_views_of_arrows_memory(kind):
    values = pa.array(["no", "äh", "", "yes"], kind)
    found = read_one(STRING, values.slice(1))
    assert bytes(found["x"]).decode() == "ähyes"
    assert found["x.offsets"].tolist() == [0, 3, 3, 6]
    assert address(found["x"]) == values.buffers()[2].address + 2


def test_bytes_behind_a_null_do_not_travel():
    buffers = [pa.py_buffer(b"\x05"), pa.py_buffer(np.array([0, 2, 4, 6], "i4")), pa.py_buffer(b"aaJJcc")]
    values = pa.Array.from_buffers(pa.utf8(), 3, buffers)
    assert values.to_pylist() == ["aa", None, "cc"]
    found = read_one(Column("x", 0, "uint8", 0, "string", "mask"), values)
    assert bytes(found["x"]) == b"aacc"
    assert found["x.offsets"].tolist() == [0, 2, 2, 4]
    assert found["x.valid"].tolist() == [True, False, True]


def test_ragged_arrays_are_views_of_arrows_memory():
    values = pa.array([[9.0], [1.0, 2.0], [], [3.0]], pa.list_(pa.float32()))
    found = read_one(RAGGED, values.slice(1))
    assert found["x"].tolist() == [1, 2, 3] and found["x.offsets"].tolist() == [0, 2, 2, 3]
    assert address(found["x"]) == values.values.buffers()[1].address + 4


def test_values_behind_a_null_array_do_not_travel():
    values = pa.ListArray.from_arrays(
        pa.array([0, 1, 3, 4], pa.int32()),
        pa.array([1, 7, 7, 2], pa.float32()),
        mask=pa.array([False, True, False]),
    )
    assert values.to_pylist() == [[1], None, [2]]
    found = read_one(Column("x", 0, "float32", 1, "ragged", "fill"), values)
    assert found["x"].tolist() == [1, 2] and found["x.offsets"].tolist() == [0, 1, 1, 2]
    found = read_one(Column("x", 0, "float32", 1, "dense", "fill"), values)
    assert np.array_equal(found["x"], [[1], [np.nan], [2]], equal_nan=True)


def test_inner_arrays_of_ragged_ones_have_one_length():
    kind = pa.list_(pa.list_(pa.float32()))
    found = read_one(TENSORS, pa.array([[[1, 2]], [], [[3, 4], [5, 6]]], kind))
    assert found["x"].tolist() == [[1, 2], [3, 4], [5, 6]] and found["x.offsets"].tolist() == [0, 1, 1, 3]
    with pytest.raises(NotATensor, match=r"column 'x' has inner arrays of different lengths: 1 to 2"):
        read_one(TENSORS, pa.array([[[1, 2]], [[3]]], kind))
    with pytest.raises(NotATensor, match=r"column 'x' has no array .* its length: all 2 arrays are empty"):
        read_one(TENSORS, pa.array([[], []], kind))


def vectors(*rows, sparse=()):
    return pa.array(
        [
            None
            if row is None
            else {"type": 0, "size": 9, "indices": [0], "values": [1.0]}
            if place in sparse
            else {"type": 1, "size": None, "indices": None, "values": row}
            for place, row in enumerate(rows)
        ],
        VECTOR_TYPE,
    )


def test_dense_vectors_are_a_matrix_without_a_copy():
    values = vectors([9.0, 9.0], [1.0, 2.0], [3.0, 4.0])
    found = read_one(VECTOR, values.slice(1))["x"]
    assert found.tolist() == [[1, 2], [3, 4]]
    assert address(found) == values.field("values").values.buffers()[1].address + 16
    filled = read_one(
        Column("x", 0, "float64", 1, "vector", "mask"), vectors(None, [1.0, 2.0], None).slice(1)
    )
    assert np.array_equal(filled["x"], [[1, 2], [np.nan] * 2], equal_nan=True)
    assert filled["x.valid"].tolist() == [True, False]


def test_sparse_vectors_are_refused_with_the_way_out():
    with pytest.raises(NotATensor, match=r"column 'x' has 1 sparse vector[\s\S]*vector_to_array\('x'\)"):
        read_one(VECTOR, vectors([1.0], [2.0], sparse=(1,)))
    assert read_one(VECTOR, vectors([1.0], [2.0], sparse=(1,)).slice(0, 1))["x"].tolist() == [[1]]
    with pytest.raises(NotATensor, match=r"vectors of different lengths: 1 to 2"):
        read_one(VECTOR, vectors([1.0], [2.0, 3.0]))


# --- shapes -------------------------------------------------------------------------------------


def test_layouts_are_told_as_soon_as_they_are_known():
    columns = [
        Column("n", 0, "int64", 0, nulls="mask"),
        Column("x", 1, "float32", 1),
        Column("v", 2, "float64", 1, "vector"),
        Column("r", 3, "float32", 1, "ragged"),
        Column("t", 4, "int16", 2, "ragged"),
        Column("s", 5, "uint8", 0, "string"),
    ]
    reader = ColumnReader(columns)
    early = (
        Layout("n", "dense", "int64", nulls=True),
        Layout("r", "ragged", "float32"),
        Layout("s", "string", "uint8"),
    )
    assert reader.layouts == early
    rows = batch(
        n=pa.array([1]),
        x=pa.array([[1.0, 2.0]], pa.list_(pa.float32())),
        v=vectors([1.0, 2.0, 3.0]),
        r=pa.array([[1.0]], pa.list_(pa.float32())),
        t=pa.array([[[1, 2]]], pa.list_(pa.list_(pa.int16()))),
        s=pa.array(["s"]),
    )
    empty = reader.read(rows.slice(0, 0))
    assert reader.layouts == early  # an empty batch says nothing of shapes
    assert {name: len(array) for name, array in empty.items() if name.endswith(".offsets")} == {
        "r.offsets": 1,
        "t.offsets": 1,
        "s.offsets": 1,
    }
    check(reader.read(rows), reader.layouts, 1)
    assert [layout.shape for layout in reader.layouts] == [(), (2,), (3,), (), (2,), ()]
    assert [layout.kind for layout in reader.layouts] == ["dense"] * 3 + ["ragged"] * 2 + ["string"]
    check(reader.read(rows.slice(1)), reader.layouts, 0)


def test_a_null_array_takes_the_length_of_others():
    kind = pa.list_(pa.float32())
    reader = ColumnReader([Column("x", 0, "float32", 1, nulls="fill")])
    with pytest.raises(NotATensor, match=r"column 'x' has no array .* its length: all 2 arrays are null"):
        reader.read(batch(x=pa.array([None, None], kind)))
    reader.read(batch(x=pa.array([[1.0, 2.0]], kind)))
    assert np.isnan(reader.read(batch(x=pa.array([None, None], kind)))["x"]).tolist() == [[True] * 2] * 2


def test_what_earlier_rows_told_is_enough():
    kind = pa.list_(pa.list_(pa.float32()))
    dense = ColumnReader([Column("x", 0, "float32", 2, nulls="fill")])
    with pytest.raises(NotATensor, match="all 2 arrays are null"):
        dense.read(batch(x=pa.array([[None, None]], kind)))
    dense.read(batch(x=pa.array([[[1, 2, 3], None]], kind)))
    found = dense.read(batch(x=pa.array([[None, None]], kind)))["x"]
    assert found.shape == (1, 2, 3) and np.isnan(found).all()
    ragged = ColumnReader([TENSORS])
    ragged.read(batch(x=pa.array([[[1, 2, 3]]], kind)))
    found = ragged.read(batch(x=pa.array([[], []], kind)))
    assert found["x"].shape == (0, 3) and found["x.offsets"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("values", "filled"),
    [
        (pa.array([1, None], pa.int8()), [1, 0]),
        (pa.array([True, None]), [True, False]),
        (pa.array([1, None], pa.float64()), [1, np.nan]),
        (pa.array([[1, None], None], pa.list_(pa.int32())), [[1, 0], [0, 0]]),
        (pa.array([[True, True], None], pa.list_(pa.bool_())), [[True, True], [False, False]]),
    ],
    ids=["int", "bool", "float", "array", "array of bool"],
)
def test_nulls_are_filled(values, filled):
    inner = values.type.value_type if pa.types.is_nested(values.type) else values.type
    dtype = {"bool": "bool", "double": "float64"}.get(str(inner), str(inner))
    column = Column("x", 0, dtype, np.ndim(filled) - 1, nulls="fill")
    found = read_one(column, values)["x"]
    assert found.dtype == dtype
    assert np.array_equal(found, filled, equal_nan=dtype == "float64")


def test_a_mask_tells_of_null_rows_and_refuses_nulls_inside():
    column = Column("x", 0, "float32", 1, nulls="mask")
    found = read_one(column, pa.array([None, [1.0, 2.0]], pa.list_(pa.float32())))
    assert found["x.valid"].tolist() == [False, True]
    assert np.array_equal(found["x"], [[np.nan] * 2, [1, 2]], equal_nan=True)
    whole = read_one(column, pa.array([[1.0]], pa.list_(pa.float32())))
    assert whole["x.valid"].tolist() == [True]  # in every frame, so that all agree
    for kind in ("dense", "ragged"):
        with pytest.raises(NotATensor, match=r"column 'x' has 1 null value\(s\) inside its arrays"):
            inside = pa.array([[1.0, None]], pa.list_(pa.float32()))
            read_one(Column("x", 0, "float32", 1, kind, "mask"), inside)
