"""Many messages appended at once, and a message that is searched by a key of the caller's."""

from __future__ import annotations

import threading
from bisect import bisect_right

import pytest
from hypothesis import given, settings, strategies as st

from transfer.log import Log, Retention, log as log_module
from transfer.log.record import MAX_BODY
from transfer.transports.errors import Closed, LogFull, UsageError

SMALL = 4096


def bodies(log, topic, offset=0):
    return [bytes(one.body) for one in log.read(topic, offset, nbytes=1 << 30)]


@settings(max_examples=40, deadline=None)
@given(
    batches=st.lists(
        st.lists(st.tuples(st.sampled_from("abc"), st.binary(max_size=400)), max_size=20), max_size=12
    )
)
def test_many_are_as_if_each_was_appended_alone(tmp_path_factory, batches):
    folder = tmp_path_factory.mktemp("log")
    said: dict[str, list[bytes]] = {"a": [], "b": [], "c": []}
    with Log(folder, segment_bytes=SMALL) as log:
        for number, batch in enumerate(batches):
            if number % 2:
                sequence, offsets = log.append_all(batch)
                for (topic, body), offset in zip(batch, offsets, strict=True):
                    assert offset == len(said[topic])
                    said[topic].append(body)
            else:
                sequence, offset = log.append_many("a", [bytearray(body) for _, body in batch])
                assert offset == len(said["a"])
                said["a"] += [body for _, body in batch]
            if batch:
                log.commit(sequence + len(batch) - 1)
                assert log._journal.synced == sequence + len(batch)
        for topic, messages in said.items():
            assert bodies(log, topic) == messages
    with Log(folder, segment_bytes=SMALL) as log:
        for topic, messages in said.items():
            assert bodies(log, topic) == messages


def test_all_of_them_lie_in_one_segment_or_nothing_is_appended(tmp_path):
    with Log(tmp_path, segment_bytes=SMALL, retention=Retention(bytes=10 * SMALL)) as log:
        log.acknowledge("t", "g", 0)
        sequence, offset = log.append_many("t", [bytes(500)] * 20)  # more than a segment holds
        log.commit(sequence + 19)
        assert offset == 0 and len(bodies(log, "t")) == 20
        with pytest.raises(LogFull):
            log.append_many("t", [bytes(500)] * 60)
        with pytest.raises(LogFull):
            log.append_all([("t", bytes(500))] * 60)
        log.commit()
        assert len(bodies(log, "t")) == 20 and log.append("t", b"goes on")[1] == 20


def test_many_threads_append_many(tmp_path):
    with Log(tmp_path, segment_bytes=SMALL) as log:

        def work(name):
            for number in range(30):
                sequence, _ = log.append_many("t", [b"%s %d %d" % (name, number, at) for at in range(5)])
                log.commit(sequence + 4)

        threads = [threading.Thread(target=work, args=(b"%d" % number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        found = [bytes(one.body).split() for one in log.read("t", 0, nbytes=1 << 30)]
        assert len(found) == 600
        for at in range(0, 600, 5):
            assert [one[2] for one in found[at : at + 5]] == [b"%d" % number for number in range(5)]
            assert len({(one[0], one[1]) for one in found[at : at + 5]}) == 1


def test_what_many_cannot_be(tmp_path, monkeypatch):
    log = Log(tmp_path, segment_bytes=SMALL)
    with pytest.raises(UsageError):
        log.append_many("", [b"x"])
    monkeypatch.setattr("transfer.log.appender.MAX_BODY", 1000)
    for call in (
        lambda: log.append_many("t", [bytes(300)] * 4), lambda: log.append("t", bytes(1001)),
        lambda: log.append_all([("t", bytearray(1001))]),
    ):  # fmt: skip
        with pytest.raises(UsageError):
            call()
    assert log.range("t") == (0, 0) and MAX_BODY == 1 << 30
    assert log.append_many("t", []) == (log._journal.sequence, 0)
    log.close()
    for call in (lambda: log.append_many("t", [b""]), lambda: log.append_all([("t", b"")])):
        with pytest.raises(Closed):
            call()


def key(body: memoryview) -> int:
    return int.from_bytes(body[:8], "little")


@settings(max_examples=40, deadline=None)
@given(
    keys=st.lists(st.integers(0, 60), max_size=80).map(sorted),
    gone=st.integers(0, 80),
    values=st.lists(st.integers(0, 62), min_size=1, max_size=10),
    blobs=st.booleans(),
)
def test_search_finds_the_last_message_whose_key_is_at_most_the_value(
    tmp_path_factory, keys, gone, values, blobs
):
    folder = tmp_path_factory.mktemp("log")
    with Log(folder, segment_bytes=SMALL) as log:
        for number, one in enumerate(keys):
            log.append(
                "t", one.to_bytes(8, "little") + bytes(200), blob=b"x" if number % 2 and blobs else None
            )
        gone = min(gone, len(keys))
        log.acknowledge("t", "g", gone)
        log.commit()
        if gone % 2:
            log.compact(1.0)
        log.append("t", bytes(8))  # not kept yet, so it is not looked at
        begin = log.range("t")[0]
        for value in values:
            expected = bisect_right(keys, value) - 1
            assert log.search("t", key, value) == (expected if expected >= begin else None)


def test_search_asks_few_messages_and_checks_none(tmp_path, monkeypatch):
    asked = []
    with Log(tmp_path, segment_bytes=1 << 16) as log:
        assert log.search("never heard of", key, 5) is None
        log.append_many("t", [number.to_bytes(8, "little") * 10 for number in range(0, 20_000, 2)])
        log.commit()
        found = log.search("t", lambda body: (asked.append(1), key(body))[1], 7001)
        assert found == 3500 and len(asked) <= 14
        assert log.offset_at("t", 0) == 0 and log.offset_at("t", 1 << 63) == 10_000
        with pytest.raises(ZeroDivisionError):
            log.search("t", lambda body: 1 // 0, 5)
        assert log.search("t", key, 19_998) == 9999
    with pytest.raises(Closed):
        log.search("t", key, 1)


def test_search_of_what_goes_meanwhile(tmp_path, monkeypatch):
    with Log(tmp_path, segment_bytes=SMALL, retention=Retention(acknowledged=True)) as log:
        log.acknowledge("t", "g", 0)
        for number in range(300):
            log.append("t", number.to_bytes(8, "little") * 10)
        log.commit()
        asked = []

        def slow(body):
            if not asked:
                log.acknowledge("t", "g", 250)
                log.collect()
            asked.append(key(body))
            return asked[-1]

        assert log.search("t", slow, 20) is None and log.range("t")[0] > 100
        assert log_module.first_that(0, 10, lambda offset: None, lambda record: True) == 10
