"""Direct delivery through a whole broker: log, database, audit, and real ZeroMQ clients."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

from tests.broker.in_process_broker import running
from transfer.broker.clients.abtp import AbtpConsumer, AbtpProducer, AbtpSubscriber
from transfer.broker.clients.native import BrokerClient
from transfer.broker.clients.pybroker import PyBrokerClient
from transfer.broker.clients.rqueue import RqueueClient
from transfer.broker.clients.ttp import TtpClient
from transfer.broker.config.settings import AbtpEndpoints
from transfer.broker.core.admission import AdmissionLimits
from transfer.transports.errors import Again, ProtocolError

ANYWHERE = AbtpEndpoints("tcp://127.0.0.1:0", "tcp://127.0.0.1:0")


def abtp(folder, **changes):
    return running(folder, abtp=ANYWHERE, **changes)


def producer(broker):
    return AbtpProducer(broker.endpoints["abtp router"])


def consumer(broker, name="worker", subscriptions=("orders.*",), **more):
    return AbtpConsumer(name, subscriptions, broker.endpoints["abtp router"], **more)


def eventually(done, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it did not come in time"
        time.sleep(0.01)


def test_a_message_goes_to_one_consumer_and_is_done(tmp_path):
    with abtp(tmp_path) as broker, consumer(broker) as worker, producer(broker) as maker:
        maker.publish("orders.created", {"id": 7}, message_id="m-1")
        got = worker.recv(10)
        assert (got.message_id, got.topic, got.payload, got.attempt) == (
            "m-1",
            "orders.created",
            {"id": 7},
            1,
        )
        worker.ack(got, confirm=True)
    with abtp(tmp_path) as broker, consumer(broker) as worker, pytest.raises(Again):
        worker.recv(0.5)


def test_what_was_not_acknowledged_comes_again_after_a_restart(tmp_path):
    with abtp(tmp_path) as broker:
        with consumer(broker) as worker, producer(broker) as maker:
            maker.publish("orders.created", b"raw", message_id="m-2")
            first = worker.recv(10)
            session = worker.session_id
        assert first.attempt == 1
    with abtp(tmp_path) as broker, consumer(broker, session_id=session) as worker:
        again = worker.recv(10)
        assert (again.message_id, again.payload, again.attempt) == ("m-2", b"raw", 2)
        worker.ack(again, confirm=True)


def test_what_was_not_acknowledged_comes_again_where_topics_keep_nothing(tmp_path):
    """`WAL_ENABLED=false` is `topics.keep = false`: of topics, not of direct delivery."""
    with abtp(tmp_path, keep=False) as broker:
        with consumer(broker) as worker, producer(broker) as maker:
            maker.publish("orders.created", b"raw", message_id="m-2")
            first = worker.recv(10)
            session = worker.session_id
        assert first.attempt == 1 and not broker.hub.store.topics["orders.created"].durable
    with abtp(tmp_path, keep=False) as broker, consumer(broker, session_id=session) as worker:
        again = worker.recv(10)
        assert (again.message_id, again.payload, again.attempt) == ("m-2", b"raw", 2)


def test_a_route_of_the_catalog_leads_to_a_consumer_that_is_away(tmp_path):
    file = tmp_path / "routes.toml"
    file.write_text(
        'version = 1\n[[routes]]\nid = "late"\npattern = "orders.*"\ndestination = "worker"\n', "utf-8"
    )
    with abtp(tmp_path / "data", catalog=str(file)) as broker, producer(broker) as maker:
        maker.publish("orders.late", b"one")
    with abtp(tmp_path / "data") as broker, consumer(broker, subscriptions=()) as worker:
        assert worker.recv(10).payload == b"one"


def test_one_that_nobody_can_process_becomes_a_dead_letter(tmp_path):
    with abtp(tmp_path, first_delay=0.01) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        heard = client.consume("_dlq.orders.bad", "operators", begin="old")
        with consumer(broker) as worker, producer(broker) as maker:
            maker.publish("orders.bad", b"poison", message_id="m-3")
            for attempt in (1, 2, 3):
                got = worker.recv(10)
                assert got.attempt == attempt
                worker.nack(got, f"failed {attempt}")
            assert bytes(heard.recv(10).data) == b"poison"
        [letter] = broker.letters.find("m-3")
        assert (letter.consumer, letter.topic, letter.attempts) == ("worker", "orders.bad", 3)
        assert (letter.reason, letter.last_error, letter.payload) == ("exhausted", "failed 3", b"poison")


def test_a_late_acknowledgement_is_refused_and_audited(tmp_path):
    with abtp(tmp_path, ack_timeout=0.2, first_delay=0.01) as broker:
        with consumer(broker) as worker, producer(broker) as maker:
            maker.publish("orders.slow", b"x", message_id="m-4")
            late = worker.recv(10)
            assert worker.recv(10).attempt == 2
            with pytest.raises(ProtocolError, match="delivery"):
                worker.ack(late, confirm=True)
        eventually(lambda: any(event.action.operation == "stale_ack" for event in broker.audit.events()))


def test_events_that_wait_are_in_the_audit_after_a_stop(tmp_path):
    with abtp(tmp_path) as broker:
        stale = broker.hub.groups.on_stale
        broker.call(lambda: [stale("topic", "group", "consumer", [offset]) for offset in range(200)])
    with abtp(tmp_path) as broker:
        events = [event for event in broker.audit.events(limit=1000) if event.action.operation == "stale_ack"]
        assert len(events) == 200


def test_every_protocol_hears_of_what_another_publishes(tmp_path):
    with (
        abtp(tmp_path) as broker,
        consumer(broker, subscriptions=("news.*",)) as worker,
        AbtpSubscriber(("weather",), broker.endpoints["abtp pub"]) as listener,
        RqueueClient("127.0.0.1", broker.ports["rqueue"]) as queue,
        PyBrokerClient("127.0.0.1", broker.ports["pybroker"]) as files,
        producer(broker) as maker,
        BrokerClient(broker.endpoints["requests"]) as client,
    ):
        queue.subscribe("news.today")
        queue.subscribe("weather")
        queue.publish("news.today", b"by rqueue")
        assert queue.recv(10).content == b"by rqueue"
        got = worker.recv(10)
        assert got.payload == b"by rqueue"
        worker.ack(got)
        maker.publish("news.today", b"by abtp")
        assert queue.recv(10).content == b"by abtp"
        assert worker.recv(10).payload == b"by abtp"
        client.publish("news.today", b"by a socket")
        assert queue.recv(10).content == b"by a socket"
        eventually(lambda: files.fetch("news.today", 0) == b"by rqueueby abtpby a socket")
        client.publish("weather", b"rain")
        assert queue.recv(10).content == b"rain"
        assert listener.recv(10).payload == b"rain"


def test_what_comes_in_pieces_reaches_a_consumer(tmp_path):
    large = bytes(range(256)) * (40 << 10)
    with abtp(tmp_path) as broker, consumer(broker, subscriptions=("news.*",)) as worker:
        with BrokerClient(broker.endpoints["requests"]) as client:
            client.publish("news.today", large)
            assert worker.recv(10).payload == large
        with TtpClient("127.0.0.1", broker.ports["ttp"]) as ttp:
            ttp.publish("news.today", large[:100_000], wait=True)
            assert worker.recv(10).payload == large[:100_000]


def test_topics_that_keep_nothing_still_keep_direct_messages(tmp_path):
    with abtp(tmp_path, keep=False) as broker:
        with consumer(broker) as worker, producer(broker) as maker:
            maker.publish("orders.created", b"kept", message_id="m-5")
            worker.recv(10)
            session = worker.session_id
    with abtp(tmp_path, keep=False) as broker, consumer(broker, session_id=session) as worker:
        assert worker.recv(10).payload == b"kept"


#: a broker as a process that can be killed
_SERVES = """
import sys
from tests.broker.broker_processes import serve
from transfer.broker.config.settings import AbtpEndpoints
serve(sys.argv[1], abtp=AbtpEndpoints("tcp://127.0.0.1:0", "tcp://127.0.0.1:0"), catalog=sys.argv[2])
"""


@pytest.mark.parametrize("summed_up", [False, True])
def test_a_delayed_message_keeps_its_time_over_a_kill(tmp_path, summed_up):
    route = 'version = 1\n[[routes]]\nid = "r"\npattern = "orders.*"\ndestination = "worker"\n'
    (tmp_path / "routes.toml").write_text(route, "utf-8")
    # By it somebody has a route, whoever is there.
    command = [sys.executable, "-c", _SERVES, str(tmp_path / "data"), str(tmp_path / "routes.toml")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        router = json.loads(process.stdout.readline())["endpoints"]["abtp router"]
        soon, late = (int(time.time() * 1000) + seconds * 1000 for seconds in (4, 3600))
        with AbtpProducer(router) as maker:
            maker.publish("orders.soon", b"soon", headers={"deliver_at_unix_ms": soon}, message_id="soon")
            maker.publish("orders.late", b"late", headers={"deliver_at_unix_ms": late}, message_id="late")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    if summed_up:  # by a clean stop: from then on it stands in a snapshot
        with abtp(tmp_path / "data"):
            pass
    with abtp(tmp_path / "data") as broker, consumer(broker, subscriptions=()) as worker:
        dispatcher = broker.hub.direct.dispatcher
        times = {
            parcel.facts.message_id: parcel.facts.due_ms for parcel in dispatcher.state.messages.values()
        }
        assert times == {"soon": soon, "late": late}
        got = worker.recv(20)
        assert got.message_id == "soon" and time.time() * 1000 >= soon
        worker.ack(got, confirm=True)
        assert dispatcher.waiting.scheduled == len(dispatcher.state.messages) == 1
        with pytest.raises(Again):
            worker.recv(0.2)


def departed(broker, *subscriptions, **more):
    """A consumer that was there a moment ago."""
    with consumer(broker, subscriptions=subscriptions, **more) as worker:
        assert worker.session_id
    eventually(lambda: len(broker.direct.dispatcher.sessions) == 0)


def test_messages_wait_for_a_worker_that_restarts(tmp_path):
    with abtp(tmp_path, route_grace=30.0) as broker, producer(broker) as maker:
        departed(broker, "orders.*")
        explicit = {"delivery_mode": "direct"}
        names = [
            maker.publish("orders.a", number, headers=explicit if number % 2 else {}, wait=False)
            for number in range(6)
        ]
        eventually(lambda: broker.fronts["abtp"].counters["awaiting_route"] == 6)
        with consumer(broker) as worker:
            maker.confirm(10)
            received = [worker.recv(10) for _ in range(6)]
            assert [one.message_id for one in received] == names
            for one in received:
                worker.ack(one, confirm=True)
            maker.publish("orders.a", "later")
            assert worker.recv(10).payload == "later"


def test_a_worker_that_does_not_come_back_is_waited_for_no_longer(tmp_path):
    with abtp(tmp_path, route_grace=0.3) as broker, producer(broker) as maker:
        departed(broker, "orders.*")
        with pytest.raises(ProtocolError) as refused:
            maker.publish("orders.a", 1, headers={"delivery_mode": "direct"})
        assert refused.value.reason == "no_route"
        assert broker.fronts["abtp"].counters["awaiting_route"] == 1
        maker.publish("orders.a", 2, headers={})  # fan-out, at once: the grace is over
        with pytest.raises(ProtocolError):
            maker.publish("other", 1, headers={"delivery_mode": "direct"})
        assert broker.fronts["abtp"].counters["awaiting_route"] == 1
        assert broker.direct.dispatcher.counts["unroutable"] == 3


def test_no_more_wait_for_a_worker_than_may_be_queued(tmp_path):
    limits = AdmissionLimits(max_per_topic_queue=2, max_queued_direct=3)
    with abtp(tmp_path, route_grace=30.0, direct=limits) as broker, producer(broker) as maker:
        departed(broker, "orders.*", "bills")
        for topic in ("orders.a", "orders.a", "orders.a", "bills", "bills"):
            maker.publish(topic, 1, headers={"delivery_mode": "direct"}, wait=False)
        counters = broker.fronts["abtp"].counters
        eventually(lambda: counters["awaiting_route"] + counters["refused_no_route"] == 5)
        assert counters["awaiting_route"] == 3


def test_large_messages_that_wait_for_a_worker_throttle_nobody_else(tmp_path):
    with abtp(tmp_path, route_grace=30.0) as broker, producer(broker) as maker:
        departed(broker, "orders.*")
        counters = broker.fronts["abtp"].counters
        explicit = {"delivery_mode": "direct"}
        for _ in range(26):
            maker.publish("orders.a", bytes(10 << 20), headers=explicit, wait=False)
        eventually(lambda: counters["awaiting_route"] + counters["refused_no_route"] == 26)
        assert counters["awaiting_route"] == 6
        with producer(broker) as other:
            other.publish("bills", 1)
        with consumer(broker) as worker:
            for _ in range(6):
                worker.ack(worker.recv(20), confirm=True)


def test_consumers_that_register_meanwhile_do_not_look_at_each_message_that_waits(tmp_path, monkeypatch):
    with abtp(tmp_path, route_grace=30.0) as broker, producer(broker) as maker:
        departed(broker, "orders.*", "bills")
        names = [maker.publish(topic, 1, wait=False) for topic in ("orders.a", "bills") * 50]
        eventually(lambda: broker.fronts["abtp"].counters["awaiting_route"] == 100)
        looked, admit = [], broker.direct.dispatcher.admit
        monkeypatch.setattr(
            broker.direct.dispatcher,
            "admit",
            lambda facts, *a, **b: looked.append(facts) or admit(facts, *a, **b),
        )
        with AbtpConsumer("other", ["other"], broker.endpoints["abtp router"]):
            eventually(lambda: len(looked) >= 2)
            assert len(looked) == 2  # one of each topic
            with consumer(broker, subscriptions=("orders.*", "bills")) as worker:
                maker.confirm(10)
                received = [worker.recv(10) for _ in range(100)]
                assert [one.message_id for one in received] == names
                for one in received:
                    worker.ack(one)


def test_a_message_that_cannot_be_given_keeps_no_other_one_from_it(tmp_path, monkeypatch):
    with abtp(tmp_path, route_grace=30.0) as broker, producer(broker) as maker:
        departed(broker, "orders.*")
        for number in range(3):
            maker.publish("orders.a", number, message_id=f"m{number}", wait=False)
        eventually(lambda: broker.fronts["abtp"].counters["awaiting_route"] == 3)
        gave = broker.fronts["abtp"]._publish_direct

        def fails(peer, envelope, *rest):
            if envelope.message_id == "m0":
                raise KeyError("nobody thought of it")
            return gave(peer, envelope, *rest)

        monkeypatch.setattr(broker.fronts["abtp"], "_publish_direct", fails)
        with consumer(broker) as worker:
            with pytest.raises(Again, match="unavailable"):
                maker.confirm(10)
            for name in ("m1", "m2"):
                message = worker.recv(10)
                assert message.message_id == name
                worker.ack(message)
