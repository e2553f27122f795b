"""Programs without a hello at a broker: answers that they do not know are dropped, and no others."""

from __future__ import annotations

import socket

from tests.broker.in_process_broker import running
from tests.core.raw_frames import Raw, eventually
from transfer.broker.clients.native import BrokerClient
from transfer.broker.protocols.native import Join, Op, encode, encode_join
from transfer.transports.core.wire import SocketType


def dial(endpoint):
    host, port = endpoint.removeprefix("tcp://").split(":")
    return socket.create_connection((host, int(port)), 10)


def ask(connection, *requests):
    """As a REQ or DEALER of version 1, without a hello."""
    connection.sendall(b"".join(Raw(data, socket_type=int(SocketType.DEALER)).encode() for data in requests))


def test_answers_of_several_parts_cost_other_programs_nothing(tmp_path, caplog):
    """One raised in the broker, and answers of that moment to other programs were lost."""
    with running(tmp_path / "data") as broker, BrokerClient(broker.endpoints["requests"]) as client:
        client.publish("t", b"x")
        with dial(broker.endpoints["requests"]) as plain:
            ask(plain, encode(Op.JOIN, 1, encode_join(Join("t", "g", begin="old"))))
            for _ in range(50):
                client.publish("t", b"x", wait=False)
            client.flush()
            assert eventually(lambda: broker.fronts["native"].counters["unanswered"])
        consumer = client.consume("t", "g", begin="old")
        assert [message.offset for _ in range(51) for message in [consumer.recv(10)]] == [*range(51)]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
