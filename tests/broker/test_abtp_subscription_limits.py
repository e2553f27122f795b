"""How much SUBs of abtp may subscribe to: libzmq itself knows no limit."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
import zmq
from hypothesis import given, strategies as st

from tests.broker.in_process_broker import running
from tests.broker.test_abtp_relay import greeted
from tests.core.raw_frames import eventually
from transfer.broker.clients.abtp import AbtpProducer
from transfer.broker.config.settings import AbtpEndpoints
from transfer.broker.fronts import abtp_subscription_limits
from transfer.broker.fronts.abtp_subscription_limits import SubscriptionLimits
from transfer.broker.protocols.zmtp import SubscriptionReader
from transfer.transports.errors import ProtocolError

FREE = "tcp://127.0.0.1:0"


def frame(body, flags=0):
    size = bytes([flags, len(body)]) if len(body) < 256 else bytes([flags | 2]) + struct.pack(">Q", len(body))
    return size + body


def message(subscribes, prefix):
    return frame(bytes([subscribes]) + prefix)


def command(subscribes, prefix):
    return frame((b"\x09SUBSCRIBE" if subscribes else b"\x06CANCEL") + prefix, 4)


PING, UPSTREAM = frame(b"\4PING\0\0", 4), frame(b"hello")
SAID = st.tuples(st.booleans(), st.binary(max_size=300))


@given(
    st.lists(st.tuples(SAID, st.sampled_from([message, command]), st.sampled_from([b"", PING, UPSTREAM]))),
    st.lists(st.integers(1, 400)),
)
def test_what_a_sub_says_is_read_in_any_pieces(said, sizes):
    stream = b"".join(between + write(*one) for one, write, between in said)
    reader, found = SubscriptionReader(), []
    for size in [*sizes, len(stream)]:
        found += reader.feed(memoryview(stream[:size]))
        stream = stream[size:]
    assert found == [one for one, _, _ in said]


@given(st.binary())
def test_any_bytes_are_read_or_refused_in_the_same_way_byte_by_byte(data):
    def outcome(pieces):
        reader, found = SubscriptionReader(), []
        try:
            for piece in pieces:
                found += reader.feed(memoryview(piece))
        except ProtocolError:
            return "refused"
        return found

    assert outcome([data]) == outcome(bytes([one]) for one in data)


def test_a_frame_that_no_sub_sends():
    with pytest.raises(ProtocolError, match="65537 bytes"):
        SubscriptionReader().feed(memoryview(b"\2" + struct.pack(">Q", 65537)))


def test_the_limits_of_one_and_of_all(monkeypatch):
    monkeypatch.setattr(abtp_subscription_limits, "MAX_SUBSCRIPTIONS", 10)
    monkeypatch.setattr(abtp_subscription_limits, "MAX_BYTES", 1000)
    monkeypatch.setattr(abtp_subscription_limits, "MAX_TOTAL_BYTES", 1600)
    closed = []
    every = SubscriptionLimits(lambda end, why: closed.append(end) or every.remove(end))

    def says(end, *said):
        every.feed(end, memoryview(b"".join(said)), 0.0)

    says("one", *(message(1, b"%d" % n) for n in range(10)))
    with pytest.raises(ProtocolError, match="more than 10 subscriptions"):
        says("one", message(1, b"10"))
    every.remove("one")
    every.remove("one")
    assert every.nbytes == 0
    with pytest.raises(ProtocolError, match="1,000 bytes"):
        says("two", *(message(1, bytes([n]) * 250) for n in range(5)))
    every.remove("two")
    for _ in range(100):
        says("three", message(1, b"x" * 200), message(0, b"x" * 200), message(0, b"never"))
    assert every.nbytes == 0
    for end in "abcd":
        says(end, message(1, end.encode() * 200), message(1, end.encode() * 150))
    says("d", message(1, b"e" * 100))
    assert not closed
    says("a", message(1, b"a"), message(1, b"b" * 100))
    assert closed in (["a"], ["d"])
    assert every.nbytes <= 1600


def test_changes_are_read_at_a_bounded_rate(monkeypatch):
    """libzmq hands on all of them: floods by 30 connections held up others for 4 s, and took 760 MB."""
    monkeypatch.setattr(abtp_subscription_limits, "MAX_CHANGES", 1000)
    monkeypatch.setattr(abtp_subscription_limits, "MAX_BURST", 500)
    limits = SubscriptionLimits(lambda end, why: None)
    hundred = memoryview(b"".join(message(number % 2, b"x") for number in range(100)))
    assert [limits.feed("one", hundred, 0.0) <= 0 for _ in range(5)] == [True] * 5
    assert limits.feed("one", hundred, 0.0) == pytest.approx(0.1)
    assert limits.feed("two", hundred, 0.05) == pytest.approx(0.15), "they share the rate"
    assert limits.feed("one", memoryview(b""), 0.2) <= 0
    assert limits.feed("one", hundred, 10.0) <= 0


def test_one_who_changes_subscriptions_fast_gets_all_of_them(tmp_path, monkeypatch):
    monkeypatch.setattr(abtp_subscription_limits, "MAX_BURST", 100)
    abtp = AbtpEndpoints(FREE, FREE)
    with (
        running(tmp_path, native=None, abtp=abtp) as broker,
        zmq.Context() as context,
        context.socket(zmq.SUB) as sub,
    ):
        sub.sndhwm = 0  # else libzmq drops subscriptions
        sub.connect(broker.endpoints["abtp pub"])
        for number in range(9000):
            sub.subscribe(b"%04d" % number)
        prefixes = broker.fronts["abtp"].subscriber._prefixes
        eventually(lambda: len(prefixes) == 9000)
        for number in range(8999):
            sub.unsubscribe(b"%04d" % number)
        eventually(lambda: list(prefixes) == [b"8999"])


def test_a_flood_ends_its_own_connection(tmp_path, caplog):
    abtp = AbtpEndpoints(FREE, FREE)
    with (
        running(tmp_path, native=None, abtp=abtp) as broker,
        zmq.Context() as context,
        context.socket(zmq.SUB) as good,
    ):
        endpoint = broker.endpoints["abtp pub"]
        good.rcvtimeo = 10_000
        good.subscribe(b"t")
        good.connect(endpoint)
        eventually(lambda: broker.fronts["abtp"].subscriber._prefixes)
        with greeted(endpoint, kind=b"SUB") as bare, suppress(OSError):
            for begin in range(0, 30_000, 100):
                bare.sendall(b"".join(message(1, b"%060d" % n) for n in range(begin, begin + 100)))
            while bare.recv(1000):
                pass
        assert "one SUB has more than 10,000 subscriptions" in caplog.text
        with AbtpProducer(broker.endpoints["abtp router"]) as producer:
            producer.publish("t1", 1)
        assert good.recv_multipart()[0] == b"t1"
