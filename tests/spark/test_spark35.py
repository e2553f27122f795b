"""`transfer.spark.write` on Spark 3.5 and 4.0, which have no Arrow writers of data sources in Python."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("msgspec")

from tests.spark.spark35 import named_by  # noqa: E402
from tests.spark.spools import ROOT, expected, read, rows_in, runs_of  # noqa: E402
from transfer.spool import Spool  # noqa: E402

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(240),
]


@pytest.fixture(scope="module", params=["3.5", pytest.param("4.0", marks=pytest.mark.slow)])
def version(request):
    return request.param


@pytest.fixture(scope="module")
def python(version):
    return named_by(f"TRANSFER_TEST_SPARK{version.replace('.', '')}", version)


@pytest.fixture(scope="module")
def spool(version, tmp_path_factory):
    with Spool(tmp_path_factory.mktemp("spool")) as spool:
        yield spool


@pytest.fixture(scope="module")
def job_report(python, spool, tmp_path_factory):
    """What each write returned or raised."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for name in ("SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYTHONHOME"):
        environment.pop(name, None)
    folder = tmp_path_factory.mktemp("spark35")
    done = subprocess.run(
        [python, "-m", "tests.spark.spark35_job", spool.url(), str(folder)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_it_is_this_spark_without_data_sources(job_report, version):
    assert job_report["version"].startswith(f"{version}.")
    assert "use transfer.spark.write" in job_report["register"]


@pytest.mark.parametrize("run", ["committed", "partition", "raised", "killed"])
def test_all_rows_are_there_once(job_report, spool, run):
    assert job_report[run] == run
    assert rows_in(spool.url(run)) == ("sealed", expected(range(1200)))


def test_the_same_run_again_and_one_without_rows(job_report, spool):
    assert job_report["committed again"] == "committed"
    assert "run committed is complete" in job_report["other rows"] and job_report["other rows"].startswith(
        "UsageError"
    )
    assert job_report["empty"] == "empty" and rows_in(spool.url("empty")) == ("sealed", expected([]))


def test_columns_are_selected_in_the_order_asked_for(job_report, spool):
    assert job_report["columns"] == "columns"
    state, arrays, rows = read(spool.url("columns"))
    assert (state, rows, [*arrays]) == ("sealed", 1200, ["x", "id"])
    assert np.array_equal(arrays["x"], np.stack([arrays["id"], 2 * arrays["id"]], axis=1).astype(np.float32))
    assert runs_of(spool)["columns"]["frames"] == 24


def test_vectors_of_ml_and_mllib(job_report, spool):
    assert job_report["vectors"] == "vectors"
    _, arrays, rows = read(spool.url("vectors"))
    ids = arrays["id"][:, None]
    assert rows == 100
    assert np.array_equal(arrays["v"], np.hstack([ids, ids + 0.5]))
    assert np.array_equal(arrays["w"], np.hstack([ids, -ids]))


def test_nulls_have_a_mask(job_report, spool):
    assert job_report["nulls"] == "nulls"
    _, arrays, _ = read(spool.url("nulls"))
    assert np.array_equal(arrays["n.valid"], arrays["id"] % 2 == 1)
    assert np.array_equal(arrays["n"], np.where(arrays["n.valid"], arrays["id"], 0))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sparse", "NotATensor: column 'v' has 1 sparse vector(s), first in row 0 of partition"),
        ("date", "NotATensor: column 'day' is date"),
        ("cut", "NotATensor: column 'x' has arrays of different lengths: 1 to 2 values, 1 unlike"),
        ("nobody", "Again: no spool answers at tcp://127.0.0.1:9"),
    ],
)
def test_what_is_refused_says_why_and_nothing_is_seen(job_report, spool, name, text):
    assert text in job_report[name]
    run = runs_of(spool).get(name)
    assert run is None or (run["state"], run["rows"], run["staged_rows"]) == ("failed", 0, 0)
