"""Large messages through a broker in a process of its own: killed in the middle, and what memory it takes."""

from __future__ import annotations

import threading
import zlib
from functools import partial

import pytest

from bench.broker import native_flow
from bench.broker.case import Place
from tests.broker.broker_processes import BrokerProcesses
from tests.broker.native_peers import wait_for
from transfer.broker.clients.native import BrokerClient
from transfer.transports.errors import Again, TransferError

MIB = 1 << 20
SIZE = 12 * MIB
#: bytes of memory that a broker takes at most, with some 60 MB of them for itself
MOST_MB = 300.0


def stamped(number):
    body = bytes([number % 256]) * (SIZE - 8) + number.to_bytes(4, "little")
    return body + zlib.crc32(body).to_bytes(4, "little")


def number_of(data):
    """Which one it is. Fails if it is not whole."""
    assert len(data) == SIZE
    assert zlib.crc32(data[:-4]) == int.from_bytes(data[-4:], "little")
    return int.from_bytes(data[-8:-4], "little")


def publish(endpoint, numbers, acknowledged):
    """Until the broker is gone."""
    try:
        with BrokerClient(endpoint, timeout=20) as client:
            for number in numbers:
                client.publish("t", stamped(number))
                acknowledged.append(number)
    except TransferError:
        return


def consume(endpoint, seen):
    """Acknowledges every second one, until the broker is gone."""
    try:
        with BrokerClient(endpoint, timeout=20) as client:
            consumer = client.consume("t", "killed", begin="old", window=3)
            while True:
                message = consumer.recv()
                seen.append(number_of(message.data))
                if message.offset % 2:
                    consumer.ack(message)
    except TransferError:
        return


def is_at(acknowledged, wanted, seen):
    return len(acknowledged) >= wanted and seen


def test_a_kill_in_the_middle_leaves_nothing_half(tmp_path):
    acknowledged, numbers = [], iter(range(10_000))
    with BrokerProcesses() as serving:
        for turn in range(4):
            endpoints, _ = serving.start(tmp_path)
            seen = []
            threads = [
                threading.Thread(target=publish, args=(endpoints["requests"], numbers, acknowledged)),
                threading.Thread(target=consume, args=(endpoints["requests"], seen)),
            ]
            for thread in threads:
                thread.start()
            wanted = len(acknowledged) + 1 + turn
            wait_for(partial(is_at, acknowledged, wanted, seen), 40)
            serving.kill()
            for thread in threads:
                thread.join(30)
                assert not thread.is_alive()
        endpoints, _ = serving.start(tmp_path)
        with BrokerClient(endpoints["requests"], timeout=20) as client:
            consumer = client.consume("t", "all", begin="old")
            found = []
            while True:
                try:
                    message = consumer.recv(timeout=1)
                except Again:
                    break
                found.append(number_of(message.data))
                consumer.ack(message, wait=True)
    assert found == sorted(set(found)), "in their order, each once"
    assert set(acknowledged) <= set(found)


@pytest.mark.parametrize(
    "quick", [True, pytest.param(False, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_memory_does_not_grow_with_a_message_that_passes(tmp_path, quick):
    sample = native_flow.passing(Place(tmp_path, quick))
    assert sample["peak_mb"] < MOST_MB
    assert sample["first_ahead_s"] > 0, "its first byte was out before its last was in"


@pytest.mark.parametrize(
    "quick", [True, pytest.param(False, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_memory_does_not_grow_with_a_message_that_is_kept(tmp_path, quick):
    assert native_flow.kept(Place(tmp_path, quick))["peak_mb"] < MOST_MB
