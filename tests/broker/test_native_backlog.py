"""A program whose words take long waits for itself alone: while it is there, and when it has gone."""

from __future__ import annotations

import pytest

from tests.broker.in_process_broker import running
from tests.broker.native_peers import wait_for
from tests.broker.native_programs import program
from transfer.broker import turns
from transfer.broker.clients.native import BrokerClient
from transfer.broker.fronts import native_backlog
from transfer.broker.protocols.native import Op, encode
from transfer.broker.protocols.native_batch import encode_several

#: so few that all of them are in buffers when their program ends
WORDS, MESSAGES = 500, 8


@pytest.fixture(params=["on", "off"], ids=["one host", "tcp"])
def slow(request, monkeypatch):
    """One word in each turn."""
    monkeypatch.setenv("TRANSFER_LOCAL", request.param)
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)


def flood(one, messages):
    """Messages of many words each; the last word of each publishes the message's number."""
    words = [*((encode(Op.ALIVE, 0), 0) for _ in range(WORDS)), (encode(Op.PUBLISH, 1, b"flood"), 1)]
    for number in range(messages):
        one.say(encode_several(Op.SEVERAL, words), b"%d" % number)


def read(broker, count):
    with BrokerClient(broker.endpoints["requests"]) as client:
        consumer = client.consume("flood", "readers", begin="old")
        return [bytes(consumer.recv(timeout=30).data) for _ in range(count)]


def published(broker):
    return broker.fronts["native"].counters["published"]


def test_others_are_answered_while_it_floods(tmp_path, slow):
    with running(tmp_path) as broker, program(broker.endpoints["requests"]) as enemy:
        flood(enemy, MESSAGES)
        with program(broker.endpoints["requests"]) as good:
            for number in range(3):
                good.say(encode(Op.PUBLISH, number, b"t"), b"x")
                assert good.kept() == number
            assert published(broker) < 3 + MESSAGES, "the flood was over before the good program came"
        wait_for(lambda: published(broker) == 3 + MESSAGES)
        assert read(broker, MESSAGES) == [b"%d" % number for number in range(MESSAGES)]


def test_others_are_answered_when_it_has_gone(tmp_path, slow, monkeypatch):
    """However much it left: that is in memory anyway, and no reason to receive nothing from others."""
    monkeypatch.setattr(native_backlog, "_MOST_WAITING", 1)
    with running(tmp_path) as broker:
        with program(broker.endpoints["requests"]) as enemy:
            flood(enemy, MESSAGES)
        with program(broker.endpoints["requests"]) as good:
            wait_for(lambda: len(broker.fronts["native"]._sockets[0].socket.routes()) == 1)
            good.say(encode(Op.PUBLISH, 5, b"t"), b"x")
            assert good.kept() == 5
            assert published(broker) < 1 + MESSAGES, "the flood was over before the good program came"
        wait_for(lambda: published(broker) == 1 + MESSAGES)
        assert read(broker, MESSAGES) == [b"%d" % number for number in range(MESSAGES)]


def test_what_cannot_be_held_waits_within_limits(tmp_path, slow, monkeypatch):
    """As foreign connections. Beyond the limit nothing is received, and nothing is lost."""
    monkeypatch.setattr(native_backlog, "_MOST_WAITING", 20_000)
    with running(tmp_path) as broker:
        front = broker.fronts["native"]
        monkeypatch.setattr(type(front._sockets[0].socket), "_pause_reading", lambda *_: False, raising=False)
        with program(broker.endpoints["requests"]) as enemy:
            flood(enemy, MESSAGES)
            wait_for(lambda: published(broker) == MESSAGES)
        assert read(broker, MESSAGES) == [b"%d" % number for number in range(MESSAGES)]
