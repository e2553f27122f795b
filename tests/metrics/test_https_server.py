"""Metrics by HTTPS: who is answered, and that nobody who says nothing blocks it."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

import transfer
from transfer.certificates import Authority
from transfer.metrics import http_server, prometheus as metrics
from transfer.transports.connect.pending import PENDING
from transfer.transports.errors import SecurityError
from transfer.transports.security.settings import Security

TOKEN = "a4fc542c74e437a9de36a1413212954a"
HERE = "127.0.0.1"


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def security(authority):
    issued = authority.issue("served")
    return Security(certificate=issued.certificate, key=issued.key, authority=authority.path, token=TOKEN)


def scrape(port, authority, issued=None, **headers):
    context = ssl.create_default_context(cafile=authority.path)
    if issued is not None:
        context.load_cert_chain(issued.certificate, issued.key)
    connection = http.client.HTTPSConnection(HERE, port, timeout=20, context=context)
    try:
        connection.request("GET", "/metrics", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_a_certificate_or_the_token_is_asked_for(authority, security):
    with transfer.Context(metrics_port="0.0.0.0:0", security=security) as context:
        port = context._transfer_metrics.port
        status, text = scrape(port, authority, authority.issue("asks"))
        assert status == 200 and b"transfer_core_info" in text
        assert scrape(port, authority, Authorization=f"Bearer {TOKEN}")[0] == 200
        assert scrape(port, authority)[0] == 401
        assert scrape(port, authority, Authorization="Bearer wrong")[0] == 401
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
            scrape(port, authority, authority.issue("over", begins=-2, ends=-1))
        with pytest.raises((OSError, http.client.HTTPException)):
            urllib.request.urlopen(f"http://{HERE}:{port}/metrics", timeout=20)


def test_many_unfinished_connections_block_nobody(authority, security):
    with transfer.Context(metrics_port=0, security=security) as context:
        port = context._transfer_metrics.port
        unfinished = [socket.create_connection((HERE, port), 20) for _ in range(100)]
        try:
            for connection in unfinished:
                connection.sendall(b"\x16")
            assert scrape(port, authority, authority.issue("asks"))[0] == 200
            assert unfinished[0].recv(1) == b"", "the oldest made room"
        finally:
            for connection in unfinished:
                connection.close()


def test_a_new_certificate_is_shown_without_a_restart(authority, security):
    def shown(port):
        return ssl.get_server_certificate((HERE, port), ca_certs=authority.path, timeout=20)

    with transfer.Context(metrics_port=0, security=security) as context:
        port = context._transfer_metrics.port
        before = shown(port)
        authority.issue("served")
        deadline = time.monotonic() + 20
        while shown(port) == before:
            assert time.monotonic() < deadline, "the old one is still shown"


@pytest.mark.parametrize(
    ("security", "why"),
    [
        (Security(), "accept connections without authentication"),
        (Security(token=TOKEN), "take the token in plain text"),
    ],
    ids=["nothing", "token"],
)
def test_other_machines_are_not_answered_without_certificates(security, why):
    with pytest.raises(SecurityError, match=f"would {why}") as caught:
        transfer.Context(metrics_port="0.0.0.0:0", security=security)
    assert "TRANSFER_UNAUTHENTICATED=allow" in caught.value.hint
    with transfer.Context(metrics_port="0.0.0.0:0", security=Security(unauthenticated=True)) as context:
        url = f"http://{HERE}:{context._transfer_metrics.port}/metrics"
        with urllib.request.urlopen(url, timeout=20) as answer:
            assert answer.status == 200


def test_other_users_of_this_machine_are_not_answered_without_the_token(authority):
    with pytest.raises(SecurityError, match="would answer requests without a token") as caught:
        transfer.Context(metrics_port=0, security=Security(token=TOKEN))
    assert "TRANSFER_TOKENLESS=allow" in caught.value.hint
    for security in (
        Security(token=TOKEN, tokenless=True),
        Security(token=TOKEN, unauthenticated=True),
        Security(),
    ):
        with transfer.Context(metrics_port=0, security=security) as context:
            url = f"http://{HERE}:{context.metrics_port}/metrics"
            with urllib.request.urlopen(url, timeout=20) as answer:
                assert answer.status == 200
    issued = authority.issue("served")
    shown = Security(certificate=issued.certificate, key=issued.key, token=TOKEN)
    with transfer.Context(metrics_port=0, security=shown) as context:
        assert scrape(context.metrics_port, authority)[0] == 401
        assert scrape(context.metrics_port, authority, Authorization=f"Bearer {TOKEN}")[0] == 200


def test_a_number_alone_is_for_this_machine():
    with transfer.Context(metrics_port=0) as context:
        assert context._transfer_metrics._http.server_address[0] == HERE


# -- clients that show neither a certificate nor the token -------------------------------------------------


def whole(port, authority, head):
    """What such a client is answered."""
    context = ssl.create_default_context(cafile=authority.path)
    with context.wrap_socket(socket.create_connection((HERE, port), 20), server_hostname=HERE) as connection:
        said = b""
        with contextlib.suppress(OSError):  # it is ended before all is sent
            connection.sendall(head)
        with contextlib.suppress(OSError):
            while more := connection.recv(65536):
                said += more
        return said


def test_the_head_of_a_request_has_a_limit(authority, security):
    begin, line = b"GET /metrics HTTP/1.1\r\n", b"X: " + b"a" * 995 + b"\r\n"
    with transfer.Context(metrics_port=0, security=security) as context:
        port = context.metrics_port
        assert whole(port, authority, begin + line * 16 + b"\r\n").startswith(b"HTTP/1.0 401 ")
        assert whole(port, authority, begin + line * 17).startswith(b"HTTP/1.0 431 ")
        assert whole(port, authority, b"GET /" + b"a" * http_server.MOST_HEAD).startswith(b"HTTP/1.0 431 ")


@pytest.mark.parametrize("begin", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01"], ids=["silent", "1", "6"])
def test_a_handshake_and_a_head_have_one_limit_in_time(authority, security, monkeypatch, begin):
    """However often a byte of them comes."""
    monkeypatch.setattr(http_server, "_PATIENCE", 0.5)
    with transfer.Context(metrics_port=0, security=security) as context:
        with socket.create_connection((HERE, context.metrics_port), 20) as client:
            client.sendall(begin)
            assert is_ended(client, b"" if not begin else b"a")


def test_a_head_has_a_limit_in_time(authority, security, monkeypatch):
    monkeypatch.setattr(http_server, "_PATIENCE", 0.5)
    trusted = ssl.create_default_context(cafile=authority.path)
    with transfer.Context(metrics_port=0, security=security) as context:
        plain = socket.create_connection((HERE, context.metrics_port), 20)
        with trusted.wrap_socket(plain, server_hostname=HERE) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
            assert is_ended(client, b"a")


def is_ended(client, byte):
    """Whether it is put out, while it says this again and again."""
    client.settimeout(0.05)
    for _ in range(400):
        try:
            client.sendall(byte)
            if not client.recv(1):
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


@pytest.mark.parametrize("shown", ["certificate", "token"])
def test_who_is_known_is_answered_to_the_end(authority, security, monkeypatch, shown):
    """By as many unauthenticated clients as connect meanwhile."""
    asked, goes_on = threading.Event(), threading.Event()

    def slow(environ, start):
        asked.set()
        assert goes_on.wait(20)
        start("200 OK", [])
        return [b"all of it"]

    monkeypatch.setattr(metrics, "make_wsgi_app", lambda _: slow)
    issued = authority.issue("asks") if shown == "certificate" else None
    headers = {"Authorization": f"Bearer {TOKEN}"} if shown == "token" else {}
    with transfer.Context(metrics_port=0, security=security) as context, contextlib.ExitStack() as stack:
        port = context.metrics_port
        with ThreadPoolExecutor() as pool:
            answer = pool.submit(scrape, port, authority, issued, **headers)
            try:
                assert asked.wait(20)
                clients = [
                    stack.enter_context(socket.create_connection((HERE, port), 20)) for _ in range(100)
                ]
                for client in clients:
                    client.sendall(b"\x16")
                assert clients[0].recv(1) == b"", "the oldest made room"
            finally:
                goes_on.set()
            assert answer.result(20) == (200, b"all of it")


def test_those_who_say_nothing_get_no_thread_and_keep_nobody_out(authority, security):
    with transfer.Context(metrics_port=0, security=security) as context, contextlib.ExitStack() as stack:
        port, before = context.metrics_port, threading.active_count()
        silent = [stack.enter_context(socket.create_connection((HERE, port), 20)) for _ in range(100)]
        assert scrape(port, authority, authority.issue("asks"))[0] == 200
        assert threading.active_count() <= before + 1
        for connection in silent:
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):
                connection.recv(1)
        assert len(PENDING) >= 100
    assert len(PENDING) == 0
