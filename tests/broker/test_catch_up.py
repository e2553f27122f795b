"""SUBs with `?begin=`: what a broker keeps reaches those that come late, are slow, or were away."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import threading
import time
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import transfer
from tests.broker.broker_processes import BrokerProcesses
from tests.broker.in_process_broker import FREE, running
from tests.core.raw_frames import CONTROL, Raw
from tests.faults.raw_peer import is_closed, raw_peer, send_frames
from tests.sockets.conftest import KeepingContext
from tests.sockets.helpers import eventually
from tests.sockets.test_order import Cutter
from transfer import ZmqInterface
from transfer.broker.clients.native import BrokerClient
from transfer.broker.core.message import Front, Message
from transfer.broker.delivery.topic_admin import TopicAdmin
from transfer.broker.fronts import native_catch_up
from transfer.broker.fronts.native import NativeSettings
from transfer.metrics.counters import socket_counts
from transfer.sockets.connections.topic_positions import (
    LogId,
    TopicPosition,
    TopicPositions,
    decode_offline,
    decode_position,
    decode_skipped,
    decode_withheld,
    encode_position,
    encode_skipped,
    encode_withheld,
)
from transfer.transports.address import parse
from transfer.transports.core.wire import Control, SocketType
from transfer.transports.errors import AddressError, Broken, HandshakeError, ProtocolError, UsageError


@pytest.fixture
def context():
    with KeepingContext() as made:
        yield made


@pytest.fixture
def broker(tmp_path):
    with running(tmp_path / "data") as made:
        yield made


@pytest.fixture
def client(broker):
    with BrokerClient(broker.endpoints["requests"]) as made:
        yield made


def subscribed(context, broker, *prefixes, begin="old", **options):
    sub = context.socket(transfer.SUB, rcvtimeo=10_000, **options)
    for prefix in prefixes or (b"",):
        sub.subscribe(prefix)
    sub.connect(f"{broker.endpoints['subscriptions']}?begin={begin}")
    return sub


def publish(client, topic, numbers, size=0):
    for number in numbers:
        client.publish(topic, b"%d " % number + bytes(size), wait=False)
    client.flush()


def received(sub, count):
    """Numbers, by topic."""
    found = defaultdict(list)
    for _ in range(count):
        topic, data = sub.recv_multipart()
        found[topic.decode()].append(int(data.partition(b" ")[0]))
    return dict(found)


def test_a_late_one_gets_what_was_kept_and_then_what_comes(context, broker, client):
    publish(client, "orders", range(500))
    publish(client, "other", range(5))
    sub = subscribed(context, broker, b"orders")
    assert received(sub, 500) == {"orders": list(range(500))}
    publish(client, "orders", range(500, 600))
    publish(client, "orders.more", range(3))
    assert received(sub, 103) == {"orders": list(range(500, 600)), "orders.more": [0, 1, 2]}
    assert not sub.poll(100)


def test_two_that_come_at_different_times_get_all_each(context, broker, client):
    publish(client, "t", range(100))
    first = subscribed(context, broker)
    assert received(first, 100) == {"t": list(range(100))}
    second = subscribed(context, broker)
    publish(client, "t", range(100, 120))
    assert received(second, 120) == {"t": list(range(120))}
    assert received(first, 20) == {"t": list(range(100, 120))}


def test_begin_new(context, broker, client):
    publish(client, "t", range(10))
    sub = subscribed(context, broker, begin="new")
    sub.wait_for_peers(1, 10)
    publish(client, "t", range(10, 20))
    publish(client, "later", range(3))
    assert received(sub, 13) == {"t": list(range(10, 20)), "later": [0, 1, 2]}


def test_next_to_one_that_did_not_ask_for_it(context, broker, client):
    publish(client, "t", range(10))
    plain = context.socket(transfer.SUB, rcvtimeo=10_000)
    plain.subscribe(b"")
    plain.connect(broker.endpoints["subscriptions"])
    plain.wait_for_peers(1, 10)
    kept = subscribed(context, broker)
    publish(client, "t", range(10, 20))
    assert received(plain, 10) == {"t": list(range(10, 20))}
    assert received(kept, 20) == {"t": list(range(20))}


def test_subscriptions_that_come_later_and_go(context, broker, client):
    for topic in ("a", "b", "c"):
        publish(client, topic, range(50))
    sub = subscribed(context, broker, b"a")
    assert received(sub, 50) == {"a": list(range(50))}
    sub.subscribe(b"b")
    assert received(sub, 50) == {"b": list(range(50))}
    sub.unsubscribe(b"a")
    assert eventually(lambda: len(next(iter(catch_up_subscribers(broker)), ())) == 1)
    publish(client, "a", [50])
    publish(client, "b", [50])
    assert received(sub, 1) == {"b": [50]}
    sub.subscribe(b"a")
    assert received(sub, 1) == {"a": [50]}
    assert not sub.poll(100)


def numbers_of(sub):
    [known] = sub._links.log_reader.positions._by_log.values()
    return {topic: epochs[-1].number for topic, epochs in known.by_topic.items()}


def catch_up_subscribers(broker):
    subscriptions = broker.hub.fanout.subscriptions()
    return [mine for one, mine in list(subscriptions.items()) if type(one).__name__ == "CatchUpSubscriber"]


def test_tensors_parts_and_large_ones(context, broker, client):
    array = np.arange(3_000_000, dtype=np.float32)
    client.publish_tensor("w", array)
    push = context.socket(transfer.PUSH)
    push.connect(broker.endpoints["pushes"])
    push.send_multipart([b"w", b"one", b"", b"three"])
    client.publish("w", bytes(range(256)) * 100_000)
    sub = subscribed(context, broker, maxmsgsize=-1)
    assert np.array_equal(sub.recv_tensor(), array)
    assert eventually(lambda: broker.hub.store.topics["w"].messages == 3)
    found = [sub.recv_multipart() for _ in range(2)]
    assert sorted(map(len, found)) == [2, 4]
    for parts in found:
        assert parts in ([b"w", b"one", b"", b"three"], [b"w", bytes(range(256)) * 100_000])


def test_a_slow_one_loses_nothing_and_little_waits_for_it(context, broker, client):
    sub = subscribed(context, broker, rcvhwm=2)
    sub.wait_for_peers(1, 10)
    for first in range(0, 1000, 100):
        publish(client, "t", range(first, first + 100), size=100_000)
    [subscriber] = [
        one for one in broker.hub.fanout.subscriptions() if type(one).__name__ == "CatchUpSubscriber"
    ]
    assert subscriber.queued < 2 * subscriber.limit
    assert received(sub, 1000) == {"t": list(range(1000))}


def test_a_pub_publishes_what_is_kept(context, broker):
    pub = context.socket(transfer.PUB, sndhwm=0)
    pub.connect(broker.endpoints["pushes"])
    pub.wait_for_peers(1, 10)
    for number in range(100):
        pub.send_multipart([b"news", b"%d" % number])
    assert eventually(
        lambda: "news" in broker.hub.store.topics and broker.hub.store.topics["news"].kept == 100
    )
    assert received(subscribed(context, broker), 100) == {"news": list(range(100))}


def test_connections_that_are_cut_again_and_again(broker, client):
    with (
        contextlib.closing(Cutter(broker.endpoints["subscriptions"])) as cutter,
        KeepingContext(protocol="tcp") as context,
    ):
        sub = context.socket(transfer.SUB, rcvtimeo=10_000, reconnect_ivl=5, reconnect_ivl_max=20)
        sub.subscribe(b"")
        sub.connect(f"{cutter.endpoint}?begin=new")
        sub.wait_for_peers(1, 10)
        found, enough = [b""], threading.Event()

        def publishes():
            for number in itertools.count():
                client.publish("t", b"%d" % number, wait=number % 50 == 0)
                if enough.is_set():
                    break
            client.publish("t", b"over")

        publisher = threading.Thread(target=publishes)
        publisher.start()
        rng, cuts, due = random.Random(1), 0, time.monotonic()
        while found[-1] != b"over":
            found.append(sub.recv_multipart()[-1])
            if cuts == 25:
                enough.set()
            elif time.monotonic() > due:
                cutter.cut()
                cuts, due = cuts + 1, time.monotonic() + rng.random() / 20
        publisher.join(20)
        assert list(map(int, found[1:-1])) == list(range(len(found) - 2))
        assert sub._links.state.counts["disconnected"] > 10


def test_a_broker_that_is_killed(context, tmp_path):
    """What a SUB has is on the broker's disk, so that it goes on where it was."""
    folder, found, numbers = tmp_path / "data", [], itertools.count()
    stop = threading.Event()
    with BrokerProcesses() as serving, KeepingContext() as other:
        endpoints, _ = serving.start(folder)
        where = [endpoints]

        def publishes():
            while not stop.is_set():
                try:
                    with BrokerClient(where[0]["requests"], timeout=3) as one:
                        while not stop.is_set():
                            one.publish("t", b"%d" % next(numbers))
                except transfer.TransferError:
                    time.sleep(0.01)

        publisher = threading.Thread(target=publishes)
        publisher.start()
        sub = other.socket(transfer.SUB, rcvtimeo=10_000)
        sub.subscribe(b"")
        for turn in range(1, 7):
            until = time.monotonic() + 0.5
            endpoint = f"{where[0]['subscriptions']}?begin=old"
            sub.connect(endpoint)
            while time.monotonic() < until or len(found) < 20 * turn:
                found.append(int(sub.recv_multipart()[-1]))
            serving.kill()
            sub.disconnect(endpoint)
            where[0], _ = serving.start(folder)
        stop.set()
        publisher.join(20)
        sub.connect(f"{where[0]['subscriptions']}?begin=old")
        while sub.poll(500):
            found.append(int(sub.recv_multipart()[-1]))
        with BrokerClient(where[0]["requests"]) as one:
            consumer = one.consume("t", "check", begin="old")
            kept = []
            while True:
                try:
                    some = consumer.recv_many(1000, timeout=1)
                except transfer.Again:
                    break
                kept += [int(bytes(message.data)) for message in some]
                consumer.ack(*some)
        assert found == kept


def test_messages_removed_from_the_log_are_counted_and_logged(context, tmp_path, caplog):
    with running(tmp_path / "data", retention_bytes=3 << 20) as broker:
        with BrokerClient(broker.endpoints["requests"]) as client:
            publish(client, "t", range(10))
            sub = subscribed(context, broker)
            assert received(sub, 10) == {"t": list(range(10))}
            endpoint = sub.last_endpoint
            sub.disconnect(endpoint)
            assert eventually(lambda: not catch_up_subscribers(broker))
            publish(client, "t", range(10, 200), size=100_000)
            assert eventually(lambda: broker.hub.store.range(broker.hub.store.topics["t"])[0] > 10, 40)
            sub.connect(endpoint)
            first = int(sub.recv_multipart()[-1].partition(b" ")[0])
            assert first > 10
            assert sub._links.state.counts["missed"] == first - 10
            assert dict(socket_counts(sub))["transfer_drops_total", ("SUB", "missed")] == first - 10
            assert "removed from the log" in caplog.text


def test_positions_are_kept_by_log(context, tmp_path):
    sub = context.socket(transfer.SUB, rcvtimeo=10_000)
    sub.subscribe(b"")
    for name in ("one", "two"):
        with running(tmp_path / name) as broker, BrokerClient(broker.endpoints["requests"]) as client:
            publish(client, "t", range(20))
            endpoint = f"{broker.endpoints['subscriptions']}?begin=old"
            sub.connect(endpoint)
            assert received(sub, 20) == {"t": list(range(20))}
            sub.disconnect(endpoint)


def test_zmq_interface_records_positions(broker, client):
    publish(client, "t", range(5))
    with ZmqInterface() as interface:
        sub, got = interface.socket("SUB"), []
        sub.set_subscribe_callback(got.append)
        sub.subscribe("")
        sub.connect(f"{broker.endpoints['subscriptions']}?begin=old")
        assert eventually(lambda: len(got) == 5)
        assert numbers_of(sub._socket) == {b"t": 5}


@pytest.mark.parametrize("kind", ["tcp", "local", "ipc"])
def test_ways(context, tmp_path, monkeypatch, kind):
    monkeypatch.setenv("TRANSFER_LOCAL", "on" if kind == "local" else "off")
    place = f"ipc://{tmp_path}/s" if kind == "ipc" else FREE
    with (
        KeepingContext() as here,
        running(tmp_path / "d", native=NativeSettings(FREE, FREE, place)) as broker,
    ):
        with BrokerClient(broker.endpoints["requests"]) as client:
            publish(client, "t", range(50), size=200_000)
            assert received(subscribed(here, broker), 50) == {"t": list(range(50))}


# -- what a reader found, and an outsider ------------------------------------------------------------------


def test_one_that_comes_while_a_large_message_is_on_its_way(context, broker, client):
    publish(client, "t", [0])
    hub, begun, go_on = broker.hub, threading.Event(), threading.Event()
    done = hub._written

    def written(*arguments):
        begun.set()
        if go_on.is_set():
            done(*arguments)
        else:
            asyncio.get_running_loop().call_later(0.01, written, *arguments)

    hub._written = written
    uploader = threading.Thread(target=client.publish, args=("t", bytes(12 << 20)))
    uploader.start()
    assert begun.wait(20)
    sub = subscribed(context, broker, maxmsgsize=-1)
    assert int(sub.recv_multipart()[-1]) == 0
    go_on.set()
    uploader.join(20)
    client.publish("t", b"2")
    assert [len(sub.recv_multipart()[-1]) for _ in range(2)] == [12 << 20, 1]
    assert "missed" not in sub._links.state.counts


def test_begin_new_of_another_broker_and_of_a_later_subscription(context, tmp_path):
    """What is new does not depend on what was received before, nor on whether a connection was lost."""
    with running(tmp_path / "a") as one, running(tmp_path / "b") as other:
        with BrokerClient(one.endpoints["requests"]) as a, BrokerClient(other.endpoints["requests"]) as b:
            for client in (a, b):
                publish(client, "t", range(3))
                publish(client, "u", range(3))
            sub = subscribed(context, one, b"t", begin="new")
            sub.wait_for_peers(1, 10)
            publish(a, "t", [3])
            assert received(sub, 1) == {"t": [3]}
            sub.connect(f"{other.endpoints['subscriptions']}?begin=new")
            sub.wait_for_peers(2, 10)
            publish(b, "t", [3])
            assert received(sub, 1) == {"t": [3]}
            for stream in list(sub._links.state.peers):
                sub._links.loss.lost(stream, Broken("as if"))
            sub.subscribe(b"u")
            sub.wait_for_peers(2, 10)
            publish(a, "t", [4])
            publish(b, "u", [3])
            assert received(sub, 2) == {"t": [4], "u": [3]}
            assert not sub.poll(100)


def test_a_connection_that_is_lost_before_its_places_are_heard(context, broker, client):
    publish(client, "x", range(3))
    publish(client, "y", range(3))
    sub = subscribed(context, broker, begin="new")
    [subscriber] = eventually(lambda: [one for one in readers_of(broker) if one.subscriptions])
    publish(client, "x", [3])
    assert eventually(lambda: subscriber.delivered.get("x") == 4)
    time.sleep(0.1)  # all of it lies there unread
    for stream in list(sub._links.state.peers):
        sub._links.loss.lost(stream, Broken("as if"))
    publish(client, "y", [3])
    assert received(sub, 2) == {"x": [3], "y": [3]}
    assert not sub.poll(100)


def readers_of(broker):
    subscriptions = broker.hub.fanout.subscriptions()
    return [one for one in list(subscriptions) if type(one).__name__ == "CatchUpSubscriber"]


def test_a_topic_that_is_removed_and_made_again(context, broker, client):
    publish(client, "t", range(5))
    sub = subscribed(context, broker)
    assert received(sub, 5) == {"t": list(range(5))}
    admin = TopicAdmin(broker.loop, broker.hub, broker.letters, broker.audit)
    admin.remove_topic("t", actor="me", reason="a test", force=True)
    publish(client, "t", [100, 101])
    assert received(sub, 2) == {"t": [100, 101]}
    for stream in list(sub._links.state.peers):
        sub._links.loss.lost(stream, Broken("as if"))
    publish(client, "t", range(102, 110))
    assert received(sub, 8) == {"t": list(range(102, 110))}
    endpoint = f"{broker.endpoints['subscriptions']}?begin=old"
    sub.disconnect(endpoint)
    admin.remove_topic("t", actor="me", reason="a test", force=True)
    publish(client, "t", range(110, 140))
    sub.connect(endpoint)
    assert received(sub, 30) == {"t": list(range(110, 140))}
    assert "missed" not in sub._links.state.counts


def test_who_waits_already_when_it_connects(context, broker, client):
    publish(client, "t", [0])
    sub, got = context.socket(transfer.SUB, rcvtimeo=10_000), []
    sub.subscribe(b"")
    waits = threading.Thread(target=lambda: got.append(sub.recv_multipart()))
    waits.start()
    time.sleep(0.1)
    sub.connect(f"{broker.endpoints['subscriptions']}?begin=old")
    waits.join(10)
    assert got == [[b"t", b"0 "]]
    assert numbers_of(sub) == {b"t": 1}


def test_conflate_has_the_newest_place(context, broker, client):
    publish(client, "t", range(50))
    sub = subscribed(context, broker, conflate=True)
    time.sleep(0.3)
    while int(sub.recv_multipart()[-1]) != 49:
        pass
    assert numbers_of(sub) == {b"t": 50}
    assert "missed" not in sub._links.state.counts


def test_what_was_not_subscribed_is_not_missed(context, broker, client):
    publish(client, "t", [0])
    sub = subscribed(context, broker, b"t", begin="new")
    sub.wait_for_peers(1, 10)
    publish(client, "t", [1])
    assert received(sub, 1) == {"t": [1]}
    sub.unsubscribe(b"t")
    assert eventually(lambda: not any(one.subscriptions for one in readers_of(broker)))
    publish(client, "t", [2, 3])
    sub.subscribe(b"t")
    sub.wait_for_peers(1, 10)
    publish(client, "t", [4])
    assert received(sub, 3) == {"t": [2, 3, 4]}  # since it had begun
    assert "missed" not in sub._links.state.counts


def test_a_message_that_is_too_large_for_it_is_passed_over(context, broker, client):
    publish(client, "t", [0])
    client.publish("t", bytes(1 << 20))
    publish(client, "t", [2])
    sub = subscribed(context, broker, maxmsgsize=100_000)
    assert received(sub, 2) == {"t": [0, 2]}
    assert sub._links.state.counts["missed"] == 1


def test_one_that_catches_up_leaves_turns_to_others(context, broker, client):
    publish(client, "t", range(20_000))
    turns = []
    relieved = broker.hub.fanout.catch_up
    broker.hub.fanout.catch_up = lambda *arguments: turns.append(1) or relieved(*arguments)
    sub = subscribed(context, broker)
    assert received(sub, 20_000) == {"t": list(range(20_000))}
    assert len(turns) > 5


def test_an_error_of_one_is_not_the_others(context, broker, client, caplog):
    publish(client, "t", range(3))
    good = subscribed(context, broker)
    assert received(good, 3) == {"t": [0, 1, 2]}
    fails = iter([OSError("as if")])
    subscribe = native_catch_up.CatchUpSubscribers._subscribe

    def failing(*arguments):
        for error in fails:
            raise error
        return subscribe(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_catch_up.CatchUpSubscribers, "_subscribe", failing)
        bad = subscribed(context, broker, reconnect_ivl=5)
        assert received(bad, 3) == {"t": [0, 1, 2]}
    publish(client, "t", [3])
    assert received(good, 1) == received(bad, 1) == {"t": [3]}
    assert "as if" in caplog.text


# -- what cannot be ------------------------------------------------------------------------------------------


def test_publishers_that_keep_nothing(context):
    pub = context.socket(transfer.PUB)
    pub.bind(FREE)
    sub = context.socket(transfer.SUB, rcvtimeo=1000)
    monitor = sub.get_monitor()
    sub.connect(f"{pub.last_endpoint}?begin=old")
    while (event := monitor.recv(10)).kind != "handshake_failed":
        pass
    assert isinstance(event.error, HandshakeError)
    assert event.reason == "no_log"


@pytest.mark.parametrize(
    ("kind", "how", "endpoint"),
    [
        (transfer.SUB, "bind", "tcp://127.0.0.1:0?begin=old"),
        (transfer.PULL, "connect", "tcp://127.0.0.1:1?begin=old"),
        (transfer.PUSH, "connect", "tcp://127.0.0.1:1?begin=new"),
        (transfer.SUB, "connect", "registry://127.0.0.1:1/name?begin=new"),
        (transfer.SUB, "connect", "tcp://127.0.0.1:1?begin=middle"),
        (transfer.SUB, "connect", "tcp://127.0.0.1:1?start=old"),
        (transfer.SUB, "connect", "tcp://127.0.0.1:1?begin=old&begin=new"),
    ],
)
def test_endpoints_that_cannot_be(context, kind, how, endpoint):
    with pytest.raises(AddressError):
        getattr(context.socket(kind), how)(endpoint)


def test_prefixes_that_are_not_utf8(broker):
    """Our SUBs refuse them themselves."""
    order = Raw(bytes([Control.SUBSCRIBE]) + bytes(4) + b"\xff", CONTROL, socket_type=int(SocketType.SUB))
    with raw_peer(broker.endpoints["subscriptions"], SocketType.SUB, extra={"begin": "old"}) as bare:
        send_frames(bare, order)
        assert is_closed(bare)


@pytest.mark.parametrize("flood", ["positions", "bytes", "requests", "a position behind a subscription"])
def test_floods_end_their_connection(broker, client, monkeypatch, flood):
    monkeypatch.setattr(native_catch_up, "MAX_POSITIONS", 50)
    monkeypatch.setattr(native_catch_up, "MAX_REQUESTS", 50)
    monkeypatch.setattr(native_catch_up, "MAX_REQUEST_BYTES", 10_000 - 1)
    position = bytes([Control.POSITION]) + (1).to_bytes(8, "little") * 2
    order = bytes([Control.SUBSCRIBE]) + bytes(4)
    said = {
        "bytes": [position + b"%0250d" % number for number in range(40)],
        "positions": [position + b"%d" % number for number in range(60)],
        "requests": [order + b"%d" % number for number in range(20_000)],
        "a position behind a subscription": [order + b"a", position + b"b"],
    }[flood]
    with raw_peer(broker.endpoints["subscriptions"], SocketType.SUB, extra={"begin": "old"}) as bare:
        with contextlib.suppress(OSError):
            send_frames(bare, *(Raw(data, CONTROL, socket_type=int(SocketType.SUB)) for data in said))
        assert is_closed(bare)
    assert eventually(lambda: not catch_up_subscribers(broker))
    publish(client, "t", range(3))


def test_an_endpoint_with_both_options():
    address = parse("tcp://node7:5582?begin=old&policy=require")
    assert (address.begin, address.policy) == ("old", "require")
    assert parse(str(address)) == address


# -- positions -----------------------------------------------------------------------------------------------


def message(topic, number):
    return [SimpleNamespace(topic=topic, sequence=number)]


TOPICS = st.sampled_from([b"a", b"b", b"\0\xff"])


LOGS = st.builds(LogId, st.sampled_from(["one", "two"]), st.sampled_from([1, 2]))
STEPS = st.sampled_from(["connected", "reset", "skip", "record"])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(LOGS, STEPS, TOPICS, st.integers(1, 20))))
def test_positions_against_a_model(said):
    positions, model, epochs, large, late = TopicPositions(), {}, {}, {}, set()
    for log, what, topic, number in said:
        stream = SimpleNamespace(peer=SimpleNamespace(log=log))
        if epochs.setdefault(log.name, 0) != log.epoch and what == "connected":
            epochs[log.name] = log.epoch
            large = {key: told for key, told in large.items() if key[0] != log.name}
            late = {one for one in late if one[0] != log.name}
        key = log.name, topic
        known, told = model.get(key), large.setdefault(key, [])
        if what == "connected":
            positions.connected(log)
        elif what == "reset":
            positions.reset(stream.peer, TopicPosition(number, log.epoch), topic)
            model[key] = TopicPosition(number, log.epoch)
        elif what == "skip":
            new = (not told or number > told[-1]) and (known is None or number > known.number)
            assert positions.skip(stream.peer, number, topic) == new
            told += [number] * new
        else:
            missed = positions.record(stream, message(topic, number))
            same = known is not None and known.epoch == log.epoch
            if same and number > known.number:
                gone = set(range(known.number + 1, number))
                if gone:
                    assert missed == max(0, len(gone) - sum(one <= number for one in told))
                    told[:] = [one for one in told if one > number]
                if missed:
                    late |= {(*key, one) for one in gone}
                model[key] = TopicPosition(number, log.epoch)
                continue
            if same and (*key, number) in late:
                late.discard((*key, number))
                assert missed == -1
                continue
            assert missed == 0
            if not same and epochs[log.name] == log.epoch:
                model[key] = TopicPosition(number, log.epoch)
                told[:] = [one for one in told if one > number]
    for name in ("one", "two", "three"):
        sent = {topic: position for position, topic in map(decode_position, positions.control_frames(name))}
        assert sent == {topic: position for (its, topic), position in model.items() if its == name}


@given(st.binary(max_size=40))
def test_malformed_position_frames(data):
    for decode in (decode_position, decode_skipped):
        if len(data) <= 17:
            with pytest.raises(ProtocolError, match="control"):
                decode(data)
    if len(data) > 17:
        position, topic = decode_position(data)
        assert encode_position(position, topic)[1:] == data[1:]
        assert encode_skipped(*decode_skipped(data))[1:] == data[1:]
    if len(data) != 9:
        with pytest.raises(ProtocolError, match="control"):
            decode_offline(data)
    else:
        assert decode_offline(data) >= 0


def test_withheld_messages_are_not_missed():
    stream = SimpleNamespace(peer=SimpleNamespace(log=LogId("log", 1)))
    positions = TopicPositions()

    def record(number):
        frame = SimpleNamespace(sequence=number, topic=b"t")
        return positions.record(stream, [frame])

    def withhold(first, stop):
        data = encode_withheld(range(first, stop), b"t")
        assert decode_withheld(data) == (range(first, stop), b"t")
        positions.withhold(stream.peer, *decode_withheld(data))

    positions.connected(stream.peer.log)
    assert record(5) == 0
    withhold(3, 8)  # 6 and 7 are news
    withhold(6, 8)
    assert positions.skip(stream.peer, 9, b"t")
    assert record(10) == 1, "8 is missing"
    withhold(12, 14)
    assert record(11) == 0
    assert record(14) == 0
    withhold(15, 1 << 63)  # more than are remembered
    assert record(15 + 10_001) == 1


@pytest.mark.parametrize("said", ["skipped", "withheld", "offline behind a subscription"])
def test_control_frames_in_the_wrong_order(broker, said):
    offline = bytes([Control.OFFLINE]) + bytes(8)
    words = {
        "skipped": [encode_skipped(1, 1, b"t")],
        "withheld": [encode_withheld(range(1, 2), b"t")],
        "offline behind a subscription": [offline, bytes([Control.SUBSCRIBE]) + bytes(4), offline],
    }[said]
    with raw_peer(broker.endpoints["subscriptions"], SocketType.SUB, extra={"begin": "old"}) as bare:
        send_frames(bare, *(Raw(data, CONTROL, socket_type=int(SocketType.SUB)) for data in words))
        assert is_closed(bare)


# -- found by a reader of the code ---------------------------------------------------------------------------


def test_parts_that_are_too_large_together_are_passed_over(context, broker, client):
    """A SUB counts topics and headers too, of messages of several parts."""
    push = context.socket(transfer.PUSH)
    push.connect(broker.endpoints["pushes"])
    topic = b"t" + b"x" * 100
    push.send_multipart([topic, b"a" * 1000, b"b" * 980])
    push.send_multipart([topic, b"a" * 1000, b"b" * 898])
    push.send_multipart([topic, b"next"])
    sub = context.socket(transfer.SUB, rcvtimeo=10_000, maxmsgsize=2000)
    sub.subscribe(b"")
    assert eventually(lambda: broker.hub.store.messages == 3)
    sub.connect(f"{broker.endpoints['subscriptions']}?begin=old")
    assert [len(sub.recv_multipart()) for _ in range(2)] == [3, 2]
    assert sub._links.state.counts["missed"] == 1 and sub._links.state.counts["connected"] == 1


@pytest.mark.parametrize("count", [1, 2, 40])
def test_what_was_looked_at_and_not_received_comes_once(context, broker, client, count):
    """Nobody receives while the connection is lost: the reactor looks what is left."""
    publish(client, "t", [0])
    sub = subscribed(context, broker, reconnect_ivl=5, reconnect_ivl_max=20)
    assert received(sub, 1) == {"t": [0]}
    publish(client, "t", range(1, 1 + count))
    assert sub.poll(5000)
    time.sleep(0.2)
    [stream] = list(sub._links.state.peers)
    sub._links.loss.lost(stream, Broken("as if"))
    assert eventually(lambda: sub._links.state.counts["connected"] == 2)
    publish(client, "t", [99])
    assert received(sub, count + 1) == {"t": [*range(1, 1 + count), 99]}
    assert not sub.poll(200)


def test_threads_that_receive_concurrently_miss_nothing(context, broker, client, caplog):
    publish(client, "t", range(10_000))
    sub = subscribed(context, broker)
    got, lock = [], threading.Lock()

    def receives():
        while True:
            try:
                data = sub.recv_multipart()[-1]
            except transfer.Again:
                return
            with lock:
                got.append(int(data))
                if len(got) == 10_000:
                    sub.rcvtimeo = 100

    sub.rcvtimeo = 3000
    threads = [threading.Thread(target=receives) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert sorted(got) == list(range(10_000))
    assert not sub._links.state.counts.get("missed")
    assert "removed from the log" not in caplog.text


def test_many_subscriptions_share_a_pass_over_all_topics(context, broker, client, monkeypatch):
    """Each had one of its own: 1,000 prefixes over 20,000 topics took 38 s."""
    passes, subscribe = [], native_catch_up.CatchUpSubscribers._subscribe
    monkeypatch.setattr(
        native_catch_up.CatchUpSubscribers, "_subscribe", lambda *given: passes.append(1) or subscribe(*given)
    )
    for number in range(2000):
        client.publish(f"topic.{number:04d}", b"%d" % number, wait=False)
    client.flush()
    sub = subscribed(context, broker, *(b"topic.%04d" % number for number in range(0, 2000, 2)), b"topic.1")
    assert received(sub, 1500) == {
        f"topic.{number:04d}": [number] for number in range(2000) if number % 2 == 0 or number >= 1000
    }
    assert len(passes) < 100
    for number in range(2000):
        client.publish(f"topic.{number:04d}", b"%d" % (number + 1), wait=False)
    client.publish("topic.1more", b"1")
    assert sum(map(len, received(sub, 1501).values())) == 1501
    assert not sub.poll(100)


@pytest.mark.parametrize("begin", ["old", "new"])
def test_what_was_on_its_way_when_it_was_unsubscribed_comes_again(context, broker, client, begin):
    """The broker had sent it, and took it for received: 990 of 1,100 messages were lost without a word."""
    sub = subscribed(context, broker, b"other", b"a", begin=begin)
    sub.wait_for_peers(1, 10)
    publish(client, "a", range(1000))
    assert received(sub, 10) == {"a": list(range(10))}
    sub.unsubscribe(b"a")
    publish(client, "other", [-1])
    assert received(sub, 1) == {"other": [-1]}, "what it was sent before is passed over"
    publish(client, "a", range(1000, 1100))
    publish(client, "ab", [-2])
    sub.subscribe(b"a")
    assert received(sub, 1091) == {"a": list(range(10, 1100)), "ab": [-2]}
    sub.subscribe(b"a")
    sub.unsubscribe(b"a")
    publish(client, "a", [1100])
    assert received(sub, 1) == {"a": [1100]}
    assert sub._links.state.counts["connected"] == 2 and "missed" not in sub._links.state.counts


def test_a_thread_that_unsubscribes_and_subscribes_while_another_receives(context, broker, client):
    sub = subscribed(context, broker, b"t", b"end", reconnect_ivl=1, reconnect_ivl_max=5)
    sub.wait_for_peers(1, 10)
    got, enough = [], threading.Event()

    def changes():
        while not enough.wait(0.01):
            before = len(got)
            sub.unsubscribe(b"t")
            sub.subscribe(b"t")
            # A connection may take longer than the pause: then none would ever deliver anything.
            eventually(lambda before=before: len(got) > before or enough.is_set(), 10)

    thread = threading.Thread(target=changes)
    thread.start()
    publish(client, "t", range(20_000))
    while len(got) < 20_000:
        got.append(int(sub.recv_multipart()[-1].partition(b" ")[0]))
    enough.set()
    thread.join(20)
    assert got == list(range(20_000))


def test_a_message_that_a_thread_has_and_has_not_recorded_is_not_sent_again(context, broker, client):
    """Another thread's new connection began before it: the publisher was given the position before."""
    publish(client, "t", range(3))
    sub = subscribed(context, broker, b"t", reconnect_ivl=1, reconnect_ivl_max=5)
    reader, before, paused = sub._links.log_reader, [], []
    record = reader.record

    def connects_again():
        before.extend(sub._links.state.peers)
        sub.unsubscribe(b"t")
        sub.subscribe(b"t")
        eventually(lambda: any(one not in before for one in sub._links.state.peers))

    def pauses(stream, frames):
        if threading.current_thread() is threading.main_thread() and not paused:
            paused.append(True)
            other = threading.Thread(target=connects_again)
            other.start()
            other.join(20)
        record(stream, frames)

    reader.record = pauses
    assert received(sub, 3) == {"t": [0, 1, 2]}
    assert paused and before
    client.publish("t", b"3")
    assert received(sub, 1) == {"t": [3]}


def test_a_message_that_is_appended_while_topics_are_looked_at(context, broker, client, monkeypatch):
    """It was counted before, and taken for one that the subscriber was given."""
    seen = []
    client.publish("t", b"0")
    find = native_catch_up.CatchUpSubscribers._first_offset

    def appends(self, subscriber, topic, old):
        first = find(self, subscriber, topic, old)
        if not seen:
            seen.append(topic)
            counted = topic.messages
            broker.hub.publish(Message(topic.name, (b"1",), Front.TTP))
            topic.messages = counted
        return first

    monkeypatch.setattr(native_catch_up.CatchUpSubscribers, "_first_offset", appends)
    sub = subscribed(context, broker, begin="new")
    assert received(sub, 1) == {"t": [1]}


def test_subscriptions_change_while_others_are_confirmed(context, broker, client):
    """The receiving thread looked at all of them meanwhile, and raised RuntimeError."""
    sub = subscribed(context, broker, *(b"%05d" % number for number in range(5000)))
    failed, enough = [], threading.Event()

    def receives():
        while not enough.is_set():
            try:
                sub.recv(transfer.DONTWAIT)
            except transfer.Again:
                time.sleep(0)
            except Exception as error:  # noqa: BLE001 - the test fails by it
                failed.append(error)
                return

    thread = threading.Thread(target=receives)
    thread.start()
    for number in range(5000, 6000):
        sub.subscribe(b"%05d" % number)
    enough.set()
    thread.join(20)
    assert not failed


@pytest.mark.parametrize("prefix", [b"x" * 256, b"a\0b"], ids=["long", "NUL"])
def test_prefixes_that_no_topic_of_a_log_has(context, broker, prefix):
    """The broker ended the connection, again and again, and nobody was told why."""
    sub = subscribed(context, broker)
    with pytest.raises(UsageError, match="at most 255 bytes, without NUL"):
        sub.subscribe(prefix)


@pytest.mark.parametrize("plain_first", [True, False])
def test_a_plain_endpoint_and_one_with_begin(context, broker, client, plain_first):
    """Each message came twice."""
    plain = broker.endpoints["subscriptions"].replace("127.0.0.1", "localhost")
    endpoints = [plain, f"{broker.endpoints['subscriptions']}?begin=new"]
    sub = context.socket(transfer.SUB, rcvtimeo=10_000)
    sub.subscribe(b"")
    for endpoint in endpoints if plain_first else reversed(endpoints):
        sub.connect(endpoint)
        sub.wait_for_peers(1, 10)
    assert eventually(lambda: sub._links.state.counts.get("handshake:duplicate_log"))
    publish(client, "t", range(5))
    assert received(sub, 5) == {"t": list(range(5))}
    assert not sub.poll(100)


TEXTS = st.text("ab.", max_size=3)


@given(st.lists(st.tuples(TEXTS, st.booleans()), min_size=1), TEXTS)
def test_the_first_subscription_of_a_topic(wanted, topic):
    subscriptions = [
        (native_catch_up._pattern(text.encode()), number, old) for number, (text, old) in enumerate(wanted)
    ]
    expected = next((one for one in subscriptions if topic.startswith(one[0].text)), None)
    assert native_catch_up._Prefixes(subscriptions).first(topic) == expected


def test_one_that_has_gone_keeps_no_memory(context, broker, client):
    """Topics without new messages knew it, and it knew all of them: 150 of them kept 380 MB."""
    publish(client, "t", range(10))
    sub = subscribed(context, broker)
    assert received(sub, 10) == {"t": list(range(10))}
    [subscriber] = readers_of(broker)
    assert subscriber.delivered == {"t": 10}
    sub.close(0)
    assert eventually(lambda: not readers_of(broker))
    assert eventually(lambda: not subscriber.delivered and not subscriber.requests)


def test_the_longest_subscription(context):
    pub, sub = context.socket(transfer.PUB), context.socket(transfer.SUB)
    pub.bind(FREE)
    with pytest.raises(UsageError, match="at most 65531 bytes"):
        sub.subscribe(b"x" * 65532)
    sub.subscribe(b"x" * 65531)
    sub.connect(pub.last_endpoint)
    sub.wait_for_peers(1, 10)
