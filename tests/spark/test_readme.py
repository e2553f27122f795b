"""The program in the README that goes from Spark into a training loop."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

README = Path(__file__).parents[2] / "README.md"


def test_the_training_loop_gets_every_row(spark, capsys):
    """`local_session()` in it finds the session of the test run, so this starts no other."""
    pytest.importorskip("torch", reason="pip install 'tensor-transfer[torch]'")
    (program,) = [
        text
        for text in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
        if "StreamDataset" in text
    ]
    exec(compile(program, str(README), "exec"), {"__name__": "readme"})
    printed = capsys.readouterr().out
    assert printed.startswith("10000 rows in 100 batches, loss ")
    assert float(printed.split()[-1]) < 0.2
