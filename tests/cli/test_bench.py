"""`transfer bench broker`."""

from __future__ import annotations

import json
import signal
import struct

import pytest

from tests.broker.in_process_broker import running
from transfer import cli
from transfer.broker.bench.plan import CLASSES, Mode
from transfer.broker.clients.rqueue import RqueueClient


def test_help(capsys):
    assert cli.run(["bench", "broker", "--help"]) == 0
    told = capsys.readouterr().out
    assert "Usage: transfer bench broker" in told
    for option in ("--mode", "--payload-class", "--compress", "--duration", "--connections", "matrix"):
        assert option in told
    assert cli.run(["bench", "broker", "matrix", "--help"]) == 0
    assert "--in-flight" in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong",
    [
        ("--mode", "sideways"),
        ("--payload-class", "huge"),
        ("--connections", "0"),
        ("--ttp", "127.0.0.1:1", "--data", "."),
        ("--duration", "soon"),
    ],
)
def test_wrong_usage(wrong, capsys):
    assert cli.run(["bench", "broker", *wrong]) == 2
    assert capsys.readouterr().err


def test_a_table(capsys, tmp_path):
    options = ["--duration", "0.2s", "--mode", "direct-ack", "--data", str(tmp_path)]
    assert cli.run(["bench", "broker", *options]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["what", "messages/s"] and line.startswith("direct-ack 1, small")
    assert list(tmp_path.iterdir()) == []


def test_a_broker_that_runs(capsys, tmp_path):
    with running(tmp_path) as broker:
        options = ["--requests", broker.endpoints["requests"], "--ttp", f"127.0.0.1:{broker.ports['ttp']}"]
        options += ["--duration", "0.2s", "--mode", "fanout", "--fanout-subs", "2", "--json"]
        assert cli.run(["bench", "broker", *options]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    assert told["plan"]["mode"] == "fanout" and told["delivered"] == 2 * told["messages"] > 0
    assert told["broker"]["cpu_seconds"] is None


def test_ctrl_c_shows_what_there_is(start, tmp_path):
    command = start("bench", "broker", "matrix", "--duration", "0.2s", "--json", "--data", tmp_path)
    first = json.loads(command.first_line())
    command.process.send_signal(signal.SIGINT)
    code, output, errors = command.end()
    assert code == 130 and "stopped by Ctrl-C" in errors and "Traceback" not in errors
    assert first["plan"]["mode"] == Mode.DIRECT_ACK and first["plan"]["payload_class"] == next(iter(CLASSES))
    assert 1 <= len(output.splitlines()) < 9
    assert list(tmp_path.iterdir()) == []


def rqueue_of(broker):
    return ["--rqueue", f"127.0.0.1:{broker.ports['rqueue']}"]


def test_a_sink_counts_what_a_pusher_publishes(start, capsys, tmp_path):
    with running(tmp_path) as broker:
        sink = start("bench", "broker", "sink", *rqueue_of(broker), "--count", "500", "--json")
        assert "start the pusher now" in sink.error_line()
        assert (
            cli.run(["bench", "broker", "pusher", *rqueue_of(broker), "--count", "500", "--size", "1KiB"])
            == 0
        )
        assert capsys.readouterr().out.startswith("500 messages in ")
        code, output, _ = sink.end()
    result = json.loads(output)
    assert code == 0
    assert (result["messages"], result["bytes"], result["missing"]) == (500, 500 * 1024, 0)
    assert result["messages_per_second"] > 0


def test_a_sink_tells_what_is_missing(start, tmp_path, monkeypatch):
    with running(tmp_path) as broker:
        sink = start("bench", "broker", "sink", *rqueue_of(broker), "--count", "3")
        assert "start the pusher now" in sink.error_line()
        with RqueueClient("127.0.0.1", broker.ports["rqueue"]) as client:
            for number in (0, 1, 4):
                client.publish("bench", struct.pack("<Q", number))
            code, output, _ = sink.end()
    assert code == 1
    assert b"2 missing" in output and output.startswith(b"3 messages")


def test_a_sink_for_which_nothing_comes(capsys, tmp_path):
    with running(tmp_path) as broker:
        assert (
            cli.run(["bench", "broker", "sink", *rqueue_of(broker), "--timeout", "0.2s"]) == cli.EXIT_TIMEOUT
        )
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "wrong",
    [
        ("sink", "--rqueue", "nowhere"),
        ("pusher", "--size", "7"),
        ("pusher", "--count", "0"),
        ("sink", "--rqueue", "h:0"),
    ],
)
def test_wrong_usage_of_sink_and_pusher(wrong, capsys):
    assert cli.run(["bench", "broker", *wrong]) == 2
    assert capsys.readouterr().err
