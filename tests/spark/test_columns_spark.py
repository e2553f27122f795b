"""What real Spark hands to an Arrow writer, for every type that travels, read in its tasks."""

from __future__ import annotations

import pytest

np = pytest.importorskip("numpy")
datasource = pytest.importorskip("pyspark.sql.datasource", reason="pip install tensor-transfer[spark]")

from transfer.spool.format.rows import blobs, from_json, strings  # noqa: E402

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]


def sink(folder, **options):
    """A data source that reads its batches with a ColumnReader, as ours does, and keeps them in files."""
    name = f"keep{abs(hash(folder))}"

    class Writer(datasource.DataSourceArrowWriter):
        def __init__(self, columns):
            self.columns = columns

        def write(self, iterator):
            import json

            from pyspark import TaskContext

            from transfer.spark.columns import ColumnReader
            from transfer.spool.format.rows import check, to_json

            reader = ColumnReader(self.columns)
            for number, batch in enumerate(iterator):
                arrays = reader.read(batch)
                check(arrays, reader.layouts, batch.num_rows)
                place = folder / f"{TaskContext.get().partitionId()}-{number}"
                np.savez(place.with_suffix(".npz"), **arrays)
                place.with_suffix(".json").write_text(json.dumps(to_json(reader.layouts)))
            return datasource.WriterCommitMessage()

    class Source(datasource.DataSource):
        @classmethod
        def name(cls):
            return name

        def writer(self, schema, overwrite):
            from transfer.spark.schema import check_schema

            return Writer(check_schema(schema, **options))

    return Source


def kept(spark, folder, df, **options):
    """The one frame that the DataFrame, of one partition, becomes; and its layouts by name."""
    import json

    source = sink(folder, **options)
    spark.dataSource.register(source)
    df.coalesce(1).write.format(source.name()).mode("append").save()
    (place,) = folder.glob("*.npz")
    layouts = from_json(json.loads(place.with_suffix(".json").read_text()))
    return dict(np.load(place)), {layout.name: layout for layout in layouts}


def test_every_kind_of_column(spark, tmp_path):
    df = spark.sql(
        "select id n, if(id = 1, null, id) as maybe, id = 2 as even, concat('ä', id) as s,"
        " cast(concat('b', id) as binary) as b, array(float(id), 1f) as x, sequence(0, id) as r,"
        " transform(sequence(1, id + 1), i -> array(i, id)) as t, array(array(id, 1), array(2, 3)) as m,"
        " if(id = 0, null, 'set') as maybe_s from range(3)"
    )
    arrays, layouts = kept(spark, tmp_path, df, ragged=["r", "t"], nulls="mask")
    assert arrays["n"].tolist() == [0, 1, 2]
    assert arrays["maybe"].tolist() == [0, 0, 2] and arrays["maybe.valid"].tolist() == [True, False, True]
    assert "n.valid" not in arrays  # Spark knows that an id is never null
    assert arrays["even"].tolist() == [False, False, True]
    assert strings(arrays, "s") == ["ä0", "ä1", "ä2"]
    assert layouts["b"].kind == "binary" and blobs(arrays, "b") == [b"b0", b"b1", b"b2"]
    assert arrays["x"].tolist() == [[0, 1], [1, 1], [2, 1]] and arrays["x"].dtype == "float32"
    assert arrays["r"].tolist() == [0, 0, 1, 0, 1, 2] and arrays["r.offsets"].tolist() == [0, 1, 3, 6]
    assert arrays["t"].tolist() == [[1, 0], [1, 1], [2, 1], [1, 2], [2, 2], [3, 2]]
    assert (layouts["t"].kind, layouts["t"].shape) == ("ragged", (2,))
    assert arrays["m"][1].tolist() == [[1, 1], [2, 3]] and layouts["m"].shape == (2, 2)
    assert strings(arrays, "maybe_s") == ["", "set", "set"] and arrays["maybe_s.valid"].tolist() == [
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("home", ["pyspark.ml.linalg", "pyspark.mllib.linalg"])
def test_vectors(spark, tmp_path, home):
    linalg = pytest.importorskip(home)
    rows = [(linalg.Vectors.dense([1.0, 2.0]),), (None,), (linalg.Vectors.dense([3.0, 4.0]),)]
    df = spark.createDataFrame(rows, ["v"])
    arrays, layouts = kept(spark, tmp_path, df, nulls="fill")
    assert np.array_equal(arrays["v"], [[1, 2], [np.nan, np.nan], [3, 4]], equal_nan=True)
    assert (layouts["v"].kind, layouts["v"].dtype, layouts["v"].shape) == ("dense", "float64", (2,))


def test_sparse_vectors_fail_the_task_with_the_way_out(spark, tmp_path):
    linalg = pytest.importorskip("pyspark.ml.linalg")
    functions = pytest.importorskip("pyspark.ml.functions")
    rows = [(linalg.Vectors.sparse(3, [1], [5.0]),), (linalg.Vectors.dense([1.0, 2.0, 3.0]),)]
    df = spark.createDataFrame(rows, ["v"])
    with pytest.raises(Exception, match=r"column 'v' has 1 sparse vector[\s\S]*vector_to_array\('v'\)"):
        kept(spark, tmp_path, df)
    arrays, _ = kept(spark, tmp_path, df.withColumn("v", functions.vector_to_array("v")))
    assert arrays["v"].tolist() == [[0, 5, 0], [1, 2, 3]]


def test_wide_strings_and_those_of_a_declared_length(spark, tmp_path):
    settings = {
        "spark.sql.execution.arrow.useLargeVarTypes": "true",
        "spark.sql.preserveCharVarcharTypeInfo": "true",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        df = spark.sql(
            "select cast('ab' as char(3)) c, cast('cd' as varchar(3)) v, 'ef' s, cast('g' as binary) b"
        )
        arrays, layouts = kept(spark, tmp_path, df)
    finally:
        for name in settings:
            spark.conf.unset(name)
    assert [layouts[name].kind for name in "cvsb"] == ["string"] * 3 + ["binary"]
    assert [strings(arrays, name) for name in "cvs"] == [["ab "], ["cd"], ["ef"]]
    assert bytes(arrays["b"]) == b"g"


def test_refused_on_the_driver_before_a_task_starts(spark, tmp_path):
    df = spark.sql("select array(1) x, current_date() d")
    with pytest.raises(Exception, match="column 'd' is date"):
        kept(spark, tmp_path, df)
    with pytest.raises(Exception, match="'ragged' names 'y'"):
        kept(spark, tmp_path, df.select("x"), ragged=["y"])
    assert list(tmp_path.iterdir()) == []
