"""Large messages that came whole: written beside the loop, in the order of their topic, over a real log."""

from __future__ import annotations

import pytest

from tests.broker.stepped_hub import EVERYTHING, Ear, Publisher, heart
from transfer.broker.core.message import Front, Message
from transfer.broker.storage.blob_writer import BlobWrite
from transfer.broker.storage.large_write_queue import LARGE
from transfer.log import Retention
from transfer.transports.errors import InternalError, LogFull, UsageError


@pytest.fixture
def beating(tmp_path):
    with heart(tmp_path) as beating:
        yield beating


def large(fill):
    return fill * LARGE


def kept(beating, topic):
    """The payloads that are on the disk, shortened."""
    found, offset = [], 0
    while messages := beating.store.read(beating.store.topic(topic), offset, limit=1):
        found.append(bytes(messages[0].payload))
        offset = messages[0].offset + 1
    return [one[:1] * 3 if len(one) == LARGE else one for one in found]


def test_the_order_of_a_topic_stays(beating):
    ear, told = Ear(beating.hub, auto=True, limit=1 << 40), []
    beating.hub.subscribe(ear, EVERYTHING)
    for fill in (b"0", b"1", b"2", b"3"):
        beating.publish("t", large(fill), lambda error, fill=fill: told.append((fill, error)))
        beating.publish("t", fill, lambda error, fill=fill: told.append((fill * 2, error)))
    beating.publish("other", b"not behind them")
    assert ear.heard == [b"not behind them"]
    assert beating.hub.busy
    beating.until(lambda: len(told) == 8)
    wanted = [large(fill) if turn else fill for fill in (b"0", b"1", b"2", b"3") for turn in (1, 0)]
    assert ear.heard[1:] == wanted
    assert told == [(fill * (2 - turn), None) for fill in (b"0", b"1", b"2", b"3") for turn in (1, 0)]
    assert kept(beating, "t") == [b"000", b"0", b"111", b"1", b"222", b"2", b"333", b"3"]
    beating.until(lambda: not beating.hub.busy)


def test_many_at_once_stand_behind_it_too(beating):
    told = []
    beating.publish("t", large(b"L"), told.append)
    messages = [Message("t", (b"%d" % number,), Front.OWN) for number in range(3)]
    beating.hub.publish_many(messages, told.append)
    beating.until(lambda: len(told) == 2)
    assert told == [None, None]
    assert kept(beating, "t") == [b"LLL", b"0", b"1", b"2"]


def test_the_end_of_the_broker_loses_nothing_that_was_taken(tmp_path):
    with heart(tmp_path) as beating:
        beating.publish("t", large(b"a"))
        beating.publish("t", b"b")
        beating.publish("t", large(b"c"))
        beating.publish("u", large(b"d"))
    with heart(tmp_path) as beating:
        assert kept(beating, "t") == [b"aaa", b"b", b"ccc"]
        assert kept(beating, "u") == [b"ddd"]
        assert beating.store.topic("t").position == 2 * LARGE + 1


def test_what_never_fits_is_refused(tmp_path):
    with heart(tmp_path, room=LARGE, retention=Retention(bytes=LARGE)) as beating:
        with pytest.raises(UsageError, match="payload"):
            beating.publish("t", large(b"x"))
        beating.kept("t", b"small")
        assert not beating.hub.busy


def test_a_full_log_is_waited_for(tmp_path):
    with heart(tmp_path, segment_bytes=1 << 16, retention=Retention(bytes=LARGE * 2)) as beating:
        beating.log.append("topic/old", b"")
        beating.log.acknowledge("topic/old", "holds", 0)
        beating.kept("old", large(b"o"))
        told = []
        beating.publish("t", large(b"x"), told.append)
        beating.publish("t", b"behind", told.append)
        beating.turn(0.05)
        assert told == [] and beating.hub._writer.full
        beating.kept("other", b"small ones go on")
        beating.log.acknowledge("topic/old", "holds", 2)
        beating.hub.tick(0.0)
        beating.until(lambda: len(told) == 2)
        assert told == [None, None]
        assert kept(beating, "t") == [b"xxx", b"behind"]


def test_a_record_for_which_there_is_no_room_is_tried_again(beating, monkeypatch):
    tried, commit = [], BlobWrite.commit

    def full_at_first(writing, body):
        tried.append(writing)
        if len(tried) == 1:
            raise LogFull("no room")
        return commit(writing, body)

    monkeypatch.setattr(BlobWrite, "commit", full_at_first)
    told = []
    for payload in (large(b"a"), b"b", large(b"c"), b"d"):
        beating.publish("t", payload, told.append)
    beating.until(lambda: len(told) == 4)
    assert told == [None] * 4
    assert kept(beating, "t") == [b"aaa", b"b", b"ccc", b"d"]


def test_one_that_cannot_be_written_is_told(beating, monkeypatch):
    """Those behind it go on."""

    def fails(topic, nbytes):
        raise InternalError("no such disk")

    told = []
    beating.publish("t", large(b"a"), told.append)
    beating.until(lambda: told)
    with monkeypatch.context() as patched:
        patched.setattr(beating.log, "blob", fails)
        beating.publish("t", large(b"b"), told.append)
        beating.publish("t", b"c", told.append)
        beating.until(lambda: len(told) == 3)
    assert [type(error) for error in told] == [type(None), InternalError, type(None)]
    assert kept(beating, "t") == [b"aaa", b"c"]


def test_a_log_that_fails_is_told_once(beating):
    told, publisher = [], Publisher()
    for _ in range(66):
        beating.publish("t", large(b"a"), told.append)
    beating.publish("t", b"b", told.append)
    beating.hub.apply_backpressure(publisher)
    assert publisher.paused
    beating.hub.durability.failed(InternalError("no such disk"))
    assert [type(error) for error in told] == [InternalError] * 67
    assert not publisher.paused
    beating.turn(0.2)
    assert len(told) == 67 and not beating.hub._large_writes.waiting


@pytest.mark.parametrize("failing", ["commit", "append"])
def test_a_log_that_fails_by_one_of_them_is_told_once(beating, monkeypatch, failing):
    """By the record of a large one, or by a small one behind it."""

    def fails(*arguments, **more):
        raise InternalError("no such disk")

    told = []
    for payload in (large(b"a"), b"b", large(b"c"), b"d"):
        beating.publish("t", payload, lambda error, payload=payload: told.append((payload[:1], error)))
    if failing == "commit":
        monkeypatch.setattr("transfer.broker.storage.blob_writer.BlobWrite.commit", fails)
    else:
        monkeypatch.setattr(beating.log, "append", fails)
    beating.until(lambda: len(told) == 4)
    beating.turn(0.2)
    assert sorted(name for name, _ in told) == [b"a", b"b", b"c", b"d"]
    assert all(isinstance(error, InternalError) for _, error in told)
    assert not beating.hub._large_writes.waiting


def test_who_publishes_much_waits(beating):
    publisher, told = Publisher(), []
    count = 0
    while not publisher.paused:
        beating.publish("t", large(b"x"), told.append)
        count += 1
        beating.hub.apply_backpressure(publisher)
    assert count * LARGE > 64 << 20
    beating.until(lambda: len(told) == count)
    beating.until(lambda: not publisher.paused)
    assert told == [None] * count
