"""The client of the broker's own front: a broker that goes and comes again, and waiting."""

from __future__ import annotations

import threading
import time

import pytest

from tests.broker.in_process_broker import running
from tests.broker.native_peers import receive, wait_for
from transfer.broker.clients.native import BrokerClient
from transfer.broker.fronts.native import NativeSettings
from transfer.transports.errors import Again, ArgumentError, Broken, Closed, TransferError

FREE = "tcp://127.0.0.1:0"


def test_a_broker_that_is_gone_is_broken(tmp_path):
    with running(tmp_path) as broker:
        client = BrokerClient(broker.endpoints["requests"], timeout=20)
        consumer = client.consume("t", "g")
        client.publish("t", b"kept")
        assert bytes(consumer.recv().data) == b"kept"
    with client:
        for call in (consumer.recv, lambda: client.publish("t", b"x"), lambda: client.consume("t", "h")):
            begin = time.monotonic()
            with pytest.raises(Broken):
                call()
            assert time.monotonic() - begin < 10, "it waited for its time-out"
    depths = []
    for _ in range(3):
        with pytest.raises(Closed) as found:
            client.publish("t", b"x")
        depths.append(len(found.traceback))
    assert len(set(depths)) == 1, depths
    client.close()


def test_what_was_delivered_before_the_end_is_given(tmp_path):
    with running(tmp_path) as broker:
        client = BrokerClient(broker.endpoints["requests"], timeout=5)
        client.publish_many("t", [b"x"] * 50)
        consumer = client.consume("t", "g", begin="old")
        wait_for(lambda: broker.hub.counts["dispatched"] == 50)
        assert consumer.recv().offset == 0
    with client:
        found = []
        with pytest.raises(Broken):
            while True:
                found += consumer.recv_many()
        assert len(found) <= 49


def test_nobody_is_there():
    begin = time.monotonic()
    with pytest.raises(Again):
        BrokerClient("tcp://127.0.0.1:9", timeout=0.3)
    assert time.monotonic() - begin < 5


def test_time_outs_are_kept(client):
    consumer = client.consume("t", "g")
    for seconds in (0.0, 0.05, 0.3):
        begin = time.monotonic()
        with pytest.raises(Again, match="no message came"):
            consumer.recv(timeout=seconds)
        assert seconds <= time.monotonic() - begin < seconds + 5


def test_closing_wakes_who_waits(broker):
    client = BrokerClient(broker.endpoints["requests"])
    consumer = client.consume("t", "g")
    raised = []

    def wait():
        with pytest.raises(TransferError) as error:
            consumer.recv(timeout=20)
        raised.append(error.type)

    thread = threading.Thread(target=wait)
    thread.start()
    client.publish("other", b"x")
    client.close()
    thread.join(5)
    assert raised == [Closed]


def test_a_client_that_reconnects(tmp_path):
    """The broker goes and comes again: what was not acknowledged comes again, and calls go on."""
    with running(tmp_path) as broker:
        endpoint = broker.endpoints["requests"]
        client = BrokerClient(endpoint, timeout=20, reconnect=True)
        consumer = client.consume("t", "g", window=2)
        client.publish_many("t", [b"1", b"2", b"3"])
        first = receive(consumer, 2)
        consumer.ack(first[0], wait=True)
        assert bytes(consumer.recv().data) == b"3"
    with client:
        client._timeout = 0.5  # how long it waits for the broker to come back
        for _ in range(2):
            with pytest.raises(Broken):
                client.publish("t", b"to nobody")
        client._timeout = 20
        with running(tmp_path, native=NativeSettings(endpoint, FREE, FREE)):
            messages = receive(consumer, 2)
            assert [(bytes(one.data), one.attempt) for one in messages] == [(b"2", 2), (b"3", 2)]
            consumer.ack(first[1])  # of the earlier connection
            consumer.ack(*messages, wait=True)  # these are kept
            with pytest.raises(Broken, match=r"too late.*offset 1 \(attempt 1\)"):
                consumer.flush()
            consumer.flush()  # it is raised once
            assert list(consumer.stale) == [(1, 1)]
            client.publish("t", b"4")
            assert bytes(consumer.recv().data) == b"4"


def test_an_acknowledgement_that_comes_too_late_is_raised(client):
    """The message comes again, to this consumer or another: `wait` must not say that it is done."""
    client.publish("t", b"x")
    consumer = client.consume("t", "g", begin="old")
    message = consumer.recv()
    consumer.nack(message)
    with pytest.raises(Broken, match=r"too late.*offset 0 \(attempt 1\)"):
        consumer.ack(message, wait=True)
    consumer.nack(message)  # is too late as well, and no acknowledgement
    again = consumer.recv()
    assert again.attempt == 2
    consumer.ack(again, wait=True)
    consumer.ack(again, wait=True)  # a repeated one is as good as the first
    assert list(consumer.stale) == [(0, 1), (0, 1)]


def test_a_message_of_another_consumer_is_not_acknowledged(client):
    """It acknowledged the message at its offset in this consumer's own group, which was not processed."""
    client.publish("t", b"ours")
    client.publish("u", b"theirs")
    ours, theirs, group = (
        client.consume(topic, name, begin="old") for topic, name in (("t", "g"), ("u", "g"), ("t", "h"))
    )
    mine = ours.recv()
    for consumer in (theirs, group):
        for call in (consumer.ack, consumer.nack):
            with pytest.raises(ArgumentError, match=r"none of '[tu]' for '[gh]'"):
                call(mine)
        assert consumer.recv(5).group == ("g" if consumer is theirs else "h")
    ours.ack(mine, wait=True)


@pytest.mark.parametrize("changed", [{"offset": -1}, {"offset": "x"}, {"attempt": 0}, {"attempt": None}])
def test_what_nobody_received_is_not_acknowledged(client, changed):
    """It was counted as sent although encoding failed, and every later `flush` waited for its answer."""
    client.publish("t", b"one")
    consumer = client.consume("t", "g", begin="old")
    message = consumer.recv()
    for call in (consumer.ack, consumer.nack):
        with pytest.raises(ArgumentError):
            call(message._replace(**changed))
    consumer.ack(message, wait=True)
    consumer.flush()
