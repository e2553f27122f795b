"""The spool as a service of the broker: one process, one log, one data folder."""

from __future__ import annotations

import numpy as np

from tests.broker.running import FREE, running
from tests.cli.feeding import send_run
from transfer.clients.own import BrokerClient
from transfer.reading import RowStream

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
