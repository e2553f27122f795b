"""The abtp front over a real hub: plain pyzmq sockets, our clients, direct delivery."""

from __future__ import annotations

import json
import threading
import time

import lz4.block
import lz4.frame
import pytest
import zmq

from tests.broker.abtp_front import (
    answered,
    control,
    direct,
    plain,
    registered,
    router,
    running,
    subscribed,
)
from transfer.broker.clients.abtp import AbtpConsumer, AbtpProducer
from transfer.broker.core.admission import AdmissionLimits
from transfer.broker.core.delivery import RetryPolicy
from transfer.broker.core.dispatcher import Rules
from transfer.broker.core.sessions import ConsumerCapabilities
from transfer.broker.protocols.abtp_words import Code
from transfer.transports.errors import Again, ProtocolError


@pytest.fixture
def broker(tmp_path):
    with running(tmp_path / "data", rules=Rules(retry=RetryPolicy(initial=0.01))) as broker:
        yield broker


@pytest.fixture
def sockets(broker):
    with plain(broker) as connect:
        yield connect


# --- plain sockets ------------------------------------------------------------------------------------------


def test_a_req_producer_and_a_sub(broker, sockets):
    with subscribed(broker, "orders.") as subscriber:
        producer = sockets(zmq.REQ)
        for number in range(3):
            producer.send_multipart([b"orders.created", json.dumps({"n": number}).encode()])
            topic, answer = producer.recv_multipart()
            answer = json.loads(answer)
            assert topic == b"_control" and answer["type"] == "accepted"
            found = subscriber.recv()
            assert (found.topic, found.payload) == ("orders.created", {"n": number})
            assert found.message_id == answer["message_id"]


def test_a_dealer_producer_and_a_plain_sub(broker, sockets):
    plain = sockets(zmq.SUB)
    plain.setsockopt(zmq.SUBSCRIBE, b"t")
    broker.until(lambda: broker.front.subscriber._prefixes)
    producer = sockets(zmq.DEALER)
    producer.send_multipart([b"t", lz4.frame.compress(b'{"a": 1.50}')])
    topic, envelope = plain.recv_multipart()
    assert topic == b"t" and b'"payload":{"a": 1.50}' in envelope
    producer.send_multipart([b"t", lz4.block.compress(b"[" + b"1," * 99 + b"1]", store_size=False)])
    assert json.loads(plain.recv_multipart()[1])["payload"] == [1] * 100
    assert producer.poll(0) == 0  # nobody answers who was not asked


def test_a_plain_consumer(broker, sockets):
    consumer, session = registered(sockets, "w", ["orders.*"])
    producer = sockets(zmq.REQ)
    producer.send_multipart([b"orders.created", b'{"id":7}'])
    assert json.loads(producer.recv_multipart()[1])["type"] == "accepted"
    empty, topic, envelope = consumer.recv_multipart()
    found = json.loads(envelope)
    assert (empty, topic, found["payload"]) == (b"", b"orders.created", {"id": 7})
    assert found["spec_version"] == "abtp/1" and found["attempt"] == 1 and found["session_id"] == session
    control(consumer, type="ack", message_id=found["message_id"], consumer_id="w", status="processed")
    broker.until(lambda: direct(broker).dispatcher.counts["acked"] == 1)
    control(consumer, type="ack", message_id=found["message_id"], consumer_id="w", status="processed")
    control(consumer, type="ack", message_id="never", consumer_id="w", status="processed")
    stale = answered(consumer)
    assert (stale["type"], stale["code"], stale["message_id"]) == ("error", "stale_ack", "never")
    assert [audit.message_id for audit in direct(broker).audits] == ["never"]
    control(consumer, type="consumer.heartbeat", consumer_id="w", session_id=session, timestamp=1)
    control(consumer, type="consumer.deregister", consumer_id="w", session_id=session)
    assert answered(consumer)["type"] == "consumer.deregistered"
    control(consumer, type="consumer.heartbeat", consumer_id="w", session_id=session, timestamp=1)
    assert answered(consumer)["code"] == "unknown_session"


def test_a_plain_consumer_that_wants_lz4(broker, sockets):
    consumer, _ = registered(sockets, "w", ["t"], supports_compression=True)
    sockets(zmq.DEALER).send_multipart([b"t", b"[1, 2]"])
    _, topic, packed = consumer.recv_multipart()
    assert topic == b"t" and json.loads(lz4.frame.decompress(packed))["payload"] == [1, 2]


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([b"only"], Code.MALFORMED_ENVELOPE),
        ([b"a..b", b"{}"], Code.INVALID_TOPIC),
        ([b"abtp/9", b"", b"t", b"{}", b"{}"], Code.UNSUPPORTED_VERSION),
        ([b"abtp/1", b"", b"t", b'{"codec":"xml"}', b"{}"], Code.UNSUPPORTED_CODEC),
        ([b"abtp/1", b"", b"t", b'{"compression":"rar"}', b"{}"], Code.UNSUPPORTED_COMPRESSION),
        ([b"t", lz4.frame.compress(b"1" * 30_000_000)], Code.OVERSIZED_PAYLOAD),
        ([b"_dlq.t", b"{}"], Code.POLICY_DENIED),
        ([b"_system.unroutable", b"{}"], Code.POLICY_DENIED),
        ([b"abtp/1", b"", b"t", b'{"delivery_mode":"bridge"}', b"{}"], Code.POLICY_DENIED),
        ([b"abtp/1", b"", b"t", b'{"delivery_mode":"direct"}', b"{}"], Code.NO_ROUTE),
        ([b"", b"_control", b"{"], Code.MALFORMED_CONTROL),
    ],
)
def test_refusals_are_answered(broker, sockets, frames, code):
    producer = sockets(zmq.DEALER)
    producer.send_multipart(frames)
    answer = answered(producer)
    assert (answer["type"], answer["code"]) == ("error", code)
    assert broker.call(lambda: broker.front.counters[f"refused_{code}"]) == 1
    producer.send_multipart([b"", b"t", b"{}"])  # and the next one is taken
    assert answered(producer)["type"] == "accepted"


# --- direct delivery ----------------------------------------------------------------------------------------


def test_our_clients(broker):
    with (
        AbtpProducer(router(broker)) as producer,
        AbtpConsumer("w", ["orders.>"], router(broker)) as consumer,
    ):
        sent = [producer.publish("orders.new", {"id": 1}, headers={"x-own": [None, 2]})]
        sent.append(producer.publish("orders.new", b"\0\xff"))
        sent.append(producer.publish("orders.new", "text", compress=True, message_id="chosen"))
        found = [consumer.recv() for _ in sent]
        assert [one.payload for one in found] == [{"id": 1}, b"\0\xff", "text"]
        assert [one.message_id for one in found] == sent and sent[2] == "chosen"
        assert found[0].headers["x-own"] == [None, 2] and found[0].producer_id == producer.producer_id
        for one in found:
            consumer.ack(one, confirm=True)
        assert direct(broker).dispatcher.counts["acked"] == 3
        consumer.heartbeat()
    assert len(direct(broker).dispatcher.sessions) == 0


def test_nack_retry_and_dead_letter(broker):
    with (
        AbtpProducer(router(broker)) as producer,
        AbtpConsumer("w", ["t"], router(broker)) as consumer,
    ):
        producer.publish("t", 1)
        for attempt in (1, 2, 3):
            found = consumer.recv()
            assert found.attempt == attempt
            consumer.nack(found, "busy", confirm=True)
        producer.publish("t", 2)
        consumer.nack(consumer.recv(), "cannot be read", terminal=True, confirm=True)
        letters = [(letter.reason, letter.attempts, letter.error) for letter in direct(broker).letters]
        assert letters == [("exhausted", 3, "busy"), ("terminal", 1, "cannot be read")]


def test_a_late_ack_is_refused(broker):
    with AbtpConsumer("w", ["t"], router(broker)) as consumer, AbtpProducer(router(broker)) as producer:
        producer.publish("t", 1)
        first = consumer.recv()
        consumer.nack(first, confirm=True)
        second = consumer.recv()
        with pytest.raises(ProtocolError) as refused:
            consumer.ack(first, confirm=True)
        assert refused.value.reason == "stale_ack"
        consumer.ack(first)
        consumer.ack(second, confirm=True)
        assert consumer.refused == 1


def test_a_consumer_that_dies_loses_nothing(broker, sockets):
    consumer, _ = registered(sockets, "w", ["t"])
    dispatcher = direct(broker).dispatcher
    with AbtpProducer(router(broker)) as producer:
        producer.publish("t", 0)
        consumer.recv_multipart()
        consumer.close(0)
        sent = 1
        while broker.call(
            lambda: len(dispatcher.sessions)
        ):  # until the broker sends and hears that nobody is there
            producer.publish("t", sent)
            sent += 1
            time.sleep(0.01)  # no more than may wait for a destination
        with AbtpConsumer("w", ["t"], router(broker)) as again:
            found = [again.recv() for _ in range(sent)]
            assert [one.payload for one in found] == list(range(sent))
            assert (found[0].attempt, found[-1].attempt) == (2, 1)
            for one in found:
                again.ack(one, confirm=True)
        assert dispatcher.state.messages == {} and direct(broker).letters == []


def test_work_goes_to_the_remaining_consumers(broker):
    with AbtpProducer(router(broker)) as producer:
        one = AbtpConsumer("one", ["t"], router(broker))
        with AbtpConsumer("two", ["t"], router(broker)) as two:
            producer.publish("t", "work")
            assert one.recv().attempt == 1
            one.close()
            found = two.recv()
            assert (found.payload, found.attempt) == ("work", 2)
            two.ack(found, confirm=True)


def test_a_session_that_the_broker_forgot_begins_anew(broker):
    with AbtpProducer(router(broker)) as producer:
        with AbtpConsumer("w", ["t"], router(broker), heartbeat=0.02) as consumer:
            before = consumer.session_id
            dispatcher = direct(broker).dispatcher
            broker.call(
                lambda: dispatcher._end_session(
                    dispatcher.sessions.find(("", "w")), "restart", direct(broker).now
                )
            )
            with pytest.raises(Again):  # the client looks at answers while it waits for messages
                consumer.recv(0.3)
            broker.until(lambda: len(dispatcher.sessions) == 1)
            producer.publish("t", 1)
            assert consumer.recv().payload == 1 and consumer.session_id != before


def test_a_full_queue_tells_the_producer(tmp_path):
    rules = Rules(limits=AdmissionLimits(max_per_topic_queue=2))
    with running(tmp_path, rules=rules, routes=[("t", "nobody")]) as broker:
        with AbtpProducer(router(broker)) as producer:
            producer.publish("t", 1)
            producer.publish("t", 2)
            with pytest.raises(Again, match="dropped: max_per_topic_queue"):
                producer.publish("t", 3)
            assert direct(broker).dispatcher.admission.counts == {"deferred": 2, "dropped": 1}


def test_no_route_is_told(broker):
    with AbtpProducer(router(broker)) as producer:
        with pytest.raises(ProtocolError) as refused:
            producer.publish("nowhere", 1, headers={"delivery_mode": "direct"}, message_id="m")
        assert refused.value.reason == Code.NO_ROUTE
        assert direct(broker).lost == [("nowhere", "m", "no_route")]


def test_a_producers_password_reaches_nobody(broker):
    with subscribed(broker, "") as subscriber, AbtpProducer(router(broker)) as producer:
        producer.publish("t", 2, headers={"auth": "password"})
        found = subscriber.recv()
        assert found.payload == 2 and "password" not in str(found)


def test_too_much_that_waits_for_the_disk(tmp_path):
    with running(tmp_path, unkept=0) as broker, AbtpProducer(router(broker)) as producer:
        with pytest.raises(Again, match="throttled"):
            producer.publish("t", 1)


def test_many_messages_in_order(broker):
    with (
        AbtpProducer(router(broker)) as producer,
        AbtpConsumer(
            "w", ["t"], router(broker), capabilities=ConsumerCapabilities(max_inflight=50)
        ) as consumer,
        AbtpConsumer(
            "v", ["u"], router(broker), capabilities=ConsumerCapabilities(supports_ack=False)
        ) as careless,
    ):
        for start in range(0, 1000, 200):
            for number in range(start, start + 200):
                producer.publish("t" if number % 2 else "u", number, wait=False)
            for number in range(start, start + 200, 2):
                found = consumer.recv()
                assert found.payload == number + 1
                consumer.ack(found)
                assert careless.recv().payload == number
            producer.confirm()
        broker.until(lambda: not direct(broker).dispatcher.state.messages)
        assert direct(broker).dispatcher.counts["acked"] == 500


def test_threads_share_a_consumer(broker):
    """One thread receives while another confirms."""
    with AbtpConsumer("w", ["t"], router(broker)) as consumer, AbtpProducer(router(broker)) as producer:
        producer.publish("t", 1)
        first = consumer.recv()
        late = []
        waiting = threading.Thread(target=lambda: late.append(consumer.recv()))
        waiting.start()
        consumer.ack(first, confirm=True)
        producer.publish("t", 2)
        waiting.join(10)
        assert [one.payload for one in late] == [2]
