"""Metrics and the tables of the console, of a broker that works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import transfer
from tests.broker.http_requests import ask, get_json, metric_value, until
from tests.broker.in_process_broker import FREE, running
from transfer.broker.clients.abtp import AbtpConsumer, AbtpProducer
from transfer.broker.clients.native import BrokerClient
from transfer.broker.clients.pybroker import PyBrokerClient
from transfer.broker.clients.rqueue import RqueueClient
from transfer.broker.config.settings import AbtpEndpoints
from transfer.broker.core.admission import AdmissionLimits
from transfer.broker.core.topic_patterns import Kind, pattern
from transfer.broker.status import EVENTS, FAMILIES, FrontNames
from transfer.transports.errors import Again

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


@pytest.fixture
def broker(tmp_path):
    with running(tmp_path, http=0, transient=(pattern(Kind.PREFIX, "live/"),)) as one:
        yield one


def test_numbers_are_those_of_what_happened(broker):
    http = broker.ports["http"]
    with RqueueClient("127.0.0.1", broker.ports["rqueue"]) as client:
        client.subscribe("a")
        for _ in range(3):
            client.publish("a", b"12345")
        client.publish("live/b", b"123")
        assert [client.recv().content for _ in range(3)] == [b"12345"] * 3
        assert metric_value(http, 'transfer_broker_connections{front="rqueue"}') == 1
        until(lambda: metric_value(http, "transfer_broker_unsynced_bytes"), 0)
    assert metric_value(http, 'transfer_broker_messages_total{topic="a"}') == 3
    assert metric_value(http, 'transfer_broker_message_bytes_total{topic="a"}') == 15
    assert metric_value(http, 'transfer_broker_messages_total{topic="live/b"}') == 1
    assert metric_value(http, 'transfer_broker_front_events_total{event="published",front="rqueue"}') == 4
    assert metric_value(http, 'transfer_broker_front_events_total{event="notified",front="rqueue"}') == 3
    until(lambda: metric_value(http, 'transfer_broker_connections{front="rqueue"}'), 0)
    assert metric_value(http, "transfer_broker_topics") == 2
    assert metric_value(http, "transfer_broker_ready") == 1
    assert metric_value(http, "transfer_broker_log_bytes") > 0
    assert metric_value(http, "transfer_broker_loop_late_seconds") < 5


def test_programs_have_no_names_in_metrics(broker):
    requests = broker.endpoints["requests"]
    with BrokerClient(requests), transfer.Context() as context, context.socket(transfer.PULL) as pull:
        pull.bind("tcp://127.0.0.1:0")
        pull.announce(requests.replace("tcp", "registry") + "/workers").wait(20)
        _, text = ask(broker.ports["http"], "/metrics")
        found = re.findall(r'^transfer_peers{peer="(.*)",socket="ROUTER",.* (.*)$', text, re.MULTILINE)
        assert found == [("127.0.0.1", "2.0")]
        context.destroy(0)


def test_groups_are_seen_with_what_they_have_not_done(broker):
    http = broker.ports["http"]
    with BrokerClient(broker.endpoints["requests"]) as client:
        consumer = client.consume("rows", "trainers", begin="old", window=2)
        client.publish_many("rows", [b"1", b"2", b"3", b"4"])
        first = consumer.recv()
        consumer.ack(first, wait=True)
        (group,) = get_json(http, "groups")["groups"]
        assert (group["topic"], group["group"], group["cursor"], group["lag"]) == ("rows", "trainers", 1, 3)
        assert (group["held"], group["waiting"], group["consumers"]) == (2, 0, 1)
        labels = '{group="trainers",topic="rows"}'
        assert metric_value(http, f"transfer_broker_group_lag_messages{labels}") == 3
        assert metric_value(http, f"transfer_broker_group_held_messages{labels}") == 2
        assert metric_value(http, f"transfer_broker_group_consumers{labels}") == 1
        for one in (consumer.recv(), consumer.recv()):
            consumer.nack(one, "cannot", retry=False)
        until(lambda: metric_value(http, "transfer_broker_dead_letters"), 2)
        assert metric_value(http, 'transfer_broker_events_total{event="dead_lettered"}') == 2
        assert get_json(http, "overview")["dead_letters"] == 2


def test_the_overview_and_the_fronts(broker):
    http = broker.ports["http"]
    with PyBrokerClient("127.0.0.1", broker.ports["pybroker"]) as client:
        client.publish("t", b"x" * 100)
        until(lambda: get_json(http, "overview")["messages"], 1)
        told = get_json(http, "overview")
        assert (told["bytes"], told["topics"], told["connections"], told["problems"]) == (100, 1, 1, [])
        assert told["log_segments"] == 1 and told["events"]["dropped"] == 0
        fronts = {one["front"]: one for one in get_json(http, "fronts")["fronts"]}
    assert list(fronts) == ["native", "ttp", "pybroker", "rqueue"]
    assert fronts["pybroker"]["listens"] == [f"tcp://127.0.0.1:{broker.ports['pybroker']}"]
    assert fronts["pybroker"]["events"]["published"] == 1
    assert fronts["native"]["listens"][0] == f"{broker.endpoints['requests']} requests"


def test_topics_come_in_pages(broker):
    http = broker.ports["http"]
    with RqueueClient("127.0.0.1", broker.ports["rqueue"]) as client:
        for number in range(5):
            client.publish(f"t{number}", b"x" * number)
        client.publish("live/x", b"yy")
        until(lambda: get_json(http, "overview")["messages"], 6)
    told = get_json(http, "topics?limit=2&contains=t")
    assert [one["topic"] for one in told["topics"]] == ["t0", "t1"] and told["next"] == "t1"
    rest = get_json(http, "topics?after=t1")
    assert [one["topic"] for one in rest["topics"]] == ["t2", "t3", "t4"] and rest["next"] is None
    (live,) = get_json(http, "topics?contains=live")["topics"]
    assert not live["durable"] and (live["messages"], live["bytes"], live["end"]) == (1, 2, 0)
    assert rest["topics"][0] == {
        "topic": "t2", "durable": True, "messages": 1, "bytes": 2, "oldest": 0, "end": 1, "position": 2,
        "subscribers": 0,
    }  # fmt: skip
    status, text = ask(http, "/api/topics?limits=3")
    assert status == 400 and "unknown: limits" in text


def test_forgotten_topics_stay_counted(tmp_path):
    with running(tmp_path, http=0, max_topics=1, keep=False, native=None) as broker:
        http = broker.ports["http"]
        with RqueueClient("127.0.0.1", broker.ports["rqueue"]) as client:
            for number in range(4):
                client.publish(f"t{number}", b"12")
            until(lambda: get_json(http, "overview")["messages"], 4)
        told = get_json(http, "overview")
        assert (told["topics"], told["bytes"]) == (1, 8)
        assert metric_value(http, 'transfer_broker_messages_total{topic="other"}') == 3


def test_a_token_closes_the_api_and_leaves_health_open(tmp_path):
    with running(tmp_path, http=0, token="sécret") as broker:
        http = broker.ports["http"]
        for path in (
            "/api/overview",
            "/api/topics",
            "/api/groups",
            "/api/fronts",
            "/api/admin/dlq/list",
            "/api/none",
        ):
            assert ask(http, path)[0] == 401
            assert ask(http, path, X_Admin_Token="wrong")[0] == 403
        assert ask(http, "/api/overview", X_Admin_Token="sécret".encode().decode("latin-1"))[0] == 200
        for path in ("/", "/metrics", "/livez", "/readyz", "/console.js"):
            assert ask(http, path)[0] == 200


def test_only_the_first_names_are_labels():
    names = FrontNames(2)
    known = {name: name for name in "abc"}
    assert sorted(names.topics(known)) == ["a", "b"]
    assert sorted(names.topics({"c": "c", "b": "b"})) == ["b"]
    assert [names.group(one, "g")[0] for one in "abca"] == ["a", "b", "other", "a"]


def test_a_scrape_has_every_name_of_the_table_and_no_other(broker):
    _, text = ask(broker.ports["http"], "/metrics")
    found = set(re.findall(r"^# TYPE (transfer_broker_\w+) ", text, re.MULTILINE))
    assert found == set(FAMILIES)
    assert 'transfer_pool_bytes{state="in_use"}' in text  # its own sockets' numbers are there too


def test_a_scrape_tells_what_the_process_takes(broker):
    http = broker.ports["http"]
    _, text = ask(http, "/metrics")
    found = set(re.findall(r"^# TYPE (process_\w+) ", text, re.MULTILINE))
    assert found == set(re.findall(r"`(process_\w+)`", DOCUMENT.read_text()))
    before = metric_value(http, "process_cpu_seconds_total")
    assert metric_value(http, "process_resident_memory_bytes") > 1 << 20
    assert metric_value(http, "process_open_fds") > 5
    until(lambda: metric_value(http, "process_cpu_seconds_total") > before, True)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_names_follow_prometheus_conventions(name):
    spec = FAMILIES[name]
    assert name.endswith("_total") == (spec.kind == "counter")
    assert spec.text.endswith(".")


def test_every_event_that_is_counted_has_a_text():
    counted = counted_in((BROKER / "delivery").glob("*.py"), "counts")
    assert len(counted) > 15 and counted <= set(EVENTS)


BROKER = Path(__file__).parents[2] / "transfer" / "broker"


def counted_in(files, name):
    """What this code counts, by name."""
    found = re.compile(name + r"""\["(\w+)"(?: if [^\]]* else "(\w+)")?\]""")
    text = "".join(file.read_text() for file in files)
    return {word for words in found.findall(text) for word in words if word}


@pytest.mark.parametrize("front", ["native", "ttp", "pybroker", "rqueue", "abtp"])
def test_the_page_of_each_protocol_tells_its_events(front):
    files = [*(BROKER / "fronts").glob(f"{front}*.py")]
    files += [BROKER / "fronts/publisher_front.py"] * (front in ("pybroker", "rqueue"))
    counted = counted_in(files, "counters")
    page = (DOCUMENT.parent / "protocols" / f"{front}.md").read_text()
    events = page[page.index("transfer_broker_front_events_total") :].partition("\n\n")[0]
    assert len(counted) > 5 and {event for event in counted if f"`{event}`" not in events} == set()


def test_tenants_and_pressure_are_seen(tmp_path):
    ends, limits = (
        AbtpEndpoints(FREE, FREE),
        AdmissionLimits(max_inflight_per_consumer=1, max_per_topic_queue=2, max_queued_direct=4),
    )
    with running(tmp_path, http=0, abtp=ends, direct=limits) as broker:
        http, router = broker.ports["http"], broker.endpoints["abtp router"]
        assert metric_value(http, 'transfer_broker_pressure{part="queue"}') == 0
        with AbtpConsumer("worker", ("orders.*",), router) as worker, AbtpProducer(router) as maker:
            maker.publish("orders.one", b"1")
            worker.ack(worker.recv(10), confirm=True)
        assert metric_value(http, 'transfer_broker_tenant_accepted_total{tenant=""}') == 1
        assert metric_value(http, 'transfer_broker_tenant_messages{tenant=""}') == 0
        with AbtpConsumer("slow", ("late.*",), router) as slow, AbtpProducer(router) as maker:
            for number in range(3):  # one is held, two wait for it
                maker.publish("late.one", b"%d" % number)
            assert metric_value(http, 'transfer_broker_pressure{part="queue"}') == 0.5
            assert metric_value(http, 'transfer_broker_tenant_messages{tenant=""}') == 3
            with pytest.raises(Again):
                maker.publish("late.one", b"3")
            assert slow.recv(10).payload == b"0"
        assert metric_value(http, 'transfer_broker_tenant_refused_total{tenant=""}') == 1
        for part in ("admission", "disk", "loop"):
            assert 0 <= metric_value(http, f'transfer_broker_pressure{{part="{part}"}}') <= 1
