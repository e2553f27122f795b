"""Bytes that are no request at the HTTP port: 400, one short line in the log, and no traceback."""

from __future__ import annotations

import asyncio
import gc
import gzip
import logging
from types import SimpleNamespace

import pytest

from tests.broker.all_fronts import all_fronts, dial
from tests.broker.http_requests import ask
from transfer.broker.http.app import _errors_as_json

POST = b"POST /api/admin/dlq/purge HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
NONSENSE = {
    "binary": b"\x00\xff\x01" * 50,
    "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "no version": b"GET / \r\n\r\n",
    "another version": b"GET / HTTP/9.9\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a long line": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    "a long header": b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    "a NUL": b"GET / HTTP/1.1\r\nAuthorization: Bearer secret\x00\r\n\r\n",
    "no URL": b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n",
    "a length": POST + b"Content-Length: -5\r\n\r\n",
    "a chunk": POST + b"Transfer-Encoding: chunked\r\n\r\nZZZ\r\n",
    "a chunk's end": POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcdeZZZ",
    "gzip": POST + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nabcde",
    "half of gzip": POST
    + b"Content-Encoding: gzip\r\nContent-Length: 15\r\n\r\n"
    + gzip.compress(b"{}")[:15],
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with all_fronts(tmp_path_factory.mktemp("data")) as broker:
        yield broker


def said(broker, front, data):
    """What is answered, up to the end of the connection or of the answer."""
    with dial(broker, front) as connection:
        connection.sendall(data)
        answer = b""
        while b"\r\n\r\n" not in answer and (more := connection.recv(65536)):
            answer += more
        return answer


@pytest.mark.parametrize("case", NONSENSE)
def test_what_is_no_request_is_answered_400_and_logged_in_one_line(broker, case, caplog):
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            answer = said(broker, "http", NONSENSE[case])
            assert answer.split(b" ", 2)[1] == b"400"
            assert b"\r\nCache-Control: no-store\r\n" in answer
            assert b"aiohttp" not in answer
        assert ask(broker.ports["http"], "/livez")[0] == 200
    assert len(caplog.records) <= 1  # of another case, one like it may have been logged a moment ago
    for record in caplog.records:
        assert record.exc_info is None
        assert len(record.getMessage()) < 200
        assert "secret" not in record.getMessage()


def test_who_goes_in_the_middle_of_a_body_is_not_logged(broker, caplog):
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with dial(broker, "http") as connection:
                connection.sendall(POST + b"Content-Length: 50\r\n\r\n{")
        assert ask(broker.ports["http"], "/livez")[0] == 200
    assert not caplog.records


def test_an_expectation_that_is_no_text_is_refused_in_one_line(broker, caplog):
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert said(broker, "http", POST + b"Expect: \x80\r\n\r\n").split(b" ", 2)[1] in (b"417", b"400")
    assert len(caplog.records) == 1
    assert caplog.records[0].exc_info is None


def test_a_request_that_is_cut_off_leaves_nothing_behind(tmp_path, caplog):
    with caplog.at_level(logging.WARNING), all_fronts(tmp_path) as broker:
        for _ in range(20):
            with dial(broker, "http") as connection:
                connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{")
                connection.recv(100)
    gc.collect()
    assert not caplog.records


def test_a_peer_that_goes_in_the_middle_of_an_answer_is_no_error(caplog):
    async def answer(_):
        raise ConnectionResetError("Cannot write to closing transport")

    with pytest.raises(ConnectionResetError):
        asyncio.run(_errors_as_json(SimpleNamespace(method="GET", path="/api/admin/audit/export"), answer))
    assert not caplog.records
