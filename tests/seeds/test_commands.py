"""The commands of AetherBus-Tachyon, as its document writes them: the harness, with shorter times, and those
of its dead letters."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.broker.in_process_broker import running
from transfer import cli
from transfer.broker.bench import measurement
from transfer.broker.clients.abtp import AbtpConsumer, AbtpProducer
from transfer.broker.config.settings import AbtpEndpoints

pytestmark = pytest.mark.timeout(120)

ANYWHERE = AbtpEndpoints("tcp://127.0.0.1:0", "tcp://127.0.0.1:0")

HARNESS = """
go run ./cmd/tachyon-bench harness --mode direct-ack --payload-class small --compress=true --duration 20s
go run ./cmd/tachyon-bench harness --mode fanout --fanout-subs 8 --payload-class medium --compress=false --duration 20s
go run ./cmd/tachyon-bench harness --mode mixed --mixed-topics 8 --payload-class medium --compress=true --duration 30s
"""  # noqa: E501 - word for word

DEAD_LETTERS = """
go run ./cmd/tachyon dlq list --consumer worker-1
go run ./cmd/tachyon dlq inspect --id msg-123
go run ./cmd/tachyon dlq replay --ids msg-123 --target-consumer worker-1 --target-topic orders.created --actor ops@example.com --reason "customer-approved replay" --confirm REPLAY
go run ./cmd/tachyon dlq dead-letter --id msg-123 --consumer worker-1 --topic orders.created --payload "raw-body" --actor ops@example.com --reason "manual quarantine"
go run ./cmd/tachyon dlq purge --ids msg-123 --actor ops@example.com --mutation-reason "retention cleanup" --confirm PURGE
go run ./cmd/tachyon dlq audit --id msg-123 --actor ops@example.com --start 2026-03-21T00:00:00Z --end 2026-03-22T00:00:00Z
"""  # noqa: E501 - word for word


@pytest.fixture(autouse=True)
def busy(monkeypatch):
    """What has not come on a machine that is busy with other tests is not lost yet."""
    monkeypatch.setattr(measurement, "_SILENCE", 30.0)


@pytest.mark.parametrize("line", HARNESS.split("\n")[1:-1])
def test_the_harness(line, capsys):
    ours = line.replace("go run ./cmd/tachyon-bench harness", "bench broker")
    assert cli.run(shlex.split(re.sub(r"(?<=--duration )\d+s", "0.3s", ours))) == 0
    _, result = capsys.readouterr().out.splitlines()
    mode = re.search(r"--mode (\S+)", line)[1]
    assert result.startswith(mode) and ("lz4" in result.lower()) == ("--compress=true" in line)


@pytest.mark.slow
def test_the_matrix(capsys):
    line = "go run ./cmd/tachyon-bench matrix --duration 10s --connections 2"
    ours = line.replace("go run ./cmd/tachyon-bench matrix", "bench broker matrix").replace("10s", "0.3s")
    assert cli.run(shlex.split(ours)) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 3 * 3


def test_what_is_neither_true_nor_false(capsys):
    assert cli.run(["bench", "broker", "--compress", "maybe"]) == 2
    assert "true" in capsys.readouterr().err


def test_the_dead_letters(tmp_path, monkeypatch, capsys):
    """A whole broker: the message is given up, replayed, quarantined by hand and purged; the audit tells."""
    with (
        running(tmp_path, abtp=ANYWHERE, http=0) as broker,
        AbtpConsumer("worker-1", ["orders.*"], broker.endpoints["abtp router"]) as worker,
        AbtpProducer(broker.endpoints["abtp router"]) as producer,
    ):
        monkeypatch.setenv("TRANSFER_ADMIN_URL", f"http://127.0.0.1:{broker.ports['http']}")
        said = [line.replace("go run ./cmd/tachyon ", "") for line in DEAD_LETTERS.split("\n")[1:-1]]

        def output_of(line):
            assert cli.run(shlex.split(line)) == 0, line
            return capsys.readouterr().out

        producer.publish("orders.created", b"body", message_id="msg-123")
        worker.nack(worker.recv(10), "poison", terminal=True, confirm=True)
        dead, inspected, replayed, quarantined, purged, audited = said
        assert "msg-123" in output_of(dead) and "poison" in output_of(inspected)
        assert output_of(replayed) == "replayed 1 of 1\n"
        again = worker.recv(10)
        assert (again.message_id, again.payload) == ("msg-123", b"body")
        worker.ack(again, confirm=True)
        assert output_of(quarantined) == "msg-123 is a dead letter now\n"
        assert output_of(purged) == "purged 1 of 1\n" and output_of(dead) == "no dead letters\n"
        assert output_of(audited) == "no events\n", "all was done on another day"
        whole = output_of(audited.partition(" --start")[0])
        assert [word for word in ("replay", "dead_letter", "purge") if word not in whole] == []
