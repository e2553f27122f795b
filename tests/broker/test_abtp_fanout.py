"""The abtp front's PUB socket: messages of all protocols; and how fronts and clients begin and end."""

from __future__ import annotations

import base64
import json

import pytest
import zmq

from tests.broker.abtp_front import (
    ANYWHERE,
    direct,
    plain,
    pub,
    registered,
    router,
    running,
    subscribed,
)
from transfer.broker.clients.abtp import AbtpConsumer, AbtpProducer, AbtpSubscriber
from transfer.broker.core.delivery import RetryPolicy
from transfer.broker.core.dispatcher import Rules
from transfer.broker.core.message import Front, Message
from transfer.broker.fronts.abtp import AbtpFront, AbtpSettings
from transfer.transports.errors import AddressError, AddressInUse, Again, Closed, ProtocolError


@pytest.fixture
def broker(tmp_path):
    with running(tmp_path / "data", rules=Rules(retry=RetryPolicy(initial=0.01))) as broker:
        yield broker


@pytest.fixture
def sockets(broker):
    with plain(broker) as connect:
        yield connect


# --- fan-out ------------------------------------------------------------------------------------------------


def foreign(topic, payload, **headers):
    return Message(topic, (payload,), Front.TTP, headers=headers)


def test_other_protocols_messages(broker):
    with subscribed(broker, "") as subscriber:
        broker.call(broker.hub.publish, foreign("any/thing", b"\0\1", message_id="m"))
        broker.call(broker.hub.publish, foreign("t", b"[1]", content_type="application/json"))
        broker.call(broker.hub.publish, foreign("t", b"[1", content_type="application/json"))
        raw, parsed, neither = (subscriber.recv() for _ in range(3))
        assert (raw.topic, raw.payload, raw.message_id, raw.producer_id) == ("any/thing", b"\0\1", "m", "ttp")
        assert (parsed.payload, neither.payload) == ([1], b"[1")
        assert parsed.message_id and parsed.message_id != neither.message_id


def test_only_what_is_subscribed_to_is_written(broker):
    assert broker.call(broker.hub.fanout.subscriptions) == {}
    with subscribed(broker, "a", "gr\N{LATIN SMALL LETTER O WITH DIAERESIS}") as subscriber:
        with AbtpProducer(router(broker)) as producer:
            for topic in ("b", "a.x", "größe"):
                producer.publish(topic, topic)
        assert [subscriber.recv().topic for _ in range(2)] == ["a.x", "größe"]
        assert broker.front.subscriber.published == 2
    broker.until(lambda: not broker.hub.fanout.listeners(broker.hub.store.topic("a.x")))


def test_a_prefix_within_a_letter(broker, sockets):
    plain = sockets(zmq.SUB)
    plain.setsockopt(zmq.SUBSCRIBE, "gr\N{LATIN SMALL LETTER O WITH DIAERESIS}".encode()[:-1])
    broker.until(lambda: broker.front.subscriber._prefixes)
    with AbtpProducer(router(broker)) as producer:
        producer.publish("größe", 1)
    assert plain.recv_multipart()[0] == "größe".encode()


def test_large_messages_that_come_in_pieces(broker):
    class Patient:
        def pause(self): ...
        def resume(self): ...

    def pieces():
        passage = broker.hub.begin(Message("big", (), Front.TTP), 300_000, Patient())
        for part in (b"a", b"b", b"c"):
            passage.piece(part * 100_000)
        passage.finish()

    with subscribed(broker, "") as subscriber:
        broker.call(pieces)
        assert subscriber.recv().payload == b"a" * 100_000 + b"b" * 100_000 + b"c" * 100_000


def test_what_is_too_large_for_the_pub_socket(tmp_path):
    with running(tmp_path, max_payload=1000) as broker, subscribed(broker, "") as subscriber:
        broker.call(broker.hub.publish, foreign("t", b"x" * 1001))
        broker.call(broker.hub.publish, foreign("kept.t", b"y" * 1001))
        broker.call(broker.hub.publish, foreign("t", b"x" * 1000))
        assert len(subscriber.recv().payload) == 1000
        assert broker.front.subscriber.dropped == 2


def test_tenants_stand_apart(broker):
    with (
        subscribed(broker, "") as subscriber,
        AbtpConsumer("w", ["t"], router(broker), tenant="acme") as theirs,
        AbtpConsumer("w", ["t"], router(broker)) as ours,
        AbtpProducer(router(broker), tenant="acme") as producer,
        AbtpProducer(router(broker)) as other,
    ):
        producer.publish("t", "theirs")
        other.publish("t", "ours")
        assert (theirs.recv().payload, ours.recv().payload) == ("theirs", "ours")
        producer.publish("t", "all", headers={"delivery_mode": "fanout"})
        found = subscriber.recv()
        assert (found.payload, found.topic) == ("all", "t")  # the frame in front says acme/t


def test_kept_topics(broker):
    with AbtpProducer(router(broker)) as producer:
        data = {"n": 1.5}
        producer.publish("kept.t", data, headers={"priority": "high"})
    stored = broker.call(lambda: broker.hub.store.read(broker.hub.store.topic("kept.t"), 0, nbytes=1000))
    assert len(stored) == 1 and bytes(stored[0].payload) == b'{"n":1.5}' and stored[0].front is Front.ABTP
    assert stored[0].headers["priority"] == "high" and json.loads(stored[0].head)["topic"] == "kept.t"


# --- coming and going ---------------------------------------------------------------------------------------


def test_connections_are_counted(broker):
    with AbtpProducer(router(broker)), subscribed(broker, "x"):
        broker.until(lambda: broker.front.connections == 2)
    broker.until(lambda: broker.front.connections == 0)


def test_addresses(broker, tmp_path):
    taken = AbtpSettings(router(broker), ANYWHERE)
    loop = broker._loop
    with pytest.raises(AddressInUse):
        broker.call(lambda: AbtpFront(broker.hub, loop, direct(broker), taken))
    with pytest.raises(AddressError):
        broker.call(
            lambda: AbtpFront(broker.hub, loop, direct(broker), AbtpSettings("tcp://nowhere", ANYWHERE))
        )


def test_clients_of_nobody(broker):
    with AbtpProducer("tcp://127.0.0.1:1", timeout=0.1) as producer, pytest.raises(Again):
        producer.publish("t", 1)
    with pytest.raises(Again):
        AbtpConsumer("w", ["t"], "tcp://127.0.0.1:1", timeout=0.1)
    with AbtpSubscriber((), pub(broker)) as subscriber, pytest.raises(Again):
        subscriber.recv(0.01)
    with pytest.raises(Closed):
        subscriber.recv(1)
    with pytest.raises(ProtocolError, match="orders"):
        AbtpConsumer("w", ["orders.>.created"], router(broker))


def test_base64_is_what_raw_means(broker, sockets):
    consumer, _ = registered(sockets, "w", ["t"])
    sockets(zmq.DEALER).send_multipart([b"t", b"hello"])
    found = json.loads(consumer.recv_multipart()[2])
    assert base64.b64decode(found["payload"]) == b"hello" and found["headers"]["codec"] == "raw"


@pytest.mark.parametrize("nbytes", [1 << 20, 12 << 20])
@pytest.mark.parametrize("topic", ["kept.a", "passing.a"])
def test_the_first_message_of_a_broker_may_be_large(tmp_path, topic, nbytes):
    with running(tmp_path) as broker, plain(broker) as connect:
        subscribers = [connect(zmq.SUB) for _ in range(3)]
        for number, subscriber in enumerate(subscribers, start=2):
            subscriber.setsockopt(zmq.SUBSCRIBE, topic[:number].encode())
        worker, _ = registered(connect, "w", [f"{topic}.direct"])
        broker.until(lambda: len(broker.front.subscriber._prefixes) == 3)
        client = connect(zmq.REQ)
        for name in (topic, f"{topic}.direct"):
            client.send_multipart([name.encode(), json.dumps("x" * nbytes).encode()])
            assert json.loads(client.recv_multipart()[1])["type"] == "accepted"
        for subscriber in subscribers:
            assert len(subscriber.recv_multipart()[1]) > nbytes
        assert len(worker.recv_multipart()[2]) > nbytes
