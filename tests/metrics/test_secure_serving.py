"""Metrics by HTTPS: who is answered, and that nobody who says nothing blocks it."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
import urllib.request

import pytest

import transfer
from transfer.certificates import Authority
from transports.errors import SecurityError
from transports.security.settings import Security

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
        port = context._metrics.port
        status, text = scrape(port, authority, authority.issue("asks"))
        assert status == 200 and b"transfer_core_info" in text
        assert scrape(port, authority, Authorization=f"Bearer {TOKEN}")[0] == 200
        assert scrape(port, authority)[0] == 401
        assert scrape(port, authority, Authorization="Bearer wrong")[0] == 401
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
            scrape(port, authority, authority.issue("over", begins=-2, ends=-1))
        with pytest.raises((OSError, http.client.HTTPException)):
            urllib.request.urlopen(f"http://{HERE}:{port}/metrics", timeout=20)


def test_a_crowd_that_says_nothing_blocks_nobody(authority, security):
    with transfer.Context(metrics_port=0, security=security) as context:
        port = context._metrics.port
        silent = [socket.create_connection((HERE, port), 20) for _ in range(100)]
        try:
            assert scrape(port, authority, authority.issue("asks"))[0] == 200
            assert silent[0].recv(1) == b"", "the oldest made room"
        finally:
            for connection in silent:
                connection.close()


def test_a_new_certificate_is_shown_without_a_restart(authority, security):
    def shown(port):
        return ssl.get_server_certificate((HERE, port), ca_certs=authority.path, timeout=20)

    with transfer.Context(metrics_port=0, security=security) as context:
        port = context._metrics.port
        before = shown(port)
        authority.issue("served")
        deadline = time.monotonic() + 20
        while shown(port) == before:
            assert time.monotonic() < deadline, "the old one is still shown"


@pytest.mark.parametrize(
    ("security", "why"),
    [(Security(), "let strangers in"), (Security(token=TOKEN), "take the token in plain text")],
    ids=["nothing", "token"],
)
def test_other_machines_are_not_answered_without_certificates(security, why):
    with pytest.raises(SecurityError, match=f"would {why}") as caught:
        transfer.Context(metrics_port="0.0.0.0:0", security=security)
    assert "TRANSFER_UNAUTHENTICATED=allow" in caught.value.hint
    with transfer.Context(metrics_port="0.0.0.0:0", security=Security(unauthenticated=True)) as context:
        url = f"http://{HERE}:{context._metrics.port}/metrics"
        with urllib.request.urlopen(url, timeout=20) as answer:
            assert answer.status == 200


def test_other_users_of_this_machine_are_not_answered_without_the_token(authority):
    with pytest.raises(SecurityError, match="would answer who has no token") as caught:
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
        assert context._metrics._http.server_address[0] == HERE
