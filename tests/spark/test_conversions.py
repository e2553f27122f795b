"""Binary of one length, timestamps, dates and decimals as numbers, by option."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pytest

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow", reason="pip install tensor-transfer[spark]")
types = pytest.importorskip("pyspark.sql.types", reason="pip install tensor-transfer[spark]")

from tests.spark.spools import read  # noqa: E402
from transfer.spark.batches import batches, schema_of  # noqa: E402
from transfer.spark.columns import ColumnReader  # noqa: E402
from transfer.spark.options import parse_options  # noqa: E402
from transfer.spool.format.rows import check  # noqa: E402
from transfer.transports.errors import NotATensor, OptionError  # noqa: E402

DAYS = [datetime.date(1970, 1, 2), None, datetime.date(1969, 12, 31)]
#: microseconds
MOMENTS = [1_000_005, None, -1_000_000]


def columns(kind, **options):
    given = {"endpoint": "run://127.0.0.1:5570/a"} | options
    schema = types.StructType([types.StructField("x", kind)])
    return parse_options(given).columns_of(schema)


def values(array, kind, **options):
    """What a reader makes of a batch, and of its slice."""
    reader = ColumnReader(columns(kind, **options), partition=3)
    found = reader.read(pa.record_batch({"x": array}))
    check(found, reader.layouts, len(array))
    part = ColumnReader(columns(kind, **options)).read(pa.record_batch({"x": array.slice(1)}))
    np.testing.assert_array_equal(part["x"], found["x"][1:])
    return found["x"]


def test_dates_and_timestamps_are_counted_from_1970():
    dates = pa.array(DAYS, pa.date32())
    assert values(dates, types.DateType(), dates="days", nulls="fill").tolist() == [1, 0, -1]
    for arrow, kind in ((None, types.TimestampNTZType()), ("Europe/Berlin", types.TimestampType())):
        moments = pa.array(MOMENTS, pa.timestamp("us", arrow))
        found = values(moments, kind, timestamps="micros", nulls="fill")
        assert found.dtype == np.int64 and found.tolist() == [1_000_005, 0, -1_000_000]
    lists = pa.array([DAYS[:1] * 2, DAYS[2:] * 2], pa.list_(pa.date32()))
    assert values(lists, types.ArrayType(types.DateType()), dates="days").tolist() == [[1, 1], [-1, -1]]


def test_decimals():
    numbers = pa.array([Decimal("1.25"), None, Decimal("-3.50")], pa.decimal128(20, 2))
    kind = types.DecimalType(20, 2)
    assert values(numbers, kind, decimals="int64", nulls="fill").tolist() == [125, 0, -350]
    found = values(numbers, kind, decimals="float64", nulls="fill")
    np.testing.assert_array_equal(found, [1.25, np.nan, -3.5])
    edges = [Decimal(2**63 - 1), Decimal(-(2**63))]
    assert values(pa.array(edges, pa.decimal128(20)), types.DecimalType(20), decimals="int64").tolist() == [
        2**63 - 1,
        -(2**63),
    ]
    for wrong in (2**63, -(2**63) - 1):
        large = pa.array([Decimal(1), Decimal(wrong)], pa.decimal128(20))
        with pytest.raises(NotATensor, match=r"'x' has 1 decimal.* fit int64, first in row 1 of partition 3"):
            values(large, types.DecimalType(20), decimals="int64")


def test_binary_of_one_length_is_dense():
    rows = [bytes(range(12)), None, bytes(range(12, 24))]
    images = pa.array(rows, pa.binary())
    found = values(images, types.BinaryType(), dense="x=2x2x3", nulls="fill")
    assert found.shape == (3, 2, 2, 3) and found.dtype == np.uint8
    assert [row.tobytes() for row in found] == [rows[0], bytes(12), rows[2]]
    assert values(images.drop_null(), types.BinaryType(), dense='["x"]').shape == (2, 12)
    (column,) = columns(types.BinaryType(), dense="x")
    assert not ColumnReader([column]).layouts
    with pytest.raises(NotATensor, match="of other than 12 bytes, 5 to 12, first in row 1 of partition 3"):
        values(pa.array([rows[0], b"short"]), types.BinaryType(), dense="x")
    with pytest.raises(NotATensor, match="of other than 2x3 bytes"):
        values(pa.array([rows[0]]), types.BinaryType(), dense="x=2x3")


def test_dense_bytes_come_back_as_binary():
    rows = [bytes(range(12)), bytes(range(12, 24))]
    reader = ColumnReader(columns(types.BinaryType(), dense="x=2x6", nulls="mask"))
    arrays = reader.read(pa.record_batch({"x": pa.array([*rows, None])}))
    schema = schema_of(reader.layouts)
    assert schema["x"].dataType == types.BinaryType()
    (batch,) = batches(arrays, reader.layouts, schema, 3)
    assert batch.column("x").to_pylist() == [*rows, None]


@pytest.mark.parametrize(
    ("kind", "options", "error", "text"),
    [
        (types.DateType(), {}, NotATensor, "option dates='days'"),
        (types.TimestampType(), {"dates": "days"}, NotATensor, "option timestamps='micros'"),
        (types.DecimalType(), {}, NotATensor, "option decimals='float64' or 'int64'"),
        (
            types.DecimalType(),
            {"decimals": "float32"},
            OptionError,
            "decimals is one of refuse, float64, int64",
        ),
        (types.StringType(), {"dense": "x"}, OptionError, "which is string and not binary"),
        (types.BinaryType(), {"dense": "y=3"}, OptionError, "'dense' names 'y', and no such column"),
        (types.BinaryType(), {"dense": "x=3x"}, OptionError, "a shape is like 32x32x3"),
        (types.BinaryType(), {"dense": "x=0"}, OptionError, "a shape is like 32x32x3"),
    ],
)
def test_what_is_refused_on_the_driver(kind, options, error, text):
    with pytest.raises(error, match=text):
        columns(kind, **options)


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_through_spark_and_back(spark, tmp_path):
    from transfer.spark import write
    from transfer.spool import Spool

    df = spark.range(0, 100, 1, 2).selectExpr(
        "id", "timestamp_micros(id * 7) t", "date_from_unix_date(int(id)) d",
        "cast(id / 4 as decimal(10, 2)) p", "unhex(lpad(hex(id), 8, '0')) image",
    )  # fmt: skip
    with Spool(tmp_path) as spool:
        url = spool.url("run")
        write(df, url, timestamps="micros", dates="days", decimals="int64", dense="image=2x2")
        _, arrays, rows = read(url)
        ids = arrays["id"]
        assert rows == 100 and arrays["image"].shape == (100, 2, 2)
        assert (
            (arrays["t"] == ids * 7).all() and (arrays["d"] == ids).all() and (arrays["p"] == ids * 25).all()
        )
        assert (arrays["image"][:, 1, 1] == ids).all()
        back = spark.read.format("transfer").load(url)
        assert back.dtypes == [
            ("id", "bigint"),
            ("t", "bigint"),
            ("d", "int"),
            ("p", "bigint"),
            ("image", "binary"),
        ]
        assert back.where("image = unhex(lpad(hex(id), 8, '0'))").count() == 100
