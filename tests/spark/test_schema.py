"""What the driver says to a schema, and to the options about columns; no Spark session."""

from __future__ import annotations

import pytest

types = pytest.importorskip("pyspark.sql.types", reason="pip install tensor-transfer[spark]")

from transfer.spark.options import parse_options  # noqa: E402
from transfer.spark.schema import Column, check_schema  # noqa: E402
from transfer.spool.format.rows import Layout  # noqa: E402
from transfer.tensors.bundle import MAX_TENSORS  # noqa: E402
from transfer.transports.errors import NotATensor, OptionError  # noqa: E402

LONG, FLOAT, STRING = types.LongType(), types.FloatType(), types.StringType()
FLOATS = types.ArrayType(FLOAT)
MATRIX = types.ArrayType(FLOATS)


def schema(**kinds):
    return types.StructType([types.StructField(name, kind) for name, kind in kinds.items()])


def test_numbers_and_arrays_of_numbers_travel():
    found = check_schema(
        schema(
            b=types.ByteType(),
            s=types.ShortType(),
            i=types.IntegerType(),
            n=LONG,
            f=FLOAT,
            d=types.DoubleType(),
            t=types.BooleanType(),
            x=FLOATS,
            m=types.ArrayType(types.ArrayType(types.ShortType())),
        )
    )
    assert [c.dtype for c in found] == [
        "int8", "int16", "int32", "int64", "float32", "float64", "bool", "float32", "int16",
    ]  # fmt: skip
    assert [c.depth for c in found] == [0] * 7 + [1, 2]
    assert [c.index for c in found] == list(range(9))
    assert {c.kind for c in found} == {"dense"}


def test_strings_and_bytes_travel():
    found = check_schema(schema(s=STRING, c=types.CharType(3), v=types.VarcharType(9), b=types.BinaryType()))
    assert [c.kind for c in found] == ["string"] * 3 + ["binary"]
    assert found[0].layout(()).arrays == ("s", "s.offsets")
    assert {(c.dtype, c.depth, c.shape) for c in found} == {("uint8", 0, ())}


@pytest.mark.parametrize("home", ["pyspark.ml.linalg", "pyspark.mllib.linalg"])
def test_vectors_travel_as_dense_arrays(home):
    linalg = pytest.importorskip(home)
    (column,) = check_schema(schema(v=linalg.VectorUDT()))
    assert column == Column("v", 0, "float64", 1, "vector")
    assert column.shape is None and column.layout((7,)) == Layout("v", "dense", "float64", (7,))
    with pytest.raises(NotATensor, match=r"'v' is array<vector>[\s\S]*explode\('v'\)"):
        check_schema(schema(v=types.ArrayType(linalg.VectorUDT())))
    with pytest.raises(NotATensor, match="'v' is matrix"):
        check_schema(schema(v=linalg.MatrixUDT()))


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        (types.DecimalType(10, 2), "cast\\('double'\\)"),
        (types.TimestampType(), "unix_micros\\('bad'\\)"),
        (types.TimestampNTZType(), "or cast it"),
        (types.DateType(), "unix_date"),
        (types.DayTimeIntervalType(), "extract"),
        (types.YearMonthIntervalType(), "extract"),
        (types.CalendarIntervalType(), "extract"),
        (types.StructType([types.StructField("y", FLOAT)]), "Select its fields"),
        (types.MapType(STRING, FLOAT), "map_keys\\('bad'\\)"),
        (types.ArrayType(STRING), r"array<string>[\s\S]*array_join"),
        (types.ArrayType(types.BinaryType()), "Only numbers"),
        (types.ArrayType(types.DateType()), "unix_date"),
        (types.VariantType(), "Only numbers"),
        (types.NullType(), "Only numbers"),
    ],
    ids=lambda value: value.simpleString() if hasattr(value, "simpleString") else "",
)
def test_other_types_are_refused_with_the_columns_name(kind, hint):
    with pytest.raises(NotATensor, match="column 'bad' is") as caught:
        check_schema(schema(good=FLOAT, bad=kind))
    assert caught.match(hint)
    assert check_schema(schema(good=FLOAT, bad=kind), ["good"])[0].name == "good"


def test_columns_are_chosen_by_name_and_in_that_order():
    given = schema(a=LONG, b=FLOAT, c=types.DateType())
    assert check_schema(given, ["b", "a"]) == (Column("b", 1, "float32", 0), Column("a", 0, "int64", 0))
    with pytest.raises(OptionError, match=r"no column 'd'[\s\S]*a, b, c"):
        check_schema(given, ["d"])


def test_a_name_that_is_there_twice_is_refused():
    twice = types.StructType([types.StructField("a", LONG)] * 2)
    with pytest.raises(OptionError, match="'a' is there twice"):
        check_schema(twice)


def test_ragged_columns_are_named_or_all():
    given = schema(n=LONG, x=FLOATS, m=MATRIX, s=STRING)
    kinds = {ragged: [c.kind for c in check_schema(given, ragged=ragged)] for ragged in [(), ("m",), ("*",)]}
    assert kinds == {
        (): ["dense", "dense", "dense", "string"],
        ("m",): ["dense", "dense", "ragged", "string"],
        ("*",): ["dense", "ragged", "ragged", "string"],
    }
    x, m = check_schema(given, ["x", "m"], ragged=["*"])
    assert (x.shape, m.shape) == ((), None)
    assert m.layout((3,)) == Layout("m", "ragged", "float32", (3,))


@pytest.mark.parametrize(
    ("ragged", "text"),
    [
        ("n", "'ragged' names 'n', which is bigint and no array"),
        ("s", "'ragged' names 's', which is string and no array"),
        ("y", r"'ragged' names 'y', and no such column is sent[\s\S]*Sent are: n, s\."),
        ("x", "'ragged' names 'x', and no such column is sent"),
    ],
)
def test_ragged_names_are_checked(ragged, text):
    with pytest.raises(OptionError, match=text):
        check_schema(schema(n=LONG, s=STRING, x=FLOATS), ["n", "s"], ragged=[ragged])


def test_the_schema_decides_which_columns_have_a_mask():
    given = types.StructType([types.StructField("a", LONG, True), types.StructField("b", FLOATS, False)])
    assert [c.nulls for c in check_schema(given, nulls="mask")] == ["mask", "refuse"]
    assert [c.nulls for c in check_schema(given, nulls="fill")] == ["fill", "fill"]
    assert check_schema(given, nulls="mask")[0].layout(()).arrays == ("a", "a.valid")
    with pytest.raises(OptionError, match="nulls is one of refuse, fill, mask, not 'drop'"):
        check_schema(given, nulls="drop")


@pytest.mark.parametrize(
    ("names", "options", "text"),
    [
        (("s", "s.offsets"), {}, "columns 's' and 's.offsets' would both travel as 's.offsets'"),
        (("s.offsets", "s"), {}, "columns 's.offsets' and 's' would both travel as 's.offsets'"),
        (("a", "a.valid"), {"nulls": "mask"}, "both travel as 'a.valid'"),
        (("n" * 1020,), {}, "'n{1020}' has a name of more than 1024 bytes"),
    ],
)
def test_names_that_arrays_would_share_are_refused(names, options, text):
    with pytest.raises(OptionError, match=text):
        check_schema(schema(**dict.fromkeys(names, STRING)), **options)
    numbers = schema(**dict.fromkeys(names, LONG))
    assert [c.name for c in check_schema(numbers)] == list(names)


def test_more_columns_than_a_message_can_carry_are_refused():
    many = schema(**{f"c{number}": STRING for number in range(MAX_TENSORS // 2 + 1)})
    with pytest.raises(OptionError, match=f"are {MAX_TENSORS + 2} tensors; .* 'c{MAX_TENSORS // 2}' and"):
        check_schema(many)
    assert len(check_schema(many, [f"c{number}" for number in range(MAX_TENSORS // 2)])) == MAX_TENSORS // 2


# --- the options --------------------------------------------------------------------------------


def parse(**given):
    return parse_options({"endpoint": "run://127.0.0.1:5570/run", **given})


def test_options_about_columns():
    assert (parse().ragged, parse().nulls) == ((), "refuse")
    assert parse(ragged="a, b").ragged == ("a", "b")
    assert parse(ragged='["a,b", "*"]').ragged == ("a,b", "*")
    assert parse(ragged="*", nulls="Mask").nulls == "mask"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"nulls": "drop"}, "nulls is one of refuse, fill, mask, not 'drop'"),
        ({"ragged": "a,a"}, "option 'ragged' names 'a' twice"),
        ({"ragged": "[a"}, "option 'ragged' is no JSON list"),
        ({"raged": "a"}, "Did you mean 'ragged'"),
    ],
)
def test_options_about_columns_that_are_refused(given, text):
    with pytest.raises(OptionError, match=text):
        parse(**given)
