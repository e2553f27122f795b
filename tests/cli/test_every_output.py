"""Each command, found by itself: what `--json` writes is JSON, and a reader that leaves is no error."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from contextlib import ExitStack

import pytest
import typer.main

import transfer
from tests.broker.http_requests import get_json, until
from tests.broker.in_process_broker import running
from tests.cli.run_writer import send_run
from tests.cli.test_broker import ANYWHERE
from transfer.broker.clients.native import BrokerClient
from transfer.cli import app, bench, run
from transfer.doctor import Check
from transfer.spool import RowStream, Spool

NOWHERE = "127.0.0.1:1"
#: they run until they are ended: as processes, below
SERVICES = {"serve", "broker", "doctor --serve"}
#: a whole measurement takes seconds: `test_bench.py` reads what they print
MEASURED = {"bench broker", "bench broker matrix", "bench broker sink", "bench broker pusher"}


def commands():
    """(words, command) of each, groups of commands too."""

    def walk(command, words):
        yield " ".join(words), command
        for name, one in getattr(command, "commands", {}).items():
            yield from walk(one, (*words, name))

    yield from walk(typer.main.get_command(app.app), ())
    yield from walk(typer.main.get_command(bench.app), ("bench", "broker"))


def with_json():
    return {words for words, one in commands() if any("--json" in parameter.opts for parameter in one.params)}


def documents(output: str):
    """The objects of JSON lines. Raises ValueError for what is no JSON, NaN too."""
    assert not output or output.endswith("\n")

    def refuse(text):
        raise ValueError(f"{text} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in output.splitlines()]


@pytest.fixture
def empty(tmp_path_factory):
    """A broker and a spool without anything."""
    with running(tmp_path_factory.mktemp("empty"), http=0) as broker:
        with Spool(tmp_path_factory.mktemp("none"), "tcp://127.0.0.1:0") as spool:
            yield f"http://127.0.0.1:{broker.ports['http']}", spool.url()


@pytest.fixture
def full(tmp_path_factory):
    """(URL of a broker with a topic, a group and dead letters; of a spool with a run that was read; folders
    of both that ran before)"""
    folders = [tmp_path_factory.mktemp("full") / name for name in ("data", "spool", "old", "rows")]
    with running(folders[2]), Spool(folders[3], "tcp://127.0.0.1:0"):
        pass
    with running(folders[0], http=0) as broker, Spool(folders[1], "tcp://127.0.0.1:0") as spool:
        with BrokerClient(broker.endpoints["requests"]) as client:
            client.publish_many("t", [b"0", b"1", b"2", b"3"])
            consumer = client.consume("t", "g", begin="old")
            for _ in range(3):
                consumer.nack(consumer.recv(), "cannot be read", retry=False)
            consumer.leave()
        until(lambda: len(get_json(broker.ports["http"], "admin/dlq/list")["letters"]), 3)
        send_run(spool.url("one"), [list(range(20))])
        with RowStream(spool.url("one"), 8, timeout=20) as rows:
            next(iter(rows))
            rows.acknowledge()
        yield f"http://127.0.0.1:{broker.ports['http']}", spool.url("one"), *folders[2:]


def cases(url: str, run: str, data, rows, out) -> dict[str, list]:
    """By command: words with which it has something to show. In this order: the later ones delete."""
    at, who = ["--url", url], ["--actor", "a", "--reason", "b"]
    letter = "t/g/"
    target = ["--target-consumer", "g", "--target-topic", "t"]
    return {
        "version": [],
        "doctor": [],
        "runs list": [run.rpartition("/")[0]],
        "runs inspect": [run],
        "runs groups": [run],
        "runs lineage": [run, "--step", "0"],
        "runs verify": [run],
        "runs salvage": [rows, "--out", out],
        "runs forget-group": [run, "default", "--yes", "--force"],
        "runs delete": [run, "--yes", "--force"],
        "broker check": [data],
        "dlq list": at,
        "dlq inspect": [*at, "--id", f"{letter}0"],
        "dlq replay": [*at, "--id", f"{letter}0", *target, *who, "--confirm", "REPLAY"],
        "dlq dead-letter": [
            *at,
            "--id",
            "by-hand",
            "--consumer",
            "g",
            "--topic",
            "t",
            *who,
            "--payload",
            "x",
        ],
        "dlq purge": [*at, "--id", f"{letter}1", *who, "--confirm", "PURGE"],
        "dlq audit": at,
        "audit events": at,
        "audit verify": at,
        "groups list": at,
        "groups seek": [*at, "--topic", "t", "--group", "g", "--to", "begin", "--yes"],
        "groups remove": [*at, "--topic", "t", "--group", "g", "--yes"],
        "topics list": at,
        "topics purge": [*at, "--topic", "t", "--yes"],
        "topics remove": [*at, "--topic", "t", "--yes"],
    }


WAITING = (
    "runs list run://{} --json",
    "runs verify {}",
    "dlq list --url http://{} --json",
    "topics list --url http://{}",
    "health http://{} --timeout 60",
    "doctor --peer {} --json",
)
SENDING = {"push", "pub", "req"}
SOCKETS = ["push", "pull", "pub", "sub", "req", "rep"]


@pytest.fixture
def healthy(monkeypatch):
    """What `doctor` finds, at once."""
    monkeypatch.setattr("transfer.doctor.examine", lambda: [Check("base", "core", "ok", "x")])


def test_no_command_is_left_out():
    assert {*cases("", "/", "", "", ""), *SOCKETS, *SERVICES - {"doctor --serve"}, *MEASURED} == with_json()


def test_json_of_what_there_is(full, healthy, capfd, tmp_path):
    wrong = []
    for words, more in cases(*full, tmp_path / "out").items():
        code = run([*words.split(), *map(str, more), "--json"])
        printed = capfd.readouterr()
        try:
            found = documents(printed.out)
        except ValueError as error:
            wrong.append(f"{words}: {error}")
        else:
            if (words != "runs salvage" and not found) or code != 0:
                wrong.append(f"{words}: {code} {printed}")
    assert not wrong, "\n".join(wrong)


def test_json_with_nothing_to_show(empty, capfd):
    url, spool = empty
    for words in ("dlq list", "dlq audit", "audit events", "groups list", "topics list"):
        assert run([*words.split(), "--url", url, "--json"]) == 0
        assert capfd.readouterr().out == ""
    for words in ("runs list", "runs verify"):
        assert run([*words.split(), spool, "--json"]) == 0
        assert capfd.readouterr().out == ""


def test_json_of_failures(capfd, monkeypatch, tmp_path):
    """Nothing answers, nothing is there: the reason is on standard error, and the exit code says it."""
    monkeypatch.setattr("transfer.doctor.examine", lambda: [Check("base", "core", "fail", "x")])
    url = f"http://{NOWHERE}"
    there = cases(url, f"run://{NOWHERE}/one", tmp_path / "absent", tmp_path / "absent", tmp_path / "out")
    del there["version"]
    calls = {words: [*map(str, more)] for words, more in there.items()}
    for words in SOCKETS:
        calls[words] = ["-c", f"tcp://{NOWHERE}", "-t", "0.2", *(["-d", "x"] if words in SENDING else [])]
    calls |= {"serve": ["--spool", os.devnull], "broker": ["--data", os.devnull]}
    calls |= {words: ["--connections", "0"] for words in MEASURED}
    wrong = []
    for words, more in calls.items():
        if words.startswith("runs"):
            more = [*more, "--timeout", "0.2"] if words != "runs salvage" else more
        code = run([*words.split(), *more, "--json"])
        printed = capfd.readouterr()
        try:
            found = documents(printed.out)
        except ValueError as error:
            wrong.append(f"{words}: {error}")
        else:
            if code not in (1, 2, 3) or not (printed.err or found) or "Traceback" in printed.err:
                wrong.append(f"{words}: {code} {printed}")
    assert not wrong, "\n".join(wrong)


def test_json_has_no_nan(capfd):
    """Metadata that a peer sends may have what JSON has not."""
    with transfer.Context() as context, context.socket(transfer.PUSH) as push:
        push.bind("tcp://127.0.0.1:0")
        thread = threading.Thread(
            target=lambda: push.send_tensors({}, meta={"loss": float("nan"), "best": [float("-inf"), 1]})
        )
        thread.start()
        assert run(["pull", "-c", push.last_endpoint, "-n", "1", "-t", "20", "--json"]) == 0
        thread.join(20)
    (printed,) = documents(capfd.readouterr().out)
    assert printed["meta"] == {"loss": None, "best": [None, 1]}


class Gone:
    """Standard output of which the reader has left."""

    def __enter__(self):
        read, write = os.pipe()
        os.close(read)
        self.file, self.before = os.fdopen(write, "w"), sys.stdout
        sys.stdout = self.file
        return self

    def __exit__(self, *_):
        sys.stdout = self.before
        self.file.close()


def test_services_say_where_they_are_in_json_and_end_by_ctrl_c(start, tmp_path):
    services = [
        start("serve", "--spool", tmp_path / "spool", "--bind", "127.0.0.1:0", "--json"),
        start("broker", "--data", tmp_path / "data", *ANYWHERE, "--json"),
        start("doctor", "--serve", "tcp://127.0.0.1:0", "--json"),
    ]
    for service in services:
        assert documents(service.first_line())
        service.process.send_signal(signal.SIGINT)
    for service in services:
        code, output, said = service.end()
        assert code == 130 and len(documents(output.decode())) == 1, said
        assert "Traceback" not in said


def test_commands_that_wait_for_an_answer_end_by_ctrl_c(start):
    """Something takes the connection and says nothing."""
    with ExitStack() as stack:
        commands = []
        for words in WAITING:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            listener.settimeout(40)
            at = f"127.0.0.1:{listener.getsockname()[1]}"
            commands.append((words, listener, start(*words.format(at).split())))
        for _, listener, command in commands:
            stack.enter_context(listener.accept()[0])
            command.process.send_signal(signal.SIGINT)
        for words, _, command in commands:
            assert command.end() == (130, b"", "transfer: stopped by Ctrl-C\n"), words


def test_a_reader_that_leaves_is_no_error(full, healthy, capfd, tmp_path):
    calls = {f"{words} --help": [] for words, one in commands() if hasattr(one, "commands")}
    calls |= {"bench --help": [], "bench --list": []}
    calls |= cases(*full, tmp_path / "out")
    wrong = []
    for words, more in calls.items():
        with Gone():
            code = run([*words.split(), *map(str, more)])
        said = capfd.readouterr().err
        if code != 0 or "Traceback" in said or "roken pipe" in said:
            wrong.append(f"{words}: {code} {said}")
    assert not wrong, "\n".join(wrong)
