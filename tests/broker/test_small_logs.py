"""A broker and a spool whose logs may take little."""

from __future__ import annotations

import pytest

from tests.broker.in_process_broker import running
from transfer.broker.clients.native import BrokerClient
from transfer.spool import Spool
from transfer.transports.errors import OptionError


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
