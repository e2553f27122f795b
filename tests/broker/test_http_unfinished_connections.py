"""Connections to HTTP that have asked for something, and hold what others need."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from aiohttp import web

from tests.broker.all_fronts import dial
from tests.broker.in_process_broker import running
from tests.broker.secure_peers import OWN_TOKEN, TOKEN, refused, until
from transfer.broker.http import server
from transfer.transports.security.settings import Security

ANNOUNCED = b"POST /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n"
CHUNKED = b"POST /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n"
WHOLE = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n"
SHOWN = f"X-Admin-Token: {OWN_TOKEN}\r\n".encode()
NONE = {"native": None, "ttp": None, "pybroker": None, "rqueue": None}
GUARDED = {"security": Security(token=TOKEN, max_unauthenticated=3), "token": OWN_TOKEN}
OPEN = {"security": Security(max_unauthenticated=3)}


def ask(stack, broker, request):
    """A connection that has an answer."""
    connection = stack.enter_context(dial(broker, "http"))
    connection.sendall(request + b"\r\n")
    assert connection.recv(65536).startswith(b"HTTP/1.1 ")
    return connection


@pytest.mark.parametrize("request_", [ANNOUNCED, CHUNKED], ids=["length", "chunked"])
@pytest.mark.parametrize("settings", [GUARDED, OPEN], ids=["token", "open"])
def test_a_body_that_never_comes_holds_no_place(tmp_path, monkeypatch, settings, request_):
    monkeypatch.setattr(server, "_LINGERING", 60.0)  # all of them are there at once
    with running(tmp_path, http=0, **NONE, **settings) as broker, ExitStack() as stack:
        unfinished = [ask(stack, broker, request_) for _ in range(4)]
        until(lambda: refused(broker, "http") == {"crowded": 1})
        assert unfinished[0].recv(1) == b"", "the oldest makes room"


@pytest.mark.parametrize("settings", [GUARDED, OPEN], ids=["token", "open"])
def test_who_shows_the_token_or_asks_for_the_whole_stays(tmp_path, settings):
    good = WHOLE + (SHOWN if settings is GUARDED else b"")
    with running(tmp_path, http=0, **NONE, **settings) as broker, ExitStack() as stack:
        for connection in [ask(stack, broker, good) for _ in range(5)]:
            connection.sendall(good + b"\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        assert not refused(broker, "http")


def test_who_has_gone_takes_no_place(tmp_path):
    with running(tmp_path, http=0, **NONE, **GUARDED) as broker, ExitStack() as stack:
        for _ in range(5):
            assert ask(stack, broker, WHOLE).recv(1) == b"", "strangers hold no connection"
        assert not refused(broker, "http")


def test_a_body_that_comes_late_is_waited_for(tmp_path):
    purge = b"POST /api/admin/dlq/purge HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    with running(tmp_path, http=0, **NONE, **OPEN) as broker, dial(broker, "http") as connection:
        connection.sendall(purge + b"Content-Length: 2\r\n\r\n")
        connection.sendall(b"{")
        connection.sendall(b"}")
        assert connection.recv(65536).startswith(b"HTTP/1.1 400")
        connection.sendall(WHOLE + b"\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


def test_those_who_say_nothing_cost_no_more_than_an_accept(tmp_path, monkeypatch):
    """What aiohttp makes of each connection costs ten times as much; a storm of them kept others waiting."""
    made = []
    begin = web.RequestHandler.__init__
    monkeypatch.setattr(web.RequestHandler, "__init__", lambda *a, **k: made.append(1) or begin(*a, **k))
    with running(tmp_path, http=0, **NONE, **OPEN) as broker, ExitStack() as stack:
        unfinished = [stack.enter_context(dial(broker, "http")) for _ in range(4)]
        assert unfinished[0].recv(1) == b"" and refused(broker, "http") == {"crowded": 1}
        unfinished[1].close()
        ask(stack, broker, WHOLE)
        assert len(made) == 1
