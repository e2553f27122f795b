"""HTTP of a broker with TLS: what is open, what a certificate or a token opens, and what no output tells."""

from __future__ import annotations

import http.client
import json
import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from tests.broker.http_requests import ask as ask_plainly
from tests.broker.in_process_broker import FREE, running
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
from transfer.broker.config import tokenless
from transfer.broker.config.configuration import ConfigValue, configured
from transfer.broker.config.settings import AbtpEndpoints
from transfer.transports.errors import InternalError, SecurityError
from transfer.transports.security.settings import Security

OPEN = ("/livez", "/readyz", "/", "/console.js", "/console.css", "/favicon.ico")
#: fronts whose protocols know no token
NONE = dict.fromkeys(("ttp", "pybroker", "rqueue", "abtp"))
GUARDED = ("/metrics", "/api/overview", "/api/topics", "/api/admin/dlq/list", "/api/nothing", "/nothing")


@pytest.fixture(scope="module")
def broker(tmp_path_factory, identities):
    security = identities.of_broker(token_file=str(identities.token_file))
    with secure(tmp_path_factory.mktemp("broker"), identities, security=security) as broker:
        for path in GUARDED:  # its threads begin with the first that is asked of them
            status(broker, identities, path, identities.client)
        yield broker


def status(broker, identities, path, issued=None, **headers):
    context = context_of(identities, issued)
    context.set_alpn_protocols(["http/1.1"])
    return ask(broker, path, context, **headers)[0]


def test_health_and_the_page_are_open_and_nothing_else(broker, identities):
    for path in OPEN:
        assert status(broker, identities, path) == 200, path
    for path in GUARDED:
        assert status(broker, identities, path) == 401, path
        assert status(broker, identities, path, X_Admin_Token="wrong") == 403, path
        assert status(broker, identities, path, Authorization="Bearer wrong") == 403, path


@pytest.fixture
def failing(broker):
    """A broker whose log is full of a topic with a secret name, and has failed."""
    durability = broker.hub.durability
    durability.full = "group 'g' of topic 'merger' holds it"
    durability.failure = InternalError("/data/merger")
    yield broker
    durability.full, durability.failure = "", None


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_health_names_nothing_to_unauthenticated_clients(failing, identities, path):
    def problems(issued=None, **headers):
        context = context_of(identities, issued)
        context.set_alpn_protocols(["http/1.1"])
        code, answer = ask(failing, path, context, **headers)
        assert code == 503
        return json.loads(answer)["problems"]

    kinds = ["the log has failed", "the log is full, so publishers wait"][: 2 if path == "/readyz" else 1]
    assert problems() == problems(X_Admin_Token="wrong") == kinds
    detailed = problems(identities.client)
    assert detailed == problems(X_Admin_Token=TOKEN) == problems(Authorization=f"Bearer {TOKEN}")
    for kind, text in zip(kinds, detailed, strict=True):
        assert text.startswith(f"{kind}: ") and "merger" in text


def test_a_certificate_or_the_token_opens_the_rest(broker, identities):
    for path in GUARDED:
        wanted = 404 if path.endswith("nothing") else 200
        assert status(broker, identities, path, identities.client) == wanted
        assert status(broker, identities, path, X_Admin_Token=TOKEN) == wanted
        assert status(broker, identities, path, Authorization=f"Bearer {TOKEN}") == wanted


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
    security = identities.of_broker(token_file=str(identities.token_file), clients="token", tokenless=True)
    with secure(tmp_path, identities, security=security) as broker:
        assert status(broker, identities, "/metrics", identities.client) == 401
        assert status(broker, identities, "/metrics", X_Admin_Token=TOKEN) == 200


def test_over_plain_http_the_shared_token_opens_nothing(tmp_path, identities):
    security = Security(token_file=str(identities.token_file))
    allowed = replace(security, tokenless=True)
    with secure(tmp_path, identities, security=allowed, token=OWN_TOKEN) as broker:
        port = broker.ports["http"]
        assert ask_plainly(port, "/readyz")[0] == 200
        assert ask_plainly(port, "/metrics", X_Admin_Token=TOKEN)[0] == 403
        assert ask_plainly(port, "/metrics", X_Admin_Token=OWN_TOKEN)[0] == 200
    with running(
        tmp_path, security=security, http=0, **NONE
    ) as broker:  # another user's program would not either
        for path in ("/metrics", "/api/overview", "/api/admin/dlq/list"):
            code, told = ask_plainly(broker.ports["http"], path)
            assert code == 403 and "http.token" in told
        assert ask_plainly(broker.ports["http"], "/livez")[0] == 200
    with running(tmp_path, security=allowed, http=0, **NONE) as broker:
        for path in ("/metrics", "/api/overview", "/api/admin/dlq/list"):
            assert ask_plainly(broker.ports["http"], path)[0] == 200
            assert ask_plainly(broker.ports["http"], path, Host="broker.example")[0] in (401, 403)


def test_a_token_that_changes_is_read_again(tmp_path, identities):
    file = tmp_path / "token"
    file.write_text(TOKEN)
    security = identities.of_broker(token_file=str(file))
    with secure(tmp_path / "data", identities, security=security) as broker:
        assert status(broker, identities, "/metrics", X_Admin_Token=TOKEN) == 200
        file.write_text("8769ed0f5157f82b7bac73ec896b8466\n")
        until(lambda: status(broker, identities, "/metrics", X_Admin_Token=TOKEN) == 403)
        assert status(broker, identities, "/metrics", X_Admin_Token="8769ed0f5157f82b7bac73ec896b8466") == 200


def test_unauthenticated_clients_hold_no_connection(broker, identities):
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
    with secure(tmp_path, identities, handshake_timeout=0.3, native=None) as broker:
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
    with secure(tmp_path, identities, native=None) as broker:
        with socket.create_connection(place(broker, "http"), 20) as connection:
            connection.sendall(b"\x16\x03\x01\x00\x05")
        until(lambda: refused(broker, "http"))
        assert refused(broker, "http") == {"closed": 1}
    (line,) = [one for one in caplog.messages if "the TLS handshake of" in one]
    assert line.endswith(": the peer closed in the TLS handshake")


@pytest.mark.parametrize(
    ("front", "security", "wanted"),
    [
        ("ttp", Security(), "without authentication"),
        ("ttp", Security(token=TOKEN), "no token"),
        ("rqueue", Security(token=TOKEN), "no token"),
        ("pybroker", Security(token=TOKEN), "no token"),
        ("abtp", Security(token=TOKEN), "no token"),
        ("http", Security(), "without authentication"),
    ],
)
def test_a_front_that_anybody_could_use_is_not_opened(tmp_path, identities, front, security, wanted):
    off = {"native": None, "ttp": None, "pybroker": None, "rqueue": None, "http": None, "abtp": None}
    on = AbtpEndpoints("tcp://*:0", "tcp://127.0.0.1:0") if front == "abtp" else 0
    changes = off | {front: on, "host": "0.0.0.0", "security": security}
    with pytest.raises(SecurityError, match=wanted) as caught, running(tmp_path, **changes):
        pass
    word = "security.tokenless=allow" if security.has_token else "TRANSFER_UNAUTHENTICATED=allow"
    assert word in caught.value.hint


def test_http_takes_no_token_in_plain_text_from_other_machines(tmp_path):
    changes = {"host": "0.0.0.0", "http": 0, "native": None, "token": OWN_TOKEN, **NONE}
    with (
        pytest.raises(SecurityError, match="take the token in plain text") as caught,
        running(tmp_path, security=Security(token=TOKEN), **changes),
    ):
        pass
    assert "TRANSFER_UNAUTHENTICATED=allow" in caught.value.hint
    allowed = Security(token=TOKEN, unauthenticated=True)
    with running(tmp_path, security=allowed, **changes) as broker:
        assert ask_plainly(broker.ports["http"], "/metrics", X_Admin_Token=OWN_TOKEN)[0] == 200
    with (
        pytest.raises(SecurityError, match=r"http\.token can be guessed"),
        running(tmp_path, security=allowed, **changes | {"token": "secret"}),
    ):
        pass


@pytest.mark.parametrize("front", ["ttp", "pybroker", "rqueue", "abtp"])
def test_a_front_that_cannot_ask_for_the_token_listens_by_a_word_only(tmp_path, front):
    """Not even on this machine, which may have other users."""
    on = AbtpEndpoints(FREE, FREE) if front == "abtp" else 0
    changes = NONE | {front: on}
    with (
        pytest.raises(SecurityError, match=f"{front} would accept clients without a token"),
        running(tmp_path, security=Security(token=TOKEN), **changes),
    ):
        pass
    for security in (
        Security(token=TOKEN, tokenless=True),
        Security(token=TOKEN, unauthenticated=True),
        Security(),
    ):
        with running(tmp_path, security=security, **changes) as broker:
            assert list(broker.fronts) == ["native", front]


def test_fronts_that_nobody_named_are_left_out(tmp_path):
    settings = configured([ConfigValue("security.clients", "", "here")]).settings
    found, shut = tokenless.places(settings, Security(token=TOKEN))
    assert shut == ["ttp", "pybroker", "rqueue", "abtp"] and not any(found.values())
    private = AbtpEndpoints(f"ipc://{tmp_path}/router", f"ipc://{tmp_path}/pub")
    found, shut = tokenless.places(replace(settings, abtp=private), Security(token=TOKEN))
    assert found["abtp"] == private and "abtp" not in shut
    named = configured(
        [ConfigValue("ttp.port", "59321", "here"), ConfigValue("rqueue.port", "off", "here")]
    ).settings
    with pytest.raises(SecurityError, match=r"^ttp would"):
        tokenless.places(named, Security(token=TOKEN))
    word = configured(
        [ConfigValue("security.tokenless", "allow", "here"), ConfigValue("ttp.port", "59321", "here")]
    ).settings
    security = replace(word.security, token=TOKEN)
    assert tokenless.places(word, security) == (tokenless.places(word, Security())[0], [])


def test_fronts_at_their_usual_places_are_no_error_with_a_token(tmp_path, caplog):
    unusual = {"ttp": 59321, "pybroker": 9099, "rqueue": 6567, "abtp": AbtpEndpoints()}
    with running(tmp_path, security=Security(token=TOKEN), **unusual) as broker:
        assert list(broker.fronts) == ["native"] and not broker.ports
    (line,) = [line for line in caplog.messages if "not listening" in line]
    assert line.startswith("ttp, pybroker, rqueue, abtp: ") and "security.tokenless=allow" in line


def test_a_word_opens_them_and_so_do_certificates(tmp_path, identities):
    changes = {"native": None, "pybroker": None, "rqueue": None, "http": 0, "host": "0.0.0.0"}
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
        outputs += [repr(broker.settings), repr(security), repr(broker.listeners), repr(broker.context)]
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


def test_wrong_tokens_are_one_line_of_the_log(tmp_path, caplog):
    with running(tmp_path, token=OWN_TOKEN, http=0, **NONE) as broker:
        for number in range(5):
            assert (
                ask_plainly(broker.ports["http"], "/api/overview", X_Admin_Token=f"guess-{number}")[0] == 403
            )
        assert ask_plainly(broker.ports["http"], "/nowhere", X_Admin_Token="guess-5")[0] == 404
        assert ask_plainly(broker.ports["http"], "/api/overview")[0] == 401
        assert ask_plainly(broker.ports["http"], "/api/overview", X_Admin_Token=OWN_TOKEN)[0] == 200
    (line,) = [record for record in caplog.records if "wrong token" in record.getMessage()]
    assert line.levelname == "WARNING" and HERE in line.getMessage() and "guess-" not in caplog.text


@pytest.mark.parametrize(("token", "warned"), [("hunter", True), (OWN_TOKEN, False)])
def test_a_token_of_operators_that_can_be_guessed_is_a_warning_here(tmp_path, caplog, token, warned):
    with running(tmp_path, token=token, http=0, **NONE):
        pass
    lines = [text for text in caplog.messages if "http.token can be guessed" in text]
    assert len(lines) == warned and "hunter" not in caplog.text
    assert all("openssl rand -hex 32" in line for line in lines)
