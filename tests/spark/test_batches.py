"""A run's arrays as Arrow batches, against plain Python; and what Spark's schema may be."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow", reason="pip install tensor-transfer[spark]")
types = pytest.importorskip("pyspark.sql.types", reason="pip install tensor-transfer[spark]")

from transfer.spark.batches import batches, check_fit, schema_of  # noqa: E402
from transfer.spark.columns import ColumnReader  # noqa: E402
from transfer.spark.schema import NUMERIC, check_schema  # noqa: E402
from transfer.spool.format.rows import Layout  # noqa: E402
from transfer.transports.errors import NotATensor, OptionError  # noqa: E402


def nested(draw, dtype, shape):
    """A value of this shape, as lists of lists."""
    if not shape:
        return draw(st.booleans() if dtype == "bool" else st.integers(-9, 9))
    return [nested(draw, dtype, shape[1:]) for _ in range(shape[0])]


@st.composite
def tables(draw):
    """(layouts, arrays, rows as dicts)."""
    count = draw(st.integers(0, 5))
    layouts, arrays, rows = [], {}, [{} for _ in range(count)]
    for number in range(draw(st.integers(1, 4))):
        name, kind = f"c{number}", draw(st.sampled_from(["dense", "ragged", "string", "binary"]))
        plain = kind in ("dense", "ragged")
        dtype = draw(st.sampled_from(sorted(NUMERIC.values()))) if plain else "uint8"
        shape = tuple(draw(st.lists(st.integers(0, 3), max_size=2))) if plain else ()
        layout = Layout(name, kind, dtype, shape, nulls=draw(st.booleans()))
        valid = [draw(st.booleans()) if layout.nulls else True for _ in range(count)]
        if kind == "dense":
            values = whole = [nested(draw, dtype, shape) for _ in range(count)]
        elif kind == "ragged":
            values = [[nested(draw, dtype, shape) for _ in range(draw(st.integers(0, 3)))] for _ in rows]
            whole = [value for row in values for value in row]
        else:
            values = [draw(st.text("aä€", max_size=3)) for _ in rows]
            values = [value.encode() for value in values] if kind == "binary" else values
            whole = [byte for row in values for byte in (row.encode() if kind == "string" else row)]
        arrays[name] = np.array(whole, dtype).reshape((len(whole), *shape))
        if kind != "dense":
            lengths = [len(row.encode() if kind == "string" else row) for row in values]
            arrays[name + ".offsets"] = np.cumsum([0, *lengths], dtype=np.int64)
        if layout.nulls:
            arrays[name + ".valid"] = np.array(valid, bool)
        for row, value, there in zip(rows, values, valid, strict=True):
            row[name] = value if there else None
        layouts.append(layout)
    return layouts, arrays, rows


@given(tables(), st.integers(1, 6))
def test_all_kinds_are_read_as_plain_python_says(table, most):
    layouts, arrays, rows = table
    schema = schema_of(layouts)
    (whole,) = batches(arrays, layouts, schema, len(rows))
    whole.validate(full=True)
    assert whole.to_pylist() == rows
    parts = [*batches(arrays, layouts, schema, len(rows), most=most)]
    assert [row for part in parts for row in part.to_pylist()] == rows
    for part in parts:
        part.validate(full=True)
        assert part.schema == whole.schema
        assert part.num_rows <= 1 or all(arrays_of(part, one) <= most for one in layouts)


def arrays_of(batch, layout):
    """The values that a column of lists or bytes has."""
    values = batch.column(layout.name)
    if layout.kind in ("string", "binary"):
        return len(values.buffers()[2])
    size = len(values)
    while pa.types.is_list(values.type):
        values = values.values
        size = len(values)
    return size if layout.kind == "ragged" or layout.shape else 0


def test_the_way_there_and_back_is_no_change():
    """What `ColumnReader` made of Spark's batches."""
    array = types.ArrayType
    schema = types.StructType(
        [
            types.StructField("id", types.LongType(), False),
            types.StructField("x", array(types.FloatType(), False), False),
            types.StructField("m", array(array(types.ShortType(), False), False), True),
            types.StructField("r", array(types.DoubleType(), False), True),
            types.StructField("s", types.StringType(), True),
            types.StructField("b", types.BinaryType(), False),
            types.StructField("even", types.BooleanType(), True),
        ]
    )
    columns = check_schema(schema, ragged=["r"], nulls="mask")
    fields = [pa.field(c.name, kind, c.nulls == "mask") for c, kind in zip(columns, ARROW, strict=True)]
    rows = [
        {"id": 1, "x": [1.0, 2.0], "m": [[1], [2]], "r": [], "s": "ä", "b": b"\0", "even": None},
        {"id": 2, "x": [3.0, 4.0], "m": None, "r": [0.5, 0.25], "s": None, "b": b"", "even": True},
        {"id": 3, "x": [5.0, 6.0], "m": [[3], [4]], "r": None, "s": "", "b": b"ab", "even": False},
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=pa.schema(fields))
    reader = ColumnReader(columns)
    arrays = reader.read(batch)
    assert schema_of(reader.layouts) == schema
    (back,) = batches(arrays, reader.layouts, schema, 3)
    assert back == batch and back.to_pylist() == rows


def listed(kind):
    return pa.list_(pa.field("element", kind, nullable=False))


ARROW = [
    pa.int64(),
    listed(pa.float32()),
    listed(listed(pa.int16())),
    listed(pa.float64()),
    pa.string(),
    pa.binary(),
    pa.bool_(),
]


def test_numbers_are_not_copied():
    layouts = [
        Layout("x", "dense", "float32", (3,)),
        Layout("r", "ragged", "int64"),
        Layout("s", "string", "uint8"),
    ]
    arrays = {
        "x": np.arange(6, dtype=np.float32).reshape(2, 3),
        "r": np.arange(4),
        "r.offsets": np.array([0, 1, 4]),
        "s": np.frombuffer(b"abc", np.uint8),
        "s.offsets": np.array([0, 3, 3]),
    }
    (batch,) = batches(arrays, layouts, schema_of(layouts), 2)
    for column, array in (("x", "x"), ("r", "r")):
        assert batch.column(column).values.buffers()[1].address == arrays[array].ctypes.data
    assert batch.column("s").buffers()[2].address == arrays["s"].ctypes.data


# --- schemas ------------------------------------------------------------------------------------

LAYOUTS = (
    Layout("id", "dense", "int64"),
    Layout("x", "dense", "float32", (2,)),
    Layout("s", "string", "uint8", nulls=True),
)


LONG, INTEGER, FLOAT, STRING = types.LongType(), types.IntegerType(), types.FloatType(), types.StringType()
DOUBLES, FLOATS = types.ArrayType(types.DoubleType()), types.ArrayType(FLOAT)


def schema(nullable=True, **columns):
    return types.StructType([types.StructField(name, kind, nullable) for name, kind in columns.items()])


@pytest.mark.parametrize(
    "fitting",
    [schema(id=LONG, x=FLOATS, s=STRING), schema(s=STRING), schema(False, x=FLOATS, id=LONG)],
    ids=lambda one: ",".join(one.names),
)
def test_some_columns_in_any_order_fit(fitting):
    check_fit(fitting, LAYOUTS)


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (schema(id=LONG, y=INTEGER), "column 'y', and the run has none"),
        (schema(id=INTEGER), "column 'id' of the run is bigint, and the schema has int"),
        (schema(x=DOUBLES), "column 'x' of the run is array<float>, and the schema has array<double>"),
        (schema(x=types.ArrayType(FLOATS)), "column 'x' of the run is array<float>"),
        (schema(x=FLOAT), "column 'x' of the run is array<float>"),
        (schema(s=types.BinaryType()), "column 's' of the run is string"),
        (schema(False, s=STRING), "column 's' of the run may be null"),
    ],
    ids=lambda one: one.split()[1] if isinstance(one, str) else "",
)
def test_a_schema_that_does_not_fit_is_refused_by_the_columns_name(other, text):
    with pytest.raises(OptionError, match=text):
        check_fit(other, LAYOUTS)


def test_numbers_that_spark_does_not_have_are_refused():
    with pytest.raises(NotATensor, match="column 'u' is uint16"):
        schema_of([Layout("u", "dense", "uint16")])


def test_a_column_that_is_left_out_may_be_anything():
    layouts = [*LAYOUTS, Layout("u", "dense", "uint16")]
    arrays = {"id": np.arange(2), "u": np.arange(2, dtype=np.uint16)}
    wanted = schema(id=LONG)
    check_fit(wanted, layouts)
    (batch,) = batches(arrays, [layouts[0], layouts[3]], wanted, 2)
    assert batch.to_pylist() == [{"id": 0}, {"id": 1}]
