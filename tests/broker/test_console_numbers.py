"""What `/api/` says is what happened: known deeds by every protocol, and every number compared."""

from __future__ import annotations

import time

import pytest

import transfer
from tests.broker.http_requests import get_json, until
from tests.broker.in_process_broker import FREE, running
from transfer.broker.clients.abtp import AbtpConsumer, AbtpProducer, AbtpSubscriber
from transfer.broker.clients.native import BrokerClient
from transfer.broker.clients.pybroker import PyBrokerClient
from transfer.broker.clients.rqueue import RqueueClient
from transfer.broker.clients.ttp import TtpClient
from transfer.broker.config.settings import AbtpEndpoints
from transfer.transports.errors import ProtocolError


@pytest.fixture
def broker(tmp_path):
    endpoints = AbtpEndpoints(FREE, FREE)
    with running(tmp_path, http=0, abtp=endpoints, spool=FREE, max_attempts=2, first_delay=0.05) as one:
        yield one


def fronts(broker):
    return {one["front"]: one for one in get_json(broker.ports["http"], "fronts")["fronts"]}


def topics(broker):
    return {one["topic"]: one for one in get_json(broker.ports["http"], "topics")["topics"]}


def overview(broker):
    return get_json(broker.ports["http"], "overview")


def test_what_every_protocol_publishes_is_counted_once(broker):
    def connections():
        return {name: one["connections"] for name, one in fronts(broker).items()}

    assert connections() == dict.fromkeys(("native", "ttp", "pybroker", "rqueue", "abtp", "spool"), 0)
    assert overview(broker)["subscribers"] == 0
    with (
        BrokerClient(broker.endpoints["requests"]) as own,
        TtpClient("127.0.0.1", broker.ports["ttp"]) as ttp,
        PyBrokerClient("127.0.0.1", broker.ports["pybroker"]) as pybroker,
        RqueueClient("127.0.0.1", broker.ports["rqueue"]) as rqueue,
        AbtpProducer(broker.endpoints["abtp router"]) as abtp,
    ):
        consumer = own.consume("t", "g", begin="old")
        own.publish("t", b"12")
        own.publish_many("t", [b"34", b"56"])
        own.publish("t", bytes(9 << 20))  # in pieces
        ttp.publish("t", b"78", wait=True)
        pybroker.publish("t", b"90")
        rqueue.publish("t", b"ab")
        abtp.publish("t", b"cd")
        until(lambda: overview(broker)["messages"], 8)
        received = [consumer.recv() for _ in range(8)]
        consumer.ack(*received, wait=True)
        until(connections, {"native": 1, "ttp": 1, "pybroker": 1, "rqueue": 1, "abtp": 1, "spool": 0})
        (topic,) = topics(broker).values()
        assert (topic["messages"], topic["bytes"]) == (8, 7 * 2 + (9 << 20))
        assert (topic["oldest"], topic["end"], topic["subscribers"]) == (0, 8, 0)
        now = overview(broker)
        assert (now["bytes"], now["topics"], now["groups"], now["connections"]) == (topic["bytes"], 1, 1, 5)
        assert (now["events"]["dispatched"], now["events"]["acked"]) == (8, 8)
        (group,) = get_json(broker.ports["http"], "groups")["groups"]
        assert (group["lag"], group["held"], group["waiting"], group["consumers"]) == (0, 0, 0, 1)
        assert group["idle"] == 0
        events = {name: one["events"] for name, one in fronts(broker).items()}
        assert (events["native"]["published"], events["native"]["delivered"]) == (4, 8)
        assert [events[name]["published"] for name in ("ttp", "pybroker", "rqueue")] == [1, 1, 1]
        assert events["abtp"]["ingress"] == 1


def test_subscribers_are_programs_that_subscribe_and_not_the_brokers_sockets(broker):
    with (
        transfer.Context() as context,
        context.socket(transfer.SUB) as first,
        context.socket(transfer.SUB) as second,
        RqueueClient("127.0.0.1", broker.ports["rqueue"]) as rqueue,
        BrokerClient(broker.endpoints["requests"]) as own,
    ):
        own.publish_many("t/a", [b"1"])
        own.publish_many("u", [b"1"])
        assert (topics(broker)["t/a"]["subscribers"], topics(broker)["u"]["subscribers"]) == (0, 0)
        for socket, prefix in ((first, "t/"), (second, "t/a")):
            socket.connect(broker.endpoints["subscriptions"])
            socket.subscribe(prefix)
        rqueue.subscribe("t/a")
        until(lambda: topics(broker)["t/a"]["subscribers"], 3)
        assert topics(broker)["u"]["subscribers"] == 0
        assert overview(broker)["subscribers"] == 3
        until(lambda: fronts(broker)["native"]["connections"], 3)
        with AbtpSubscriber(["t"], broker.endpoints["abtp pub"]):
            until(lambda: topics(broker)["t/a"]["subscribers"], 4)


def test_every_listener_is_listed(broker):
    listens = {name: " ".join(one["listens"]) for name, one in fronts(broker).items()}
    for name, endpoint in broker.endpoints.items():
        assert any(endpoint in text for text in listens.values()), name
    for name in ("ttp", "pybroker", "rqueue"):
        assert f":{broker.ports[name]}" in listens[name]


def test_a_dead_letter_says_when_it_failed_first_and_why(broker):
    def letters():
        found = get_json(broker.ports["http"], "admin/dlq/list")["letters"]
        return {one["message_id"]: one for one in found}

    begun = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    with (
        BrokerClient(broker.endpoints["requests"]) as own,
        AbtpConsumer("w", ["orders.*"], broker.endpoints["abtp router"]) as worker,
        AbtpProducer(broker.endpoints["abtp router"]) as abtp,
    ):
        consumer = own.consume("t", "g", begin="old")
        own.publish("t", b"poison")
        consumer.nack(consumer.recv())
        consumer.nack(consumer.recv())  # the last attempt
        abtp.publish("orders.a", b"poison", message_id="direct")
        for _ in range(2):
            worker.nack(worker.recv(), "cannot")
        abtp.publish("orders.a", b"poison", message_id="terminal")
        worker.nack(worker.recv(), terminal=True)
        until(lambda: sorted(letters()), ["direct", "t/g/0", "terminal"])
        found = letters()
        for letter in found.values():
            assert begun <= letter["first"] <= letter["last"] and letter["reason"]
        assert found["t/g/0"]["first"] < found["t/g/0"]["last"]  # a pause of 50 ms lies between them
        assert found["direct"]["first"] < found["direct"]["last"]
        assert "no reason" in found["t/g/0"]["reason"] and found["t/g/0"]["attempts"] == 2
        events = overview(broker)["events"]
        assert (events["dead_lettered"], events["nacked"], events["dispatched"]) == (3, 5, 5)
        with pytest.raises(ProtocolError):
            abtp.publish("nowhere", b"x", headers={"delivery_mode": "direct"})
        assert fronts(broker)["abtp"]["events"]["refused_no_route"] == 1
