"""help, version, doctor, bench."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import transfer
from transfer import cli, doctor, units
from transfer.doctor import machine, transports as ways
from transfer.transports.probe import Probe
from transfer.units import show_size

ROOT = Path(__file__).parents[2]


def test_help_names_every_command_and_loads_little():
    code = (
        "import sys\n"
        "from transfer.cli import run\n"
        "assert run(['--help']) == 0\n"
        "heavy = {'numpy', 'torch', 'pyspark', 'rich', 'prometheus_client', 'asyncio'}\n"
        "heavy.add('transfer.sockets.context')\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=40, check=False
    )
    assert answer.returncode == 0, answer.stderr
    names = "push pull pub sub req rep serve runs bench doctor version"
    for command in names.split():
        assert f"\n  {command} " in answer.stdout


@pytest.mark.parametrize(
    "command",
    [
        *("push", "pull", "pub", "sub", "req", "rep", "serve", "runs", "doctor", "version"),
        *("runs list", "runs inspect", "runs delete", "runs lineage"),
    ],
)
def test_every_command_has_help(command, capsys):
    assert cli.run([*command.split(), "--help"]) == 0
    assert "Usage: transfer" in capsys.readouterr().out


def test_version_is_that_of_the_package(capsys):
    assert cli.run(["version", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["transfer"] == transfer.__version__
    assert printed["core"] in ("native", "pure")


def test_version_is_an_option_too(capsys):
    assert cli.run(["version"]) == 0
    printed = capsys.readouterr().out
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == printed


def test_doctor_knows_the_libraries_of_every_extra():
    """But for what only developers and our own extras bring."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = set()
    for name, needed in project["optional-dependencies"].items():
        if name not in ("dev", "bench", "docs", "vm", "ucx"):
            wanted |= {re.split(r"[<>=;\[ ]", one)[0] for one in needed} - {"tensor-transfer", "matplotlib"}
    assert wanted <= {check.name for check in machine.libraries()}


def test_doctor_finds_this_machine_well():
    checks = {(check.group, check.name): check for check in doctor.examine()}
    for name in ("tcp", "ipc", "inproc"):
        assert checks["transports", name].status == "ok", checks["transports", name]
    assert checks["base", "python"].status == "ok"
    assert doctor.healthy(checks.values())
    for check in checks.values():
        assert check.status in ("ok", "warn", "fail", "off")
        assert check.detail
        if check.status == "fail" or (check.status, check.group) == ("off", "libraries"):
            assert check.hint, check


def test_doctor_speaks_json_and_exits_with_what_it_found(capsys):
    assert cli.run(["doctor", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    printed = json.loads(line)
    assert printed["healthy"] is True
    assert {check["group"] for check in printed["checks"]} >= {"base", "transports", "limits", "protocol"}


@pytest.mark.parametrize("option", ["--min-gbps", "--seconds"])
def test_doctor_refuses_what_is_about_a_peer_without_one(option, capsys):
    assert cli.run(["doctor", option, "3"]) == 2
    assert "--peer HOST:PORT" in capsys.readouterr().err


def test_doctor_shows_it_to_people(capsys):
    assert cli.run(["doctor"]) == 0
    output = capsys.readouterr().out
    assert "✓ tcp" in output
    assert "protocol" in output


def _protocol(monkeypatch, **environment):
    for name in ("TRANSFER_PROTOCOL", "MC_RPC_PROTOCOL", "MC_RPC_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return {check.name: check for check in ways.protocol()}


def test_doctor_tells_who_chose_the_protocol(monkeypatch):
    assert "default" in _protocol(monkeypatch)["protocol"].detail
    printed = _protocol(monkeypatch, MC_RPC_PROTOCOL="tcp")["protocol"]
    assert (printed.status, "MC_RPC_PROTOCOL" in printed.detail) == ("ok", True)
    printed = _protocol(monkeypatch, MC_RPC_PROTOCOL="tcp", TRANSFER_PROTOCOL="rdma")["protocol"]
    assert (printed.status, "TRANSFER_PROTOCOL" in printed.detail) == ("warn", True)
    printed = _protocol(monkeypatch, MC_RPC_PROTOCOL="rdma", MC_RPC_POLICY="require")["policy"]
    assert printed.status == "fail"
    assert _protocol(monkeypatch, MC_RPC_PROTOCOL="carrier-pigeon")["protocol"].status == "fail"


def test_doctor_shows_the_policy_that_holds(monkeypatch):
    assert _protocol(monkeypatch)["policy"].detail.startswith("auto")
    assert _protocol(monkeypatch, MC_RPC_PROTOCOL="tcp")["policy"].detail.startswith("prefer")


def test_doctor_names_a_wrong_variable_once(monkeypatch):
    monkeypatch.setenv("MC_GID_INDEX", "nine")
    (failed,) = (check for check in doctor.examine() if check.status == "fail")
    assert "MC_GID_INDEX" in failed.detail
    assert "0 to 255" in failed.detail + failed.hint


def test_doctor_fails_for_a_setting_without_effect(monkeypatch):
    found = Probe(False, "mlx5_0 port 1 has no GID with the index 9 (MC_GID_INDEX)", "no_gid")
    assert ways._status(found) == "warn"
    monkeypatch.setenv("MC_GID_INDEX", "9")
    assert ways._status(found) == "fail"


def test_doctor_fails_when_a_transport_does(monkeypatch, capsys):
    broken = doctor.Check("transports", "tcp", "fail", "no way", "a hint")
    monkeypatch.setattr(ways, "self_tests", lambda: iter([broken]))
    assert cli.run(["doctor"]) == 1
    assert "a hint" in capsys.readouterr().out


def test_a_self_test_that_cannot_work_is_an_answer():
    check = ways._self_test("tcp", "tcp://256.256.256.256:0", "tcp")
    assert check.status == "fail"
    assert check.hint


def test_a_self_test_that_kills_its_process_is_an_answer(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    check = ways._test_in_process("ucx")
    assert check.status == "fail"
    assert "status 1" in check.detail


def test_a_missing_library_is_one_clear_line(monkeypatch, capsys):
    def examine():
        raise ModuleNotFoundError("No module named 'numpy'", name="numpy")

    monkeypatch.setattr(doctor, "examine", examine)
    assert cli.run(["doctor"]) == 1
    assert capsys.readouterr().err == (
        "transfer: numpy is missing\n  hint: `transfer doctor` lists what to install for each feature\n"
    )


def test_bench_is_passed_on(capsys):
    assert cli.run(["bench", "--list"]) == 0
    assert "push_pull" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("4096", 4096),
        ("64KiB", 65536),
        ("64ki", 65536),
        ("1.5M", 1_500_000),
        ("2 GB", 2 * 10**9),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes_are_read(text, size):
    assert units.size(text) == size


@pytest.mark.parametrize("text", ["", "x", "-1", "1P", "1..2", "KiB", "0"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="a size from 1 B on, such as"):
        units.size(text)


def test_sizes_are_shown_for_people():
    assert [show_size(n) for n in (0, 999, 1000, 1_500_000, 2e9, 5e12)] == [
        "0 B", "999 B", "1 kB", "1.5 MB", "2 GB", "5 TB",
    ]  # fmt: skip


def test_little_locked_memory_matters_only_where_it_is_enforced(monkeypatch):
    import resource

    from transfer.doctor import machine

    monkeypatch.setattr(resource, "getrlimit", lambda _: (8 << 20, 8 << 20))
    monkeypatch.setattr(machine.Path, "glob", lambda *_: iter(["a device"]))
    for lifted, status in ((True, "ok"), (False, "warn")):
        monkeypatch.setattr(machine, "may_lock", lambda lifted=lifted: lifted)
        check = {check.name: check for check in machine.limits()}["locked memory"]
        assert (check.status, bool(check.hint)) == (status, not lifted)
        assert ("CAP_IPC_LOCK" in check.detail) == lifted


ODD_OUTPUTS = {
    "a reader that leaves": ("doctor | head -1", 0, ""),
    "a reader that is gone": ("doctor --json | true", 0, ""),
    "a full disk": ("version > /dev/full", 1, "transfer: the output: No space left on device\n"),
    "closed": ("version >&-", 0, ""),
    "ASCII": ("doctor", 0, ""),
}


@pytest.mark.parametrize("case", ODD_OUTPUTS)
def test_output_that_cannot_take_all(case):
    arguments, code, complaint = ODD_OUTPUTS[case]
    command = f"set -o pipefail; {sys.executable} -W ignore -m transfer {arguments}"
    environ = {**os.environ, "PYTHONIOENCODING": "ascii" if case == "ASCII" else "utf-8"}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environ, timeout=120)
    assert (done.returncode, done.stderr) == (code, complaint)
