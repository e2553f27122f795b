"""The direct desk: which consumer gets what, what limits say, what an ACK means."""

from __future__ import annotations

import pytest

from tests.broker.simulated_dispatcher import Shop
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
    shop = Shop()
    registered = shop.register()
    assert registered.status == "registered" and registered.consumer_id == "w"
    verdict = shop.publish(nbytes=5)
    assert verdict.live and verdict.destination == "w"
    assert [type(action) for action in shop.done[2:]] == [Persist, Persist, Dispatch]
    assert [type(event) for event in shop.events()] == [Accepted, Dispatched]
    answers = shop.ask(Ack("m", "w", reply=True))
    assert answers == [Persist(Finished(1, End.ACKED)), Answer(b"w", Taken("ack", "w", "m", "processed"))]
    assert shop.desk.state.messages == {} and shop.last.status is Status.ACKED
    assert shop.desk.counts["acked"] == 1 and len(shop.desk.inflight) == 0


def test_no_route_is_not_no_consumer():
    shop = Shop(routes=[("t", "w")])
    assert shop.publish("nowhere") == NoRoute()
    assert shop.desk.counts["unroutable"] == 1
    verdict = shop.publish("t")
    assert isinstance(verdict, Admitted) and not verdict.live
    assert shop.desk.admission.counts[AdmissionOutcome.DEFERRED] == 1
    shop.register(subscriptions=())
    assert shop.sent == [("w", "m", 1)]


def test_the_first_live_destination_by_precedence():
    shop = Shop(routes=[("orders.>", "rest"), ("orders.*", "one"), ("orders.new", "exact")])
    shop.register("rest", b"1", ())
    shop.publish("orders.new", "a")
    shop.register("one", b"2", ())
    shop.publish("orders.new", "b")
    shop.register("exact", b"3", ())
    shop.publish("orders.new", "c")
    assert [(consumer, message) for consumer, message, _ in shop.sent] == [
        ("rest", "a"),
        ("one", "b"),
        ("exact", "c"),
    ]


def test_order_is_kept_for_a_destination():
    shop = Shop(Rules(limits=AdmissionLimits(max_inflight_per_consumer=1)), [("t", "w")])
    for number in range(6):
        shop.publish(message_id=f"m{number}")
    shop.register(subscriptions=())
    for number in range(6):
        shop.ask(Ack(f"m{number}", "w"))
    assert [message for _, message, _ in shop.sent] == [f"m{number}" for number in range(6)]
    assert shop.desk.admission.counts[AdmissionOutcome.DEFERRED] == 6


def test_urgent_messages_go_first_and_others_are_not_forgotten():
    shop = Shop(Rules(limits=AdmissionLimits(max_inflight_per_consumer=1)), [("t", "w")])
    for number in range(20):
        shop.publish(message_id=f"b{number}", priority="bulk")
        shop.publish(message_id=f"o{number}", priority="operator")
    shop.register(subscriptions=())
    for _ in range(18):
        shop.ask(Ack(shop.last.message_id, "w"))
    first = [message[0] for _, message, _ in shop.sent]
    assert first[0] == "o" and first.count("b") == 2


def test_the_window_is_the_smaller_one():
    shop = Shop(Rules(limits=AdmissionLimits(max_inflight_per_consumer=3)))
    shop.register(capabilities=ConsumerCapabilities(max_inflight=2))
    for number in range(4):
        shop.publish(message_id=f"m{number}")
    assert len(shop.sent) == 2
    assert shop.desk.admission.reached == {Limit.INFLIGHT: 2}
    shop.ask(Ack("m1", "w"))
    assert len(shop.sent) == 3


def test_the_window_is_one_of_bytes_too():
    shop = Shop(Rules(limits=AdmissionLimits(max_inflight_bytes=100)))
    shop.register()
    for number in range(4):
        shop.publish(message_id=f"m{number}", nbytes=60)
    assert len(shop.sent) == 2  # one that is larger than the window must come through, too
    shop.ask(Ack("m0", "w"))
    assert len(shop.sent) == 3
    for number in range(1, 4):
        shop.ask(Ack(f"m{number}", "w"))
    [session] = shop.desk.sessions
    assert len(shop.sent) == 4 and session.held == 0


def test_without_acks_a_message_is_done_when_it_is_sent():
    shop = Shop()
    shop.register(capabilities=ConsumerCapabilities(supports_ack=False))
    shop.publish()
    assert shop.events()[-1] == Finished(1, End.SENT)
    assert isinstance(shop.done[-1], Dispatch) and shop.desk.state.messages == {}
    assert shop.ask(Ack("m", "w")) == []  # nobody asked for it; harmless


def test_one_call_sends_a_batch_at_most():
    shop = Shop(Rules(batch=3), [("t", "w"), ("u", "x")])
    for number in range(5):
        shop.publish("t", f"t{number}")
        shop.publish("u", f"u{number}")
    shop.register("w", b"w", ())
    assert len(shop.sent) == 3 and shop.desk.seconds_left(shop.now) == 0
    shop.register("x", b"x", ())
    assert {consumer for consumer, _, _ in shop.sent[3:]} == {"w", "x"}
    shop.wait(0)
    shop.wait(0)
    assert len(shop.sent) == 10


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
    shop = Shop(Rules(limits=limits), [("t", "w")])
    assert [type(shop.publish(message_id=f"m{number}")) for number in range(3)] == [Admitted, Admitted, Full]
    assert shop.publish() == Full(limit)
    assert len(shop.desk.state.messages) == 2


# --- acknowledging ------------------------------------------------------------------------------------------


def test_a_second_ack_is_harmless():
    shop = Shop()
    shop.register()
    shop.publish()
    shop.ask(Ack("m", "w"))
    assert shop.ask(Ack("m", "w")) == []
    assert shop.ask(Ack("m", "w", reply=True)) == [Answer(b"w", Taken("ack", "w", "m", "duplicate"))]
    assert shop.desk.counts["acked_again"] == 2 and shop.desk.counts["stale_acks"] == 0


def test_an_ack_after_the_timeout_is_stale_and_audited():
    shop = Shop(Rules(heartbeat_timeout=1000))
    shop.register()
    shop.publish()
    first = shop.last
    shop.wait(30)
    actions = shop.ask(Ack("m", "w", delivery_id=first.delivery_id))
    assert [type(action) for action in actions] == [AuditAction, Answer]
    assert actions[1].reply.fault is Fault.STALE_ACK and actions[1].reply.message_id == "m"
    shop.wait(0.1)
    assert shop.last.attempt == 2
    late = shop.ask(Ack("m", "w", delivery_id=first.delivery_id))
    assert late[1].reply.fault is Fault.STALE_ACK
    shop.ask(Ack("m", "w", delivery_id=shop.last.delivery_id))
    assert shop.desk.state.messages == {} and shop.desk.counts["stale_acks"] == 2


def test_an_ack_of_an_old_session_is_stale():
    shop = Shop()
    old = shop.register()
    shop.publish()
    shop.register(peer=b"new")
    assert shop.last.attempt == 2
    for peer, session in ((b"w", None), (b"w", old.session_id), (b"new", old.session_id)):
        actions = shop.ask(Ack("m", "w", session_id=session), peer)
        assert actions[-1].reply.fault is Fault.STALE_ACK
    assert len(shop.desk.inflight) == 1
    shop.ask(Ack("m", "w"), b"new")
    assert shop.desk.state.messages == {}


def test_nobody_acknowledges_for_somebody_else():
    shop = Shop()
    shop.register()
    shop.register("thief", b"thief")
    shop.publish()
    assert shop.ask(Ack("m", "w"), b"thief")[-1].reply.fault is Fault.STALE_ACK
    assert shop.ask(Ack("m", "thief"), b"thief")[-1].reply.fault is Fault.STALE_ACK
    assert len(shop.desk.inflight) == 1


def test_two_messages_of_one_id_are_two_messages():
    shop = Shop()
    shop.register()
    shop.publish()
    shop.publish()
    second = shop.last.delivery_id
    shop.ask(Ack("m", "w"))
    assert [one.delivery_id for one in shop.desk.inflight] == [second]
    shop.ask(Ack("m", "w", delivery_id=second))
    assert shop.desk.state.messages == {}


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
    shop = Shop(Rules(route_grace=5))
    shop.register(subscriptions=("t.*",))
    shop.ask(Deregister("w"))
    facts = MessageInfo("", "t.a", "m", "p")
    assert shop.desk.admit(facts, now=shop.now) == NoRoute(awaited=True)
    assert shop.desk.admit(facts) == NoRoute() and shop.desk.counts["unroutable"] == 1
    assert shop.desk.admit(MessageInfo("", "u", "m", "p"), now=shop.now) == NoRoute()
    assert shop.desk.admit(MessageInfo("other", "t.a", "m", "p"), now=shop.now) == NoRoute()
    shop.seconds += 5
    assert shop.desk.admit(facts, now=shop.now) == NoRoute()
