"""The programs in README.md and docs/ that need Spark."""

from __future__ import annotations

import re

import pytest

from tests.docs.examples import Example, programs

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
