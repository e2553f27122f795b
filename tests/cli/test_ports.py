"""The ports in docs/broker.md and docs/security.md: what a broker and a spool listen at, and nothing else."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.broker.in_process_broker import default_of
from tests.ports import free_ports
from transfer.broker.config.options import BY_NAME
from transfer.certificates import Authority
from transfer.spool.format.address import DEFAULT_PORT, default_rows_endpoint

_DOCS = Path(__file__).parents[2] / "docs"
_PAGES = {"transfer broker": _DOCS / "broker.md", "transfer serve": _DOCS / "security.md"}
HERE = "127.0.0.1"


def table(program):
    """(port, option, whether it is one above that of the option) of each row."""
    found = []
    for line in _PAGES[program].read_text().partition("## Ports")[2].partition("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and "`" in cells[1]:
            found.append((cells[0], re.findall(r"`([^`]+)`", cells[1])[-1], "one above" in cells[1]))
    assert found
    return found


def listening(pid):
    """(protocol, port) of all that the process listens at; of UDP, all that it has."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(descriptor)
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for protocol in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/{pid}/net/{protocol}").read_text().splitlines()[1:]:
            cells = line.split()
            if cells[9] in inodes and (protocol.startswith("udp") or cells[3] == "0A"):
                found.add((protocol, int(cells[1].rpartition(":")[2], 16)))
    return found


def given(program):
    """A free port for each option of the table, and all ports that it listens at then."""
    rows = table(program)
    options = [option for _, option, above in rows if not above]
    ports = dict(zip(options, free_ports(len(options)), strict=True))
    return ports, {("tcp", ports[option] + above) for _, option, above in rows}


@pytest.fixture(params=["nobody is asked", "certificates"])
def secured(request, tmp_path, monkeypatch):
    if request.param == "certificates":
        authority = Authority(tmp_path)
        issued = authority.issue("here")
        monkeypatch.setenv("TRANSFER_TLS_CERT", issued.certificate)
        monkeypatch.setenv("TRANSFER_TLS_KEY", issued.key)
        monkeypatch.setenv("TRANSFER_TLS_CA", authority.path)


@pytest.mark.usefixtures("secured")
def test_a_broker_listens_at_the_ports_of_the_table_and_no_others(start, tmp_path):
    ports, wanted = given("transfer broker")
    words = []
    for option, port in ports.items():
        place = str(port) if option.endswith(".port") else f"tcp://{HERE}:{port}"
        words += ["--set", f"{option}=" + (f"jobs={place}" if option == "native.queues" else place)]
    broker = start("broker", "--data", tmp_path / "data", *words)
    assert broker.first_line(), broker.end()
    assert listening(broker.process.pid) == wanted


@pytest.mark.usefixtures("secured")
def test_a_spool_listens_at_the_ports_of_the_table_and_no_others(start, tmp_path):
    ports, wanted = given("transfer serve")
    words = [word for option, port in ports.items() for word in (option, f"{HERE}:{port}")]
    spool = start("serve", "--spool", tmp_path / "data", *words)
    assert spool.first_line(), spool.end()
    assert listening(spool.process.pid) == wanted


@pytest.mark.parametrize("row", table("transfer broker"), ids=str)
def test_the_defaults_of_a_broker(row):
    port, option, above = row
    default = default_of(BY_NAME[option])
    place = default_rows_endpoint(default) if above else str(default or "none")
    assert port == place.rpartition(":")[2]


def test_the_defaults_of_a_spool():
    assert [port for port, *_ in table("transfer serve")] == [
        str(DEFAULT_PORT),
        str(DEFAULT_PORT + 1),
        "none",
    ]
