"""The programs in README.md and docs/ that need Spark."""

from __future__ import annotations

import re
import subprocess
import sys

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


def test_online_training():
    """docs/examples/online_training.py, for a few seconds, with a Spark of its own."""
    pytest.importorskip("torch", reason="pip install 'tensor-transfer[torch]'")
    done = subprocess.run(
        [sys.executable, "docs/examples/online_training.py", "--seconds", "4"],
        capture_output=True,
        text=True,
        timeout=150,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = re.search(r"^ok: ([\d,]+) rows of ([\d,]+) trained", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout
    trained, written = (int(number.replace(",", "")) for number in found.groups())
    assert 0 < trained <= written
