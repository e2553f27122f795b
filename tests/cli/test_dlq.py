"""`transfer dlq` and `transfer audit` ask a broker's admin API, as operators do."""

from __future__ import annotations

import json
import socket
import threading

import pytest

from tests.broker.admin_server import serving
from tests.broker.test_operations import OperatorStores
from transfer.cli import run as run_command

TARGET = ("--target-consumer", "worker-1", "--target-topic", "orders.created")
WHO = ("--actor", "ops@example.com", "--reason", "customer-approved replay")
PURGE = ("--actor", "ops@example.com", "--mutation-reason", "retention cleanup", "--confirm", "PURGE")


@pytest.fixture
def stores(tmp_path):
    one = OperatorStores(tmp_path)
    yield one
    one.close()


@pytest.fixture
def transfer(stores, capfd):
    """transfer(arguments...) -> (exit code, lines of output, errors); the broker's address is added."""
    with serving(stores.operator) as port:

        def called(*arguments, url=f"http://127.0.0.1:{port}"):
            code = run_command([*arguments, "--url", url] if url else arguments)
            told = capfd.readouterr()
            return code, told.out.splitlines(), told.err

        yield called


def test_list_is_a_table(stores, transfer):
    assert transfer("dlq", "list") == (0, ["no dead letters"], "")
    stores.add(0, 1, last_ms=1_774_051_200_000, attempts=3)
    stores.add(2, consumer="worker-2", tenant="acme", message_id="msg\x1b[2J")
    code, lines, errors = transfer("dlq", "list", "--consumer", "worker-1")
    assert (code, errors) == (0, "")
    assert lines[0].split() == [
        *("message", "consumer", "topic", "reason", "attempts", "last", "payload", "state")
    ]
    assert lines[1].split() == [
        *("msg-0", "worker-1", "orders.created", "attempts", "exhausted", "3"),
        *("2026-03-21T00:00:00.000Z", "6", "B", "dead"),
    ]
    _, lines, errors = transfer("dlq", "list", "--limit", "2")
    assert len(lines) == 3 and "--after 2" in errors
    _, lines, errors = transfer("dlq", "list", "--after", "2")
    assert "\x1b" not in lines[1] and lines[1].startswith("acme    msg\\x1b[2J") and not errors


def test_list_as_json(stores, transfer):
    stores.add(0, 1)
    _, lines, _ = transfer("dlq", "list", "--json")
    assert [json.loads(line)["message_id"] for line in lines] == ["msg-0", "msg-1"]


def test_inspect(stores, transfer):
    stores.add(0, headers={"priority": 5}, payload=b"one\ntwo\x1b[2J")
    stores.add(1, payload=b"\xff")
    code, lines, _ = transfer("dlq", "inspect", "--id", "msg-0")
    assert code == 0
    assert "delivery id:    delivery-0" in lines and "header:         priority: 5" in lines
    assert lines[-2:] == ["one", "two\\x1b[2J"]
    assert "no text" in transfer("dlq", "inspect", "--id", "delivery-1")[1][-1]
    _, lines, _ = transfer("dlq", "inspect", "--id", "msg-1", "--json")
    assert json.loads(lines[0])["payload_base64"] == "/w=="
    assert transfer("dlq", "inspect", "--id", "msg-9") == (
        1,
        [],
        "transfer: there is no dead letter 'msg-9'\n",
    )


def test_replay_as_the_manual_says(stores, transfer):
    stores.add(0, 1, 2)
    code, lines, _ = transfer("dlq", "replay", "--ids", "msg-0,msg-1", *TARGET, *WHO, "--confirm", "REPLAY")
    assert (code, lines) == (0, ["replayed 2 of 2"])
    assert [id for id, _ in stores.published] == ["msg-0", "msg-1"]
    code, lines, _ = transfer(
        "dlq", "replay", "--ids", "msg-2", "--id", "msg,9", *TARGET, *WHO, "--confirm", "REPLAY", "--json"
    )
    told = json.loads(lines[0])
    assert (code, told["requested"], told["replayed"]) == (1, 2, 1)
    assert told["failures"][0]["id"] == "msg,9"


def test_replay_elsewhere_or_without_the_word_does_nothing(stores, transfer):
    stores.add(0)
    elsewhere = ("--target-consumer", "worker-2", "--target-topic", "orders.created")
    code, lines, errors = transfer("dlq", "replay", "--ids", "msg-0", *elsewhere, *WHO, "--confirm", "REPLAY")
    assert (code, lines) == (1, ["replayed 0 of 1"]) and errors.startswith("transfer: msg-0: its consumer")
    code, lines, errors = transfer("dlq", "replay", "--ids", "msg-0", *TARGET, *WHO, "--confirm", "replay")
    assert (code, lines) == (2, []) and "the word REPLAY" in errors
    for missing in ((*TARGET, *WHO), (*TARGET, "--confirm", "REPLAY"), (*WHO, "--confirm", "REPLAY")):
        assert transfer("dlq", "replay", "--ids", "msg-0", *missing)[0] == 2
    assert transfer("dlq", "replay", *TARGET, *WHO, "--confirm", "REPLAY")[0] == 2
    assert stores.letters.count() == 1 and not stores.published


def test_quarantine_and_purge(stores, transfer, tmp_path):
    (tmp_path / "body").write_bytes(b"\xff\x00")
    where = ("--consumer", "worker-1", "--topic", "orders.created")
    made = ("dlq", "dead-letter", *where, *WHO)
    assert transfer(*made, "--id", "msg-1", "--payload", "raw-body") == (
        0,
        ["msg-1 is a dead letter now"],
        "",
    )
    assert transfer(*made, "--id", "msg-2", "--payload-file", str(tmp_path / "body"))[0] == 0
    assert stores.operator.inspect("msg-2")[0].payload == b"\xff\x00"
    assert transfer(*made, "--id", "msg-1", "--payload", "")[0] == 2
    for wrong in ((), ("--payload", "x", "--payload-file", "y")):
        assert transfer(*made, "--id", "msg-3", *wrong)[0] == 2
    assert transfer(*made, "--id", "msg-3", "--payload-file", str(tmp_path / "none"))[0] == 1
    assert transfer("dlq", "purge", "--ids", "msg-1", *PURGE) == (0, ["purged 1 of 1"], "")
    assert transfer("dlq", "purge", "--ids", "msg-1", *PURGE)[0] == 1
    assert stores.letters.count() == 1


def test_what_is_not_audited_yet_is_told(stores, transfer):
    stores.add(0)
    stores.audit.close()
    code, lines, errors = transfer("dlq", "purge", "--ids", "msg-0", *PURGE)
    assert (code, lines) == (1, ["purged 1 of 1"]) and "cannot write its audit" in errors


def test_the_audit_is_told(stores, transfer):
    stores.add(0, 1)
    stores.purge("msg-0")
    stores.purge("msg-1", actor="eve")
    day = ("--start", "2026-03-21T00:00:00Z", "--end", "2026-03-22T00:00:00Z")
    for command in (("dlq", "audit"), ("audit", "events")):
        code, lines, _ = transfer(*command, "--id", "msg-0", "--actor", "ops@example.com", *day)
        assert code == 0 and len(lines) == 2
        assert lines[1].split()[:6] == [
            *("1", "2026-03-21T00:00:00.000Z", "ops@example.com", "purge", "msg-0", "purged")
        ]
    assert transfer("audit", "events", "--start", "2026-03-22") == (0, ["no events"], "")
    assert transfer("audit", "events", "--start", "yesterday")[0] == 2
    _, lines, errors = transfer("audit", "events", "--limit", "1", "--json")
    assert json.loads(lines[0])["sequence"] == 1 and "--after 1" in errors


def test_the_chain_is_checked_at_the_broker_and_without_it(stores, transfer, tmp_path):
    stores.add(0, 1)
    stores.purge("msg-0")
    noted = f"1:{stores.audit.head.hash}"
    stores.purge("msg-1")
    for where in ((), ("--data", str(tmp_path)), ("--data", str(tmp_path / "audit"))):
        code, lines, _ = transfer("audit", "verify", "--expect", noted, *where)
        assert (code, lines[-1]) == (0, "the chain is whole") and lines[0].startswith(
            "2 events, the last is 2:"
        )
        code, lines, _ = transfer("audit", "verify", "--expect", "2" + noted[1:], *where)
        assert code == 1 and "event 2 with that hash is gone" in lines[0]
    path = tmp_path / "audit" / "audit.log"
    path.write_bytes(path.read_bytes().replace(b"purged", b"forged", 1))
    for where in ((), ("--data", str(tmp_path))):
        code, lines, _ = transfer("audit", "verify", *where)
        assert code == 1 and lines[0].startswith("damaged: audit.log, line 1: its hash")
        code, lines, _ = transfer("audit", "verify", "--json", *where)
        assert code == 1 and not json.loads(lines[0])["whole"]
    assert transfer("audit", "verify", "--data", str(tmp_path / "none"))[0] == 2
    assert transfer("audit", "verify", "--expect", "1:beef")[0] == 2


def test_an_export_is_written_and_checked(stores, transfer, tmp_path):
    stores.add(0, 1)
    stores.purge("msg-0")
    stores.purge("msg-1")
    file = tmp_path / "export.jsonl"
    for where in ((), ("--data", str(tmp_path))):
        assert transfer("audit", "export", "--out", str(file), "--start", "2026-03-21", *where)[0] == 0
        assert transfer("audit", "verify", "--file", str(file)) == (0, ["2 events; the export is whole"], "")
        _, lines, _ = transfer("audit", "export", *where)
        assert [line.encode() for line in lines] == file.read_bytes().splitlines()
    file.write_bytes(file.read_bytes().replace(b"eve", b"adam").replace(b"msg-0", b"msg-7"))
    code, lines, _ = transfer("audit", "verify", "--file", str(file))
    assert code == 1 and lines[0].startswith(f"damaged: {file}, line 2")
    assert transfer("audit", "export", "--start", "yesterday", "--out", str(tmp_path / "no"))[0] == 2
    assert sorted(path.name for path in tmp_path.glob("*no*") if path.is_file()) == []


def test_the_token_is_given_or_read_from_the_environment(stores, capfd, monkeypatch):
    monkeypatch.delenv("ADMIN_TOKEN", raising=False)
    with serving(stores.operator, token="secret") as port:
        monkeypatch.setenv("TRANSFER_ADMIN_URL", f"http://127.0.0.1:{port}")
        assert run_command(["dlq", "list"]) == 2
        assert "--token, or ADMIN_TOKEN" in capfd.readouterr().err
        assert run_command(["dlq", "list", "--token", "guess"]) == 2
        assert run_command(["dlq", "list", "--token", "secret"]) == 0
        monkeypatch.setenv("ADMIN_TOKEN", "secret")
        assert run_command(["audit", "events"]) == 0
        assert run_command(["dlq", "list", "--token", "a\nb"]) == 2


def test_nobody_answers(transfer):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    code, lines, errors = transfer("dlq", "list", url=f"http://127.0.0.1:{port}")
    assert (code, lines) == (1, []) and "no answer from" in errors and "--url" in errors
    for wrong in ("127.0.0.1:9180", "ftp://127.0.0.1", "http://"):
        assert transfer("dlq", "list", url=wrong)[0] == 2


@pytest.mark.parametrize(
    ("answer", "wanted", "text"),
    [
        (b"", 1, "ended the connection"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 1, "is not a broker's admin API"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno", 1, "is not a broker's admin API"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://example.com/\r\nContent-Length: 0\r\n\r\n", 1, "302"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello", 1, "ended the connection"),
        (None, 3, "did not answer within 0.3 s"),
    ],
)
def test_another_server_answers(transfer, answer, wanted, text):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = threading.Event()

        def serve():
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                if answer is None:
                    done.wait(20)
                else:
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            code, _, errors = transfer("dlq", "list", "--timeout", "0.3", url=url)
        finally:
            done.set()
            thread.join(20)
    assert code == wanted and text in errors


def test_an_export_that_is_cut_off_is_told_and_leaves_no_file(transfer, tmp_path):
    body = b'{"export_begin":{"after_sequence":0,"prev_hash":"0"}}\n'
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body)

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        code, _, errors = transfer("audit", "export", "--out", str(tmp_path / "export"), url=url)
        thread.join(20)
    assert code == 1 and "cut off" in errors
    assert not list(tmp_path.glob("export*"))


def test_the_command_as_a_process(stores, run):
    stores.add(0)
    with serving(stores.operator) as port:
        code, output, _ = run("dlq", "list", "--json", "--url", f"http://127.0.0.1:{port}")
    assert code == 0 and json.loads(output)["message_id"] == "msg-0"
