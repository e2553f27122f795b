"""`transfer doctor --serve` and `--peer`: two real processes."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from transfer import cli
from transfer.doctor.finding import Check
from transfer.doctor.throughput import ThroughputResult, as_checks, endpoint_of
from transfer.transports.errors import HandshakeError, UsageError


@pytest.fixture
def serving() -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "transfer", "doctor", "--json", "--serve", "tcp://127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    try:
        yield process, json.loads(process.stdout.readline())["endpoint"]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


@pytest.mark.keeps(reason="UCX keeps its descriptors")
def test_every_way_is_measured_or_says_why_not(serving, capsys):
    _, endpoint = serving
    level = logging.getLogger("transfer").level
    code = cli.run(["doctor", "--json", "--seconds", "0.05", "--peer", endpoint])
    assert logging.getLogger("transfer").level == level  # quiet for its own time only
    told = json.loads(capsys.readouterr().out)
    found = {check["name"].split()[0]: check for check in told["checks"]}
    assert (code, told["healthy"], set(found)) == (0, True, {"auto", "rdma", "ucx", "tcp"})
    assert "Gbit/s" in found["tcp"]["detail"] and found["auto"]["status"] == "ok"


@pytest.mark.keeps(reason="UCX keeps its descriptors")
def test_a_floor_that_nobody_reaches_fails(serving, capsys):
    _, endpoint = serving
    assert cli.run(["doctor", "--seconds", "0.05", "--peer", endpoint, "--min-gbps", "1e6"]) == 1
    assert "less than 1e+06 Gbit/s" in capsys.readouterr().out


def test_what_the_environment_requires_has_to_be_had(serving, capsys, monkeypatch):
    """What is chosen by itself is what other programs here get, so that a fall to TCP is a failure."""
    _, endpoint = serving
    monkeypatch.setenv("MC_RPC_POLICY", "require")
    monkeypatch.setenv("MC_RPC_PROTOCOL", "rdma")
    monkeypatch.setattr("transfer.doctor.throughput._WAYS", ("auto", "tcp"))
    assert cli.run(["doctor", "--seconds", "0.05", "--peer", endpoint]) == 1
    told = capsys.readouterr().out
    assert "✗ auto" in told and "rdma was requested by this side (MC_RPC_PROTOCOL)" in told
    monkeypatch.setenv("MC_RPC_PROTOCOL", "tcp")
    assert cli.run(["doctor", "--seconds", "0.05", "--peer", endpoint]) == 0
    assert "✓ auto (tcp)" in capsys.readouterr().out


def test_tcp_may_be_refused_where_another_transport_is_required(capsys, monkeypatch):
    """A device is what this machine has not: the measurements are made up, the decision is not."""
    made_up = ThroughputResult("auto", "rdma", "asked for", "mlx5_0", 1e-6, 1e-5, 1e9)

    def measured(way: str, *_: object) -> ThroughputResult:
        if way != "auto":
            raise HandshakeError("policy", f"{way} is not what the peer requires")
        return made_up

    monkeypatch.setattr("transfer.doctor.throughput._measure", measured)
    monkeypatch.setenv("MC_RPC_PROTOCOL", "rdma")
    for policy, code in (("require", 0), ("prefer", 1)):
        monkeypatch.setenv("MC_RPC_POLICY", policy)
        assert cli.run(["doctor", "--peer", "127.0.0.1:1"]) == code, policy
    capsys.readouterr()


def test_ctrl_c_ends_the_side_that_answers(serving):
    process, _ = serving
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_a_peer_that_is_not_there_is_told(capsys, monkeypatch):
    monkeypatch.setattr("transfer.doctor.throughput.PATIENCE", 0.2)
    assert cli.run(["doctor", "--peer", "127.0.0.1:1", "--seconds", "0.01"]) == 1
    assert "✗ auto" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("node7", "tcp://node7:7590"),
        ("node7:80", "tcp://node7:80"),
        ("[::1]", "tcp://[::1]:7590"),
        ("[::1]:80", "tcp://[::1]:80"),
        ("ipc:///tmp/x", "ipc:///tmp/x"),
    ],
)
def test_peers_by_short_names(text, endpoint):
    assert endpoint_of(text) == endpoint


def test_no_peer_at_all():
    with pytest.raises(UsageError):
        endpoint_of("")


def test_the_floor_is_for_what_is_chosen_by_itself():
    def result(way: str) -> ThroughputResult:
        return ThroughputResult(way, "tcp", "the best that both have: tcp", "", 1e-4, 2e-4, 1e9 / 8)

    absent = Check("peer", "rdma", "off", "no device")
    checks = list(as_checks(iter([result("auto"), absent, result("tcp")]), 2.0))
    assert [check.status for check in checks] == ["fail", "off", "ok"]
    assert checks[0].name == "auto (tcp)" and "the best that both have" in checks[0].hint
    assert [check.status for check in as_checks(iter([result("auto")]), 1.0)] == ["ok"]


def test_the_doctor_says_nothing_of_what_it_asks_for_itself():
    """It tests TCP by name where shared memory would be better."""
    done = subprocess.run(
        [sys.executable, "-m", "transfer", "doctor", "--json"],
        env=os.environ | {"TRANSFER_LOCAL": "on"}, capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    found = {check["name"]: check["status"] for check in json.loads(done.stdout)["checks"]}
    assert found["tcp"] == found["local"] == "ok"
    assert "not used" not in done.stderr
