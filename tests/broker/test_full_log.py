"""A log that is full: publishers wait and hear why, and all others go on."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import threading
import time

import pytest

import transfer
from tests.broker import abtp_front
from tests.broker.all_fronts import HERE, all_fronts
from tests.broker.in_process_broker import running
from tests.broker.native_peers import wait_for
from transfer.broker.clients.abtp import AbtpConsumer, AbtpProducer
from transfer.broker.clients.native import BrokerClient
from transfer.broker.clients.pybroker import PyBrokerClient
from transfer.broker.clients.rqueue import RqueueClient
from transfer.broker.clients.ttp import TtpClient
from transfer.broker.fronts import native_plain, native_waiting
from transfer.broker.protocols.native import HELD_UP, Op, decode, decode_words, encode
from transfer.broker.protocols.ttp import (
    HEADER_SIZE,
    WANTED,
    TtpKind,
    decode_error,
    decode_header,
    encode_head,
)
from transfer.transports.errors import Again, LogFull

PAYLOAD = b"x" * 30_000


@pytest.fixture
def disk(monkeypatch):
    """full: it takes no new segment."""
    good, full = os.posix_fallocate, threading.Event()

    def fallocate(fd, begin, size):
        if full.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        good(fd, begin, size)

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    yield full
    full.clear()


@contextlib.contextmanager
def full_log(tmp_path, disk, topic="t"):
    """A broker whose log is full, with a consumer of each message; another program's publish waits."""
    with running(tmp_path) as broker:
        endpoint = broker.endpoints["requests"]
        with BrokerClient(endpoint, timeout=10) as own, BrokerClient(endpoint, timeout=30) as other:
            consumer = own.consume(topic, "g", window=16)
            numbers = list(other.publish_many(topic, [PAYLOAD] * 8))
            disk.set()
            while not broker.hub.is_full:
                numbers += other.publish_many(topic, [PAYLOAD] * 100, wait=False)
                time.sleep(0.02)
            yield broker, own, consumer, other, numbers
            disk.clear()
            with contextlib.suppress(LogFull):  # on a slow machine more was published than may wait
                other.flush()


def test_words_that_are_no_publish_are_answered_while_the_log_is_full(tmp_path, disk):
    with full_log(tmp_path, disk) as (broker, _, consumer, other, _):
        other.publish("t", PAYLOAD, wait=False)
        got = []
        while len(got) < 16:
            found = consumer.recv_many(16, timeout=10)
            consumer.ack(*found, wait=False)
            got += [one.offset for one in found]
        assert got == list(range(len(got)))
        with BrokerClient(broker.endpoints["requests"], timeout=10) as new:
            new.consume("t", "g").leave()
        with transfer.Context() as context, context.socket(transfer.DEALER) as program:
            program.rcvtimeo = 10_000
            program.connect(broker.endpoints["requests"])
            said = {"name": "svc", "lease": 5, "endpoint": "tcp://127.0.0.1:7777", "epoch": 1, "metadata": {}}
            program.send_multipart([encode(Op.REGISTER, 1, json.dumps(said).encode())])
            assert decode(bytes(program.recv_multipart()[0])).op is Op.REGISTERED
            program.send_multipart([encode(Op.RENEW, 1)])
            assert decode(bytes(program.recv_multipart()[0])).op is Op.REGISTERED
            context.destroy(0)


def test_a_publisher_hears_that_the_log_is_full_and_who_holds_it(tmp_path, disk):
    with full_log(tmp_path, disk) as (broker, *_):
        with BrokerClient(broker.endpoints["requests"], timeout=1.0) as late:
            with pytest.raises(LogFull, match=r"the log is full.*group 'g' of topic 't' holds"):
                late.publish("t", b"late")


def test_more_than_may_wait_is_refused_and_published_again_in_order(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(native_waiting, "_EACH", 8 * (30_000 + 256) * 3)
    with full_log(tmp_path, disk) as (_, _, consumer, other, _):
        asked = [other.publish("t", PAYLOAD + b"%d" % one, wait=False) for one in range(100)]
        with pytest.raises(LogFull, match="too many publishes wait already"):
            other.wait_kept(asked[-1], timeout=20)
        again = threading.Thread(target=other.publish, args=("t", b"again"))
        again.start()
        disk.clear()
        again.join(20)
        assert not again.is_alive()
        with contextlib.suppress(LogFull):
            other.flush()
        last = b""
        while last != b"again":
            found = consumer.recv_many(16, timeout=10)
            consumer.ack(*found)
            payloads = [bytes(one.data) for one in found]
            order = [int(one[30_000:]) for one in payloads if len(one) > 30_000]
            assert order == sorted(order)
            last = payloads[-1]


def test_a_program_that_does_not_know_the_word_passes_it_over(tmp_path, disk):
    """It is a REFUSED of a number that no program uses."""
    with full_log(tmp_path, disk) as (broker, *_), transfer.Context() as context:
        with context.socket(transfer.DEALER) as program:
            program.rcvtimeo = 10_000
            program.connect(broker.endpoints["requests"])
            program.send_multipart([encode(Op.PUBLISH, 1, b"t"), b"one"])
            word = decode(bytes(program.recv_multipart()[0]))
            assert (word.op, word.number) == (Op.REFUSED, HELD_UP)
            assert decode_words(word)["code"] == "LogFull"
            disk.clear()
            while word.op is Op.REFUSED:
                word = decode(bytes(program.recv_multipart()[0]))
            assert (word.op, word.number) == (Op.KEPT, 1)
        context.destroy(0)


def test_a_disk_that_is_far_behind_stops_reading_for_a_moment_alone(tmp_path, monkeypatch):
    """Beyond what may wait senders wait by the socket, acknowledgements for a second at most."""
    monkeypatch.setattr(native_waiting, "_EACH", 100_000)
    monkeypatch.setattr(native_waiting, "_STOP", 0.05)
    with running(tmp_path) as broker:
        endpoint = broker.endpoints["requests"]
        behind = threading.Event()
        pressed, publishers = broker.hub.apply_backpressure, []

        def press(publisher):
            if behind.is_set() and not publishers:
                publisher.pause()
                publishers.append(publisher)
            else:
                pressed(publisher)

        monkeypatch.setattr(broker.hub, "apply_backpressure", press)
        with BrokerClient(endpoint, timeout=10) as own, BrokerClient(endpoint, timeout=10) as other:
            consumer = own.consume("t", "g")
            behind.set()
            for _ in range(20):
                other.publish("t", PAYLOAD, wait=False)
            wait_for(lambda: publishers)
            consumer.ack(consumer.recv(10), wait=True)
            with pytest.raises(Again):
                other.wait_kept(2, timeout=0.2)
            behind.clear()
            broker.loop.call_soon_threadsafe(publishers[0].resume)
            with pytest.raises(LogFull):
                other.flush()
            assert other.publish("t", b"goes on")


def test_a_fan_out_is_throttled_while_the_log_is_full(tmp_path, disk):
    with abtp_front.running(tmp_path / "data") as broker, AbtpProducer(abtp_front.router(broker)) as producer:
        producer.publish("kept.t", "first")
        disk.set()
        with pytest.raises(Again, match=r"throttled.*no room on the disk"):
            for number in range(1000):
                producer.publish("kept.t", f"{number} " + "x" * 200_000)
        with pytest.raises(Again, match=r"(?s)throttled.*no group holds it"):
            producer.publish("kept.t", "x" * 200_000)
        disk.clear()
        broker.until(lambda: not broker.hub.is_full)
        producer.publish("kept.t", "last")


def test_a_ttp_publisher_that_waits_hears_why(tmp_path, disk):
    with full_log(tmp_path, disk) as (broker, *_), TtpClient(HERE, broker.ports["ttp"], timeout=2.0) as late:
        with pytest.raises(
            LogFull, match=r"(?s)no room on the disk.*group 'g' of topic 't' holds.*may still be kept"
        ):
            late.publish("t", b"late", wait=True)
        with TtpClient(HERE, broker.ports["ttp"], timeout=2.0) as large:
            with pytest.raises(LogFull, match="group 'g' of topic 't' holds"):
                large.publish("t", bytes(3 << 20), wait=True)
        with TtpClient(HERE, broker.ports["ttp"], timeout=2.0) as stream:
            with pytest.raises(LogFull, match="group 'g' of topic 't' holds"):
                stream.stream("t", [PAYLOAD] * 10, wait=True)
        with TtpClient(HERE, broker.ports["ttp"], timeout=2.0) as careless:
            with pytest.raises(LogFull, match="group 'g' of topic 't' holds"):
                for _ in range(1000):
                    careless.publish("t", PAYLOAD)
        disk.clear()
        late.timeout = 20.0
        late.publish("t", b"again", wait=True)
        assert not late.complaints


def test_what_a_ttp_publisher_is_told_is_an_error_about_no_frame(tmp_path, disk):
    with (
        full_log(tmp_path, disk) as (broker, *_),
        socket.create_connection((HERE, broker.ports["ttp"]), 20) as raw,
    ):
        raw.sendall(encode_head(TtpKind.PUBLISH, b"t", b"", 3, WANTED, 7) + b"one")
        reader = raw.makefile("rb")
        header = decode_header(reader.read(HEADER_SIZE))
        assert (header.kind, header.stream_id) == (TtpKind.ERROR, 0)
        assert decode_error(reader.read(header.data_size))[0] == "full"
        disk.clear()
        while header.kind is TtpKind.ERROR:
            header = decode_header(reader.read(HEADER_SIZE))
            reader.read(header.data_size)
        assert (header.kind, header.stream_id) == (TtpKind.ACK, 7)


@pytest.mark.parametrize("nbytes", [10, 2 << 20])
def test_a_request_is_answered_while_the_log_is_full(tmp_path, disk, monkeypatch, nbytes):
    monkeypatch.setattr(native_plain, "_PATIENCE", 0.2)
    with full_log(tmp_path, disk) as (broker, *_), transfer.Context() as context:
        with context.socket(transfer.REQ) as program:
            program.rcvtimeo = 20_000
            program.connect(broker.endpoints["requests"])
            program.send_multipart([b"t", bytes(nbytes)])
            answer = json.loads(program.recv())
            assert answer["kept"] is False
            assert "the log is full" in answer["error"]
            assert "group 'g' of topic 't' holds" in answer["error"]
            monkeypatch.setattr(native_plain, "_PATIENCE", 20.0)
            program.send_multipart([b"t", bytes(nbytes)])
            disk.clear()
            assert json.loads(program.recv()) == {"kept": True}


def test_a_large_message_of_the_own_protocol_hears_why_it_waits(tmp_path, disk):
    with full_log(tmp_path, disk) as (broker, *_):
        with BrokerClient(broker.endpoints["requests"], timeout=3.0) as late:
            with pytest.raises(LogFull, match="group 'g' of topic 't' holds"):
                late.publish("u", bytes(9 << 20))


def test_pybroker_and_rqueue_say_where_to_look(tmp_path, disk):
    """Their protocols have no word for it."""
    with full_log(tmp_path, disk) as (broker, *_):
        for client, port in ((PyBrokerClient, "pybroker"), (RqueueClient, "rqueue")):
            with client(HERE, broker.ports[port], timeout=1.0) as late, pytest.raises(Again, match="readyz"):
                for _ in range(1000):
                    late.publish("t", PAYLOAD)


@pytest.mark.parametrize("nbytes", [200_000, 2 << 20])
@pytest.mark.parametrize("mode", ["direct", "fanout"])
def test_the_message_that_finds_the_log_full_is_throttled_too(tmp_path, disk, mode, nbytes):
    """It is not only those behind it that are answered."""
    with all_fronts(tmp_path) as broker:
        endpoint = broker.endpoints["abtp router"]
        with AbtpConsumer("w", ["kept.d"], endpoint), AbtpProducer(endpoint, timeout=10) as producer:
            topic = "kept.d" if mode == "direct" else "kept.f"
            producer.publish(topic, b"first")
            disk.set()
            refused = None
            while refused is None:
                try:
                    producer.publish(topic, bytes(nbytes), headers={"delivery_mode": mode})
                except Again as error:
                    refused = str(error)
            assert refused.startswith("throttled: no room on the disk")
            assert broker.fronts["abtp"].counters["failed"] == 0
            disk.clear()


def test_a_full_log_is_logged_once(tmp_path, disk, caplog):
    with full_log(tmp_path, disk) as (broker, *_):
        with TtpClient(HERE, broker.ports["ttp"], timeout=2.0) as late, pytest.raises(LogFull):
            late.publish("t", bytes(3 << 20), wait=True)
    assert [record.levelname for record in caplog.records].count("WARNING") <= 2  # of small ones, and large
