"""The programs in README.md and docs/ that need Spark."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from contextlib import contextmanager

import pytest

from tests.docs.examples import ROOT, Example, programs

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]


@pytest.mark.parametrize("example", programs("python", spark=True), ids=str)
def test_spark(example: Example, spark, capsys):
    """`local_session()` in them finds the session of the test run, so this starts no other."""
    pytest.importorskip("torch", reason="pip install 'tensor-transfer[torch]'")
    exec(compile(example.program(), str(example), "exec"), {"__name__": "example"})
    printed = capsys.readouterr().out
    if example.output:
        # The loss depends on the order in which tasks send.
        number = re.compile(r"\d+\.\d+")
        assert number.sub("N", printed) == number.sub("N", example.output)
        assert all(float(found) < 0.2 for found in number.findall(printed))


ONLINE = "examples/online_training.py"


def check_trained(printed: str) -> None:
    """What the online training says at its end: it trained, and no row that was not written."""
    found = re.search(r"^ok: ([\d,]+) rows of ([\d,]+) trained", printed, re.MULTILINE)
    assert found is not None, printed
    trained, written = (int(number.replace(",", "")) for number in found.groups())
    assert 0 < trained <= written


def test_online_training(spark, monkeypatch, capsys):
    """examples/online_training.py, for some seconds, in the session of the test run.

    That a program starts a Spark of its own and ends it with its block, `test_the_demo_trains_from_spark`
    proves; the two together: `test_online_training_with_a_spark_of_its_own`.
    """
    pytest.importorskip("torch", reason="pip install 'tensor-transfer[torch]'")

    @contextmanager
    def shared_session(*arguments, **options):
        yield spark

    monkeypatch.setattr("transfer.spark.session.running_session", shared_session)
    monkeypatch.setattr("sys.argv", [ONLINE, "--seconds", "2"])
    runpy.run_path(str(ROOT / ONLINE), run_name="__main__")
    check_trained(capsys.readouterr().out)


@pytest.mark.slow
def test_online_training_with_a_spark_of_its_own():
    """The same as its user runs it."""
    pytest.importorskip("torch", reason="pip install 'tensor-transfer[torch]'")
    done = subprocess.run(
        [sys.executable, ONLINE, "--seconds", "4"],
        capture_output=True,
        text=True,
        timeout=150,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    check_trained(done.stdout)


def test_notebook(spark, capsys):
    """examples/inspect_data.ipynb: its cells one after the other, in the session of the test run."""
    names: dict[str, object] = {}
    for cell in json.loads((ROOT / "examples" / "inspect_data.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "inspect_data.ipynb", "exec"), names)
    printed = capsys.readouterr().out
    assert "runs: points" in printed
    assert "x: 2000 rows, 0 NaN, min 0, mean 999.5, max 1999" in printed
