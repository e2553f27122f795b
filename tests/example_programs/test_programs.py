"""The programs in examples/ do what they say. Those with Spark: tests/spark, `ddp`: tests/torch,
`pybroker` in tests/seeds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.broker.in_process_broker import running
from tests.ports import free_port

ROOT = Path(__file__).parents[2]


def run(name, *arguments, timeout=100, local="off"):
    done = subprocess.run(
        [sys.executable, "-m", f"examples.{name}", *map(str, arguments)],
        env=os.environ | {"TRANSFER_LOCAL": local}, cwd=ROOT, capture_output=True, text=True,
        timeout=timeout, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_parameter_server():
    printed = run("parameter_server", "--workers", 2, "--steps", 150)
    applied, error = re.match(
        r"(\d+) gradients applied, largest error of a weight ([\d.]+)", printed
    ).groups()
    assert int(applied) == 150
    assert float(error) < 0.1


def test_work_queue(tmp_path):
    with running(tmp_path) as broker:
        endpoint = broker.endpoints["requests"]
        assert run("work_queue", "--broker", endpoint, "submit", *range(10, 20)) == "10 jobs submitted\n"
        worked = [run("work_queue", "--broker", endpoint, "work", "--idle", 2) for _ in range(2)]
    assert worked[0].endswith("\n10 jobs finished\n")
    assert worked[1] == "0 jobs finished\n"
    results = dict(re.findall(r": (\d+) -> (\d+)", worked[0]))
    assert results["15"] == "5"
    assert results["13"] == "1"


def test_image_pipeline():
    pytest.importorskip("torch", reason="pip install 'tensor-transfer[torch]'")
    printed = run("image_pipeline", "--batches", 60, "--port", free_port())
    images, right = re.match(r"(\d+) images in [\d.]+ s, (\d+)% right", printed).groups()
    assert int(images) == 960
    assert int(right) > 80


def test_weight_updates():
    """On the CPU; with `--device cuda:0` the same program keeps the weights on the GPU, which never ran."""
    pytest.importorskip("torch", reason="pip install 'tensor-transfer[torch]'")
    printed = run("weight_updates", "--updates", 15, "--device", "cpu")
    shares = [int(share) for share in re.findall(r"version \d+: (\d+)% right", printed)]
    assert len(shares) == 15
    assert shares[-1] > 90


def test_shared_model():
    """The same. On the CPU the first worker shares the memory."""
    pytest.importorskip("torch", reason="pip install 'tensor-transfer[torch]'")
    printed = run("shared_model", "--workers", 2, "--device", "cpu", local="on").splitlines()
    assert printed[-1] == "the weights are this process's alone again"
    answers = [
        [float(found) for found in re.match(r"worker \d: (\S+), then (\S+) after", line).groups()]
        for line in printed[:-1]
    ]
    [(before, after), (other, _)] = answers
    assert before == other != 0 and after == pytest.approx(2 * before, rel=1e-3)


def test_each_program_has_a_test():
    texts = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    programs = [path.stem for path in (ROOT / "examples").iterdir() if not path.name.startswith("_")]
    assert [name for name in programs if name not in texts] == []
