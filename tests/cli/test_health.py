"""`transfer health`: what it asks, whom it believes, and how it ends."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from transfer import cli
from transfer.broker.config.settings import Settings
from transfer.broker.server import Broker
from transfer.cli.health import security_of, target
from transfer.transports.errors import AddressError, UsageError
from transfer.transports.security.settings import Security

NO_TLS = Security()
OTHER = ("native", "ttp", "pybroker", "rqueue", "spool", "abtp")


@pytest.fixture
def health(capsys):
    """health(words...): (exit code, standard output, standard error)."""

    def run(*words):
        code = cli.run(["health", *map(str, words)])
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


@pytest.fixture
def broker(tmp_path):
    with Broker(tmp_path / "data", Settings(http=0, **dict.fromkeys(OTHER))) as running:
        yield running


def test_a_broker_is_ready_alive_and_then_not_ready(health, broker):
    url = f"http://127.0.0.1:{broker.ports['http']}"
    assert health(url) == (0, "ok\n", "")
    assert health(url, "--live") == (0, "ok\n", "")
    broker.drain()
    code, _, said = health(url)
    assert code == 1 and f"{url}/readyz answers 503: it is being stopped" in said
    assert health(url, "--live")[0] == 0, "a broker that is being stopped need not be started anew"
    assert health(f"{url}/nothing")[0] == 1


def test_it_asks_the_broker_that_the_environment_configures(health, broker, tmp_path, monkeypatch):
    port = str(broker.ports["http"])
    file = tmp_path / "broker.toml"
    file.write_text(f'[http]\nport = {port}\nhost = "0.0.0.0"\n')
    monkeypatch.setenv("TRANSFER_BROKER_CONFIG", str(file))
    assert health()[0] == 0
    monkeypatch.setenv("TRANSFER_BROKER__HTTP__PORT", "off")
    code, _, said = health()
    assert code == 2 and "give the URL" in said
    monkeypatch.delenv("TRANSFER_BROKER_CONFIG")
    monkeypatch.setenv("TRANSFER_BROKER__HTTP__PORT", port)
    assert health()[0] == 0


def test_nobody_and_silence_are_told(health):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        code, _, said = health(f"http://127.0.0.1:{port}", "--timeout", "0.2")
        assert code == 3 and "did not answer within 0.2 s" in said
    code, _, said = health(f"http://127.0.0.1:{port}")
    assert code == 1 and "no answer from" in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("told", "names", "place"),
    [
        ({}, NO_TLS, "http://127.0.0.1:9180/readyz"),
        ({"http.port": "81", "broker.host": "0.0.0.0"}, NO_TLS, "http://127.0.0.1:81/readyz"),
        ({"http.host": "10.0.0.1", "broker.host": "::"}, NO_TLS, "http://10.0.0.1:9180/readyz"),
        ({"broker.host": "fd00::1"}, NO_TLS, "http://[fd00::1]:9180/readyz"),
        ({}, Security(certificate="c", key="k", authority="a"), "https://127.0.0.1:9180/readyz"),
    ],
)
def test_where_it_asks(told, names, place):
    assert str(target(None, told, names, live=False)) == place


def test_addresses():
    assert str(target("https://broker", {}, NO_TLS, live=True)) == "https://broker:443/livez"
    assert str(target("http://[::1]:81/readyz", {}, NO_TLS, live=True)) == "http://[::1]:81/readyz"
    for wrong in ("127.0.0.1:9180", "ftp://127.0.0.1", "http://", "http://h:x"):
        with pytest.raises(AddressError):
            target(wrong, {}, NO_TLS, live=False)
    with pytest.raises(UsageError):
        target(None, {"http.port": "0"}, NO_TLS, live=False)


def test_an_option_goes_before_its_variable(tmp_path):
    authority = tmp_path / "b.pem"
    authority.touch()
    environ = {
        "TRANSFER_TLS_CERT": "a.pem",
        "TRANSFER_TLS_CA": str(authority),
        "TRANSFER_TLS_SERVER_NAME": "x",
    }
    told = {"security.cert": "c.pem", "security.key": "k.pem"}
    expected = Security(certificate="c.pem", key="k.pem", authority=str(authority), server_name="x")
    assert security_of(told, environ) == expected


# -- TLS: a server of the standard library stands for the broker, and shows whom `transfer health` believes


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """A folder: ca.pem; broker.pem, which has its word, for `broker.test`; self.pem, which has nobody's."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed here")
    place = tmp_path_factory.mktemp("authority")

    def make(*words):
        subprocess.run(["openssl", *words], cwd=place, check=True, capture_output=True, timeout=20)

    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    make("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority")
    for name in ("broker", "self"):
        more = ("-CA", "ca.pem", "-CAkey", "ca.key") if name == "broker" else ()
        names = ("-addext", f"subjectAltName=DNS:{name}.test", "-subj", f"/CN={name}")
        make("req", "-x509", *new, "-keyout", f"{name}.key", "-out", f"{name}.pem", *names, *more)
    chain = (place / "self.pem").read_text() + (place / "ca.pem").read_text()
    (place / "chain.pem").write_text(chain)
    return place


class _Ready(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.shown.append(self.headers["X-Admin-Token"])
        self.send_response(200 if self.path == "/readyz" else 404)
        self.end_headers()

    def log_message(self, *_):
        """Says nothing."""


class _Server(HTTPServer):
    def handle_error(self, *_):
        """A client that does not believe it leaves: that is what is tested."""


@contextmanager
def answering(place, name, shown=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(place / f"{name}.pem", place / f"{name}.key")
    with _Server(("127.0.0.1", 0), _Ready) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.shown = [] if shown is None else shown
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("served", "given", "code"),
    [
        ("broker", {"CA": "ca.pem"}, 0),
        ("broker", {"CA": "ca.pem", "SERVER_NAME": "broker.test"}, 0),
        ("broker", {"CA": "ca.pem", "SERVER_NAME": "other.test"}, 1),
        ("self", {"CA": "ca.pem"}, 1),
        # without an authority: its own certificate, and no other
        ("self", {"CERT": "self.pem", "KEY": "self.key"}, 0),
        ("broker", {"CERT": "broker.pem", "KEY": "broker.key"}, 0),
        ("broker", {"CERT": "self.pem", "KEY": "self.key"}, 1),
        ("self", {}, 1),
        ("broker", {"CA": "missing.pem"}, 2),
        # those behind its own certificate have signed others, too
        ("broker", {"CERT": "chain.pem", "KEY": "self.key"}, 1),
    ],
)
def test_whom_it_believes(health, authority, monkeypatch, served, given, code):
    for name, value in given.items():
        path = value if name == "SERVER_NAME" else str(authority / value)
        monkeypatch.setenv(f"TRANSFER_TLS_{name}", path)
    with answering(authority, served) as port:
        ended, output, said = health(f"https://127.0.0.1:{port}")
    assert (ended, output) == (code, "" if code else "ok\n"), said


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("trusted", ["the system", "TRANSFER_TLS_CA"])
def test_a_secret_goes_to_no_other_host(authority, monkeypatch, capsys, host, trusted):
    """Any user of this machine may listen on loopback, with a good certificate for a host of his own."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority / "ca.pem"))
    if trusted != "the system":
        monkeypatch.setenv("TRANSFER_TLS_CA", str(authority / "ca.pem"))
    shown = []
    with answering(authority, "broker", shown) as port:
        ask = ["groups", "list", "--url", f"https://{host}:{port}", "--token", "secret"]
        assert cli.run(ask) == 1
        said = capsys.readouterr().err
        assert shown == [] and "certificate is refused" in said and "TRANSFER_TLS_SERVER_NAME" in said
        monkeypatch.setenv("TRANSFER_TLS_SERVER_NAME", "broker.test")
        cli.run(ask)
    assert shown == ["secret"]


def test_its_own_certificate_gets_the_secret_whatever_it_names(authority, monkeypatch):
    for name, file in (("CERT", "self.pem"), ("KEY", "self.key")):
        monkeypatch.setenv(f"TRANSFER_TLS_{name}", str(authority / file))
    shown = []
    with answering(authority, "self", shown) as port:
        cli.run(["groups", "list", "--url", f"https://127.0.0.1:{port}", "--token", "secret"])
    assert shown == ["secret"]


def test_a_certificate_makes_it_ask_by_tls(health, authority, monkeypatch):
    with answering(authority, "broker") as port:
        monkeypatch.setenv("TRANSFER_BROKER__HTTP__PORT", str(port))
        assert health()[0] == 1
        for name, file in (("CERT", "broker.pem"), ("KEY", "broker.key"), ("CA", "ca.pem")):
            monkeypatch.setenv(f"TRANSFER_TLS_{name}", str(authority / file))
        assert health() == (0, "ok\n", "")


def test_who_asks_by_plain_http_where_tls_is_wanted_hears_so(health, authority, capsys):
    with answering(authority, "broker") as port:
        url = f"http://127.0.0.1:{port}"
        code, _, said = health(url)
        assert code == 1 and "https://" in said and "is the broker running" not in said
        assert cli.run(["groups", "list", "--url", url]) == 1
        assert "https://" in capsys.readouterr().err
