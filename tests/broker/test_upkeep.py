"""The log's room is given back while the broker runs."""

from __future__ import annotations

import threading

import pytest

from tests.broker.running import running
from transfer.broker.upkeep import Upkeep
from transfer.clients.own import BrokerClient
from transfer.log import Log, Retention
from transfer.spool.server import Spool
from transports.errors import OptionError


def test_what_is_acknowledged_goes_though_one_old_message_is_held(tmp_path):
    with Log(tmp_path, segment_bytes=1 << 16, retention=Retention(acknowledged=True)) as log:
        log.acknowledge("slow", "g", 0)
        log.acknowledge("fast", "g", 0)
        log.append("slow", b"held")
        for _ in range(4000):
            log.append("fast", bytes(100))
        log.commit(log.acknowledge("fast", "g", 4000))
        before = log.disk_bytes
        upkeep = Upkeep(log, 0.01)
        try:
            ended = threading.Event()
            while log.disk_bytes * 2 > before:
                assert not ended.wait(0.01)
        finally:
            upkeep.close()
        assert upkeep.removed > 0
        assert bytes(log.read("slow", 0)[0].body) == b"held"


def test_it_ends_with_its_log(tmp_path):
    log = Log(tmp_path)
    upkeep = Upkeep(log, 0.01)
    log.close()
    upkeep._thread.join(10)
    assert not upkeep._thread.is_alive()
    upkeep.close()


def test_a_small_log_takes_large_payloads(tmp_path):
    with (
        running(tmp_path, retention_bytes=10_000_000) as broker,
        BrokerClient(broker.endpoints["requests"]) as client,
    ):
        for size in (10, 100_000, 4_900_000):
            for _ in range(5):
                client.publish("orders", bytes(size))


def test_a_log_that_is_too_small_is_refused(tmp_path):
    with pytest.raises(OptionError, match="too small"), running(tmp_path, retention_bytes=1000):
        pass
    with pytest.raises(OptionError, match="too small"):
        Spool(tmp_path / "spool", retention_bytes=1000)


def test_one_held_message_does_not_stop_publishers(tmp_path):
    with (
        running(tmp_path, retention_bytes=4 << 20) as broker,
        BrokerClient(broker.endpoints["requests"]) as client,
    ):
        workers = client.consume("jobs", "workers")
        client.publish("jobs", b"long job")
        held = workers.recv()
        for _ in range(20):
            client.publish_many("metrics", [bytes(1000)] * 500)
        workers.ack(held, wait=True)
        assert bytes(held.data) == b"long job"
