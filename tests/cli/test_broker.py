"""`transfer broker` as a process: each front is served, it ends cleanly, and tells what is damaged."""

from __future__ import annotations

import json
import signal
import socket
import sys

import pytest

from tests.broker.http_requests import ask, get_json, until
from transfer import cli
from transfer.broker.clients.native import BrokerClient
from transfer.broker.clients.pybroker import PyBrokerClient
from transfer.broker.clients.rqueue import RqueueClient
from transfer.broker.clients.ttp import TtpClient
from transfer.broker.protocols.rqueue import encode_publish

HERE = "127.0.0.1"
#: each front on a free port
ANYWHERE = (
    "--ttp", "0", "--pybroker", "0", "--rqueue", "0", "--http", "0", "--spool", "off",
    "--abtp", "off",
    "--requests", f"{HERE}:0", "--pushes", f"{HERE}:0", "--subscriptions", f"{HERE}:0",
)  # fmt: skip


@pytest.fixture
def serve(start, tmp_path):
    """serve(options...) begins a broker on the test's folder: (command, what it says of itself)."""

    def begin(*options):
        command = start("broker", "--data", tmp_path / "data", *ANYWHERE, "--json", *options)
        line = command.first_line()
        assert line, command.end()
        return command, json.loads(line)

    return begin


@pytest.fixture
def within(capsys):
    """within(words...): `transfer broker` in this process: (exit code, standard output, standard error)."""

    def run(*words):
        code = cli.run(["broker", *map(str, words)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def end(command, number=signal.SIGTERM):
    command.process.send_signal(number)
    return command.end()


def test_port_is_not_one_protocols(within, tmp_path):
    """As rqueue's own server has it."""
    code, _, errors = within("--data", tmp_path / "data", "--port", "5000")
    assert code == 2 and "--rqueue 5000" in errors


def test_threads(serve, within, tmp_path):
    code, _, errors = within("--data", tmp_path / "data", "--threads", "0")
    assert code == 2 and "--threads" in errors
    command, _ = serve("--threads", "8", "--abtp", f"tcp://{HERE}:0", "--abtp-pub", f"tcp://{HERE}:0")
    assert end(command)[0] == 0


def test_each_front_is_served_and_nothing_is_lost_by_stops_and_kills(serve, tmp_path):
    command, printed = serve()
    ports = printed["ports"]
    with BrokerClient(printed["endpoints"]["requests"]) as own:
        own.publish("all", b"own-")
        with TtpClient(HERE, ports["ttp"]) as client:
            client.publish("all", b"ttp-", wait=True)
        with RqueueClient(HERE, ports["rqueue"]) as client:
            client.subscribe("all")
            client.publish("all", b"rqueue-")
            assert client.recv().content == b"rqueue-"
        with PyBrokerClient(HERE, ports["pybroker"]) as client:
            client.publish("all", b"pybroker")
            until(lambda: bytes(client.fetch("all", 0)), b"own-ttp-rqueue-pybroker")
    command.process.kill()
    assert command.end()[0] == -signal.SIGKILL
    for number, code in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
        command, printed = serve()
        with PyBrokerClient(HERE, printed["ports"]["pybroker"]) as client:
            assert client.fetch("all", 0) == b"own-ttp-rqueue-pybroker"
        assert get_json(printed["ports"]["http"], "topics")["topics"][0]["end"] == 4
        ended, output, said = end(command, number)
        assert (ended, output.count(b"\n")) == (code, 1), said
        assert said.splitlines()[-1].endswith(f"ended by {number.name}; acknowledged messages are kept")
        assert "Traceback" not in said and "WARNING" not in said


def test_it_says_where_everything_is(start, tmp_path):
    command = start("broker", "--data", tmp_path, *ANYWHERE, "--pybroker", "off", "--pushes", "off")
    assert command.first_line() == f"serving {tmp_path} (Ctrl-C ends it)\n"
    code, output, _ = end(command)
    words = [line.split() for line in output.decode().splitlines()[1:]]
    assert code == 0
    assert [line[0] for line in words] == ["native", "native", "ttp", "rqueue", "console"]
    assert [line[2] for line in words[:2]] == ["requests", "subscriptions"]
    assert words[-1][1].startswith(f"http://{HERE}:")


def test_a_stop_waits_for_what_has_begun_and_the_second_does_not(serve):
    command, printed = serve("--drain-timeout", "1h")
    with socket.create_connection((HERE, printed["ports"]["rqueue"]), 20) as peer:
        peer.sendall(encode_publish("t", 1 << 20) + bytes(1000))
        until(lambda: get_json(printed["ports"]["http"], "overview")["topics"], 1)
        command.process.send_signal(signal.SIGTERM)
        until(lambda: ask(printed["ports"]["http"], "/readyz")[0], 503)
        assert command.process.poll() is None
        code, _, said = end(command)
    assert code == 0 and "ended at once, because of a second signal" in said


def test_a_stop_does_not_wait_for_ever(serve):
    command, printed = serve("--drain-timeout", "100ms")
    with socket.create_connection((HERE, printed["ports"]["rqueue"]), 20) as peer:
        peer.sendall(encode_publish("t", 1 << 20) + bytes(1000))
        until(lambda: get_json(printed["ports"]["http"], "overview")["topics"], 1)
        code, _, said = end(command)
    assert code == 0 and "ended after 0.1 s, with unfinished work" in said


def test_others_are_let_in_only_where_that_is_allowed_and_with_a_warning(
    serve, within, tmp_path, monkeypatch
):
    code, out, said = within("--data", tmp_path / "none", *ANYWHERE, "--host", "0.0.0.0")
    assert (code, out) == (1, "")
    assert said.startswith("transfer: tcp://0.0.0.0:0 would accept connections without authentication")
    assert "TRANSFER_UNAUTHENTICATED=allow" in said
    monkeypatch.setenv("TRANSFER_UNAUTHENTICATED", "allow")
    command, _ = serve("--host", "0.0.0.0")
    _, _, said = end(command)
    fronts, *http = (line for line in said.splitlines() if "WARNING" in line)
    assert "ttp at tcp://0.0.0.0:" in fronts and "without authentication" in fronts and "own at" not in fronts
    assert [line.partition("HTTP at ")[2][:6] for line in http] == ["http:/", "tcp://"]
    assert all("without ADMIN_TOKEN" in line for line in http)


def test_a_file_and_variables_are_read(start, tmp_path, monkeypatch):
    file = tmp_path / "broker.toml"
    file.write_text('[broker]\ndata = "kept"\n[pybroker]\nport = "off"\n[ttp]\nport = "off"\n')
    monkeypatch.setenv("TRANSFER_BROKER__TTP__PORT", "0")
    monkeypatch.setenv("ADMIN_TOKEN", "secret")
    monkeypatch.setenv("FASTPATH_SOCKET_PATH", "/tmp/x.sock")
    rest = ANYWHERE[ANYWHERE.index("--rqueue") :]
    command = start("broker", "--config", file, *rest, "--set", "ttp.idle_timeout=2m", "--json")
    printed = json.loads(command.first_line())
    assert printed["folder"] == str(tmp_path / "kept") and list(printed["fronts"]) == [
        "native",
        "ttp",
        "rqueue",
    ]
    assert ask(printed["ports"]["http"], "/api/overview")[0] == 401
    code, _, said = end(command)
    assert code == 0 and said.startswith("transfer: FASTPATH_SOCKET_PATH: no effect")
    assert "secret" not in said


def test_a_folder_has_one_broker(serve, within, tmp_path):
    serve()
    code, _, said = within("--data", tmp_path / "data", *ANYWHERE)
    assert code == 2
    assert f"transfer: another broker runs on {tmp_path / 'data'}\n  hint: end it first" in said
    code, _, said = within("check", tmp_path / "data")
    assert code == 2 and f"transfer: a broker runs on {tmp_path / 'data'}\n  hint: end it first" in said


@pytest.mark.parametrize("option", ["--ttp", "--http", "--requests"])
def test_a_port_in_use_is_one_clear_line(within, tmp_path, option):
    with socket.create_server((HERE, 0)) as taken:
        port = taken.getsockname()[1]
        where = f"{HERE}:{port}" if option == "--requests" else port
        code, output, said = within("--data", tmp_path, *ANYWHERE, option, where)
    assert (code, output) == (2, ""), said
    assert (
        said.startswith("transfer: ") and f"{port}" in said and "in use" in said and "Traceback" not in said
    )
    assert f"or off, with {option}" in said


def filled(serve):
    """A broker's folder with messages, a dead letter and an event in the audit; the broker has ended."""
    command, printed = serve()
    with BrokerClient(printed["endpoints"]["requests"]) as client:
        client.publish_many("rows", [b"first row", b"second row", b"third row"])
        client.publish("large", b"x" * 100_000)
    letter = {
        "id": "m1",
        "consumer": "c",
        "topic": "rows",
        "payload": "bad",
        "actor": "me",
        "reason": "quarantine",
    }
    assert ask(printed["ports"]["http"], "/api/admin/dlq/dead-letter", method="POST", body=letter)[0] == 201
    assert end(command)[0] == 0


def flip(path, word):
    data = bytearray(path.read_bytes())
    data[data.index(word)] ^= 0xFF  # one bit would be put right
    path.write_bytes(data)


def test_a_whole_folder_is_told_to_be_so(serve, within, tmp_path):
    filled(serve)
    code, output, said = within("check", tmp_path / "data")
    assert (code, said.count("damaged")) == (0, 0), said
    lines = output.splitlines()
    assert [line.split()[:2] for line in lines] == [
        [part, "whole"] for part in ("log", "state", "letters", "audit")
    ]
    code, output, _ = within("check", tmp_path / "data", "--json")
    assert code == 0 and json.loads(output)["whole"]


def test_what_is_damaged_is_found(serve, within, tmp_path):
    filled(serve)
    data = tmp_path / "data"
    (records,) = (path for path in (data / "log").glob("*.log") if b"second row" in path.read_bytes())
    flip(records, b"second row")
    (audit,) = (path for path in (data / "audit").iterdir() if b"quarantine" in path.read_bytes())
    flip(audit, b"quarantine")
    code, output, _ = within("check", data, "--json")
    printed = {part["part"]: part["problems"] for part in json.loads(output)["parts"]}
    assert code == 1 and printed["log"] and printed["audit"] and not printed["state"]
    code, output, _ = within("check", data)
    assert code == 1 and output.count("DAMAGED") == 2


def test_a_damaged_database_is_told_with_what_to_do(serve, within, tmp_path):
    filled(serve)
    state = tmp_path / "data" / "state.db"
    state.write_bytes(b"no database" + state.read_bytes()[11:])
    code, output, _ = within("check", tmp_path / "data")
    assert code == 1 and "state   DAMAGED" in output
    code, _, said = within("--data", tmp_path / "data", *ANYWHERE)
    assert (
        code == 1
        and "is damaged, and nothing was changed" in said
        and "\n  hint: `transfer broker check" in said
    )


def test_a_folder_of_something_else_is_not_checked(capsys, tmp_path):
    assert cli.run(["broker", "check", str(tmp_path)]) == 2
    assert "has no data of a broker" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


#: `transfer` on a disk that fails when a file says so
_BAD_DISK = """
import errno, os, pathlib, sys
good, flag = os.fdatasync, pathlib.Path(sys.argv.pop())
def fdatasync(fd):
    if flag.exists():
        raise OSError(errno.EIO, "Input/output error")
    good(fd)
os.fdatasync = fdatasync
from transfer.cli import main
main(sys.argv[1:])
"""


def test_a_failed_disk_ends_it_so_that_it_is_started_again(start, tmp_path):
    flag = tmp_path / "bad"
    command = start(
        "broker", "--data", tmp_path / "data", *ANYWHERE, "--json", flag, program=("-c", _BAD_DISK)
    )
    printed = json.loads(command.first_line())
    with RqueueClient(HERE, printed["ports"]["rqueue"]) as client:
        client.publish("t", b"kept")
        until(lambda: get_json(printed["ports"]["http"], "topics")["topics"][:1] != [], True)
        flag.touch()
        client.publish("t", b"not kept")
        code, _, said = command.end()
    assert code == 1
    assert "transfer: the broker has ended, since its log failed: " in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ([], "no data folder is configured\n  hint: give it with --data DIR"),
        (
            ["--data", "x", "--ttp", "many"],
            "--ttp is 'many'\n  hint: it has to be a port from 0 to 65535, or off",
        ),
        (["--data", "x", "--requests", "nowhere"], "--requests is 'nowhere'"),
        (["--data", "x", "--set", "ttp.idle_timeot=3"], "'ttp.idle_timeout' is the nearest that there is"),
        (["--data", "x", "--retention-age", "7 years"], "--retention-age is '7 years'"),
        (["--data", "x", "--config", "none.toml"], "none.toml cannot be read"),
        (["--data", __file__], "is no folder"),
    ],
)
def test_wrong_words_end_with_usage(words, printed, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.run(["broker", *words]) == 2
    assert printed in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_http_without_its_library_is_one_clear_line(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "transfer.broker.http.server", None)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    for name in [name for name in sys.modules if name.startswith("transfer.broker.http")]:
        if name != "transfer.broker.http.server":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "transfer.broker.http.server")
    assert cli.run(["broker", "--data", str(tmp_path), *ANYWHERE]) == 1
    assert "the broker's HTTP needs aiohttp\n  hint: pip install" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "option", "instead"),
    [
        ("topics list", "--token", "ADMIN_TOKEN"),
        ("dlq list", "--token", "ADMIN_TOKEN"),
        ("broker", "--set", "file"),
    ],
)
def test_help_says_that_all_users_see_command_lines(capsys, command, option, instead):
    assert cli.run([*command.split(), "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    said = text[text.index(f"{option} ") :]
    assert "All users of this host see" in said and instead in said[: said.index(instead) + len(instead)]
