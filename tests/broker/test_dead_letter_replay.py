"""A replayed dead letter goes to the group that could not process it, as it was, and to nobody else."""

from __future__ import annotations

import numpy as np
import pytest

import transfer
from tests.broker.http_requests import ask, get_json, until
from tests.broker.in_process_broker import FREE, running
from transfer.broker.clients.native import BrokerClient
from transfer.broker.clients.pybroker import PyBrokerClient
from transfer.broker.clients.rqueue import RqueueClient
from transfer.broker.config.settings import AbtpEndpoints
from transfer.broker.core.groups import Group
from transfer.broker.delivery.loop_calls import run_on_loop
from transfer.broker.fronts.native import NativeSettings
from transfer.transports.errors import Again

HERE = "127.0.0.1"


@pytest.fixture
def broker(tmp_path):
    with running(tmp_path, http=0) as one:
        yield one


@pytest.fixture
def client(broker):
    with BrokerClient(broker.endpoints["requests"]) as one:
        yield one


def operate(broker, what, **body):
    status, text = ask(
        broker.ports["http"],
        f"/api/admin/dlq/{what}",
        method="POST",
        body={"actor": "me", "reason": "why", **body},
    )
    assert status in (200, 201), text
    return text


def replay(broker, *ids, consumer="billing", topic="orders"):
    return operate(broker, "replay", ids=ids, target_consumer=consumer, target_topic=topic, confirm="REPLAY")


def letters(broker):
    return get_json(broker.ports["http"], "admin/dlq/list")["letters"]


def die(broker, consumer, message):
    before = len(letters(broker))
    consumer.nack(message, "cannot", retry=False)
    until(lambda: len(letters(broker)), before + 1)


@pytest.mark.parametrize("nbytes", [80, 200_000])
def test_a_tensor_comes_back_as_it_was(broker, client, nbytes):
    array = np.arange(nbytes // 8, dtype=np.float64).reshape(2, -1)
    billing, archive = (client.consume("orders", name, begin="old") for name in ("billing", "archive"))
    with transfer.Context() as context, context.socket(transfer.PUSH) as push:
        push.connect(broker.endpoints["pushes"])
        push.send_tensor(array, topic="orders")
        push.close(5000)
    archive.ack(archive.recv(), wait=True)
    first = billing.recv()
    die(broker, billing, first)
    assert '"replayed": 1' in replay(broker, "orders/billing/0")
    again = billing.recv()
    assert (again.offset, again.attempt, len(again.parts)) == (1, 1, 1)
    assert again.parts[0].meta == first.parts[0].meta is not None
    assert bytes(again.data) == array.tobytes()
    billing.ack(again, wait=True)
    assert letters(broker) == []
    client.publish("orders", b"next")
    assert archive.recv().offset == 2, "the replay was not for the archive"
    assert [one["lag"] for one in get_json(broker.ports["http"], "groups")["groups"]] == [1, 1]


def test_who_has_subscribed_is_not_told_again(broker, client):
    billing = client.consume("orders", "billing", begin="old")
    with RqueueClient(HERE, broker.ports["rqueue"]) as other:
        other.subscribe("orders")
        other.publish("orders", b"one")
        assert other.recv().content == b"one"
        die(broker, billing, billing.recv())
        replay(broker, "orders/billing/0")
        assert bytes(billing.recv().data) == b"one"
        other.publish("orders", b"two")
        assert other.recv().content == b"two"


@pytest.fixture
def subscriber(broker):
    """A SUB that begins at the oldest message; its endpoint."""
    endpoint = f"{broker.endpoints['subscriptions']}?begin=old"
    with transfer.Context() as context, context.socket(transfer.SUB, rcvtimeo=10_000) as sub:
        sub.subscribe(b"orders")
        sub.connect(endpoint)
        sub.wait_for_peers(1, 10)
        yield sub, endpoint


@pytest.mark.parametrize("is_away", [False, True])
def test_a_subscriber_to_the_log_gets_no_replay_and_misses_none(broker, client, subscriber, is_away, caplog):
    sub, endpoint = subscriber
    billing = client.consume("orders", "billing", begin="old")
    client.publish("orders", b"one")
    assert sub.recv_multipart()[-1] == b"one"
    die(broker, billing, billing.recv())
    if is_away:
        sub.disconnect(endpoint)
    replay(broker, "orders/billing/0")
    die(broker, billing, billing.recv())
    replay(broker, "orders/billing/1")
    if is_away:
        sub.connect(endpoint)
        sub.wait_for_peers(1, 10)
    client.publish("orders", b"two")
    assert sub.recv_multipart()[-1] == b"two"
    assert not sub.poll(200) and "missed" not in sub._links.state.counts
    assert "removed from the log" not in caplog.text


def test_who_reads_from_the_beginning_later_gets_no_replay(broker, client):
    billing = client.consume("orders", "billing", begin="old")
    client.publish("orders", b"one")
    die(broker, billing, billing.recv())
    replay(broker, "orders/billing/0")
    client.publish("orders", b"two")
    later = client.consume("orders", "later", begin="old", window=1)
    for data in (b"one", b"two"):
        message = later.recv()
        assert bytes(message.data) == data
        later.ack(message, wait=True)
    with pytest.raises(Again):
        later.recv(timeout=0.2)
    with PyBrokerClient(HERE, broker.ports["pybroker"]) as reader:
        assert bytes(reader.fetch("orders", 0)) == b"onetwo"
    with transfer.Context() as context, context.socket(transfer.SUB, rcvtimeo=10_000) as sub:
        sub.subscribe(b"orders")
        sub.connect(f"{broker.endpoints['subscriptions']}?begin=old")
        assert [sub.recv_multipart()[-1] for _ in range(2)] == [b"one", b"two"]
        assert not sub.poll(200) and "missed" not in sub._links.state.counts
    lags = {one["group"]: one["lag"] for one in get_json(broker.ports["http"], "groups")["groups"]}
    assert lags == {"billing": 2, "later": 0}
    for name, found in (("later", [b"one", b"two"]), ("billing", [b"one", b"one", b"two"])):
        run_on_loop(broker.loop, lambda name=name: broker.hub.groups.seek("orders", name, 0, "was moved"))
        with BrokerClient(broker.endpoints["requests"]) as moved:
            consumer = moved.consume("orders", name)
            assert [bytes(consumer.recv().data) for _ in found] == found


@pytest.mark.parametrize("restarts", [False, True])
def test_a_replay_that_retention_removed_is_not_missed(tmp_path, restarts, caplog):
    """The subscriber is away, and returns when the log no longer has the replay."""
    with transfer.Context() as context, context.socket(transfer.SUB, rcvtimeo=10_000) as sub:
        sub.subscribe(b"orders")
        with running(tmp_path, http=0) as broker, BrokerClient(broker.endpoints["requests"]) as client:
            endpoint = f"{broker.endpoints['subscriptions']}?begin=old"
            sub.connect(endpoint)
            billing = client.consume("orders", "billing", begin="old")
            client.publish("orders", b"one")
            assert sub.recv_multipart()[-1] == b"one"
            sub.disconnect(endpoint)
            die(broker, billing, billing.recv())
            replay(broker, "orders/billing/0")
            billing.ack(billing.recv(), wait=True)
            run_on_loop(broker.loop, lambda: broker.hub.store.purge(broker.hub.store.topics["orders"]))
            client.publish("orders", b"two")
            if not restarts:
                sub.connect(endpoint)
                assert sub.recv_multipart()[-1] == b"two"
        if restarts:
            settings = NativeSettings(FREE, FREE, endpoint.partition("?")[0])
            with running(tmp_path, native=settings):
                sub.connect(endpoint)
                assert sub.recv_multipart()[-1] == b"two"
        assert "missed" not in sub._links.state.counts
        assert "removed from the log" not in caplog.text


def test_it_survives_a_restart_as_the_one_group_s_own(tmp_path):
    with running(tmp_path, http=0) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        billing, archive = (client.consume("orders", name, begin="old") for name in ("billing", "archive"))
        client.publish("orders", b"one")
        archive.ack(archive.recv(), wait=True)
        die(broker, billing, billing.recv())
        billing.leave()
        replay(broker, "orders/billing/0")
    with running(tmp_path, http=0) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        assert {one["group"]: one["lag"] for one in get_json(broker.ports["http"], "groups")["groups"]} == {
            "archive": 0,
            "billing": 1,
        }
        assert bytes(client.consume("orders", "billing").recv().data) == b"one"


def test_without_its_group_a_letter_stays(broker, client):
    operate(broker, "dead-letter", id="m1", consumer="nobody", topic="orders", payload="by hand")
    told = replay(broker, "m1", consumer="nobody")
    assert '"replayed": 0' in told and "has no group 'nobody'" in told
    assert [one["message_id"] for one in letters(broker)] == ["m1"]


def test_a_letter_written_by_hand_reaches_its_group(broker, client):
    billing = client.consume("orders", "billing")
    operate(broker, "dead-letter", id="m1", consumer="billing", topic="orders", payload="by hand")
    replay(broker, "m1")
    assert bytes(billing.recv().data) == b"by hand"
    assert letters(broker) == []


def test_a_group_passes_over_what_is_another_s():
    group = Group(5, lambda attempt: 0.0)
    group.join("c", 10)
    group.mark_dead_lettered(5)  # the next one that it would have taken
    group.mark_dead_lettered(7)
    assert [one.offset for one in group.take(9, 0.0)] == [6, 8]
    assert group.cursor == 6


@pytest.mark.parametrize("tenant", ["", "acme"])
def test_a_letter_of_direct_delivery_goes_to_its_consumer(tmp_path, tenant):
    pytest.importorskip("zmq", reason="pip install 'tensor-transfer[fronts]'")
    from transfer.broker.clients.abtp import AbtpConsumer, AbtpProducer

    where = AbtpEndpoints("tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
    with running(tmp_path, http=0, abtp=where) as broker:
        router = broker.endpoints["abtp router"]
        with (
            AbtpConsumer("worker-1", ["orders.*"], router, tenant=tenant) as worker,
            AbtpProducer(router, tenant=tenant) as producer,
        ):
            producer.publish("orders.created", b"an order", message_id="m1", headers={"mine": 1})
            worker.nack(worker.recv(), "cannot", terminal=True, confirm=True)
            until(lambda: len(letters(broker)), 1)
            with AbtpConsumer("worker-2", ["orders.created"], router, tenant=tenant) as other:
                told = replay(broker, "m1", consumer="worker-1", topic="orders.created")
                assert '"replayed": 1' in told
                again = worker.recv()
                assert (again.message_id, bytes(again.payload)) == ("m1", b"an order")
                worker.ack(again, confirm=True)
                with pytest.raises(Again):
                    other.recv(0.1)
        assert letters(broker) == []


def test_a_letter_of_direct_delivery_stays_while_abtp_is_off(broker):
    operate(broker, "dead-letter", id="m1", consumer="w", topic="t", tenant="acme", payload="x")
    told = replay(broker, "m1", consumer="w", topic="t")
    assert '"replayed": 0' in told and "abtp, which is off" in told
    assert len(letters(broker)) == 1
