"""What breaks beneath a whole broker, or lags beyond it: it is noticed and told, and the rest is served."""

from __future__ import annotations

import errno
import json
import os
import threading

import pytest
import zmq

import transfer
from tests.broker.all_fronts import HERE, all_fronts, dial, serves
from tests.broker.http_requests import ask, get_json, metric_value, until
from tests.broker.in_process_broker import running
from transfer.broker.clients.abtp import AbtpSubscriber
from transfer.broker.clients.native import BrokerClient
from transfer.broker.clients.pybroker import PyBrokerClient
from transfer.broker.clients.rqueue import RqueueClient
from transfer.broker.core.topic_patterns import Kind, pattern
from transfer.broker.fronts.rqueue import RqueueSettings
from transfer.broker.fronts.ttp import TtpSettings
from transfer.broker.protocols.rqueue import encode_subscribe
from transfer.broker.protocols.ttp import HEADER_SIZE, WANTED, decode_error, decode_header, encode_head
from transfer.transports.errors import Broken


@pytest.fixture
def connected():
    """Makes sockets of transfer's own that are connected."""
    with transfer.Context() as context:

        def connect(kind, endpoint):
            made = context.socket(kind)
            made.rcvtimeo, made.linger = 10_000, 0
            made.subscribe("news")
            made.connect(endpoint)
            made.wait_for_peers(1, 10)
            return made

        yield connect
        context.destroy(0)


def flip(folder, word, within="*"):
    """Changes the bits of a byte of what is kept, where this word stands: one bit would be put right."""
    for path in folder.rglob(within):
        data = path.read_bytes() if path.is_file() else b""
        if (at := data.find(word)) >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([data[at] ^ 0xFF]))
            return
    raise AssertionError(f"{word!r} is not in {folder}")


# -- who never reads, and who never speaks ---------------------------------------------------------------

#: together more than the kernel and what may wait for a subscriber hold
MANY, SIZE = 800, 100_000


def deaf(broker, front, word):
    """A plain connection that subscribes, and reads nothing of what comes."""
    plain = dial(broker, front)
    before = len(broker.hub.fanout.subscriptions())
    plain.sendall(word)
    until(lambda: len(broker.hub.fanout.subscriptions()), before + 1)
    return plain


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_those_who_never_read_are_bounded_and_counted_and_hurt_nobody(tmp_path, connected):
    """TTP, rqueue and SUB, at once: what they have no room for is dropped for them alone."""
    limits = RqueueSettings(max_pending=1 << 20)
    with (
        running(tmp_path, http=0, keep=False, rqueue_limits=limits) as broker,
        deaf(broker, "ttp", encode_head(2, b"news")),
        deaf(broker, "rqueue", encode_subscribe("news")),
        RqueueClient(HERE, broker.ports["rqueue"]) as reader,
        RqueueClient(HERE, broker.ports["rqueue"]) as publisher,
    ):
        silent = connected(transfer.SUB, broker.endpoints["subscriptions"])
        pub = broker.fronts["native"]._publisher.socket
        reader.subscribe("news")
        until(lambda: metric_value(broker.ports["http"], "transfer_broker_subscribers"), 4)
        for number in range(MANY):
            publisher.publish("news", number.to_bytes(4, "big") * (SIZE // 4))
            assert reader.recv().content[:4] == number.to_bytes(4, "big")
        queued = [(one.queued, one.limit) for one in broker.hub.fanout.subscriptions()]
        assert all(nbytes <= limit + SIZE for nbytes, limit in queued), queued  # the one that came in pieces
        assert sum(nbytes > SIZE for nbytes, _ in queued) >= 2
        http = broker.ports["http"]
        assert metric_value(http, 'transfer_broker_events_total{event="dropped"}') > 100
        assert sum(one.queued for one in pub.peers()) <= pub.sndhwm
        text = ask(http, "/metrics")[1]
        full = [line for line in text.splitlines() if "drops_total" in line and 'reason="full"' in line]
        assert sum(float(line.rpartition(" ")[2]) for line in full) > 10, full
        assert silent.recv_multipart()[0] == b"news", "it may begin whenever it likes"


def test_who_never_reads_kept_messages_gets_all_of_them_later(tmp_path):
    with (
        running(tmp_path) as broker,
        deaf(broker, "ttp", encode_head(2, b"news")) as silent,
        BrokerClient(broker.endpoints["requests"], timeout=20) as client,
    ):
        for number in range(0, MANY, 20):
            client.publish_many(
                "news", [n.to_bytes(4, "big") * (SIZE // 4) for n in range(number, number + 20)]
            )
        assert broker.hub.counts["spilled"] >= 1 and not broker.hub.counts["dropped"]
        assert max(one.queued for one in broker.hub.fanout.subscriptions()) <= 64 << 20
        with silent.makefile("rb") as file:
            for number in range(MANY):
                header = decode_header(file.read(HEADER_SIZE))
                file.read(header.topic_size + header.meta_size)
                assert file.read(header.data_size)[:4] == number.to_bytes(4, "big")


def test_a_sub_of_zeromq_that_never_reads_hurts_nobody(tmp_path):
    """How much waits for it is libzmq's: a thousand messages here, and it cannot tell which it dropped."""
    with (
        all_fronts(tmp_path, keep=False) as broker,
        zmq.Context() as context,
        context.socket(zmq.SUB) as silent,
        AbtpSubscriber(("news",), broker.endpoints["abtp pub"]) as reader,
        RqueueClient(HERE, broker.ports["rqueue"]) as publisher,
    ):
        silent.setsockopt(zmq.RCVHWM, 1)
        silent.setsockopt(zmq.SUBSCRIBE, b"news")
        silent.connect(broker.endpoints["abtp pub"])
        until(lambda: broker.fronts["abtp"].connections, 2)
        front = broker.fronts["abtp"].subscriber
        until(lambda: bool(front._prefixes), True)
        for number in range(3000):
            publisher.publish("news", b"%d" % number * 1000)
            assert bytes(reader.recv(10).payload)[:4] == (b"%d" % number * 4)[:4]
        assert front.published == 3000


def test_a_publisher_without_heartbeats_is_let_go(tmp_path):
    """Between two messages, and in the middle of one."""
    with (
        running(tmp_path, ttp_limits=TtpSettings(idle_timeout=0.2)) as broker,
        dial(broker, "ttp") as quiet,
        dial(broker, "ttp") as halfway,
    ):
        quiet.sendall(encode_head(3, b"t", b"", 1, WANTED) + b"x")
        halfway.sendall(encode_head(3, b"t", b"", 100_000) + b"x")
        with quiet.makefile("rb") as file:
            said = file.read()
        header = decode_header(said, len(encode_head(6)))
        assert (int(header.kind), decode_error(said[-header.data_size :])[0]) == (8, "idle")
        assert halfway.makefile("rb").read() is not None
        until(lambda: broker.fronts["ttp"].connections, 0)
        assert [one.nbytes for one in (broker.hub.store.topics["t"],)] == [1]


# -- acknowledgements that come too late -----------------------------------------------------------------


def test_a_stale_acknowledgement_is_refused_counted_and_audited(tmp_path):
    with (
        running(tmp_path, http=0, first_delay=0.01) as broker,
        BrokerClient(broker.endpoints["requests"], timeout=10) as client,
    ):
        consumer = client.consume("jobs", "workers", timeout=0.1, window=1)
        client.publish("jobs", b"slow")
        late = consumer.recv()
        again = consumer.recv()
        assert again.attempt == 2
        consumer.ack(late)
        consumer.ack(again, wait=True)
        http = broker.ports["http"]
        until(lambda: metric_value(http, 'transfer_broker_events_total{event="stale_acks"}') >= 1, True)
        until(lambda: bool(get_json(http, "admin/audit/events?operation=stale_ack")["events"]), True)
        (event,) = get_json(http, "admin/audit/events?operation=stale_ack")["events"]
        assert event["message_ids"] == ["jobs/0"] and "'workers'" in event["reason"]
        assert get_json(http, "admin/audit/verify")["whole"]


# -- disks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [60_000, 3_000_000])
def test_a_full_disk_holds_publishers_up_and_loses_nothing(tmp_path, monkeypatch, nbytes):
    good, bad = os.posix_fallocate, threading.Event()

    def fallocate(fd, begin, size):
        if bad.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        good(fd, begin, size)

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    many = (80 << 20) // nbytes  # a segment's worth

    def publish():
        with RqueueClient(HERE, broker.ports["rqueue"]) as publisher:
            for number in range(many):
                publisher.publish("kept", bytes([number % 256]) * nbytes)

    with running(tmp_path, http=0, transient=(pattern(Kind.EXACT, "live"),)) as broker:
        http = broker.ports["http"]
        with BrokerClient(broker.endpoints["requests"]) as client:
            client.publish("kept", b"before")
        bad.set()
        publishing = threading.Thread(target=publish)
        publishing.start()
        until(lambda: ask(http, "/readyz")[0], 503)
        (problem,) = json.loads(ask(http, "/readyz")[1])["problems"]
        assert (
            problem.startswith("the log is full, so publishers wait: no room") and "no group holds" in problem
        )
        assert get_json(http, "overview")["log_full"] and ask(http, "/livez")[0] == 200
        assert metric_value(http, "transfer_broker_log_full") == 1
        with RqueueClient(HERE, broker.ports["rqueue"]) as live:
            live.subscribe("live")
            live.publish("live", b"others go on")
            assert live.recv().content == b"others go on"
        with PyBrokerClient(HERE, broker.ports["pybroker"]) as files:
            assert files.fetch("kept")[:6] == b"before"
        bad.clear()
        publishing.join(30)
        until(lambda: ask(http, "/readyz")[0], 200)
        until(lambda: broker.hub.store.range(broker.hub.store.topic("kept")), (0, many + 1))
        until(lambda: broker.hub.busy, False)
    with running(tmp_path) as broker:
        for offset in range(many):
            (found,) = broker.hub.store.read(broker.hub.store.topic("kept"), offset + 1, limit=1)
            assert bytes(found.payload) == bytes([offset % 256]) * nbytes


def test_a_damaged_byte_in_the_log_costs_one_message(tmp_path, caplog):
    with all_fronts(tmp_path) as broker:
        with BrokerClient(broker.endpoints["requests"], timeout=10) as client:
            for word in (b"first", b"second", b"third"):
                client.publish("rows", word * 20)
            flip(tmp_path / "log", b"second" * 20)
            consumer = client.consume("rows", "g", begin="old")
            found = [consumer.recv() for _ in range(2)]
            assert [bytes(one.data)[:5] for one in found] == [b"first", b"third"]
            for one in found:
                consumer.ack(one, wait=True)
        with PyBrokerClient(HERE, broker.ports["pybroker"]) as files:
            assert files.fetch("rows", 0) == b"first" * 20
            with pytest.raises(Broken):
                files.fetch("rows", 100)
        with PyBrokerClient(HERE, broker.ports["pybroker"]) as files:
            assert files.fetch("rows", 220) == b"third" * 20
        assert metric_value(broker.ports["http"], 'transfer_broker_events_total{event="damaged"}') >= 1
        assert "is damaged" in caplog.text
        assert serves(broker)
    caplog.clear()  # what it holds has views of the log


def test_a_byte_that_changed_while_no_broker_ran_costs_one_message(tmp_path, caplog):
    words = [b"first" * 20, b"second" * 20, b"third" * 20]
    with all_fronts(tmp_path) as broker, BrokerClient(broker.endpoints["requests"], timeout=10) as client:
        for word in words:
            client.publish("rows", word)
    flip(tmp_path / "log", words[1])
    with all_fronts(tmp_path) as broker:
        assert "that message is lost" in caplog.text
        with BrokerClient(broker.endpoints["requests"], timeout=10) as client:
            consumer = client.consume("rows", "g", begin="old")
            found = [consumer.recv() for _ in range(2)]
            assert [bytes(one.data) for one in found] == [words[0], words[2]]
            consumer.ack(*found, wait=True)
        assert serves(broker)
    caplog.clear()  # what it holds has views of the log


LETTER = {"consumer": "c", "topic": "rows", "actor": "me"}


def buried(broker, *names):
    for name in names:
        letter = {**LETTER, "id": name, "payload": f"payload of {name}" * 10, "reason": f"why {name}"}
        assert ask(broker.ports["http"], "/api/admin/dlq/dead-letter", method="POST", body=letter)[0] == 201


REPLAY = {**LETTER, "reason": "again", "target_consumer": "c", "target_topic": "rows", "confirm": "REPLAY"}
del REPLAY["consumer"], REPLAY["topic"]


def test_a_flipped_bit_in_the_database_is_told_of_its_letter_alone(tmp_path):
    with all_fronts(tmp_path) as broker:
        buried(broker, "one", "two", "three")
    flip(tmp_path, b"payload of one", "state.db*")
    flip(tmp_path, b"why two", "state.db*")
    with all_fronts(tmp_path) as broker:
        http = broker.ports["http"]
        listed = {one["message_id"]: one["damaged"] for one in get_json(http, "admin/dlq/list")["letters"]}
        assert listed["two"] and not listed["three"]
        for name, damaged in (("one", True), ("two", True), ("three", False)):
            (letter,) = get_json(http, f"admin/dlq/inspect?id={name}")["letters"]
            assert letter["damaged"] == damaged
        body = {**REPLAY, "ids": ["one"]}
        told = json.loads(ask(http, "/api/admin/dlq/replay", method="POST", body=body)[1])
        assert told["failures"][0]["error"] == "damaged", told
        assert serves(broker)


def test_a_flipped_bit_in_the_audit_is_told_and_it_goes_on(tmp_path, caplog):
    with all_fronts(tmp_path) as broker:
        buried(broker, "one", "two")
        assert metric_value(broker.ports["http"], "transfer_broker_audit_problems") == 0
    flip(tmp_path / "audit", b"why one")
    caplog.clear()
    with all_fronts(tmp_path) as broker:
        http = broker.ports["http"]
        assert "audit in" in caplog.text
        assert metric_value(http, "transfer_broker_audit_problems") >= 1
        assert get_json(http, "admin/audit/events")["problems"]
        assert not get_json(http, "admin/audit/verify")["whole"]
        buried(broker, "three")
        assert get_json(http, "admin/audit/events?id=three")["events"]
        assert serves(broker)
