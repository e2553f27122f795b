"""The commands of AetherBus-Tachyon's harness, as its document writes them, with shorter times."""

from __future__ import annotations

import re
import shlex

import pytest

from transfer import cli
from transfer.broker.bench import running

pytestmark = pytest.mark.timeout(120)

HARNESS = """
go run ./cmd/tachyon-bench harness --mode direct-ack --payload-class small --compress=true --duration 20s
go run ./cmd/tachyon-bench harness --mode fanout --fanout-subs 8 --payload-class medium --compress=false --duration 20s
go run ./cmd/tachyon-bench harness --mode mixed --mixed-topics 8 --payload-class medium --compress=true --duration 30s
"""  # noqa: E501 - word for word


@pytest.fixture(autouse=True)
def busy(monkeypatch):
    """What has not come on a machine that is busy with other tests is not lost yet."""
    monkeypatch.setattr(running, "_SILENCE", 30.0)


@pytest.mark.parametrize("line", HARNESS.split("\n")[1:-1])
def test_the_harness(line, capsys):
    ours = line.replace("go run ./cmd/tachyon-bench harness", "bench broker")
    assert cli.run(shlex.split(re.sub(r"(?<=--duration )\d+s", "0.3s", ours))) == 0
    _, result = capsys.readouterr().out.splitlines()
    mode = re.search(r"--mode (\S+)", line)[1]
    assert result.startswith(mode) and ("lz4" in result.lower()) == ("--compress=true" in line)


@pytest.mark.slow
def test_the_matrix(capsys):
    line = "go run ./cmd/tachyon-bench matrix --duration 10s --connections 2"
    ours = line.replace("go run ./cmd/tachyon-bench matrix", "bench broker matrix").replace("10s", "0.3s")
    assert cli.run(shlex.split(ours)) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 3 * 3


def test_what_is_neither_true_nor_false(capsys):
    assert cli.run(["bench", "broker", "--compress", "maybe"]) == 2
    assert "true" in capsys.readouterr().err
