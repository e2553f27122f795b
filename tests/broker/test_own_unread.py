"""Programs that do not read what their consumers are to get."""

from __future__ import annotations

import os

import pytest

import transfer
from tests.broker.own_peers import wait_for
from tests.broker.own_programs import program
from tests.broker.running import running
from transfer.broker import group_reading
from transfer.broker.fronts import own_consumers
from transfer.clients.own import BrokerClient
from transfer.protocols.own import Join, Op, decode_deliveries, encode, encode_join

SIZE = 100_000
COUNT = 300
GROUPS = 6
#: bytes that wait for a program, and that go out at once
MOST, AT_ONCE = 8 << 20, 2 << 20


@pytest.fixture
def broker(tmp_path, monkeypatch):
    monkeypatch.setattr(own_consumers, "MOST_WAITING", MOST)
    monkeypatch.setattr(group_reading, "MOST_BYTES", AT_ONCE)
    with running(tmp_path) as broker:
        yield broker


@pytest.fixture
def published(broker):
    data = os.urandom(SIZE)
    with BrokerClient(broker.endpoints["requests"], timeout=60) as client:
        for _ in range(0, COUNT, 10):
            client.publish_many("t", [data] * 10)
    return data


def waiting(broker):
    """Bytes that wait for the program that has most of them."""
    socket = broker.fronts["own"]._sockets[0].socket
    return max((socket.waiting_bytes(name) or 0 for name in socket.routes()), default=0)


def is_paused(broker):
    return wait_for(lambda: broker.fronts["own"].counters["paused"])


def test_what_waits_for_a_program_has_a_limit_in_bytes(broker, published):
    """Its windows would let many times as much; what it does not get goes on when it reads."""
    with program(broker.endpoints["requests"]) as lazy:
        for number in range(GROUPS):
            lazy.say(encode(Op.JOIN, number, encode_join(Join("t", f"g{number}", 10_000, "old"))))
        assert is_paused(broker)
        wait_for(lambda: waiting(broker) > MOST // 2)
        most = max(waiting(broker) for _ in range(20))
        assert MOST // 2 < most < MOST + 2 * AT_ONCE
        got = dict.fromkeys(range(GROUPS), 0)
        while sum(got.values()) < GROUPS * COUNT:
            head, parts = lazy.hear(Op.DELIVER)
            assert all(part.buffer == published for part in parts)
            assert [one.offset for one in decode_deliveries(head)] == list(
                range(got[head.number], got[head.number] + len(parts))
            )
            got[head.number] += len(parts)
        assert got == dict.fromkeys(range(GROUPS), COUNT)
        assert wait_for(lambda: not waiting(broker))


def test_others_of_the_group_get_what_it_does_not_read(broker, published):
    with program(broker.endpoints["requests"]) as lazy:
        lazy.join("t", window=10_000)
        assert is_paused(broker)
        with BrokerClient(broker.endpoints["requests"], timeout=20) as other:
            consumer = other.consume("t", "g")
            last = -1
            while last < COUNT - 1:
                message = consumer.recv(timeout=20)
                assert message.offset > last
                last = message.offset
                consumer.ack(message)


def test_nothing_is_read_for_a_program_that_has_gone(broker, published):
    """Until it is noticed, in a second, its consumers are members yet."""
    front = broker.fronts["own"]
    with program(broker.endpoints["requests"]) as lazy:
        lazy.join("t", window=10_000)
        assert is_paused(broker)
    wait_for(lambda: not front._sockets[0]._programs)
    assert front.counters["delivered"] < COUNT
    group = broker.hub.groups.find("t", "g").group
    assert group.held == 0 and group.lag(COUNT) == COUNT


def test_what_waits_for_a_sub_has_a_limit_in_bytes(broker):
    """The rest is dropped for it, and counted."""
    with transfer.Context() as context, context.socket(transfer.SUB) as lazy:
        lazy.subscribe(b"t")
        lazy.connect(broker.endpoints["subscriptions"])
        lazy.wait_for_peers(1, 10)
        data = bytes(1_000_000)
        with BrokerClient(broker.endpoints["requests"], timeout=60) as client:
            for _ in range(10):
                client.publish_many("t", [data] * 10)
        publisher = broker.fronts["own"]._publisher
        (stream,) = publisher.socket._links.peers
        assert 32 << 20 < stream.queued_bytes <= 64 << 20
        assert stream.dropped >= 10
