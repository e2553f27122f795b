"""A broker that is killed at any moment, under load from all fronts: what it acknowledged is there."""

from __future__ import annotations

import random
import struct
import threading
import time
import zlib
from collections import defaultdict
from itertools import pairwise

import pytest

from tests.broker.broker_processes import BrokerProcesses
from transfer.broker.clients.native import BrokerClient
from transfer.broker.clients.pybroker import PyBrokerClient
from transfer.broker.clients.rqueue import RqueueClient
from transfer.broker.clients.ttp import TtpClient
from transfer.broker.storage.database import Database
from transfer.broker.storage.dead_letter import Filter
from transfer.broker.storage.dead_letter_table import DeadLetters
from transfer.broker.storage.folder_parts import LOG, STATE
from transfer.broker.storage.store import Store
from transfer.log import Log
from transfer.transports.errors import Again, Broken, Closed

HEAD = struct.Struct("<4sQI")
#: payloads from 64 KiB on go through the broker in pieces
SIZES = (0, 10, 1000, 70_000, 300_000)
GROUP = "g"
WINDOW = 48
#: seconds that anybody waits for a broker which may be gone
TIMEOUT = 3


def stamped(who, number, rng):
    """A payload that says whose it is, which one, how long, and that it is whole."""
    size = SIZES[min(int(rng.expovariate(1.2)), len(SIZES) - 1)]
    body = HEAD.pack(who, number, size) + bytes([number % 251]) * size
    return body + struct.pack("<I", zlib.crc32(body))


def taken_apart(data):
    """(who, number) of a payload, and its size. Fails if it is not whole."""
    who, number, size = HEAD.unpack_from(data)
    end = HEAD.size + size
    assert len(data) >= end + 4, "a part of a payload"
    assert zlib.crc32(data[:end]) == struct.unpack_from("<I", data, end)[0], "a payload was changed"
    return who, number, end + 4


def is_poison(number):
    return number % 40 == 7


class Load:
    """Publishers and consumers in threads, and what they know. acknowledged: numbers, by publisher."""

    def __init__(self, seed):
        self.acknowledged = defaultdict(set)
        self.next = defaultdict(int)
        self.done = set()  # offsets whose acknowledgement is on the disk
        self.asked = set()  # offsets that were acknowledged: whether that was kept is not always told
        self.buried = set()  # offsets with a dead letter at the last look
        self.streamed = b""  # of PyBroker's topic, as far as it was read
        self.failures = []
        self._rng = random.Random(seed)
        self._stop = threading.Event()
        self._threads = []

    def begin(self, endpoints, ports):
        self._stop.clear()
        works = [
            (self.publish_own, endpoints["requests"], b"own1"),
            (self.publish_own, endpoints["requests"], b"own2"),
            (self.publish_ttp, ports["ttp"], b"ttp1"),
            (self.publish_rqueue, ports["rqueue"], b"rque"),
            (self.publish_pybroker, ports["pybroker"], b"pybr"),
            (self.consume, endpoints["requests"]),
            (self.consume, endpoints["requests"]),
        ]
        self._threads = [threading.Thread(target=self._guarded, args=work) for work in works]
        for thread in self._threads:
            thread.start()

    def end(self):
        """The broker is gone: all of them notice."""
        self._stop.set()
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive(), "somebody waits for a broker that is gone"
        assert not self.failures, self.failures[0]

    def _guarded(self, work, *where):
        try:
            work(*where)
        except (Again, Broken, Closed):
            return  # the broker is gone
        except BaseException as error:  # noqa: BLE001 - the test fails by it
            self.failures.append(error)

    def _some(self, who, count):
        begin = self.next[who]
        self.next[who] += count
        rng = random.Random(f"{who}{begin}")
        return range(begin, begin + count), [stamped(who, begin + n, rng) for n in range(count)]

    def publish_own(self, endpoint, who):
        with BrokerClient(endpoint, timeout=TIMEOUT) as client:
            while not self._stop.is_set():
                numbers, payloads = self._some(who, self._rng.choice((1, 3, 20)))
                client.publish_many("work", payloads)
                self.acknowledged[who].update(numbers)

    def publish_ttp(self, port, who):
        with TtpClient("127.0.0.1", port, timeout=TIMEOUT) as client:
            while not self._stop.is_set():
                [number], [payload] = self._some(who, 1)
                client.publish("work", payload, wait=True)
                self.acknowledged[who].add(number)

    def publish_rqueue(self, port, who):
        with RqueueClient("127.0.0.1", port, timeout=TIMEOUT) as client:
            while not self._stop.wait(0.002):
                _, [payload] = self._some(who, 1)
                client.publish("work", payload)

    def publish_pybroker(self, port, who):
        """What was read from the stream once stays where it is, and as it is."""
        with PyBrokerClient("127.0.0.1", port, timeout=TIMEOUT) as client:
            known = self.streamed[-1000:]
            found = bytes(client.fetch("bytes", len(self.streamed) - len(known)))
            assert found[: len(known)] == known  # more may follow, that was published and not yet read
            while not self._stop.wait(0.005):
                _, payloads = self._some(who, 2)
                for payload in payloads:
                    client.publish("bytes", payload)
                self.streamed += bytes(client.fetch("bytes", len(self.streamed)))

    def consume(self, endpoint):
        with BrokerClient(endpoint, timeout=TIMEOUT) as client:
            consumer = client.consume("work", GROUP, begin="old", window=WINDOW)
            while not self._stop.is_set():
                self.process(consumer, consumer.recv_many())

    def process(self, consumer, messages):
        good = []
        for message in messages:
            assert message.offset not in self.done, "what was acknowledged came again"
            assert message.offset not in self.buried, "a dead letter came again"
            _, number, size = taken_apart(message.data)
            assert size == len(message.data)
            if is_poison(number):
                consumer.nack(message, "poison", retry=False)
            else:
                good.append(message)
        self.asked.update(message.offset for message in good)
        consumer.ack(*good, wait=True)
        assert not consumer.stale
        self.done.update(message.offset for message in good)


class Audit:
    """Looks into the folder of a broker that is gone."""

    def __init__(self, folder):
        self._folder = folder
        self.found = defaultdict(list)  # numbers, by publisher
        self.poison = set()  # offsets
        self._next = 0
        self._stream = b""

    def look(self, load):
        with Log(self._folder / LOG) as log:
            store = Store(log, lambda name: True, most=100)
            work, stream = store.topic("work"), store.topic("bytes")
            while messages := store.read(work, self._next):
                for message in messages:
                    assert message.offset == self._next
                    who, number, size = taken_apart(message.payload)
                    assert size == message.nbytes
                    self.found[who].append(number)
                    if is_poison(number):
                        self.poison.add(message.offset)
                    self._next += 1
                del message, messages
            while parts := store.stream(stream, len(self._stream), 1 << 20):
                self._stream += b"".join(parts)
            assert len(self._stream) == stream.position
        assert self._stream.startswith(load.streamed), "the stream is another one than it was"
        for who, numbers in load.acknowledged.items():
            missing = numbers.difference(self.found[who])
            assert not missing, f"{who!r} was told that {sorted(missing)[:5]} are kept"
        for who, numbers in self.found.items():
            assert all(one < two for one, two in pairwise(numbers)), f"order of {who!r}"
        at = 0
        while at < len(self._stream):
            at += taken_apart(memoryview(self._stream)[at : at + HEAD.size + SIZES[-1] + 4])[2]
        load.buried = self.letters()

    def letters(self):
        """Offsets of the dead letters."""
        database = Database(self._folder / STATE)
        try:
            names = [one.delivery_id for one in DeadLetters(database).page(Filter(), limit=100_000)]
        finally:
            database.close()
        offsets = {int(name.rpartition("/")[2]) for name in names}
        assert len(offsets) == len(names), "a dead letter is there twice"
        assert offsets <= self.poison, "a message that is none became a dead letter"
        return offsets


def killed_again_and_again(folder, kills, seed):
    rng = random.Random(seed)
    load, audit = Load(seed), Audit(folder)
    with BrokerProcesses() as serving:
        for _ in range(kills):
            load.begin(*serving.start(folder))
            pause = threading.Event()
            pause.wait(rng.uniform(0.05, 0.6))
            serving.kill()
            load.end()
            audit.look(load)
        endpoints, _ = serving.start(folder)
        drain(endpoints["requests"], load, audit)
        serving.kill()
    audit.look(load)
    assert load.buried == audit.poison, "dead letters are lost"
    assert load.asked | audit.poison == set(range(sum(map(len, audit.found.values()))))
    return load, audit


def drain(endpoint, load, audit):
    """All that is not done comes again, and nothing else."""
    left = set(range(sum(map(len, audit.found.values())))) - load.asked - load.buried
    unsure = load.asked - load.done  # their acknowledgement may be kept, and may not
    with BrokerClient(endpoint, timeout=10) as client:
        consumer = client.consume("work", GROUP, begin="old", window=1000)
        seen = set()
        deadline = time.monotonic() + 20
        while not left <= seen:
            assert time.monotonic() < deadline
            try:
                messages = consumer.recv_many(timeout=2)
            except Again:
                raise AssertionError(f"lost: {sorted(left - seen)[:10]}") from None
            seen.update(message.offset for message in messages)
            load.process(consumer, messages)
        with pytest.raises(Again):
            while True:
                messages = consumer.recv_many(timeout=0.2)
                assert {message.offset for message in messages} <= unsure
                load.process(consumer, messages)


def test_killed_at_any_moment(tmp_path):
    load, audit = killed_again_and_again(tmp_path, 6, 1)
    assert all(load.acknowledged[who] for who in (b"own1", b"own2", b"ttp1"))
    assert audit.found[b"rque"]
    assert load.done
    assert load.streamed


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_200_times(tmp_path):
    killed_again_and_again(tmp_path, 200, 2)
