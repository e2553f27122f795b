"""Programs that do not read what their consumers are to get."""

from __future__ import annotations

import os
import time
from concurrent.futures import Future
from dataclasses import replace

import pytest

import transfer
from tests.broker.in_process_broker import ANYWHERE, FREE, running
from tests.broker.native_peers import wait_for
from tests.broker.native_programs import program
from transfer.broker.clients.native import BrokerClient
from transfer.broker.delivery import group_reader
from transfer.broker.delivery.group_contract import LARGE
from transfer.broker.fronts import (
    native_consumers,
    native_downloads as own_offers,
    native_queue as own_queue,
)
from transfer.broker.protocols.native import Join, Op, decode_deliveries, encode, encode_join, encode_nack
from transfer.broker.protocols.native_pieces import decode_place

SIZE = 100_000
COUNT = 300
GROUPS = 6
#: bytes that wait for a program, and that go out at once
MOST, AT_ONCE = 8 << 20, 2 << 20


@pytest.fixture
def broker(tmp_path, monkeypatch):
    monkeypatch.setattr(native_consumers, "MOST_WAITING", MOST)
    monkeypatch.setattr(group_reader, "MOST_BYTES", AT_ONCE)
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
    socket = broker.fronts["native"]._sockets[0].socket
    return max((socket.waiting_bytes(name) or 0 for name in socket.routes()), default=0)


def max_waiting(broker, seconds=0.3):
    """The most that waits for it in a while: what is on its way to it by then has come."""
    end = time.monotonic() + seconds
    most = 0
    while time.monotonic() < end:
        most = max(most, waiting(broker))
        time.sleep(0.005)
    return most


def is_paused(broker):
    return wait_for(lambda: broker.fronts["native"].counters["paused"])


def test_what_waits_for_a_program_has_a_limit_in_bytes(broker, published):
    """Its windows would let many times as much; what it does not get goes on when it reads."""
    with program(broker.endpoints["requests"]) as lazy:
        for number in range(GROUPS):
            lazy.say(encode(Op.JOIN, number, encode_join(Join("t", f"g{number}", 10_000, "old"))))
        assert is_paused(broker)
        wait_for(lambda: waiting(broker) > MOST // 2)
        assert MOST // 2 < max_waiting(broker) < MOST + 2 * AT_ONCE
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


def test_large_messages_that_a_program_fetches_and_does_not_read(broker, monkeypatch):
    """Each may have 16 MiB on its way, and all of them together have the program's limit."""
    monkeypatch.setattr(own_offers, "MOST_ASKED", AT_ONCE)
    count, payload = 12, os.urandom(LARGE + 12_345)
    with BrokerClient(broker.endpoints["requests"], timeout=60) as client:
        for _ in range(count):
            client.publish("t", payload)
    with program(broker.endpoints["requests"]) as lazy:
        lazy.join("t", window=100, pieces=True)
        for place in [lazy.offered() for _ in range(count)]:
            lazy.fetch(place, place.position)
        assert is_paused(broker)
        wait_for(lambda: waiting(broker) > MOST // 2)
        assert max_waiting(broker) < MOST + 4 * AT_ONCE
        got: dict[int, bytearray] = {}
        while sum(map(len, got.values())) < count * len(payload):
            head, parts = lazy.hear(Op.RANGE)
            place, _ = decode_place(head)
            data = got.setdefault(place.offset, bytearray())
            assert len(data) == place.position
            data += bytes(parts[0].buffer)
        assert sorted(got) == list(range(count)) and all(data == payload for data in got.values())


def test_nothing_is_read_for_a_program_that_has_gone(broker, published):
    """Until it is noticed, in a second, its consumers are members yet."""
    front = broker.fronts["native"]
    with program(broker.endpoints["requests"]) as lazy:
        lazy.join("t", window=10_000)
        assert is_paused(broker)
    wait_for(lambda: not front._sockets[0]._programs)
    assert front.counters["delivered"] < COUNT
    group = broker.hub.groups.find("t", "g").group
    wait_for(lambda: not group.consumers)  # which leave a moment after their program
    assert group.held == 0 and group.lag(COUNT) == COUNT


def test_what_waits_for_all_who_pull_has_a_limit_in_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(own_queue, "MOST_WAITING", MOST)
    monkeypatch.setattr(group_reader, "MOST_BYTES", AT_ONCE)
    own = replace(ANYWHERE.native, queues={"t": FREE})
    with (
        running(tmp_path, native=own) as broker,
        transfer.Context() as context,
        context.socket(transfer.PULL) as lazy,
        BrokerClient(broker.endpoints["requests"], timeout=60) as client,
    ):
        data = os.urandom(SIZE)
        for _ in range(0, COUNT, 10):
            client.publish_many("t", [data] * 10)
        lazy.rcvtimeo = 20_000
        lazy.connect(broker.endpoints["queue t"])
        (served,) = broker.hub.groups.served
        (queue,) = broker.fronts["native"]._queues
        wait_for(lambda: queue._waiting > MOST // 2)
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            # What the group holds is more between two steps of the broker's loop: what it puts back at once.
            assert queue._waiting < MOST + 2 * AT_ONCE
            time.sleep(0.005)
        for _ in range(COUNT):
            assert lazy.recv_multipart()[1] == data
        wait_for(lambda: served.group.cursor == COUNT)


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
        publisher = broker.fronts["native"]._publisher
        (stream,) = publisher.socket._links.state.peers
        assert 32 << 20 < stream.queued_bytes <= 64 << 20
        assert stream.dropped >= 10


def test_who_refuses_more_than_can_be_kept_gets_no_more_for_now(broker, monkeypatch):
    monkeypatch.setattr(native_consumers, "MAX_PENDING_DEAD_LETTERS", 20)
    held = []
    store = broker.hub.groups.dead_letters._store
    monkeypatch.setattr(broker.hub.groups.dead_letters, "_store", lambda *dead: held.append(dead))
    endpoint = broker.endpoints["requests"]
    with BrokerClient(endpoint) as client, program(endpoint) as one:
        client.publish_many("t", [b"x"] * 100)
        one.say(encode(Op.JOIN, 0, encode_join(Join("t", "g", 10, "old"))))
        got = 0
        while one.socket.poll(10_000 if got < 20 else 200):
            for delivery in decode_deliveries(one.hear(Op.DELIVER)[0]):
                one.say(encode(Op.NACK, 0, encode_nack(delivery, "é" * 5000, retry=False)))
                got += 1
        assert got <= 30
        wait_for(lambda: len(held) == got)
        assert {len(dead.reason) for dead, *_ in held} == {1000}
        monkeypatch.setattr(broker.hub.groups.dead_letters, "_store", store)
        for dead in held:
            broker.loop.call_soon_threadsafe(store, *dead)
        head, _ = one.hear(Op.DELIVER)
        assert decode_deliveries(head)


def test_a_program_that_is_paused_again_in_the_middle_stays_so(broker):
    """What goes to its first consumer at once is too much: the others are not unpaused."""
    with program(broker.endpoints["requests"]) as one, BrokerClient(broker.endpoints["requests"]) as client:
        for number in range(4):
            one.join("t", f"g{number}", number)
        [program_] = broker.fronts["native"]._sockets[0]._programs.values()
        groups = broker.hub.groups
        pause = groups.pause

        def pauses(consumer, served, paused):
            pause(consumer, served, paused)
            if not paused:
                program_._pause(True)

        def again():
            program_._pause(True)
            groups.pause = pauses
            program_._pause(False)
            groups.pause = pause
            return [
                served.group._consumers[one].paused
                for served in groups.served
                for one in served.group.members
            ]

        assert on_loop(broker, again) == [True] * 4
        on_loop(broker, lambda: program_._pause(False))
        client.publish("t", b"x")
        assert len({one.hear(Op.DELIVER)[0].number for _ in range(4)}) == 4


def on_loop(broker, call):
    answer = Future()
    broker.loop.call_soon_threadsafe(lambda: answer.set_result(call()))
    return answer.result(10)
