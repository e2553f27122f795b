"""The limits that docs/security.md and docs/broker.md name: their values and their tests."""

from __future__ import annotations

import re
import socket
import ssl
from http.client import HTTPResponse
from pathlib import Path

import pytest

from tests.broker.http_requests import ask
from tests.broker.in_process_broker import running
from tests.security.conftest import TOKEN
from tests.security.limits import LIMITS, OPTIONS
from transfer.broker.http import server as http
from transfer.transports.security.credentials import Credentials

_ROOT = Path(__file__).parents[2]
_PAGE = (_ROOT / "docs" / "security.md").read_text()
_BROKER = (_ROOT / "docs" / "broker.md").read_text()
TESTS = sorted({test for _, *tests in LIMITS.values() for test in tests} | {*sum(OPTIONS.values(), ())})


def rows():
    """(port, limit, value) of each row."""
    found, port = [], ""
    for line in _PAGE.partition("## Limits")[2].partition("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and cells[0] != "port" and not cells[1].startswith("--"):
            port = cells[0] or port
            found.append((port, cells[1], cells[2]))
    return found


@pytest.mark.parametrize("test", TESTS)
def test_each_limit_s_test_is_there(test):
    file, _, name = test.partition("::")
    assert re.search(rf"^def {name}\(", (_ROOT / "tests" / file).read_text(), re.MULTILINE)


@pytest.mark.parametrize("place", LIMITS, ids=": ".join)
def test_the_table_is_what_the_code_says(place):
    port, limit = place
    values = [row[2] for row in rows() if row[0].startswith(port) and row[1].startswith(limit)]
    assert LIMITS[place][0] in values


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row[0]}: {row[1]}"[:70])
def test_each_row_is_compared(row):
    assert [1 for port, limit in LIMITS if row[0].startswith(port) and row[1].startswith(limit)]


@pytest.mark.parametrize("option", OPTIONS)
def test_each_option_is_in_the_broker_s_table(option):
    """With its default: tests/broker/test_configuration.py."""
    assert re.search(rf"^\|[^|]*`{option}`[^|]*\|", _BROKER, re.MULTILINE)


# -- limits that no other test reaches ------------------------------------------------------------


@pytest.fixture
def pair():
    ends = socket.socketpair()
    for end in ends:
        end.settimeout(10)
    yield ends
    for end in ends:
        end.close()


def test_bytes_of_a_peer_that_does_not_say_who_it_is(pair, pki, core):
    ours, theirs = pair
    ours.setblocking(False)
    channel = Credentials(pki.security(clients="token", token=TOKEN), core).channel(ours.fileno())
    came, goes = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=pki.authority.path)
    peer = context.wrap_bio(came, goes, server_hostname="127.0.0.1")
    done = False
    while not done:
        try:
            peer.do_handshake()
            done = True
        except ssl.SSLWantReadError:
            pass
        if data := goes.read():
            theirs.sendall(data)
        channel.handshake()
        theirs.setblocking(False)
        if not done:
            came.write(theirs.recv(1 << 16))
        theirs.settimeout(10)
    taken = 0
    with pytest.raises(OSError, match="unauthenticated peer"):
        while taken < 1 << 20:
            peer.write(bytes(16_000))
            theirs.sendall(goes.read())
            taken += len(channel.recv(1 << 16))
    assert taken < (256 + 64) << 10, "and what was read with the last of them"


def test_a_connection_that_asks_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(http, "KEEP_ALIVE", 0.3)
    with running(tmp_path, http=0, own=None, ttp=None, pybroker=None, rqueue=None) as broker:
        with socket.create_connection(("127.0.0.1", broker.ports["http"]), 20) as connection:
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            answer = HTTPResponse(connection)
            answer.begin()
            answer.read()
            assert not answer.will_close
            assert connection.recv(1) == b"", "it is ended"


def test_a_header_without_end(tmp_path):
    with running(tmp_path, http=0, own=None, ttp=None, pybroker=None, rqueue=None) as broker:
        port = broker.ports["http"]
        assert ask(port, "/livez", X_Long="x" * 8000)[0] == 200
        assert ask(port, "/livez", X_Long="x" * 9000)[0] == 400
        assert ask(port, "/livez?" + "x" * 9000)[0] == 400
