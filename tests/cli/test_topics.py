"""`transfer groups` and `transfer topics`, and how they and `transfer dlq` find the broker."""

from __future__ import annotations

import io
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.broker.http_requests import get_json, until
from tests.broker.in_process_broker import running
from transfer.broker.clients.native import BrokerClient
from transfer.cli import run as run_command


@pytest.fixture
def broker(tmp_path):
    with running(tmp_path / "data", http=0, token="secret") as one:
        with BrokerClient(one.endpoints["requests"]) as client:
            client.consume("orders", "billign", begin="old").leave()
            client.publish_many("orders", [b"1", b"2"])
        until(
            lambda: get_json(one.ports["http"], "groups", X_Admin_Token="secret")["groups"][0]["consumers"], 0
        )
        yield one


@pytest.fixture
def transfer(broker, capsys, monkeypatch):
    """transfer(words...): (exit code, lines of standard output, standard error); the environment says where
    the broker is, and its token."""
    monkeypatch.setenv("TRANSFER_BROKER__HTTP__PORT", str(broker.ports["http"]))
    monkeypatch.setenv("ADMIN_TOKEN", "secret")

    def called(*words, answer=""):
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        code = run_command([*map(str, words)])
        told = capsys.readouterr()
        return code, told.out.splitlines(), told.err

    return called


def test_groups_are_listed_moved_and_removed(transfer):
    code, lines, errors = transfer("groups", "list")
    assert (code, errors) == (0, "")
    assert lines[0].split() == ["topic", "group", "behind", "held", "coming", "again", "consumers", "idle"]
    assert lines[1].split()[:5] == ["orders", "billign", "2", "0", "0"]
    assert transfer("groups", "list", "--topic", "other")[1] == ["no groups"]
    (line,) = transfer("groups", "list", "--json")[1]
    assert json.loads(line)["lag"] == 2 and json.loads(line)["idle"] >= 0
    which = ("--topic", "orders", "--group", "billign")
    code, lines, _ = transfer("groups", "seek", *which, "--to", "1", "--yes", "--json")
    assert code == 0 and json.loads(lines[0])["cursor"] == 1
    code, lines, errors = transfer("groups", "remove", *which, answer="n\n")
    assert code == 1 and lines == [] and "Remove group billign of topic orders? [y/N]" in errors
    code, lines, _ = transfer("groups", "remove", *which, "--reason", "mistyped", answer="y\n")
    assert code == 0 and lines[0].startswith("done; the log takes ")
    assert transfer("groups", "list")[1] == ["no groups"]
    code, _, errors = transfer("groups", "remove", *which, "--yes")
    assert code == 2 and "has no group" in errors
    code, lines, _ = transfer("audit", "events", "--json")
    last = json.loads(lines[-1])
    assert (last["operation"], last["reason"]) == ("group_remove", "mistyped") and last["actor"]


def test_topics_are_listed_purged_and_removed(transfer):
    _, lines, _ = transfer("topics", "list")
    assert lines[1].split() == ["orders", "yes", "0", "2", "2", "2", "B", "0"]
    assert transfer("topics", "purge", "--topic", "orders", "--yes")[0] == 0
    _, (line,), _ = transfer("topics", "list", "--json")
    assert (json.loads(line)["oldest"], json.loads(line)["end"]) == (2, 2)
    assert transfer("topics", "remove", "--topic", "orders", "--yes")[0] == 0
    assert transfer("topics", "list")[1] == ["no topics"]
    assert transfer("groups", "list")[1] == ["no groups"]
    assert transfer("topics", "remove", "--topic", "orders", "--yes")[0] == 2


def test_the_broker_is_found_by_the_file_and_its_token_is_shown(transfer, broker, monkeypatch, tmp_path):
    file = tmp_path / "broker.toml"
    file.write_text(f'[http]\nport = {broker.ports["http"]}\ntoken = "secret"\n')
    monkeypatch.delenv("TRANSFER_BROKER__HTTP__PORT")
    monkeypatch.delenv("ADMIN_TOKEN")
    monkeypatch.setenv("TRANSFER_BROKER_CONFIG", str(file))
    assert transfer("dlq", "list")[:2] == (0, ["no dead letters"])
    assert transfer("dlq", "list", "--token", "wrong")[0] == 2
    file.write_text(f"[http]\nport = {broker.ports['http']}\n")
    assert transfer("dlq", "list")[0] == 2
    monkeypatch.setenv("TRANSFER_BROKER__HTTP__TOKEN", "secret")
    assert transfer("dlq", "list")[0] == 0


@pytest.fixture
def stranger():
    """(URL, the JSON that it answers) of an HTTP server that is no broker."""
    said = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(said[0])))
            self.end_headers()
            self.wfile.write(said[0])

        def log_message(self, *_):
            """Says nothing."""

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", said
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    "words", [("groups", "list"), ("topics", "list"), ("dlq", "list"), ("audit", "events")]
)
@pytest.mark.parametrize(
    "answer",
    ["{}", "[]", "null", "[" * 20_000]
    + [
        json.dumps(dict.fromkeys(("groups", "topics", "letters", "events"), one))
        for one in (None, [{}], ["x"])
    ],
    ids=["nothing", "list", "null", "deep", "none", "empty", "texts"],
)
def test_another_servers_json_is_told(stranger, capsys, words, answer):
    url, said = stranger
    said.append(answer.encode())
    assert run_command([*words, "--url", url]) == 1
    told = capsys.readouterr().err
    assert f"{url} is not a broker's admin API" in told and "Traceback" not in told
