"""What operators do to groups and topics, by HTTP: removed, moved and purged, with the room given back."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest

from tests.broker.http_requests import ask, get_json, until
from tests.broker.in_process_broker import ANYWHERE, FREE, running
from transfer.broker.clients.native import BrokerClient
from transfer.broker.clients.rqueue import RqueueClient
from transfer.broker.core.topic_patterns import Kind, pattern
from transfer.transports.errors import Again, UsageError

WHO = {"actor": "ops@example.com", "reason": "a mistyped name"}


@pytest.fixture
def broker(tmp_path):
    with running(tmp_path, http=0, transient=(pattern(Kind.PREFIX, "live/"),)) as one:
        yield one


def change(broker, path, confirm, *, expected=200, **members):
    status, text = ask(
        broker.ports["http"], f"/api/admin/{path}", method="POST", body=WHO | {"confirm": confirm} | members
    )
    assert status == expected, text
    return json.loads(text)


def events(broker):
    return get_json(broker.ports["http"], "admin/audit/events")["events"]


def groups(broker):
    return {one["group"]: one for one in get_json(broker.ports["http"], "groups")["groups"]}


def test_a_removed_group_holds_nothing_and_its_consumer_hears_why(broker):
    with BrokerClient(broker.endpoints["requests"]) as client:
        consumer = client.consume("orders", "billign", begin="old")
        client.publish_many("orders", [b"1", b"2"])
        consumer.recv()
        answer = change(broker, "groups/remove", "REMOVE", topic="orders", group="billign", expected=409)
        assert answer["error"] == "conflict" and "1 consumers" in answer["message"]
        answer = change(broker, "groups/remove", "REMOVE", topic="orders", group="billign", force=True)
        assert (answer["lag"], answer["consumers"]) == (2, 1) and answer["log_bytes"] > 0
        assert groups(broker) == {}
        with pytest.raises(UsageError, match="was removed by an operator"):
            while True:
                consumer.recv(5)
        answer = change(broker, "groups/remove", "REMOVE", topic="orders", group="billign", expected=400)
        assert "has no group" in answer["message"]
    (event,) = events(broker)
    assert (event["actor"], event["operation"], event["reason"]) == (
        "ops@example.com",
        "group_remove",
        "a mistyped name",
    )
    assert event["prior_state"][0]["group"] == "billign" and event["time"]


def test_a_removed_group_stays_gone_and_one_with_its_number_begins_clean(tmp_path):
    with running(tmp_path, http=0) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        first = client.consume("orders", "first", begin="old")
        client.publish_many("orders", [b"%d" % n for n in range(10)])
        first.ack(*(first.recv() for _ in range(10)), wait=True)
        first.leave()
        until(lambda: groups(broker)["first"]["consumers"], 0)
        change(broker, "groups/remove", "REMOVE", topic="orders", group="first")
        second = client.consume("orders", "second", begin="old")
        assert [bytes(second.recv().data) for _ in range(10)] == [b"%d" % n for n in range(10)]
    with running(tmp_path, http=0) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        assert list(groups(broker)) == ["second"] and groups(broker)["second"]["lag"] == 10
        second = client.consume("orders", "second")
        assert [bytes(second.recv().data) for _ in range(10)] == [b"%d" % n for n in range(10)]


@pytest.mark.parametrize(("to", "following"), [("begin", b"0"), ("2", b"2"), ("1970-01-01T00:00:00Z", b"0")])
def test_a_group_goes_on_where_it_is_sent_and_after_a_restart(tmp_path, to, following):
    with running(tmp_path, http=0) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        consumer = client.consume("orders", "g", begin="old")
        client.publish_many("orders", [b"%d" % n for n in range(4)])
        consumer.ack(*(consumer.recv() for _ in range(4)), wait=True)
        answer = change(broker, "groups/seek", "SEEK", topic="orders", group="g", to=to, expected=409)
        assert "consumers" in answer["message"]
        answer = change(broker, "groups/seek", "SEEK", topic="orders", group="g", to=to, force=True)
        assert answer["cursor"] == int(following)
        with pytest.raises(UsageError, match="was moved"):
            consumer.recv(5)
        again = client.consume("orders", "g")
        assert bytes(again.recv().data) == following
    with running(tmp_path, http=0) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        assert bytes(client.consume("orders", "g").recv().data) == following
        answer = change(broker, "groups/seek", "SEEK", topic="orders", group="g", to="end", force=True)
        assert answer["cursor"] == 4 and groups(broker)["g"]["lag"] == 0
        change(broker, "groups/seek", "SEEK", topic="orders", group="g", to="9", force=True, expected=400)
        change(broker, "groups/seek", "SEEK", topic="orders", group="g", to="soon", force=True, expected=400)


def test_a_purged_topic_is_empty_and_goes_on_with_the_next_offset(tmp_path):
    with running(tmp_path, http=0) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        consumer = client.consume("orders", "g", begin="old", window=2)
        client.publish_many("orders", [b"old"] * 5)
        held = consumer.recv()
        answer = change(broker, "topics/purge", "PURGE", topic="orders")
        assert (answer["oldest"], answer["end"], answer["purged"], answer["groups"]) == (5, 5, 5, ["g"])
        assert (groups(broker)["g"]["cursor"], groups(broker)["g"]["lag"]) == (5, 0)
        consumer.ack(held)
        client.publish("orders", b"new")
        received = [consumer.recv()]
        while bytes(received[-1].data) != b"new":  # what was on its way already
            received.append(consumer.recv())
        assert received[-1].offset == 5
        (topic,) = get_json(broker.ports["http"], "topics")["topics"]
        assert (topic["oldest"], topic["end"], topic["position"]) == (5, 6, 5 * 3 + 3)
    with running(tmp_path, http=0) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        (topic,) = get_json(broker.ports["http"], "topics")["topics"]
        assert (topic["oldest"], topic["end"], topic["position"]) == (5, 6, 5 * 3 + 3)
        assert bytes(client.consume("orders", "g").recv().data) == b"new"
        assert (
            change(broker, "topics/purge", "PURGE", topic="nothing", expected=400)["error"] == "bad_request"
        )


def test_a_removed_topic_is_gone_and_its_offsets_are_not_used_again(tmp_path):
    with running(tmp_path, http=0, max_attempts=1) as broker:
        with BrokerClient(broker.endpoints["requests"]) as client:
            consumer = client.consume("orders", "g", begin="old")
            client.publish("orders", b"poison")
            consumer.nack(consumer.recv(), "no", retry=False)
            until(lambda: get_json(broker.ports["http"], "overview")["dead_letters"], 1)
            answer = change(broker, "topics/remove", "REMOVE", topic="orders", expected=409)
            assert "1 consumers" in answer["message"]
            change(broker, "topics/remove", "REMOVE", topic="orders", force=True)
            assert get_json(broker.ports["http"], "topics")["topics"] == [] and groups(broker) == {}
    with running(tmp_path, http=0, max_attempts=1) as broker:
        assert get_json(broker.ports["http"], "topics")["topics"] == []
        with BrokerClient(broker.endpoints["requests"]) as client:
            consumer = client.consume("orders", "g", begin="old")
            client.publish("orders", b"also poison")
            message = consumer.recv()
            assert message.offset == 1  # the letter of the earlier topic names offset 0
            consumer.nack(message, "no", retry=False)
            until(lambda: get_json(broker.ports["http"], "overview")["dead_letters"], 2)


def test_a_topic_with_subscribers_is_not_removed(broker):
    with RqueueClient("127.0.0.1", broker.ports["rqueue"]) as client:
        client.subscribe("live/a")
        client.publish("live/a", b"x")
        client.recv()
        answer = change(broker, "topics/remove", "REMOVE", topic="live/a", expected=409)
        assert "1 subscribers" in answer["message"]
        change(broker, "topics/remove", "REMOVE", topic="live/a", force=True)
        client.publish("live/a", b"y")
        assert client.recv().content == b"y"


def test_what_is_not_confirmed_or_not_known_changes_nothing(broker):
    with BrokerClient(broker.endpoints["requests"]) as client:
        client.publish("orders", b"1")
    for path, word in (("topics/purge", "REMOVE"), ("topics/remove", "PURGE")):
        answer = change(broker, path, word, topic="orders", expected=400)
        assert "confirmed" in answer["message"]
    change(broker, "topics/purge", "PURGE", topic="orders", unknown="x", expected=400)
    assert get_json(broker.ports["http"], "topics")["topics"][0]["end"] == 1 and events(broker) == []


def test_a_mistyped_group_no_longer_stops_publishers_for_ever(tmp_path):
    most = 150 << 20
    with running(tmp_path, http=0, retention_bytes=most) as broker:
        http = broker.ports["http"]
        with BrokerClient(broker.endpoints["requests"], timeout=30) as client:
            client.consume("orders", "billign", begin="old").leave()
            until(lambda: groups(broker)["billign"]["consumers"], 0)

            def publish():
                for _ in range(30):
                    client.publish_many("orders", [bytes(60_000)] * 100)

            publisher = threading.Thread(target=publish)
            publisher.start()
            until(lambda: "billign" in ask(http, "/readyz")[1], True)
            (problem,) = json.loads(ask(http, "/readyz")[1])["problems"]
            assert "group 'billign' of topic 'orders' holds" in problem and "without a consumer" in problem
            assert "billign" in get_json(http, "overview")["log_full"]
            answer = change(broker, "groups/remove", "REMOVE", topic="orders", group="billign")
            publisher.join(30)
            assert not publisher.is_alive() and answer["lag"] > 0
            assert ask(http, "/readyz")[0] == 200


def test_a_purge_gives_its_room_back(tmp_path):
    with running(tmp_path, http=0) as broker:
        with BrokerClient(broker.endpoints["requests"]) as client:
            client.publish("other", b"stays")
            for _ in range(20):
                client.publish("rows", bytes(4 << 20))
        before = get_json(broker.ports["http"], "overview")["log_bytes"]
        assert before > 80 << 20
        answer = change(broker, "topics/purge", "PURGE", topic="rows")
        assert answer["log_bytes"] <= before - (80 << 20)


def test_a_group_expires_whatever_restarts_come_in_between(tmp_path):
    changes = {"http": 0, "group_idle_age": 2.5}
    with running(tmp_path, **changes) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        stays, goes = client.consume("orders", "stays"), client.consume("orders", "goes")
        assert stays is not goes
        goes.leave()
        until(lambda: groups(broker)["goes"]["consumers"], 0)
        until(lambda: groups(broker)["goes"]["idle"] > 1.6, True)
    with running(tmp_path, **changes) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        assert groups(broker)["goes"]["idle"] > 1.0  # it began before the restart
        client.consume("orders", "stays")
        until(lambda: list(groups(broker)), ["stays"])
        until(
            lambda: [(one["actor"], one["operation"]) for one in events(broker)],
            [("broker", "group_expired")],
        )
        client.consume("orders", "goes")  # it may begin again
        with pytest.raises(Again):
            client.consume("orders", "stays").recv(0.1)


def test_the_group_of_a_queue_stays(tmp_path):
    own = replace(ANYWHERE.native, queues={"orders": FREE})
    with running(tmp_path, http=0, native=own) as broker:
        answer = change(broker, "groups/remove", "REMOVE", topic="orders", group="pull", expected=400)
        assert "PULL clients" in answer["message"] and list(groups(broker)) == ["pull"]
