"""What libzmq holds for a consumer of abtp that does not read has a bound in bytes, and is not lost."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

pytest.importorskip("zmq", reason="pip install 'tensor-transfer[fronts]'")

import zmq

from tests.broker.in_process_broker import running
from tests.broker.test_abtp_relay import greeted
from tests.broker.test_direct_delivery import ANYWHERE, eventually, producer
from transfer.broker.clients.abtp import AbtpSubscriber
from transfer.broker.fronts import abtp_relay
from transfer.broker.fronts.abtp_sockets import AbtpSettings

SIZE, MOST = 100_000, 2_000_000


def with_less_room(broker):
    """Its front."""
    front = broker.fronts["abtp"]
    assert front.settings.peer_bytes == AbtpSettings().peer_bytes
    front.settings = replace(front.settings, peer_bytes=MOST)
    return front


def held(front):
    """Bytes that libzmq holds for each peer."""
    return [max(0, named.sent - named.forwarded) for named in list(front._names._newest.values())]


class Silent:
    """A consumer that registers, goes on to say that it lives, and reads when it is told to."""

    def __init__(self, broker, supports_ack=True):
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.RCVHWM, 1)
        self.socket.connect(broker.endpoints["abtp router"])
        self.say(
            "consumer.register", mode="direct", subscriptions=["orders.*"], tenant_id="",
            capabilities={"supports_ack": supports_ack, "max_inflight": 1000},
        )  # fmt: skip
        self.session = json.loads(self.read()[-1])["session_id"]

    def say(self, kind, **more):
        said = {"type": kind, "consumer_id": "worker", **more}
        self.socket.send_multipart([b"", b"_control", json.dumps(said).encode()])

    def beat(self):
        self.say("consumer.heartbeat", session_id=self.session)

    def read(self):
        assert self.socket.poll(20_000), "nothing comes"
        return self.socket.recv_multipart()

    def close(self):
        self._context.destroy(0)


def test_a_consumer_that_beats_and_does_not_read(tmp_path):
    """Each time-out frees its places in flight, and more is sent: but not to the socket without end."""
    count = 48
    limits = {"ack_timeout": 0.3, "first_delay": 0.1, "max_attempts": 1000}
    with running(tmp_path, abtp=ANYWHERE, **limits) as broker, producer(broker) as maker:
        front, silent = with_less_room(broker), Silent(broker)
        for number in range(count):
            maker.publish("orders.a", b"%03d" % number + bytes(SIZE))
            silent.beat()
        counts = broker.direct.dispatcher.counts
        until = time.monotonic() + 20
        while counts["unsent"] < 20 or counts["ack_timeouts"] < 20:
            assert time.monotonic() < until, counts
            silent.beat()
            time.sleep(0.1)
            assert sum(held(front)) <= MOST
        found = set()
        while broker.direct.dispatcher.state.messages:
            assert time.monotonic() < until + 40, len(found)
            if silent.socket.poll(50) and b"payload" in (said := silent.read()[-1]):
                message = json.loads(said)
                found.add(message["message_id"])
                silent.say("ack", message_id=message["message_id"], session_id=silent.session,
                           delivery_id=message["delivery_id"], status="processed")  # fmt: skip
        assert len(found) == count
        assert max(held(front)) < 1000, "all was counted"
        silent.close()


def test_one_without_acknowledgements_loses_what_has_no_room(tmp_path):
    count = 200
    with running(tmp_path, abtp=ANYWHERE) as broker, producer(broker) as maker:
        with_less_room(broker)
        silent = Silent(broker, supports_ack=False)
        for number in range(count):
            maker.publish("orders.a", b"%03d" % number + bytes(SIZE))
        counts = broker.direct.dispatcher.counts
        lost = counts["lost"]
        assert 0 < lost < count
        for _ in range(count - lost):
            assert json.loads(silent.read()[-1])["topic"] == "orders.a"
        assert not silent.socket.poll(100)
        silent.close()


@pytest.mark.parametrize("free", [0, 1 << 40])
def test_a_subscriber_that_does_not_catch_up(tmp_path, monkeypatch, free):
    """It is ended where memory is short, and others get all; else it may take its time."""
    monkeypatch.setattr(abtp_relay, "_SLOW_SUBSCRIBER_BYTES", 8 << 20)
    monkeypatch.setattr(abtp_relay, "_CHECK_EVERY", 1 << 20)
    monkeypatch.setattr(abtp_relay, "available_memory", lambda: free)
    count, size = 150, 200_000
    with (
        running(tmp_path, abtp=ANYWHERE) as broker,
        producer(broker) as maker,
        greeted(broker.endpoints["abtp pub"], kind=b"SUB") as silent,
        AbtpSubscriber(["news."], broker.endpoints["abtp pub"]) as reads,
    ):
        silent.sendall(b"\0\x06\x01news.")
        eventually(lambda: broker.hub.fanout.subscriptions())
        time.sleep(0.3)  # a SUB learns nothing of when it is heard
        for number in range(count):
            maker.publish("news.a", b"%03d" % number + bytes(size))
            assert bytes(reads.recv(10).payload[:3]) == b"%03d" % number
        silent.settimeout(2)
        heard = 0
        try:
            while came := silent.recv(1 << 20):
                heard += len(came)
        except TimeoutError:
            came = None
        assert (came is None) == bool(free)
        assert (heard > count * size) == bool(free)
