"""The dispatcher of direct delivery: which consumer gets what, what limits say, what an ACK means."""

from __future__ import annotations

import pytest

from tests.broker.simulated_dispatcher import SimulatedDispatcher
from transfer.broker.core.admission import AdmissionLimits, AdmissionOutcome, Limit
from transfer.broker.core.delivery import Status
from transfer.broker.core.departed_consumers import DepartedConsumers
from transfer.broker.core.dispatcher import Rules
from transfer.broker.core.dispatcher_actions import (
    Ack,
    Admitted,
    Answer,
    AuditAction,
    Deregister,
    Dispatch,
    Fault,
    Full,
    NoRoute,
    Persist,
    Taken,
)
from transfer.broker.core.dispatcher_events import (
    Accepted,
    Dispatched,
    End,
    Finished,
    MessageInfo,
)
from transfer.broker.core.sessions import ConsumerCapabilities, Session
from transfer.broker.core.topic_patterns import TopicPattern

# --- delivering ---------------------------------------------------------------------------------------------


def test_a_message_is_written_then_sent_then_acknowledged():
    sim = SimulatedDispatcher()
    registered = sim.register()
    assert registered.status == "registered" and registered.consumer_id == "w"
    verdict = sim.publish(nbytes=5)
    assert verdict.live and verdict.destination == "w"
    assert [type(action) for action in sim.done[2:]] == [Persist, Persist, Dispatch]
    assert [type(event) for event in sim.events()] == [Accepted, Dispatched]
    answers = sim.ask(Ack("m", "w", reply=True))
    assert answers == [Persist(Finished(1, End.ACKED)), Answer(b"w", Taken("ack", "w", "m", "processed"))]
    assert sim.dispatcher.state.messages == {} and sim.last.status is Status.ACKED
    assert sim.dispatcher.counts["acked"] == 1 and len(sim.dispatcher.inflight) == 0


def test_no_route_is_not_no_consumer():
    sim = SimulatedDispatcher(routes=[("t", "w")])
    assert sim.publish("nowhere") == NoRoute()
    assert sim.dispatcher.counts["unroutable"] == 1
    verdict = sim.publish("t")
    assert isinstance(verdict, Admitted) and not verdict.live
    assert sim.dispatcher.admission.counts[AdmissionOutcome.DEFERRED] == 1
    sim.register(subscriptions=())
    assert sim.sent == [("w", "m", 1)]


def test_the_first_live_destination_by_precedence():
    sim = SimulatedDispatcher(routes=[("orders.>", "rest"), ("orders.*", "one"), ("orders.new", "exact")])
    sim.register("rest", b"1", ())
    sim.publish("orders.new", "a")
    sim.register("one", b"2", ())
    sim.publish("orders.new", "b")
    sim.register("exact", b"3", ())
    sim.publish("orders.new", "c")
    assert [(consumer, message) for consumer, message, _ in sim.sent] == [
        ("rest", "a"),
        ("one", "b"),
        ("exact", "c"),
    ]


def test_order_is_kept_for_a_destination():
    sim = SimulatedDispatcher(Rules(limits=AdmissionLimits(max_inflight_per_consumer=1)), [("t", "w")])
    for number in range(6):
        sim.publish(message_id=f"m{number}")
    sim.register(subscriptions=())
    for number in range(6):
        sim.ask(Ack(f"m{number}", "w"))
    assert [message for _, message, _ in sim.sent] == [f"m{number}" for number in range(6)]
    assert sim.dispatcher.admission.counts[AdmissionOutcome.DEFERRED] == 6


def test_urgent_messages_go_first_and_others_are_not_forgotten():
    sim = SimulatedDispatcher(Rules(limits=AdmissionLimits(max_inflight_per_consumer=1)), [("t", "w")])
    for number in range(20):
        sim.publish(message_id=f"b{number}", priority="bulk")
        sim.publish(message_id=f"o{number}", priority="operator")
    sim.register(subscriptions=())
    for _ in range(18):
        sim.ask(Ack(sim.last.message_id, "w"))
    first = [message[0] for _, message, _ in sim.sent]
    assert first[0] == "o" and first.count("b") == 2


def test_the_window_is_the_smaller_one():
    sim = SimulatedDispatcher(Rules(limits=AdmissionLimits(max_inflight_per_consumer=3)))
    sim.register(capabilities=ConsumerCapabilities(max_inflight=2))
    for number in range(4):
        sim.publish(message_id=f"m{number}")
    assert len(sim.sent) == 2
    assert sim.dispatcher.admission.reached == {Limit.INFLIGHT: 2}
    sim.ask(Ack("m1", "w"))
    assert len(sim.sent) == 3


def test_the_window_is_one_of_bytes_too():
    sim = SimulatedDispatcher(Rules(limits=AdmissionLimits(max_inflight_bytes=100)))
    sim.register()
    for number in range(4):
        sim.publish(message_id=f"m{number}", nbytes=60)
    assert len(sim.sent) == 2  # one that is larger than the window must come through, too
    sim.ask(Ack("m0", "w"))
    assert len(sim.sent) == 3
    for number in range(1, 4):
        sim.ask(Ack(f"m{number}", "w"))
    [session] = sim.dispatcher.sessions
    assert len(sim.sent) == 4 and session.held == 0


def test_without_acks_a_message_is_done_when_it_is_sent():
    sim = SimulatedDispatcher()
    sim.register(capabilities=ConsumerCapabilities(supports_ack=False))
    sim.publish()
    assert sim.events()[-1] == Finished(1, End.SENT)
    assert isinstance(sim.done[-1], Dispatch) and sim.dispatcher.state.messages == {}
    assert sim.ask(Ack("m", "w")) == []  # nobody asked for it; harmless


def test_one_call_sends_a_batch_at_most():
    sim = SimulatedDispatcher(Rules(batch=3), [("t", "w"), ("u", "x")])
    for number in range(5):
        sim.publish("t", f"t{number}")
        sim.publish("u", f"u{number}")
    sim.register("w", b"w", ())
    assert len(sim.sent) == 3 and sim.dispatcher.seconds_left(sim.now) == 0
    sim.register("x", b"x", ())
    assert {consumer for consumer, _, _ in sim.sent[3:]} == {"w", "x"}
    sim.wait(0)
    sim.wait(0)
    assert len(sim.sent) == 10


# --- what limits say ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "limit"),
    [
        (AdmissionLimits(max_per_topic_queue=2), Limit.TOPIC_QUEUE),
        (AdmissionLimits(max_queued_direct=2), Limit.QUEUED_DIRECT),
        (AdmissionLimits(max_global_ingress=2), Limit.GLOBAL_INGRESS),
        (AdmissionLimits(tenant_quota=2), Limit.TENANT),
    ],
)
def test_a_full_queue_refuses(limits, limit):
    sim = SimulatedDispatcher(Rules(limits=limits), [("t", "w")])
    assert [type(sim.publish(message_id=f"m{number}")) for number in range(3)] == [Admitted, Admitted, Full]
    assert sim.publish() == Full(limit)
    assert len(sim.dispatcher.state.messages) == 2


# --- acknowledging ------------------------------------------------------------------------------------------


def test_a_second_ack_is_harmless():
    sim = SimulatedDispatcher()
    sim.register()
    sim.publish()
    sim.ask(Ack("m", "w"))
    assert sim.ask(Ack("m", "w")) == []
    assert sim.ask(Ack("m", "w", reply=True)) == [Answer(b"w", Taken("ack", "w", "m", "duplicate"))]
    assert sim.dispatcher.counts["acked_again"] == 2 and sim.dispatcher.counts["stale_acks"] == 0


def test_an_ack_after_the_timeout_is_stale_and_audited():
    sim = SimulatedDispatcher(Rules(heartbeat_timeout=1000))
    sim.register()
    sim.publish()
    first = sim.last
    sim.wait(30)
    actions = sim.ask(Ack("m", "w", delivery_id=first.delivery_id))
    assert [type(action) for action in actions] == [AuditAction, Answer]
    assert actions[1].reply.fault is Fault.STALE_ACK and actions[1].reply.message_id == "m"
    sim.wait(0.1)
    assert sim.last.attempt == 2
    late = sim.ask(Ack("m", "w", delivery_id=first.delivery_id))
    assert late[1].reply.fault is Fault.STALE_ACK
    sim.ask(Ack("m", "w", delivery_id=sim.last.delivery_id))
    assert sim.dispatcher.state.messages == {} and sim.dispatcher.counts["stale_acks"] == 2


def test_an_ack_of_an_old_session_is_stale():
    sim = SimulatedDispatcher()
    old = sim.register()
    sim.publish()
    sim.register(peer=b"new")
    assert sim.last.attempt == 2
    for peer, session in ((b"w", None), (b"w", old.session_id), (b"new", old.session_id)):
        actions = sim.ask(Ack("m", "w", session_id=session), peer)
        assert actions[-1].reply.fault is Fault.STALE_ACK
    assert len(sim.dispatcher.inflight) == 1
    sim.ask(Ack("m", "w"), b"new")
    assert sim.dispatcher.state.messages == {}


def test_no_consumer_acknowledges_for_another():
    sim = SimulatedDispatcher()
    sim.register()
    sim.register("thief", b"thief")
    sim.publish()
    assert sim.ask(Ack("m", "w"), b"thief")[-1].reply.fault is Fault.STALE_ACK
    assert sim.ask(Ack("m", "thief"), b"thief")[-1].reply.fault is Fault.STALE_ACK
    assert len(sim.dispatcher.inflight) == 1


def test_two_messages_of_one_id_are_two_messages():
    sim = SimulatedDispatcher()
    sim.register()
    sim.publish()
    sim.publish()
    second = sim.last.delivery_id
    sim.ask(Ack("m", "w"))
    assert [one.delivery_id for one in sim.dispatcher.inflight] == [second]
    sim.ask(Ack("m", "w", delivery_id=second))
    assert sim.dispatcher.state.messages == {}


def test_subscriptions_of_those_who_went_are_looked_up_and_the_newest_are_remembered(monkeypatch):
    def session(tenant, *subscriptions):
        return Session(tenant, "w", "s", None, subscriptions)

    monkeypatch.setattr(TopicPattern, "matches", None)  # each of them is not asked
    gone = DepartedConsumers(5)
    for number in range(300):
        gone.add(session("t", *(f"a.{number}.{one}.*" for one in range(100))), now=number / 1000)
    assert gone.expects("t", "a.299.99.x", 1.0) and gone.expects("t", "a.200.0.x", 1.0)
    assert not gone.expects("t", "a.199.99.x", 1.0), "10,000 are remembered"
    assert not gone.expects("u", "a.299.99.x", 1.0)
    gone.add(session("u", "a.*.*.x"), now=2.0)
    gone.add(session("t", "a.200.0.*"), now=3.0)
    assert gone.expects("u", "a.299.99.x", 6.0) and not gone.expects("t", "a.299.99.x", 6.0)
    assert gone.expects("t", "a.200.0.x", 7.9) and not gone.expects("u", "a.299.99.x", 7.9)
    assert not gone.expects("t", "a.200.0.x", 8.0)


def test_a_topic_is_awaited_for_a_while_behind_the_end_of_its_last_session():
    sim = SimulatedDispatcher(Rules(route_grace=5))
    sim.register(subscriptions=("t.*",))
    sim.ask(Deregister("w"))
    facts = MessageInfo("", "t.a", "m", "p")
    assert sim.dispatcher.admit(facts, now=sim.now) == NoRoute(awaited=True)
    assert sim.dispatcher.admit(facts) == NoRoute() and sim.dispatcher.counts["unroutable"] == 1
    assert sim.dispatcher.admit(MessageInfo("", "u", "m", "p"), now=sim.now) == NoRoute()
    assert sim.dispatcher.admit(MessageInfo("other", "t.a", "m", "p"), now=sim.now) == NoRoute()
    sim.seconds += 5
    assert sim.dispatcher.admit(facts, now=sim.now) == NoRoute()
