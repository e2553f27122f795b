"""Clients of a broker, Mooncake's interface, certificates and metrics: no wrong argument is
taken in silence, hangs, or raises an error without what to do."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import transfer
from tests.arguments.test_data import assert_refused
from tests.arguments.wrong_calls import Case
from tests.broker.in_process_broker import FREE, running
from transfer.broker.clients.abtp import AbtpConsumer, AbtpProducer, AbtpSubscriber
from transfer.broker.clients.native import BrokerClient
from transfer.broker.clients.pybroker import PyBrokerClient
from transfer.broker.clients.registry import RegisteredName, look_up
from transfer.broker.clients.rqueue import RqueueClient
from transfer.broker.clients.ttp import TtpClient
from transfer.broker.config.settings import AbtpEndpoints
from transfer.broker.protocols.native_pieces import LARGE_FROM
from transfer.certificates import Authority
from transfer.metrics.prometheus import register, serve, unregister
from transfer.mooncake import ZmqInterface
from transfer.transports.errors import ArgumentError, Closed, UsageError

ENDLESS = ("timeout: huge",)
TAKEN = ("security: None", "context: None")


@pytest.fixture
def broker(tmp_path):
    with running(tmp_path / "data", abtp=AbtpEndpoints(FREE, FREE)) as one:
        yield one


def test_how_clients_are_made(broker):
    at = {"host": "127.0.0.1", "timeout": 0.5, "security": None}
    own, abtp = broker.endpoints["requests"], {"endpoint": router_of(broker), "timeout": 0.5}
    ports = ("host: text", *ENDLESS, *TAKEN)
    names = (*ENDLESS, *TAKEN, "tenant: text")
    sessions = ("consumer_id: text", "capabilities: None", "session_id: None text", "heartbeat: huge")
    ttp = ("name: text", "heartbeat: huge", "largest: huge")
    assert_refused(
        Case("native", BrokerClient, {"endpoint": own, "timeout": 0.5}, (*TAKEN, *ENDLESS, "reconnect")),
        Case("ttp", TtpClient, {**at, "port": broker.ports["ttp"]}, (*ports, *ttp)),
        Case("pybroker", PyBrokerClient, {**at, "port": broker.ports["pybroker"]}, ports),
        Case("rqueue", RqueueClient, {**at, "port": broker.ports["rqueue"]}, ports),
        Case("producer", AbtpProducer, abtp, (*names, "producer_id: text")),
        Case("consumer", AbtpConsumer, {"consumer_id": "c", **abtp}, (*names, *sessions)),
    )


def router_of(broker):
    return broker.endpoints_of("abtp")[0].split()[0]


#: what all of them take: names are text
NAMES = ("topic: text", "group: text", "pattern: text", "wait", "meta: None", "timeout: None huge")


def test_calls_of_the_own_client(broker):
    array = memoryview(b"x")
    with BrokerClient(broker.endpoints["requests"]) as own:
        assert_refused(
            Case("publish", lambda topic, x: own.publish(topic, x), {"topic": "t", "x": b"x"}, NAMES),
            Case("publish_many", own.publish_many, {"topic": "t", "payloads": [b"x"]}, NAMES),
            Case("publish_tensor", own.publish_tensor, {"topic": "t", "tensor": array}, NAMES),
            Case("consume", own.consume, {"topic": "t", "group": "g"}, NAMES),
            Case("flush", own.flush, {"timeout": 1}, NAMES),
            Case("wait_room", own.wait_room, {"most": 5, "timeout": 1}, (*NAMES, "most: huge")),
        )
        own.publish("t", b"it goes on")


def test_calls_of_other_clients(broker):
    array = memoryview(b"x")
    with (
        TtpClient(port=broker.ports["ttp"]) as ttp,
        PyBrokerClient("127.0.0.1", broker.ports["pybroker"]) as py,
        RqueueClient("127.0.0.1", broker.ports["rqueue"]) as queue,
        AbtpProducer(router_of(broker)) as abtp,
    ):
        some = ("payload: text None -1 huge", "headers: None", "message_id: text", "compress")
        good = {"topic": "t", "payload": b"x", "wait": False}
        assert_refused(
            Case("ttp.publish", ttp.publish, {"topic": "t", "data": b"x"}, NAMES),
            Case("ttp.publish_tensor", ttp.publish_tensor, {"topic": "t", "array": array}, NAMES),
            Case("ttp.subscribe", ttp.subscribe, {"pattern": "t"}, NAMES),
            Case("ttp.unsubscribe", ttp.unsubscribe, {"pattern": "t"}, NAMES),
            Case("py.publish", py.publish, {"topic": "t", "payload": b"x"}, NAMES),
            Case("py.fetch", py.fetch, {"topic": "t", "offset": 0}, NAMES),
            Case("py.oldest", py.oldest, {"topic": "t"}, NAMES),
            Case("queue.publish", queue.publish, {"topic": "t", "content": b"x"}, NAMES),
            Case("queue.subscribe", queue.subscribe, {"topic": "t"}, NAMES),
            Case("queue.remove", queue.remove, {"topic": "t"}, NAMES),
            Case("abtp.publish", abtp.publish, good, (*NAMES, *some)),
        )


TOPICS = {"empty": "", "too long": "t" * 256, "with a NUL": "a\0b", "no UTF-8": "\ud800", "no text": b"t"}


def test_text_as_a_payload_is_refused_with_how_to_encode_it(broker):
    """The hint named a method that these clients do not have."""
    with (
        BrokerClient(broker.endpoints["requests"]) as own,
        TtpClient(port=broker.ports["ttp"]) as ttp,
        PyBrokerClient("127.0.0.1", broker.ports["pybroker"]) as py,
        RqueueClient("127.0.0.1", broker.ports["rqueue"]) as queue,
    ):
        calls = [
            *(lambda one=one: one.publish("t", "text") for one in (own, ttp, py, queue)),
            lambda: own.publish("t", b"x", "text"),
            lambda: own.publish("t", bytes(LARGE_FROM), "text"),
            lambda: own.publish_many("t", [b"x", "text"]),
            lambda: ttp.stream("t", ["text"]),
        ]
        for call in calls:
            with pytest.raises(ArgumentError, match=r"str.*\n  hint: encode it: text\.encode\(\)"):
                call()
        with own.batch():  # the call itself, not the batch at its end, which other messages are in
            own.publish("t", b"before", wait=False)
            for call in calls[0], calls[4], calls[6]:
                with pytest.raises(ArgumentError, match="encode it"):
                    call()
        own.flush(10)
        assert own.unacknowledged == 0


@pytest.mark.parametrize("topic", TOPICS.values(), ids=TOPICS)
def test_a_topic_that_is_none_is_refused_before_it_goes_out(broker, topic):
    with (
        BrokerClient(broker.endpoints["requests"]) as own,
        TtpClient(port=broker.ports["ttp"]) as ttp,
        PyBrokerClient("127.0.0.1", broker.ports["pybroker"]) as py,
        RqueueClient("127.0.0.1", broker.ports["rqueue"]) as queue,
        AbtpProducer(router_of(broker)) as abtp,
    ):
        calls = [
            *(lambda one=one: one.publish(topic, b"x") for one in (own, ttp, py, queue, abtp)),
            lambda: own.publish(topic, bytes(LARGE_FROM)),
            lambda: own.publish_many(topic, [b"x"]),
            lambda: own.publish_tensor(topic, memoryview(b"x")),
            lambda: own.consume(topic, "g"),
            lambda: own.consume("t", topic),
            lambda: ttp.publish_tensor(topic, memoryview(b"x")),
            lambda: ttp.stream(topic, [b"x"]),
            lambda: ttp.subscribe(topic),
            lambda: py.fetch(topic),
            lambda: queue.subscribe(topic),
            lambda: queue.remove(topic),
        ]
        for number, call in enumerate(calls):
            with pytest.raises(UsageError, match=r"topic|group") as raised:
                call()
            assert "alive" not in str(raised.value), number


HEADERS = {
    "a number as key": {7: "x"},
    "None as key": {None: "x"},
    "a key inside": {"x": [{True: 1}]},
    "bytes": {"x": b"y"},
    "a time": {"x": datetime(2026, 1, 1, tzinfo=UTC)},
}


@pytest.mark.parametrize("meta", HEADERS.values(), ids=HEADERS)
def test_metadata_that_would_become_text_are_refused(broker, meta):
    """JSON's encoders made text of them, and subscribers got other metadata than were sent."""
    with (
        TtpClient(port=broker.ports["ttp"]) as ttp,
        AbtpProducer(router_of(broker)) as abtp,
        transfer.Context() as context,
        context.socket(transfer.PUSH) as push,
    ):
        for call in (
            lambda: ttp.publish("t", b"x", meta),
            lambda: ttp.publish_tensor("t", memoryview(b"x"), meta),
            lambda: ttp.stream("t", [b"x"], meta),
            lambda: abtp.publish("t", b"x", headers=meta),
            lambda: push.send_tensors({"x": memoryview(b"x")}, meta=meta),
        ):
            with pytest.raises(UsageError, match="JSON"):
                call()
        ttp.publish("t", b"x", {"x": {"y": [1, 2.5, None, True, "z"]}}, wait=True)


def test_calls_of_consumers(broker):
    own_broker, prefixes = broker.endpoints["requests"], {"prefix": "p"}
    with (
        BrokerClient(own_broker) as own,
        PyBrokerClient("127.0.0.1", broker.ports["pybroker"]) as py,
        TtpClient(port=broker.ports["ttp"]) as ttp,
        RqueueClient("127.0.0.1", broker.ports["rqueue"]) as queue,
        AbtpProducer(router_of(broker)) as producer,
        AbtpConsumer("c", ["t"], router_of(broker)) as abtp,
        AbtpSubscriber(["t"], broker.endpoints_of("abtp")[1].split()[0]) as subscriber,
    ):
        consumer = own.consume("t", "g")
        own.publish_many("t", [b"x"] * 40)
        first = consumer.recv(5)
        producer.publish("t", b"{}", wait=False)
        delivered = abtp.recv(5)
        nowhere = {"endpoint": "tcp://127.0.0.1:1", "prefixes": ["x"]}
        nothing = {"topic": "nothing", "offset": 0, "interval": 0.1, "timeout": 0.1}
        endless = ("timeout: None huge", "most: huge")
        assert_refused(
            Case("recv", consumer.recv, {"timeout": 1}, endless),
            Case("recv_many", consumer.recv_many, {"most": 1, "timeout": 1}, endless),
            Case("ack", lambda message: consumer.ack(message), {"message": first}),
            Case("nack", consumer.nack, {"message": first}, ("reason: text", "retry")),
            Case("flush", consumer.flush, {"timeout": 1}, endless),
            Case("abtp.recv", abtp.recv, {"timeout": 0.1}, (*endless, "timeout: None huge")),
            Case("abtp.ack", abtp.ack, {"message": delivered}, ("confirm",)),
            Case("abtp.nack", abtp.nack, {"message": delivered}, ("reason: text", "terminal", "confirm")),
            Case("subscribe", subscriber.subscribe, prefixes, ("prefix: text",)),
            Case("unsubscribe", subscriber.unsubscribe, prefixes, ("prefix: text",)),
            Case("AbtpSubscriber", AbtpSubscriber, nowhere, (*TAKEN, *ENDLESS)),
            Case("subscriber.recv", subscriber.recv, {"timeout": 0.1}, endless),
            Case("ttp.recv", ttp.recv, {"timeout": 0.1}, endless),
            Case("ttp.recv_frame", ttp.recv_frame, {"timeout": 0.1}, endless),
            Case("ttp.stream", ttp.stream, {"topic": "t", "chunks": [b"x"]}, (*NAMES, "nbytes: None huge")),
            Case("queue.recv", queue.recv, {"timeout": 0.1}, endless),
            Case("py.follow", lambda **given: next(py.follow(**given)), nothing, (*NAMES, "interval: huge")),
        )
        consumer.ack(first, wait=True)
        abtp.ack(delivered, confirm=True)


def test_after_close(broker):
    made = (
        BrokerClient(broker.endpoints["requests"]),
        TtpClient(port=broker.ports["ttp"]),
        PyBrokerClient("127.0.0.1", broker.ports["pybroker"]),
        RqueueClient("127.0.0.1", broker.ports["rqueue"]),
        AbtpProducer(router_of(broker)),
    )
    for one in made:
        one.close()
        one.close()
        with pytest.raises(Closed):
            one.publish("t", b"x")


def test_the_rest(tmp_path):
    authority = Authority(tmp_path)
    with transfer.Context() as context:
        assert_refused(
            Case(
                "Authority",
                Authority,
                {"folder": tmp_path},
                (
                    "folder: text",
                    "name: text",
                ),
            ),
            Case("Authority.opened", Authority.opened, {"folder": tmp_path}, ("folder: text", "name: text")),
            Case("issue", authority.issue, {}, ("name: text", "begins: -1", "ends: ", "self_signed")),
            Case("register", register, {"context": context}, ("registry: None",)),
            Case("unregister", unregister, {"context": context}, ("registry: None",)),
            Case("serve", serve, {"context": context, "port": 0}, ("port: None", "registry: None")),
            Case("look_up", look_up, {"registry": "x"}),
            Case(
                "RegisteredName",
                RegisteredName,
                {"registry": "registry://127.0.0.1:1/x", "endpoint": "tcp://127.0.0.1:5"},
                ("advertise: text", "metadata: None", "context: None"),
            ),
        )


def test_mooncakes_interface():
    with ZmqInterface() as interface:
        interface.initialize()
        at = {"socket_id": interface.create_socket("PUSH")}
        option = {**at, "option": "LINGER"}
        assert_refused(
            Case("initialize", ZmqInterface().initialize, {"config": None}, ("config: None",)),
            Case("create_socket", interface.create_socket, {"type": "PUSH"}),
            Case("bind", interface.bind, {**at, "endpoint": "x"}),
            Case("connect", interface.connect, {**at, "endpoint": "x"}),
            Case("unbind", interface.unbind, {**at, "endpoint": "x"}),
            Case("set_socket_option", interface.set_socket_option, {**option, "value": 1}, ("value: -1",)),
            Case("get_socket_option", interface.get_socket_option, option),
            Case("recv", interface.recv, {**at, "flags": 1}),
        )
