"""Each limit has a test that reaches it; docs/reference/limits.md has their values."""

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
from transfer.broker.config.options import BY_NAME
from transfer.broker.http import server as http
from transfer.transports.security.credentials import Credentials

_ROOT = Path(__file__).parents[2]
TESTS = sorted({test for _, *tests in LIMITS.values() for test in tests} | {*sum(OPTIONS.values(), ())})


@pytest.mark.parametrize("test", TESTS)
def test_each_limit_s_test_is_there(test):
    file, _, name = test.partition("::")
    assert re.search(rf"^def {name}\(", (_ROOT / "tests" / file).read_text(), re.MULTILINE)


@pytest.mark.parametrize("option", OPTIONS)
def test_each_option_exists(option):
    """With its default: tests/broker/test_configuration.py."""
    assert option in BY_NAME


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
    with running(tmp_path, http=0, native=None, ttp=None, pybroker=None, rqueue=None) as broker:
        with socket.create_connection(("127.0.0.1", broker.ports["http"]), 20) as connection:
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            answer = HTTPResponse(connection)
            answer.begin()
            answer.read()
            assert not answer.will_close
            assert connection.recv(1) == b"", "it is ended"


def test_a_header_without_end(tmp_path):
    with running(tmp_path, http=0, native=None, ttp=None, pybroker=None, rqueue=None) as broker:
        port = broker.ports["http"]
        assert ask(port, "/livez", X_Long="x" * 8000)[0] == 200
        assert ask(port, "/livez", X_Long="x" * 9000)[0] == 400
        assert ask(port, "/livez?" + "x" * 9000)[0] == 400
