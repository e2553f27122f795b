"""HTTP of a broker with TLS: what is open, what a certificate or a token opens, and what no output tells."""

from __future__ import annotations

import http.client
import json
import re
import socket
from pathlib import Path

import pytest

from tests.broker.asking import ask as ask_plainly
from tests.broker.running import FREE, running
from tests.broker.secure_peers import (
    HERE,
    OWN_TOKEN,
    TOKEN,
    ask,
    context_of,
    dial,
    place,
    refused,
    secure,
    until,
)
from transfer import cli
from transfer.broker.settings import AbtpEndpoints
from transports.errors import SecurityError
from transports.security.settings import Security

OPEN = ("/livez", "/readyz", "/", "/console.js", "/console.css", "/favicon.ico")
GUARDED = ("/metrics", "/api/overview", "/api/topics", "/api/admin/dlq/list", "/api/nothing", "/nothing")


@pytest.fixture(scope="module")
def broker(tmp_path_factory, identities):
    security = identities.of_broker(token_file=str(identities.token_file))
    with secure(tmp_path_factory.mktemp("broker"), identities, security=security) as broker:
        for path in GUARDED:  # its threads begin with the first that is asked of them
            status(broker, identities, path, identities.client)
        yield broker


def status(broker, identities, path, issued=None, door="http", **headers):
    context = context_of(identities, issued)
    context.set_alpn_protocols(["http/1.1"])
    return ask(broker, path, context, door=door, **headers)[0]


@pytest.mark.parametrize("door", ["http", "ttp"])
def test_health_and_the_page_are_open_and_nothing_else(broker, identities, door):
    for path in OPEN:
        assert status(broker, identities, path, door=door) == 200, path
    for path in GUARDED:
        assert status(broker, identities, path, door=door) == 401, path
        assert status(broker, identities, path, door=door, X_Admin_Token="wrong") == 403, path
        assert status(broker, identities, path, door=door, Authorization="Bearer wrong") == 403, path


@pytest.mark.parametrize("door", ["http", "ttp"])
def test_a_certificate_or_the_token_opens_the_rest(broker, identities, door):
    for path in GUARDED:
        wanted = 404 if path.endswith("nothing") else 200
        assert status(broker, identities, path, identities.client, door=door) == wanted
        assert status(broker, identities, path, door=door, X_Admin_Token=TOKEN) == wanted
        assert status(broker, identities, path, door=door, Authorization=f"Bearer {TOKEN}") == wanted


def test_operators_with_a_token_of_their_own_need_that_one(tmp_path, identities):
    security = identities.of_broker(token_file=str(identities.token_file))
    with secure(tmp_path, identities, security=security, token=OWN_TOKEN) as broker:
        admin = "/api/admin/dlq/list"
        assert status(broker, identities, admin, identities.client) == 401
        assert status(broker, identities, admin, identities.client, X_Admin_Token=TOKEN) == 403
        assert status(broker, identities, admin, X_Admin_Token=OWN_TOKEN) == 200
        assert status(broker, identities, "/api/overview", identities.client) == 200
        assert status(broker, identities, "/metrics", Authorization=f"Bearer {OWN_TOKEN}") == 200


def test_where_a_token_is_enough_certificates_count_for_nothing(tmp_path, identities):
    security = identities.of_broker(token_file=str(identities.token_file), clients="token")
    with secure(tmp_path, identities, security=security) as broker:
        assert status(broker, identities, "/metrics", identities.client) == 401
        assert status(broker, identities, "/metrics", X_Admin_Token=TOKEN) == 200


def test_over_plain_http_the_shared_token_opens_nothing(tmp_path, identities):
    security = Security(token_file=str(identities.token_file))
    with secure(tmp_path, identities, security=security, token=OWN_TOKEN) as broker:
        port = broker.ports["http"]
        assert ask_plainly(port, "/readyz")[0] == 200
        assert ask_plainly(port, "/metrics", X_Admin_Token=TOKEN)[0] == 403
        assert ask_plainly(port, "/metrics", X_Admin_Token=OWN_TOKEN)[0] == 200
    with secure(tmp_path, identities, security=security) as broker:  # programs of this machine need none
        for path in ("/metrics", "/api/overview", "/api/admin/dlq/list"):
            assert ask_plainly(broker.ports["http"], path)[0] == 200
            assert ask_plainly(broker.ports["http"], path, Host="broker.example")[0] in (401, 403)


def test_a_token_that_changes_is_read_again(tmp_path, identities):
    file = tmp_path / "token"
    file.write_text(TOKEN)
    security = identities.of_broker(token_file=str(file))
    with secure(tmp_path / "data", identities, security=security) as broker:
        assert status(broker, identities, "/metrics", X_Admin_Token=TOKEN) == 200
        file.write_text("another-secret-of-the-test\n")
        until(lambda: status(broker, identities, "/metrics", X_Admin_Token=TOKEN) == 403)
        assert status(broker, identities, "/metrics", X_Admin_Token="another-secret-of-the-test") == 200


def test_strangers_hold_no_connection(broker, identities):
    for issued, path, stays in (
        (None, "/livez", False),
        (None, "/metrics", False),
        (identities.client, "/", True),
    ):
        with dial(broker, "http", identities, issued) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {HERE}\r\n\r\n".encode())
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            answer.read()
            assert answer.will_close is not stays


def test_those_who_ask_nothing_are_put_out(tmp_path, identities):
    with secure(tmp_path, identities, handshake=0.3, own=None) as broker:
        context = context_of(identities, identities.client)
        with (
            socket.create_connection(place(broker, "http"), 20) as silent,
            socket.create_connection(place(broker, "http"), 20) as plain,
            context.wrap_socket(plain, server_hostname=HERE) as idle,
        ):
            assert silent.recv(1) == b""
            assert idle.recv(1) == b""
        assert refused(broker, "http") == {"late": 2}
        assert status(broker, identities, "/metrics", identities.client) == 200


def test_who_is_refused_at_own_s_ports_and_the_spool_s_is_counted_as_at_any_socket(tmp_path, identities):
    with secure(tmp_path, identities, spool=FREE) as broker:

        def counted(name):
            _, text = ask(broker, "/metrics", context_of(identities, identities.client))
            return {
                line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in text.splitlines() if name in line
            }

        for number, port in enumerate(("requests", "spool"), 1):
            with socket.create_connection(place(broker, port), 20) as plain:
                plain.sendall(b"no TLS at all, and long enough to be seen as such")
            sample = 'transfer_handshake_failures_total{reason="tls"}'
            until(lambda: counted("handshake_failures").get(sample) == f"{number}.0")  # noqa: B023
        fronts = set(re.findall(r'front="(\w+)"', "".join(counted("broker_refused_total{"))))
        assert fronts == {"ttp", "pybroker", "rqueue", "abtp", "http"}


def test_who_gives_the_handshake_up_has_closed_it(tmp_path, identities, caplog):
    caplog.set_level("INFO", "transfer.broker")
    with secure(tmp_path, identities, own=None) as broker:
        with socket.create_connection(place(broker, "http"), 20) as connection:
            connection.sendall(b"\x16\x03\x01\x00\x05")
        until(lambda: refused(broker, "http"))
        assert refused(broker, "http") == {"closed": 1}
    (line,) = [one for one in caplog.messages if "was not let in" in one]
    assert line.endswith(": the peer closed in the TLS handshake")


@pytest.mark.parametrize(
    ("door", "security", "wanted"),
    [
        ("ttp", Security(), "nobody is asked"),
        ("ttp", Security(token=TOKEN), "knows no token"),
        ("rqueue", Security(token=TOKEN), "knows no token"),
        ("pybroker", Security(token=TOKEN), "knows no token"),
        ("abtp", Security(token=TOKEN), "knows no token"),
        ("http", Security(), "nobody is asked"),
    ],
)
def test_a_door_that_strangers_could_use_is_not_opened(tmp_path, identities, door, security, wanted):
    off = {"own": None, "ttp": None, "pybroker": None, "rqueue": None, "http": None, "abtp": None}
    on = AbtpEndpoints("tcp://*:0", "tcp://127.0.0.1:0") if door == "abtp" else 0
    changes = off | {door: on, "host": "0.0.0.0", "security": security}
    with pytest.raises(SecurityError, match=wanted) as caught, running(tmp_path, **changes):
        pass
    assert "TRANSFER_UNAUTHENTICATED=allow" in caught.value.hint


def test_a_word_opens_them_and_so_do_certificates(tmp_path, identities):
    changes = {"own": None, "pybroker": None, "rqueue": None, "http": 0, "host": "0.0.0.0"}
    for security in (Security(unauthenticated=True), identities.of_broker()):
        with running(tmp_path, **changes, security=security) as broker:
            assert sorted(broker.ports) == ["http", "ttp"]


# -- the command line ------------------------------------------------------------------------------------


@pytest.fixture
def shown(monkeypatch, identities):
    """As a user's environment has it."""
    monkeypatch.setenv("TRANSFER_TLS_CA", identities.authority.path)
    monkeypatch.setenv("TRANSFER_TLS_CERT", identities.client.certificate)
    monkeypatch.setenv("TRANSFER_TLS_KEY", identities.client.key)


def test_the_command_line_speaks_https(broker, identities, shown, monkeypatch, capsys):
    url = f"https://{HERE}:{broker.ports['http']}"
    assert cli.run(["dlq", "list", "--url", url, "--json"]) == 0
    assert cli.run(["audit", "events", "--url", url, "--json"]) == 0
    assert cli.run(["health", url]) == 0
    monkeypatch.delenv("TRANSFER_TLS_CERT")
    monkeypatch.delenv("TRANSFER_TLS_KEY")
    assert cli.run(["dlq", "list", "--url", url]) == 2
    monkeypatch.setenv("TRANSFER_TOKEN_FILE", str(identities.token_file))
    assert cli.run(["dlq", "list", "--url", url]) == 0
    capsys.readouterr()
    monkeypatch.setenv("TRANSFER_TLS_CA", str(identities.bad["wrong authority"].certificate))
    assert cli.run(["dlq", "list", "--url", url]) == 1
    said = capsys.readouterr().err
    assert "certificate is refused" in said and "TRANSFER_TLS_CA" in said


def test_secrets_are_in_no_output(tmp_path, identities, shown, monkeypatch, capsys, caplog):
    """Neither tokens nor keys: in settings, errors, logs, metrics, /api, and what commands say."""
    caplog.set_level("DEBUG", "transfer")
    key = Path(identities.server.key).read_text().splitlines()[1]
    security = identities.of_broker(token=TOKEN)
    outputs = []
    with secure(tmp_path, identities, security=security, token=OWN_TOKEN) as broker:
        for path in (*OPEN, *GUARDED, "/api/fronts", "/api/groups"):
            for token in ("", OWN_TOKEN, "wrong"):
                outputs.append(ask(broker, path, context_of(identities, None), X_Admin_Token=token)[1])
        outputs += [repr(broker.settings), repr(security), repr(broker.doors), repr(broker.context)]
        outputs += [json.dumps({"ports": broker.ports, "endpoints": broker.endpoints})]
        url = f"https://{HERE}:{broker.ports['http']}"
        monkeypatch.setenv("TRANSFER_TOKEN", TOKEN)
        for words in (["dlq", "list", "--url", url], ["dlq", "list", "--url", url, "--token", OWN_TOKEN]):
            cli.run(words)
        cli.run(["doctor", "--json"])
    monkeypatch.setenv("TRANSFER_TOKEN_FILE", str(identities.token_file))
    cli.run(["broker", "--data", str(tmp_path / "x"), "--http", "off", "--abtp", "off", "--spool", "off"])
    cli.run(["broker", "check", str(tmp_path)])
    told = capsys.readouterr()
    outputs += [told.out, told.err, caplog.text]
    assert "a token and a file of tokens" in told.err
    for secret in (TOKEN, OWN_TOKEN, key):
        assert [text for text in outputs if secret in text] == []
