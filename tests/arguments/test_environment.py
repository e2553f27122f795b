"""Each variable of the environment: a wrong value is an error that names it, and says what is permitted."""

from __future__ import annotations

import subprocess
import sys

import pytest

import transfer
from transfer.transports.errors import UsageError
from transfer.transports.variables import MOONCAKES, OURS

ABSENT, FILE = "/nonexistent/file", "the path of a file"
#: by variable: wrong values, and a part of the hint
WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "TRANSFER_ADVERTISE": (("a b", "tcp://node7:5", "node7:99999"), "a host"),
    "TRANSFER_CORE": (("nativ",), "auto, native, pure"),
    "TRANSFER_CUDA_IPC": (("no", "0"), "on, off"),
    "TRANSFER_DNS": (("nameserver", "10.0.0.1:99999"), "10.96.0.10"),
    "TRANSFER_DNS_FAMILY": (("ipv5",), "auto, ipv4, ipv6, both"),
    "TRANSFER_ENCRYPT": (("yes", "all"), "TRANSFER_TLS_CA|tcp, all"),
    "TRANSFER_EXIT_LINGER": (("soon", "-1", "nan", "7200"), "0 to 3600"),
    "TRANSFER_GPU_PINNED": (("much", "-1", "4 parts"), "a size, such as 8GiB, or off"),
    "TRANSFER_LIBCUDA": ((ABSENT,), "the path of a CUDA driver"),
    "TRANSFER_LIBIBVERBS": ((ABSENT,), "the path of a libibverbs"),
    "TRANSFER_LIBSSL": ((ABSENT,), "the path of an OpenSSL 3"),
    "TRANSFER_LOG": (("loud", "10"), "debug, info, warning, error"),
    "TRANSFER_LOCAL": (("of", "0", "true"), "on, off"),
    "TRANSFER_PICKLE_ALLOW": (("*", "collections", "a.b, c*"), "package.module.Class"),
    "TRANSFER_PROTOCOL": (("tpc",), "auto, tcp, rdma, ucx"),
    "TRANSFER_TLS_CA": ((ABSENT,), FILE),
    "TRANSFER_TLS_CERT": ((ABSENT,), "both files"),
    "TRANSFER_TLS_CLIENTS": (("none", "token", "certificate"), "certificate, token|TRANSFER_T"),
    "TRANSFER_TLS_KEY": ((ABSENT,), "both files"),
    "TRANSFER_TLS_SERVER_NAME": (("a b", ".example"), "a host"),
    "TRANSFER_TOKEN": (("secret",), "openssl rand"),
    "TRANSFER_TOKENLESS": (("yes",), "allow"),
    "TRANSFER_TOKEN_FILE": ((ABSENT,), FILE),
    "TRANSFER_UCX_DRIVER": (("ucx", "ucxx"), "auto, libucp"),
    "TRANSFER_UNAUTHENTICATED": (("yes",), "allow"),
    "MC_GID_INDEX": (("first", "256", "-1"), "0 to 255"),
    "MC_IB_PORT": (("one", "0", "256"), "1 to 255"),
    "MC_IB_SL": (("16", "-1"), "0 to 15"),
    "MC_IB_TC": (("256", "high"), "0 to 255"),
    "MC_MTU": (("1500", "big"), "256, 512, 1024, 2048 or 4096"),
    "MC_PKEY_INDEX": (("65536",), "0 to 65535"),
    "MC_RPC_POLICY": (("strict",), "auto, prefer, require"),
    "MC_RPC_PROTOCOL": (("tpc",), "auto, tcp, rdma, ucx"),
}
#: read by the command line alone: a command that reads it, and the value
OF_COMMANDS = {
    "TRANSFER_ADMIN_URL": (["topics", "list"], "broker:9180"),
    "TRANSFER_BROKER_CONFIG": (["broker"], ABSENT),
}
#: names of devices: which there are is known when one is looked for; the error is of tests/verbs
OF_THE_MACHINE = {"MC_RDMA_DEVICES"}


def test_no_variable_is_left_out():
    known = {f"TRANSFER_{name}" for name in OURS} | {f"MC_{name}" for name in MOONCAKES}
    assert WRONG.keys() | OF_COMMANDS.keys() | OF_THE_MACHINE == known


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in WRONG for value in WRONG[name][0]])
def test_a_wrong_value_is_refused_by_the_first_context(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError) as caught:
        transfer.Context()
    assert name in str(caught.value)
    assert any(part in caught.value.hint for part in WRONG[name][1].split("|"))


def test_a_file_that_is_no_certificate_is_named(monkeypatch, tmp_path):
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    monkeypatch.setenv("TRANSFER_TLS_CA", str(file))
    with pytest.raises(UsageError, match=r"ca\.pem") as caught:
        transfer.Context()
    assert caught.value.hint


def test_empty_ones_are_as_if_they_were_not_there(monkeypatch):
    for name in WRONG:
        monkeypatch.setenv(name, "  ")
    with transfer.Context() as context:
        found = context.transport_config
    for name in WRONG:
        monkeypatch.delenv(name)
    with transfer.Context() as context:
        assert found == context.transport_config


@pytest.mark.parametrize("name", OF_COMMANDS)
def test_a_wrong_value_is_refused_by_the_command(monkeypatch, name):
    command, value = OF_COMMANDS[name]
    monkeypatch.setenv(name, value)
    done = subprocess.run(
        [sys.executable, "-m", "transfer", *command],
        capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert value in done.stderr and name in done.stderr.partition("hint:")[2]
