"""The spool as a service of the broker: one process, one log, one data folder."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.broker.http_requests import ask, until
from tests.broker.in_process_broker import FREE, running
from tests.cli.run_writer import send_run
from transfer.broker.clients.native import BrokerClient
from transfer.cli.runs import app
from transfer.log.upkeep import Upkeep
from transfer.spool import RowStream

IDS = [range(40), range(40, 100)]


def url_of(broker):
    return broker.endpoints["spool"].replace("tcp://", "run://") + "/digits"


def read(broker):
    with RowStream(url_of(broker), 10, columns=("id",)) as stream:
        return np.concatenate([batch["id"] for batch in stream]).tolist()


def test_rows_and_messages_share_a_log(tmp_path):
    with running(tmp_path, spool=FREE) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        client.publish("orders", b"before")
        send_run(url_of(broker), IDS)
        client.publish("orders", b"after")
        assert sorted(read(broker)) == list(range(100))
    with running(tmp_path, spool=FREE) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        assert sorted(read(broker)) == list(range(100))
        orders = client.consume("orders", "g", begin="old")
        assert [bytes(orders.recv(10).data) for _ in range(2)] == [b"before", b"after"]
    assert {path.name for path in tmp_path.iterdir()} >= {"log", "state.db", "audit"}


def test_runs_in_a_brokers_folder_are_verified_and_salvaged(tmp_path):
    """Its log is found, and nothing is made next to it."""
    data, new = tmp_path / "data", tmp_path / "new"
    with running(data, spool=FREE) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        client.publish("orders", b"message")
        send_run(url_of(broker), IDS)
    before = sorted(data.rglob("*"))
    for command in (["verify", data], ["salvage", data, "--out", new], ["verify", new]):
        found = CliRunner().invoke(app, [*map(str, command), "--json"])
        assert found.exit_code == 0, found.output
        assert [json.loads(line)["name"] for line in found.output.splitlines()] == ["digits"]
    assert sorted(data.rglob("*")) == before


def test_metrics_of_a_broker_are_those_of_its_spool_too(tmp_path):
    with running(tmp_path, spool=FREE, http=0) as broker:
        broker.spool._removed("staged", 5)
        _, text = ask(broker.ports["http"], "/metrics")
    assert 'transfer_spool_removals_total{reason="staged"} 1.0' in text
    assert 'transfer_spool_removed_bytes_total{reason="staged"} 5.0' in text
    assert text.count("# TYPE transfer_received_messages_total") <= 1


def publish_and_write(folder: Path, seconds: float) -> None:
    """A publisher and Spark's tasks commit the same log, each all the time."""
    ending = threading.Event()
    published = []

    def publish(endpoint: str) -> None:
        with BrokerClient(endpoint) as client:
            while not ending.is_set():
                client.publish("orders", b"x" * 100)
                published.append(1)

    with running(folder, spool=FREE, http=0) as broker:
        publishers = [
            threading.Thread(target=publish, args=(broker.endpoints["requests"],)) for _ in range(2)
        ]
        for publisher in publishers:
            publisher.start()
        try:
            deadline = time.monotonic() + seconds
            runs = 0
            while time.monotonic() < deadline:
                runs += 1
                send_run(broker.endpoints["spool"].replace("tcp://", "run://") + f"/run{runs}", IDS)
                assert broker.spool_failure is None
            assert ask(broker.ports["http"], "/livez")[0] == 200
        finally:
            ending.set()
            for publisher in publishers:
                publisher.join(30)
        assert runs
        assert published


def slow_syncs(monkeypatch) -> None:
    """As on a disk: a commit finds another one under way."""
    sync = os.fdatasync

    def slow(descriptor: int) -> None:
        time.sleep(0.005)
        sync(descriptor)

    monkeypatch.setattr("transfer.log.segment.os.fdatasync", slow)


def test_publishers_and_tasks_commit_together(tmp_path, monkeypatch):
    slow_syncs(monkeypatch)
    publish_and_write(tmp_path, 3.0)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_publishers_and_tasks_commit_together_for_a_minute(tmp_path):
    publish_and_write(tmp_path, 60.0)


def problems(broker) -> list[str]:
    status, text = ask(broker.ports["http"], "/livez")
    assert status == 503
    return json.loads(text)["problems"]


def test_a_spool_whose_thread_ends_is_not_alive(tmp_path, monkeypatch):
    def fails(*_):
        raise SystemExit("out of luck")

    with running(tmp_path, spool=FREE, http=0) as broker:
        monkeypatch.setattr("transfer.spool.server.server.Spool._receive_requests", fails)
        until(lambda: broker.spool_failure is not None, True)
        (problem,) = problems(broker)
        assert problem.startswith("the spool has failed: the spool's thread requests has ended: SystemExit")


def test_a_broker_whose_thread_ends_is_not_alive(tmp_path, monkeypatch):
    def fails(*_):
        raise OSError("out of luck")

    with running(tmp_path, http=0) as broker:
        monkeypatch.setattr(broker.hub.store.log, "collect", fails)
        upkeep = Upkeep(broker.hub.store.log, "transfer-broker-upkeep", broker.threads.start, 0.01)
        until(lambda: upkeep._thread.is_alive(), False)
        assert problems(broker) == ["the thread transfer-broker-upkeep has ended: OSError('out of luck')"]


def test_an_executor_s_thread_that_ends_is_seen(tmp_path):
    """Its thread is the broker's from its first work on; an executor does not start another one."""
    with running(tmp_path, http=0) as broker:
        names = {thread.name for thread in broker.threads._threads}
        assert "transfer-broker-upkeep" in names
        broker.call(lambda: broker.hub._writer.do(lambda: None))
        until(lambda: any("disk" in thread.name for thread in broker.threads._threads), True)
        assert ask(broker.ports["http"], "/livez")[0] == 200
