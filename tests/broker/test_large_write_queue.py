"""Large messages that came whole: written beside the loop, in the order of their topic, over a real log."""

from __future__ import annotations

import pytest

from tests.broker.stepped_hub import EVERYTHING, ControlledSubscriber, Publisher, stepped_hub
from transfer.broker.core.message import Front, Message
from transfer.broker.storage.blob_writer import BlobWrite
from transfer.broker.storage.large_write_queue import LARGE
from transfer.log import Retention
from transfer.transports.errors import InternalError, LogFull, UsageError


@pytest.fixture
def stepped(tmp_path):
    with stepped_hub(tmp_path) as stepped:
        yield stepped


def large(fill):
    return fill * LARGE


def kept(stepped, topic):
    """The payloads that are on the disk, shortened."""
    found, offset = [], 0
    while messages := stepped.store.read(stepped.store.topic(topic), offset, limit=1):
        found.append(bytes(messages[0].payload))
        offset = messages[0].offset + 1
    return [one[:1] * 3 if len(one) == LARGE else one for one in found]


def test_the_order_of_a_topic_stays(stepped):
    subscriber, outcomes = ControlledSubscriber(stepped.hub, auto=True, limit=1 << 40), []
    stepped.hub.subscribe(subscriber, EVERYTHING)
    for fill in (b"0", b"1", b"2", b"3"):
        stepped.publish("t", large(fill), lambda error, fill=fill: outcomes.append((fill, error)))
        stepped.publish("t", fill, lambda error, fill=fill: outcomes.append((fill * 2, error)))
    stepped.publish("other", b"not behind them")
    assert subscriber.received == [b"not behind them"]
    assert stepped.hub.busy
    stepped.until(lambda: len(outcomes) == 8)
    wanted = [large(fill) if turn else fill for fill in (b"0", b"1", b"2", b"3") for turn in (1, 0)]
    assert subscriber.received[1:] == wanted
    assert outcomes == [(fill * (2 - turn), None) for fill in (b"0", b"1", b"2", b"3") for turn in (1, 0)]
    assert kept(stepped, "t") == [b"000", b"0", b"111", b"1", b"222", b"2", b"333", b"3"]
    stepped.until(lambda: not stepped.hub.busy)


def test_many_at_once_stand_behind_it_too(stepped):
    outcomes = []
    stepped.publish("t", large(b"L"), outcomes.append)
    messages = [Message("t", (b"%d" % number,), Front.NATIVE) for number in range(3)]
    stepped.hub.publish_many(messages, outcomes.append)
    stepped.until(lambda: len(outcomes) == 2)
    assert outcomes == [None, None]
    assert kept(stepped, "t") == [b"LLL", b"0", b"1", b"2"]


def test_the_end_of_the_broker_loses_nothing_that_was_taken(tmp_path):
    with stepped_hub(tmp_path) as stepped:
        stepped.publish("t", large(b"a"))
        stepped.publish("t", b"b")
        stepped.publish("t", large(b"c"))
        stepped.publish("u", large(b"d"))
    with stepped_hub(tmp_path) as stepped:
        assert kept(stepped, "t") == [b"aaa", b"b", b"ccc"]
        assert kept(stepped, "u") == [b"ddd"]
        assert stepped.store.topic("t").position == 2 * LARGE + 1


def test_what_never_fits_is_refused(tmp_path):
    with stepped_hub(tmp_path, room=LARGE, retention=Retention(bytes=LARGE)) as stepped:
        with pytest.raises(UsageError, match="payload"):
            stepped.publish("t", large(b"x"))
        stepped.kept("t", b"small")
        assert not stepped.hub.busy


def test_a_full_log_is_waited_for(tmp_path):
    with stepped_hub(tmp_path, segment_bytes=1 << 16, retention=Retention(bytes=LARGE * 2)) as stepped:
        stepped.log.append("topic/old", b"")
        stepped.log.acknowledge("topic/old", "holds", 0)
        stepped.kept("old", large(b"o"))
        outcomes = []
        stepped.publish("t", large(b"x"), outcomes.append)
        stepped.publish("t", b"behind", outcomes.append)
        stepped.turn(0.05)
        assert outcomes == [] and stepped.hub._writer.full
        stepped.kept("other", b"small ones go on")
        stepped.log.acknowledge("topic/old", "holds", 2)
        stepped.hub.tick(0.0)
        stepped.until(lambda: len(outcomes) == 2)
        assert outcomes == [None, None]
        assert kept(stepped, "t") == [b"xxx", b"behind"]


def test_a_record_for_which_there_is_no_room_is_tried_again(stepped, monkeypatch):
    tried, commit = [], BlobWrite.commit

    def full_at_first(writing, body):
        tried.append(writing)
        if len(tried) == 1:
            raise LogFull("no room")
        return commit(writing, body)

    monkeypatch.setattr(BlobWrite, "commit", full_at_first)
    outcomes = []
    for payload in (large(b"a"), b"b", large(b"c"), b"d"):
        stepped.publish("t", payload, outcomes.append)
    stepped.until(lambda: len(outcomes) == 4)
    assert outcomes == [None] * 4
    assert kept(stepped, "t") == [b"aaa", b"b", b"ccc", b"d"]


def test_one_that_cannot_be_written_is_told(stepped, monkeypatch):
    """Those behind it go on."""

    def fails(topic, nbytes):
        raise InternalError("no such disk")

    outcomes = []
    stepped.publish("t", large(b"a"), outcomes.append)
    stepped.until(lambda: outcomes)
    with monkeypatch.context() as patched:
        patched.setattr(stepped.log, "blob", fails)
        stepped.publish("t", large(b"b"), outcomes.append)
        stepped.publish("t", b"c", outcomes.append)
        stepped.until(lambda: len(outcomes) == 3)
    assert [type(error) for error in outcomes] == [type(None), InternalError, type(None)]
    assert kept(stepped, "t") == [b"aaa", b"c"]


def test_a_log_that_fails_is_told_once(stepped):
    outcomes, publisher = [], Publisher()
    for _ in range(66):
        stepped.publish("t", large(b"a"), outcomes.append)
    stepped.publish("t", b"b", outcomes.append)
    stepped.hub.apply_backpressure(publisher)
    assert publisher.paused
    stepped.hub.durability.failed(InternalError("no such disk"))
    assert [type(error) for error in outcomes] == [InternalError] * 67
    assert not publisher.paused
    stepped.turn(0.2)
    assert len(outcomes) == 67 and not stepped.hub._large_writes.waiting


@pytest.mark.parametrize("failing", ["commit", "append"])
def test_a_log_that_fails_by_one_of_them_is_told_once(stepped, monkeypatch, failing):
    """By the record of a large one, or by a small one behind it."""

    def fails(*arguments, **more):
        raise InternalError("no such disk")

    outcomes = []
    for payload in (large(b"a"), b"b", large(b"c"), b"d"):
        stepped.publish("t", payload, lambda error, payload=payload: outcomes.append((payload[:1], error)))
    if failing == "commit":
        monkeypatch.setattr("transfer.broker.storage.blob_writer.BlobWrite.commit", fails)
    else:
        monkeypatch.setattr(stepped.log, "append", fails)
    stepped.until(lambda: len(outcomes) == 4)
    stepped.turn(0.2)
    assert sorted(name for name, _ in outcomes) == [b"a", b"b", b"c", b"d"]
    assert all(isinstance(error, InternalError) for _, error in outcomes)
    assert not stepped.hub._large_writes.waiting


def test_who_publishes_much_waits(stepped):
    publisher, outcomes = Publisher(), []
    count = 0
    while not publisher.paused:
        stepped.publish("t", large(b"x"), outcomes.append)
        count += 1
        stepped.hub.apply_backpressure(publisher)
    assert count * LARGE > 64 << 20
    stepped.until(lambda: len(outcomes) == count)
    stepped.until(lambda: not publisher.paused)
    assert outcomes == [None] * count
