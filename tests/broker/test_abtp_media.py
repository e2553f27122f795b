"""Codecs and compressors of abtp/1: the known ones, those of other distributions, and bytes that are none."""

from __future__ import annotations

import json
import sys
import tracemalloc
from importlib import metadata

import lz4.frame
import msgspec
import pytest
import zmq
import zstandard
from hypothesis import given, strategies as st

from tests.broker.abtp_front import direct, plain, registered, router, running, subscribed
from tests.broker.in_process_broker import running as whole
from transfer.broker.clients.abtp import AbtpConsumer, AbtpProducer
from transfer.broker.config.settings import AbtpEndpoints
from transfer.broker.core.sessions import ConsumerCapabilities, Session
from transfer.broker.protocols import abtp_media
from transfer.broker.protocols.abtp_media import (
    Codec,
    Compressor,
    codec,
    compressor,
    compressor_of,
    decompress_payload,
)
from transfer.broker.protocols.abtp_words import Code
from transfer.broker.storage.database import Database
from transfer.broker.storage.sessions import Sessions
from transfer.transports import plugins
from transfer.transports.errors import Again, OptionError, ProtocolError, UsageError

LIMIT = 1 << 20


@pytest.fixture
def broker(tmp_path):
    with running(tmp_path / "data") as broker:
        yield broker


# --- pure ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lz4", "zstd"])
@given(data=st.binary(max_size=5000))
def test_compressed_bytes_are_known_by_their_beginning_and_read_back(name, data):
    one = compressor(name)
    packed = one.compress(data)
    assert compressor_of(packed) is one and decompress_payload(one, packed, LIMIT) == data


@pytest.mark.parametrize("name", ["lz4", "zstd"])
@given(data=st.binary(min_size=1, max_size=300), at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_damage_is_refused_or_harmless_and_what_is_cut_is_refused(name, data, at, bit):
    one = compressor(name)
    packed = bytearray(one.compress(data))
    begun = 4 + at % (len(packed) - 4)  # with its mark, without which it may be an LZ4 block
    for bad in (bytes(packed[:begun]), bytes(packed) + b"x"):
        with pytest.raises(ProtocolError) as raised:
            decompress_payload(one, bad, LIMIT)
        assert raised.value.reason == Code.MALFORMED_ENVELOPE
    packed[at % len(packed)] ^= 1 << bit
    try:
        found = decompress_payload(one, bytes(packed), LIMIT)
    except ProtocolError as error:
        reason = error.reason
    else:
        reason = None if len(found) <= LIMIT else "more than is allowed"
    assert reason in (None, Code.MALFORMED_ENVELOPE, Code.OVERSIZED_PAYLOAD)


@pytest.mark.parametrize("name", ["lz4", "zstd"])
def test_a_bomb_takes_little_more_memory_than_is_allowed(name):
    bomb = zstandard.compress(bytes(1 << 28)) if name == "zstd" else lz4.frame.compress(bytes(1 << 28))
    assert len(bomb) < 2 << 20
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError) as raised:
            decompress_payload(compressor(name), bomb, LIMIT)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert raised.value.reason == Code.OVERSIZED_PAYLOAD


def test_a_window_of_more_than_8_mib_is_refused():
    wide = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=27, compression_level=1)
    ).compressobj()
    packed = wide.compress(bytes(100)) + wide.flush()
    with pytest.raises(ProtocolError) as raised:
        decompress_payload(compressor("zstd"), packed, LIMIT)
    assert raised.value.reason == Code.MALFORMED_ENVELOPE


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text()
        | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
    st.binary(max_size=50),
)  # fmt: skip
def test_messagepack_is_checked_without_making_objects(value, junk):
    known = codec("msgpack")
    data = known.encode(value)
    known.check(data)
    assert known.decode(data) == value
    try:
        msgspec.msgpack.decode(junk)
    except ValueError:
        with pytest.raises(ValueError):
            known.decode(junk)
    with pytest.raises(ValueError):
        known.check(data + b"\xc1")


@pytest.mark.parametrize("name", ["xml", "", None, 7, ["json"], "none"])
def test_unknown_names_are_refused_with_the_known_ones(name):
    with pytest.raises(ProtocolError, match="json, raw, msgpack are known") as raised:
        codec(name)
    assert raised.value.reason == Code.UNSUPPORTED_CODEC
    if name != "none":
        with pytest.raises(ProtocolError, match="none, lz4, zstd are known"):
            compressor(name)


def test_sessions_of_an_earlier_version_are_understood(tmp_path):
    database = Database(tmp_path / "state.db")
    try:
        sessions = Sessions(database)
        for number, said in enumerate((True, False, ("zstd",))):
            able = ConsumerCapabilities(supports_compression=said)
            sessions.update({("", f"c{number}"): Session("", f"c{number}", f"s{number}", None, ("t",), able)})
        found = {one.consumer_id: one.capabilities.supports_compression for one in sessions.load()}
    finally:
        database.close()
    assert found == {"c0": ("lz4",), "c1": (), "c2": ("zstd",)}


# --- through a broker ---------------------------------------------------------------------------------


VALUE = {"loss": 0.25, "steps": [1, 2, 3], "weights": b"\x00\xff"}


@pytest.mark.parametrize("compress", [False, True, "zstd"])
def test_messagepack_reaches_a_consumer_and_a_subscriber(broker, compress):
    able = ConsumerCapabilities(supports_codec=("msgpack",), supports_compression=("brotli", "zstd", "lz4"))
    endpoint = router(broker)
    with (
        subscribed(broker, "t.") as subscriber,
        AbtpConsumer("w", ["t.direct"], endpoint, capabilities=able) as worker,
        AbtpProducer(endpoint) as producer,
    ):
        producer.publish("t.direct", VALUE, codec="msgpack", compress=compress)
        producer.publish("t.all", VALUE, codec="msgpack", compress=compress)
        found = worker.recv(10)
        assert found.payload == VALUE and found.headers["codec"] == "msgpack"
        worker.ack(found)
        found = subscriber.recv()
        assert (found.topic, found.payload) == ("t.all", VALUE)


def test_a_consumer_is_sent_what_it_asked_for_first_and_we_know(broker):
    with plain(broker) as sockets:
        consumer, _ = registered(sockets, "w", ["t"], supports_compression=["brotli", "zstd", "lz4"])
        sockets(zmq.DEALER).send_multipart([b"t", b"[1, 2]"])
        packed = consumer.recv_multipart()[2]
    assert json.loads(compressor("zstd").decompress(packed, LIMIT))["payload"] == [1, 2]


def test_what_its_consumer_does_not_read_is_a_dead_letter(broker):
    with (
        AbtpConsumer(
            "w", ["t"], router(broker), capabilities=ConsumerCapabilities(supports_codec=("json",))
        ) as worker,
        AbtpProducer(router(broker)) as producer,
    ):
        producer.publish("t", VALUE, codec="msgpack", message_id="packed")
        producer.publish("t", b"bytes", message_id="raw")
        producer.publish("t", [1], message_id="plain")
        assert worker.recv(10).message_id == "plain"
        broker.until(lambda: len(direct(broker).letters) == 2)
        assert {one.reason for one in direct(broker).letters} == {
            "the consumer does not support the codec of the message"
        }


@pytest.mark.parametrize("payload", [b"\xa1\xff", b"\x81\x80\x01", b"\xc7\x0c\xff" + b"\xff" * 12])
def test_what_no_codec_decodes_is_a_dead_letter_and_concerns_nobody_else(broker, payload, caplog):
    able = ConsumerCapabilities(supports_codec=("msgpack", "json"), max_inflight=1)
    with (
        plain(broker) as sockets,
        AbtpConsumer("w", ["t"], router(broker), capabilities=able) as worker,
        subscribed(broker, "all") as subscriber,
    ):
        producer = sockets(zmq.REQ)
        for data, codec in ((payload, b"msgpack"), (b"[1]", b"json")):
            producer.send_multipart([b"abtp/1", b"\x01", b"t", b'{"codec":"%s"}' % codec, data])
            assert json.loads(producer.recv_multipart()[1])["type"] == "accepted"
        worker.heartbeat()
        found = worker.recv(10)
        assert found.payload == [1]
        worker.ack(found, confirm=True)
        broker.until(lambda: len(direct(broker).letters) == 1)
        assert "the payload is not valid msgpack" in caplog.text
        producer.send_multipart([b"abtp/1", b"\x01", b"all", b'{"codec":"msgpack"}', payload])
        with pytest.raises(ProtocolError, match="the payload is not valid msgpack"):
            subscriber.recv(10)


def test_a_refusal_finds_its_message(broker):
    with AbtpProducer(router(broker)) as producer:
        with pytest.raises(ProtocolError) as raised:
            producer.publish("t", 1, headers={"x": "a" * 70_000, "priority": []}, timeout=5)
        assert raised.value.reason == Code.MALFORMED_ENVELOPE
        producer.publish("t", 2, timeout=5)


def test_who_lists_nothing_reads_json_and_raw_and_none_comes_in_its_turn(broker):
    with plain(broker) as sockets:
        lists = {"supports_codec": [], "supports_compression": ["none", "lz4"]}
        consumer, _ = registered(sockets, "w", ["t"], **lists)
        sockets(zmq.DEALER).send_multipart([b"t", b"[1, 2]"])
        assert json.loads(consumer.recv_multipart()[2])["payload"] == [1, 2]


@pytest.mark.parametrize(
    ("headers", "payload", "code"),
    [
        (b'{"codec":"msgpack"}', b"\xc1", Code.MALFORMED_ENVELOPE),
        (b'{"codec":"msgpack"}', b"\x91" * 100_000, Code.MALFORMED_ENVELOPE),
        (b'{"compression":"zstd"}', b"(\xb5/\xfdjunk", Code.MALFORMED_ENVELOPE),
        (b'{"compression":"brotli"}', b"[]", Code.UNSUPPORTED_COMPRESSION),
        (b'{"codec":"xml"}', b"[]", Code.UNSUPPORTED_CODEC),
        (b'{"compression":"zstd"}', zstandard.compress(bytes(1 << 28)), Code.OVERSIZED_PAYLOAD),
        (b'{"compression":"zstd"}', zstandard.compress(b"[%s0]" % (b"0," * 200_000)), Code.OVERSIZED_PAYLOAD),
    ],
)  # fmt: skip
def test_bad_payloads_are_refused(broker, headers, payload, code):
    with plain(broker) as sockets:
        producer = sockets(zmq.REQ)
        producer.send_multipart([b"abtp/1", b"\x01", b"t", headers, payload])
        assert json.loads(producer.recv_multipart()[1])["code"] == code


def test_the_client_says_what_it_cannot_encode(broker):
    with AbtpProducer(router(broker)) as producer:
        with pytest.raises(UsageError, match="msgpack"):
            producer.publish("t", object(), codec="msgpack")
        with pytest.raises(UsageError, match="codec raw"):
            producer.publish("t", {"a": 1}, codec="raw")
        with pytest.raises(UsageError, match="one of json, raw, msgpack"):
            producer.publish("t", 1, codec="xml")
        with pytest.raises(UsageError, match="lz4, zstd"):
            producer.publish("t", 1, compress="brotli")


# --- those of others ----------------------------------------------------------------------------------


class Csv(Codec):
    def encode(self, value):
        return "\n".join(",".join(map(str, row)) for row in value).encode()

    def decode(self, data):
        return [line.split(",") for line in str(data, "utf-8").split("\n")]

    def check(self, data):
        str(data, "utf-8")


class Backwards(Compressor):
    magic = b"sdrawkcab"

    def compress(self, data):
        return self.magic + data[::-1]

    def decompress(self, data, limit):
        if not data.startswith(self.magic):
            raise ValueError("it does not begin so")
        return data[len(self.magic) :][::-1]


@pytest.fixture
def brought(monkeypatch):
    monkeypatch.setitem(sys.modules, "own_package", sys.modules[__name__])
    here = metadata.entry_points

    def bring(**values):
        own = metadata.EntryPoints(
            metadata.EntryPoint(name, f"own_package:{value}", f"transfer.{group}s")
            for group, (name, value) in values.items()
        )
        monkeypatch.setattr(metadata, "entry_points", lambda **which: own.select(**which) or here(**which))
        forget()

    def forget():
        plugins.names.cache_clear()
        abtp_media.codecs.cache_clear()
        abtp_media.compressors.cache_clear()

    yield bring
    monkeypatch.undo()
    forget()


def test_a_codec_and_a_compressor_of_another_distribution(brought, tmp_path):
    brought(codec=("csv", "Csv"), compressor=("backwards", "Backwards"))
    able = ConsumerCapabilities(supports_codec=("csv",), supports_compression=("backwards",))
    with (
        running(tmp_path) as broker,
        AbtpConsumer("w", ["t"], router(broker), capabilities=able) as worker,
        AbtpProducer(router(broker)) as producer,
    ):
        producer.publish("t", [[1, 2], [3, 4]], codec="csv", compress="backwards")
        assert worker.recv(10).payload == [["1", "2"], ["3", "4"]]
        with plain(broker) as sockets:
            other = sockets(zmq.REQ)
            other.send_multipart([b"abtp/1", b"\x01", b"t", b'{"codec":"csv"}', b"\xff"])
            assert json.loads(other.recv_multipart()[1])["code"] == Code.MALFORMED_ENVELOPE


class Careless(Compressor):
    magic = b"careless"

    def compress(self, data):
        raise KeyError("no room")

    def decompress(self, data, limit):
        raise RuntimeError("no idea")


class Unmarked(Backwards):
    magic = b""


def test_a_careless_compressor_costs_its_message(brought, tmp_path):
    brought(compressor=("careless", "Careless"))
    able = ConsumerCapabilities(supports_compression=("careless",))
    with (
        running(tmp_path) as broker,
        AbtpConsumer("w", ["t"], router(broker), capabilities=able) as worker,
        AbtpConsumer("other", ["o"], router(broker)) as other,
        AbtpProducer(router(broker)) as producer,
    ):
        producer.publish("t", 1)
        broker.until(lambda: len(direct(broker).letters) == 1)
        producer.publish("o", 2)
        assert other.recv(10).payload == 2
        with pytest.raises(UsageError, match="careless: KeyError"):
            producer.publish("t", 1, compress="careless")
        with pytest.raises(Again):
            worker.recv(0.05)
        with plain(broker) as sockets:
            odd = sockets(zmq.REQ)
            odd.send_multipart([b"abtp/1", b"\x01", b"o", b'{"compression":"careless"}', b"careless"])
            assert json.loads(odd.recv_multipart()[1])["code"] == Code.MALFORMED_ENVELOPE


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ({"codec": ("csv", "brought")}, "own_package:brought.*is no Codec"),
        (
            {"codec": ("csv", "Nothing")},
            "own_package:Nothing, the entry.* csv.*cannot be loaded.*Nothing",
        ),
        ({"codec": ("csv", "Codec")}, "Codec, the entry point csv.*cannot be made.*abstract"),
        ({"compressor": ("odd", "Unmarked")}, "the compressor odd has no magic"),
    ],
)
def test_one_that_is_none_ends_the_start_with_a_sentence(brought, tmp_path, what, why):
    brought(**what)
    anywhere = AbtpEndpoints("tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
    with pytest.raises(OptionError, match=why), whole(tmp_path, abtp=anywhere):
        pass
