"""Variables of the environment: the list is what the code reads, and a misspelt one is refused."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import transfer
import transfer.config
import transfer.transports.config
from transfer.broker.config.options import OTHER_NAMES
from transfer.transports import variables
from transfer.transports.errors import OptionError
from transfer.transports.variables import MOONCAKES, OURS, check_names

ROOT = Path(__file__).parents[2]


class Recorded(dict):
    """An environment that knows what it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()

    def get(self, name, default=None):
        self.asked.add(name)
        return super().get(name, default)


FIRST_ARGUMENTS = {"ucx_options": [{}], "broker_environment": [OTHER_NAMES], "settings_in": [""]}


def test_the_list_is_what_the_readers_read():
    asked = Recorded()
    read = dict(asked)
    for module in (transfer.transports.config, transfer.config):
        for name, reader in inspect.getmembers(module, inspect.isfunction):
            if not name.startswith("_") and reader.__module__ == module.__name__:
                if "environ" not in inspect.signature(reader).parameters:
                    continue
                reader(*FIRST_ARGUMENTS.get(name, ()), environ=asked)
    assert not read
    ours = {name.removeprefix("TRANSFER_") for name in asked.asked if name.startswith("TRANSFER_")}
    # The command line reads the first, `broker_environment` looks for the second among all.
    assert ours | {"ADMIN_URL", "BROKER_CONFIG"} == OURS
    assert {name.removeprefix("MC_") for name in asked.asked if name.startswith("MC_")} == MOONCAKES


def test_the_documented_ones_are_in_the_list():
    for page in (ROOT / "docs").rglob("*.md"):
        for name in set(re.findall(r"`TRANSFER_([A-Z_]*[A-Z])\b", page.read_text())):
            assert name in OURS or variables._OTHERS.match(name), f"{page.name}: {name}"


def test_what_builds_and_tests_this_project_is_known(caplog):
    """Else each command that a test starts warns of what the run itself has set."""
    read = [(ROOT / name).read_text() for name in (".ci/run", "Makefile", "setup.py", "deploy/version.py")]
    read += [
        line
        for path in (ROOT / "tests").rglob("*.py")
        for line in path.read_text().splitlines()
        if "environ" in line or "export " in line
    ]
    names = set(re.findall(r"\bTRANSFER_[A-Z0-9_]*[A-Z0-9]\b", "\n".join(read)))
    assert {"TRANSFER_TEST_SPARK35", "TRANSFER_NO_NATIVE", "TRANSFER_TEST_VM"} <= names
    check_names(dict.fromkeys(names - {"TRANSFER_OF_MY_OWN"}, "x"))
    assert not caplog.records


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("TRANSFER_PROTOCL", "TRANSFER_PROTOCOL"),
        ("TRANSFER_LOCALE", "TRANSFER_LOCAL"),
        ("TRANSFER_TLS_CRT", "TRANSFER_TLS_CERT"),
        ("TRANSFER_TOKENFILE", "TRANSFER_TOKEN_FILE"),
        ("TRANSFER_EXITLINGER", "TRANSFER_EXIT_LINGER"),
        ("TRANSFER_UNAUTHENTICATE", "TRANSFER_UNAUTHENTICATED"),
        ("MC_RPC_PROTOCL", "MC_RPC_PROTOCOL"),
        ("MC_GID_INDX", "MC_GID_INDEX"),
    ],
)
def test_a_misspelt_one_is_refused_by_the_first_context(monkeypatch, given, meant):
    monkeypatch.setenv(given, "tcp")
    with pytest.raises(OptionError, match=rf"{given}\n  hint: did you mean {meant}\?"):
        transfer.Context()


def test_another_one_is_said_once(caplog):
    environ = {"TRANSFER_OF_MY_OWN": "1"}
    for _ in range(3):
        check_names(environ)
    assert [record.getMessage() for record in caplog.records] == [
        "the environment variable TRANSFER_OF_MY_OWN means nothing to transfer"
    ]


def test_what_is_of_others(caplog):
    """Services of Kubernetes, the broker's options, Mooncake's own."""
    names = """TRANSFER_PORT TRANSFER_SERVICE_HOST TRANSFER_PORT_5580_TCP_ADDR TRANSFER_TLS_PORT TRANSFERS_X
    TRANSFER_BROKER_SERVICE_PORT_TTP TRANSFER_BROKER__TTP__PORT MC_TE_METRIC MC_NUM_CQ_PER_CTX
    MC_SLICE_SIZE MC_RETRY_CNT MC_LOG_LEVEL MC_FORCE_TCP MC_WORKERS_PER_CTX MC_USE_IPV6 MC_MIN_PRC_PORT
    MC_MAX_PRC_PORT"""
    check_names(dict.fromkeys(names.split(), "x"))
    assert not caplog.records


@pytest.mark.parametrize("name", ["TRANSFER_TOKEN", "TRANSFER_TOKEN_FILE", "TRANSFER_TLS_CA"])
def test_an_empty_secret_is_warned_of_once(name, caplog, monkeypatch):
    """A command that failed leaves it so: `TRANSFER_TOKEN=$(cat missing)`."""
    monkeypatch.setattr(variables, "_warned", set())
    for _ in range(2):
        transfer.transports.config.security({name: "  "})
    assert [record.getMessage() for record in caplog.records] == [
        f"the environment variable {name} is empty, as if it were not set: it protects nothing"
    ]
