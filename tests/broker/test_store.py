"""Topics over the log: messages byte for byte, and streams of bytes whose positions never move."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.broker.stepped_hub import ControlledSubscriber, stepped_hub
from transfer.broker.core.message import Front, Message, Written
from transfer.broker.storage.store import PositionRemoved, Store
from transfer.broker.storage.stored_message import BLOB_FROM, message_of, record_of
from transfer.broker.storage.topic import Withheld
from transfer.log import Log, LogMessage, Retention
from transfer.transports.errors import LogDamaged, LogFull, UsageError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def opened(folder, durable=lambda name: True, most=1000, **log):
    return Store(Log(folder, **log), durable, most=most)


def reopened(store, **log):
    folder = store.log.folder
    store.log.close()
    return opened(folder, **log)


def remember(store):
    """As the hub does once a second."""
    found = store.remember()
    if found is not None:
        store.log.commit(found[0])
        store.remembered(found[1])


def put(store, name, *parts, front=Front.NATIVE, head=b"", headers=None):
    topic = store.topic(name)
    store.append(topic, Message(name, parts, front, head, headers))
    store.log.commit()
    topic.kept = store.range(topic)[1]
    return topic


def flat(parts):
    return b"".join(map(bytes, parts))


@given(
    st.sampled_from(Front),
    st.lists(st.binary(max_size=50), min_size=1, max_size=4),
    st.binary(max_size=40),
    st.none() | st.dictionaries(st.text(max_size=5), JSON, min_size=1, max_size=4),
    st.integers(0, 2**64 - 1),
)
@settings(max_examples=100, deadline=None)
def test_a_record_is_read_as_it_was_written(front, parts, head, headers, position):
    message = Message("t", tuple(parts), front, head, headers)
    body = record_of(message, position, blob=False)
    read = message_of("t", LogMessage(7, 0, memoryview(body), None))
    assert bytes(read.payload) == b"".join(parts)
    assert (read.front, read.head, read.headers, read.offset) == (front, head, headers, 7)


@pytest.mark.parametrize("headers", [None, {"only_for": "mine"}, {"a": 1}])
@pytest.mark.parametrize("only_for", [None, "", "billing"])
def test_a_record_names_the_one_group_that_it_is_for(headers, only_for):
    message = Message("t", (b"data",), Front.NATIVE, headers=headers)
    message.only_for = only_for
    read = message_of("t", LogMessage(7, 0, memoryview(record_of(message, 3, blob=False)), None))
    assert (read.only_for, bytes(read.payload)) == (only_for, b"data")
    assert read.headers == headers


def test_what_is_withheld_is_remembered_in_ranges(tmp_path):
    withheld = Withheld()
    for offset in (3, 4, 5, 9):
        withheld.add(offset)
    for known in (withheld, Withheld(withheld.pack())):
        assert list(known.within(0, 100)) == [range(3, 6), range(9, 10)]
        assert list(known.within(4, 9)) == [range(4, 6)]
        assert not list(known.within(6, 9))
    for offset in range(100, 4200, 2):
        withheld.add(offset)
    assert len(withheld.pack()) == 16 * 1000


@pytest.mark.parametrize("size", [4, 100_000])
def test_the_stream_is_without_what_is_only_for_one_group(tmp_path, size):
    store = opened(tmp_path)
    topic = put(store, "t", b"one")
    for _ in range(2):
        replayed = Message("t", (bytes(size),), Front.NATIVE)
        replayed.only_for = "billing"
        store.append(topic, replayed)
    put(store, "t", b"two")
    replayed = Message("t", (bytes(size),), Front.NATIVE)
    replayed.only_for = ""
    store.log.commit(store.append(topic, replayed))
    topic.kept = 5
    assert topic.position == 6 and flat(store.stream(topic, 0, 100)) == b"onetwo"
    assert [flat(store.stream(topic, at, 100)) for at in range(2, 7)] == [b"etwo", b"two", b"wo", b"o", b""]
    store.log.close()
    store = opened(tmp_path)
    topic = store.topic("t")
    assert topic.position == 6 and flat(store.stream(topic, 0, 100)) == b"onetwo"
    assert list(topic.withheld.within(0, 9)) == [range(1, 3), range(4, 5)]
    store.remove(topic)
    assert not list(store.topic("t").withheld.within(0, 9))
    store.log.close()


@pytest.mark.parametrize("size", [0, 1, BLOB_FROM - 1, BLOB_FROM, BLOB_FROM + 1, 3 << 20])
def test_all_sizes_come_back(tmp_path, size):
    store = opened(tmp_path)
    parts = (np.random.default_rng(size).bytes(size // 3), bytes(size - size // 3))
    topic = put(store, "t", *map(memoryview, parts), head=b"head", headers={"dtype": "f4", "shape": [1, 2]})
    [message] = store.read(topic, 0)
    assert bytes(message.payload) == b"".join(parts)
    assert (message.head, message.headers) == (b"head", {"dtype": "f4", "shape": [1, 2]})
    assert flat(store.stream(topic, 0, 10 << 20)) == b"".join(parts)
    store.log.close()


@pytest.mark.parametrize(
    "body", [b"", b"\1", bytes(20), b"\1\77" + bytes(18), b"\1\1\0\0\377\377\377\377" + bytes(12)]
)
def test_what_is_none_of_the_brokers_is_told(body):
    with pytest.raises(LogDamaged, match="message 3 of topic 't'"):
        message_of("t", LogMessage(3, 0, memoryview(body), None))


def test_a_payload_that_retention_took_is_not_an_empty_one():
    body = record_of(Message("t", (bytes(BLOB_FROM),), Front.NATIVE), 0, blob=True)
    with pytest.raises(LogDamaged, match="no longer in the log"):
        message_of("t", LogMessage(3, 0, memoryview(body), None, True))


STEPS = st.lists(
    st.one_of(
        st.binary(max_size=300).map(lambda data: ("put", data)),
        st.just(("put", b"L" * BLOB_FROM)),
        st.tuples(st.just("read"), st.tuples(st.floats(0, 1), st.integers(1, 1000))),
        st.just(("restart", None)),
        st.just(("remember", None)),
    ),
    max_size=30,
)


@given(STEPS)
@settings(max_examples=25, deadline=None)
def test_the_stream_is_all_payloads(tmp_path_factory, steps):
    quick = {"fsync": "never", "segment_bytes": 1 << 20}
    store = opened(tmp_path_factory.mktemp("log"), **quick)
    model = b""
    for step, what in steps:
        topic = store.topic("t")
        if step == "put":
            put(store, "t", what)
            put(store, "other", b"between")
            model += what
        elif step == "read":
            position, limit = int(what[0] * len(model)), what[1]
            assert flat(store.stream(topic, position, limit)) == model[position : position + limit]
        elif step == "remember":
            remember(store)
        else:
            store = reopened(store, **quick)
        assert store.topic("t").position == len(model)
    topic = store.topic("t")
    assert store.stream(topic, len(model), 10) == []
    with pytest.raises(UsageError, match="which ends at"):
        store.stream(topic, len(model) + 1, 10)
    store.log.close()


def test_what_lost_its_payload_to_retention_is_gone_and_what_is_behind_it_is_read(tmp_path):
    """A payload that arrives for long lies in an older segment than its record."""
    store = opened(tmp_path, segment_bytes=1 << 20, retention=Retention(bytes=16 << 20))
    topic = store.topic("t")
    put(store, "t", b"first")
    arriving = [store.log.blob(topic.log_name, BLOB_FROM, arriving=True) for _ in range(2)]
    for blob in arriving:
        blob.write(b"L" * BLOB_FROM)
        blob.sync()
    for _ in range(30):  # other segments begin
        put(store, "other", bytes(BLOB_FROM - 1))
    positions = []
    for n, blob in enumerate(arriving):
        positions.append(topic.position)
        store.append(topic, Written("t", (b"L" * BLOB_FROM,), Front.TTP, b"", None, blob))
        put(store, "t", b"behind %d" % n)
    remember(store)
    for _ in range(400):
        if all(one.discarded for one in store.log.read(topic.log_name, 1, limit=4)[::2]):
            break
        put(store, "other", bytes(BLOB_FROM - 1))
        remember(store)
    kept = store.log.read(topic.log_name, 0)
    assert [one.discarded for one in kept] == [True, False, True, False]
    with pytest.raises(PositionRemoved) as refused:
        store.stream(topic, 0, 10)
    first = positions[0] + BLOB_FROM
    assert refused.value.next == first
    assert flat(store.stream(topic, first, 1 << 20)) == b"behind 0"
    with pytest.raises(PositionRemoved) as refused:
        store.stream(topic, positions[1] + 7, 10)
    assert refused.value.next == positions[1] + BLOB_FROM
    assert flat(store.stream(topic, refused.value.next, 1 << 20)) == b"behind 1"
    assert [bytes(one.payload) for one in store.read(topic, 0)] == [b"behind 0", b"behind 1"]
    assert [bytes(one.payload) for one in store.read(topic, 3, limit=1)] == [b"behind 1"]
    assert store.message(topic.log_name, kept[0].offset) is None
    store.log.close()


def test_positions_of_topics_that_were_removed_meanwhile_are_forgotten(tmp_path):
    store = opened(tmp_path)
    for name in ("removed", "stays"):
        put(store, name, b"message")
    sequence, marks = store.remember()
    store.remove(store.topic("removed"))
    store.log.commit(sequence)
    store.remembered(marks)
    assert list(store.log.groups(store.topic("stays").log_name).values()) == [1]
    store.log.close()


def test_positions_stay_when_all_messages_are_gone(tmp_path):
    """Retention takes a topic's messages as soon as their position is kept, and the next one stands behind
    them all the same."""
    limits = {"segment_bytes": 4096, "retention": Retention(bytes=16384)}
    store = opened(tmp_path, **limits)
    for _ in range(10):
        put(store, "old", bytes(100))
    for round_ in range(3):
        remember(store)
        for _ in range(20):
            put(store, "busy", bytes(1000))
            remember(store)
        low, end = store.range(store.topic("old"))
        assert low == end == 10 + round_
        store = reopened(store, **limits)
        topic = store.topic("old")
        assert topic.position == 1000 + 50 * round_
        with pytest.raises(PositionRemoved) as refused:
            store.stream(topic, 3, 100)
        assert refused.value.next == topic.position
        put(store, "old", b"x" * 50)
        assert flat(store.stream(topic, topic.position - 50, 100)) == b"x" * 50
        with pytest.raises(PositionRemoved, match=f"in the log is {1000 + 50 * round_}"):
            store.stream(topic, 3, 100)
    store.log.close()


def test_positions_of_very_many_topics_are_kept_a_few_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("transfer.broker.storage.store._MAX_STORED", 2)
    store = opened(tmp_path)
    for n in range(5):
        put(store, f"t{n}", b"12")
    marks = []
    while (found := store.remember()) is not None:
        marks.append([topic.name for topic, _ in found[1]])
        store.remembered(found[1])
        if len(marks) == 1:
            put(store, "t0", b"3")  # it has its turn again, behind the others
    assert marks == [["t0", "t1"], ["t2", "t3"], ["t4", "t0"]]
    store = reopened(store)
    assert [store.topic(f"t{n}").position for n in range(5)] == [3, 2, 2, 2, 2]
    store.log.close()


def test_what_is_not_remembered_is_not_removed(tmp_path):
    """A crash behind the removal would lose the position."""
    store = opened(tmp_path, segment_bytes=4096, retention=Retention(bytes=16384))
    put(store, "old", bytes(100))
    with pytest.raises(LogFull, match="let consumers acknowledge"):
        for _ in range(20):
            put(store, "busy", bytes(1000))
    assert store.range(store.topic("old")) == (0, 1)
    remember(store)
    put(store, "busy", bytes(1000))
    store.log.close()


def test_retention_never_skips_bytes_in_a_stream(tmp_path):
    with stepped_hub(tmp_path, segment_bytes=4096, retention=Retention(bytes=20_000)) as stepped:
        sent = b""
        for n in range(100):
            payload = n.to_bytes(2, "big") * 200
            sent += payload
            stepped.kept("t", payload)
            if n % 5 == 0:
                stepped.hub.tick(0.0)
        with pytest.raises(PositionRemoved) as refused:
            stepped.hub.stream("t", 0, 10)
        oldest = refused.value.next
        assert 0 < oldest < len(sent)
        found = flat(stepped.hub.stream("t", oldest, len(sent)))
        assert found == sent[oldest:]
        with pytest.raises(UsageError, match="no longer in the log"):
            stepped.hub.stream("t", oldest - 1, 10)


def test_too_many_topics(tmp_path):
    store = opened(tmp_path, durable=lambda name: name.startswith("kept"), most=5)
    for n in range(3):
        put(store, f"kept{n}", b"1")
    for n in range(100):
        store.topic(f"passing{n}")
    assert len(store.topics) == 5
    heard = store.topic("heard")
    heard.listeners.append(ControlledSubscriber())
    put(store, "kept3", b"1")
    with pytest.raises(UsageError, match="exceed the limit of 5"):
        store.topic("kept4")
    with pytest.raises(UsageError, match="exceed the limit of 5"):
        store.topic("passing")
    assert store.topic("kept1") is not None
    store = reopened(store)
    assert sorted(store.topics) == ["kept0", "kept1", "kept2", "kept3"]
    store.log.close()


def test_nobody_acknowledges_where_nothing_is_kept(tmp_path):
    store = opened(tmp_path, durable=lambda name: False)
    with pytest.raises(UsageError, match="is not durable"):
        store.durable_topic("t")
    assert store.stream(store.topic("t"), 0, 10) == []
    store.log.close()


def damage(folder, data):
    for path in [*folder.glob("*.log"), *folder.glob("*.blobs")]:
        at = path.read_bytes().find(data)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(b"\xff")
            return
    raise AssertionError("it is not there")


@pytest.mark.parametrize("size", [100, BLOB_FROM])
@pytest.mark.parametrize("which", [0, 3, 7])
def test_damage_is_told_and_the_rest_is_served(tmp_path, caplog, size, which):
    store = opened(tmp_path)
    payloads = [bytes([65 + n]) * size for n in range(8)]
    for payload in payloads:
        topic = put(store, "t", payload)
    damage(tmp_path, payloads[which])
    before = store.read(topic, 0) if which else []
    assert [bytes(one.payload) for one in before] == payloads[:which][: len(before)]
    assert bool(before) == bool(which)
    with pytest.raises(LogDamaged):
        store.read(topic, which)
    if which < 7:
        assert [bytes(one.payload) for one in store.read(topic, which + 1)] == payloads[which + 1 :]
    for n in range(8):
        if n == which:
            with pytest.raises(LogDamaged):
                store.stream(topic, n * size + 3, 10)
        else:
            assert flat(store.stream(topic, n * size + 3, 10)) == payloads[n][3:13]
    if which:
        assert flat(store.stream(topic, (which - 1) * size, 2 * size)) == payloads[which - 1]
    caplog.clear()
    store.log.close()


def test_a_damaged_payload_does_not_keep_the_broker_from_starting(tmp_path):
    store = opened(tmp_path)
    topic = put(store, "t", b"A" * BLOB_FROM)
    position = topic.position
    store.log.close()
    damage(tmp_path, b"A" * BLOB_FROM)
    store = opened(tmp_path)
    assert store.topic("t").position == position
    topic = put(store, "t", b"next")
    assert flat(store.stream(topic, position, 10)) == b"next"
    store.log.close()
