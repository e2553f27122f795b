"""The dispatcher of direct delivery: what is tried again, and what happens when consumers come and go."""

from __future__ import annotations

import random

import pytest

from tests.broker.simulated_dispatcher import START_MS, SimulatedDispatcher, replay
from transfer.broker.core.admission import AdmissionLimits
from transfer.broker.core.delivery import RetryPolicy, Status
from transfer.broker.core.dispatcher import Rules
from transfer.broker.core.dispatcher_actions import (
    Ack,
    Deregister,
    Deregistered,
    Dispatch,
    DropSession,
    Fault,
    Heartbeat,
    KeepDeadLetter,
    Nack,
    NoRoute,
    Persist,
    Refused,
    Registered,
)
from transfer.broker.core.dispatcher_events import (
    End,
    Finished,
    Moved,
    decode,
)
from transfer.broker.core.sessions import ConsumerCapabilities
from transfer.transports.errors import UsageError

# --- trying again -------------------------------------------------------------------------------------------


def test_a_nack_is_tried_again_with_growing_pauses_then_given_up():
    sim = SimulatedDispatcher()
    sim.register()
    sim.publish()
    sim.ask(Nack("m", "w", False, "busy"))
    assert sim.dispatcher.seconds_left(sim.now) == pytest.approx(0.1)
    sim.wait(0.09)
    assert len(sim.sent) == 1
    sim.wait(0.02)
    assert sim.sent[-1] == ("w", "m", 2)
    sim.ask(Nack("m", "w", False, "busy"))
    sim.wait(0.19)
    assert len(sim.sent) == 2
    sim.wait(0.02)
    actions = sim.ask(Nack("m", "w", False, "still busy", reply=True))
    letter = next(action for action in actions if isinstance(action, KeepDeadLetter))
    assert (letter.reason, letter.attempts, letter.error) == ("exhausted", 3, "still busy")
    assert letter.queued.consumer_id == "w" and letter.queued.facts.topic == "t"
    assert actions[-1].reply.status == "dead_lettered"
    assert actions.index(letter) < actions.index(Persist(Finished(1, End.DEAD_LETTERED)))
    assert sim.dispatcher.state.messages == {} and sim.dispatcher.counts["retried"] == 2


def test_a_terminal_error_is_not_tried_again():
    sim = SimulatedDispatcher()
    sim.register()
    sim.publish()
    sim.ask(Nack("m", "w", True, "cannot be read"))
    [letter] = sim.of(KeepDeadLetter)
    assert (letter.reason, letter.attempts, letter.error) == ("terminal", 1, "cannot be read")
    assert sim.last.status is Status.DEAD_LETTERED


def test_no_ack_in_time_is_tried_again():
    sim = SimulatedDispatcher(Rules(heartbeat_timeout=1000, ack_timeout=30))
    sim.register()
    sim.publish()
    sim.wait(29.9)
    assert len(sim.sent) == 1
    sim.wait(0.1)
    sim.wait(0.1)
    assert sim.sent[-1] == ("w", "m", 2) and sim.dispatcher.counts["ack_timeouts"] == 1


def test_an_expired_message_is_a_dead_letter_wherever_it_is():
    sim = SimulatedDispatcher(Rules(heartbeat_timeout=1000), [("t", "w")])
    sim.publish(message_id="waiting", expires_ms=START_MS + 50)
    sim.wait(0.05)
    sim.publish(message_id="late", expires_ms=START_MS + 50)
    sim.register(subscriptions=())
    sim.publish(message_id="in hands", expires_ms=START_MS + 100)
    sim.wait(1)
    assert len(sim.dispatcher.inflight) == 1  # whoever has it may still finish it
    sim.ask(Nack("in hands", "w", False))
    letters = [(letter.queued.facts.message_id, letter.reason) for letter in sim.of(KeepDeadLetter)]
    assert letters == [("waiting", "expired"), ("late", "expired"), ("in hands", "expired")]


def test_a_message_waits_for_its_time():
    sim = SimulatedDispatcher(Rules(heartbeat_timeout=1000))
    sim.register()
    sim.publish(due_ms=START_MS + 2_000)
    assert sim.sent == [] and sim.dispatcher.waiting.scheduled == 1
    assert sim.dispatcher.seconds_left(sim.now) == pytest.approx(2.0)
    sim.wait(1.9)
    assert sim.sent == []
    sim.wait(0.2)
    assert sim.sent == [("w", "m", 1)] and sim.dispatcher.waiting.scheduled == 0


def test_what_could_not_be_sent_was_no_try():
    sim = SimulatedDispatcher(Rules(retry=RetryPolicy(max_attempts=1)))
    sim.register()
    sim.publish()
    sim.do(sim.dispatcher.unsent(sim.last, b"w", sim.now, gone=False))
    assert sim.dispatcher.counts["unsent"] == 1 and sim.of(KeepDeadLetter) == []
    sim.wait(0.1)
    assert sim.sent == [("w", "m", 1), ("w", "m", 1)]
    sim.do(sim.dispatcher.unsent(sim.last, b"w", sim.now, gone=True))
    assert sim.of(DropSession) and sim.of(KeepDeadLetter) == []
    sim.register(peer=b"again")
    assert sim.sent[-1] == ("w", "m", 1) and len(sim.sent) == 3


def test_a_batch_for_a_peer_that_is_gone():
    """The first that cannot be sent ends the session; those behind it were no tries either."""
    sim = SimulatedDispatcher(routes=[("t", "w")])
    for number in range(3):
        sim.publish(message_id=f"m{number}")
    sim.register(subscriptions=())
    deliveries = [action.delivery for action in sim.of(Dispatch)]
    for delivery in deliveries:
        sim.do(sim.dispatcher.unsent(delivery, b"w", sim.now, gone=True))
    assert [parcel.attempt for parcel in sim.dispatcher.state.messages.values()] == [0, 0, 0]
    assert replay([decode(raw) for raw in sim.written]) == sim.dispatcher.state
    sim.register(subscriptions=())
    assert [entry[1:] for entry in sim.sent[3:]] == [("m0", 1), ("m1", 1), ("m2", 1)]
    assert sim.dispatcher.counts["lost"] == 0


def test_what_needed_no_ack_is_lost_if_it_cannot_be_sent():
    sim = SimulatedDispatcher()
    sim.register(capabilities=ConsumerCapabilities(supports_ack=False))
    sim.publish()
    sim.do(sim.dispatcher.unsent(sim.last, b"w", sim.now, gone=False))
    assert sim.dispatcher.counts["lost"] == 1 and sim.dispatcher.state.messages == {}


# --- coming and going ---------------------------------------------------------------------------------------


def test_a_missed_heartbeat_gives_its_messages_to_others_at_once():
    sim = SimulatedDispatcher(Rules(heartbeat_timeout=10))
    session = sim.register("w", b"w").session_id
    sim.register("x", b"x")
    sim.publish()
    sim.wait(9)
    sim.ask(Heartbeat("x", next(s.session_id for s in sim.dispatcher.sessions if s.consumer_id == "x")), b"x")
    sim.wait(1)
    assert sim.sent == [("w", "m", 1), ("x", "m", 2)]
    assert sim.dispatcher.counts["missed_heartbeats"] == 1 and [
        drop.session.session_id for drop in sim.of(DropSession)
    ] == [session]
    assert Moved(1, "x") in sim.events()
    assert len(sim.table) == 1  # the routes of the dead session went with it


def test_heartbeats_keep_a_session():
    sim = SimulatedDispatcher(Rules(heartbeat_timeout=10))
    session = sim.register().session_id
    for _ in range(5):
        sim.wait(8)
        assert sim.ask(Heartbeat("w", session)) == []
    assert sim.ask(Heartbeat("w", session, reply=True))[-1].reply.status == "alive"
    sim.wait(10)
    assert sim.ask(Heartbeat("w", session))[-1].reply.fault is Fault.UNKNOWN_SESSION


def test_its_only_consumer_comes_back():
    sim = SimulatedDispatcher()
    sim.register()
    sim.publish()
    sim.ask(Deregister("w"))
    assert isinstance(sim.done[-1].reply, Deregistered) and len(sim.table) == 0
    assert sim.publish(message_id="other") == NoRoute()
    sim.register()
    assert sim.sent == [("w", "m", 1), ("w", "m", 2)]


def test_what_waits_for_the_dead_goes_to_the_living():
    sim = SimulatedDispatcher(routes=[("t", "w"), ("t", "x")])
    sim.publish()
    sim.publish(message_id="pinned", pinned=True, destination="w")
    sim.register("x", b"x", ())
    assert sim.sent == [("x", "m", 1)]
    sim.register("w", b"w", ())
    assert sim.sent[1:] == [("w", "pinned", 1)]


def test_a_resumed_session_keeps_what_it_has():
    sim = SimulatedDispatcher()
    session = sim.register().session_id
    sim.publish()
    again = sim.register(peer=b"new", session_id=session)
    assert again == Registered("w", session, "resumed") and len(sim.sent) == 1
    sim.ask(Ack("m", "w"), b"new")
    assert sim.dispatcher.state.messages == {}


def test_subscriptions_that_may_not_be_change_nothing():
    sim = SimulatedDispatcher()
    session = sim.register().session_id
    for bad in ("orders.>.created", "", "a b", ">.x"):
        refused = sim.register(subscriptions=("t", bad))
        assert isinstance(refused, Refused) and refused.fault is Fault.INVALID_SUBSCRIPTION
    assert sim.register(mode="fanout").fault is Fault.UNSUPPORTED_MODE
    assert [one.session_id for one in sim.dispatcher.sessions] == [session]


def test_subscriptions_of_too_many_shapes_are_refused():
    """Each shape costs a step of every look-up: consumers may not have any number of them."""

    def of_shapes(first, last):
        return tuple(
            ".".join("*" if number >> place & 1 else "a" for place in range(12))
            for number in range(first + 1, last + 1)
        )

    sim = SimulatedDispatcher()
    refused = sim.register(subscriptions=of_shapes(0, 129))
    assert isinstance(refused, Refused) and refused.fault is Fault.INVALID_SUBSCRIPTION
    for number in range(8):
        sim.register(f"w{number}", b"w", subscriptions=of_shapes(128 * number, 128 * number + 128))
    assert sim.table.steps("", ".".join("a" * 12)) == 1024
    assert sim.register("v", b"v", subscriptions=of_shapes(2000, 2001)).fault is Fault.INVALID_SUBSCRIPTION
    assert isinstance(sim.register("v", b"v", subscriptions=(*of_shapes(500, 600), "a", ">")), Refused)
    assert isinstance(sim.register("v", b"v", subscriptions=(*of_shapes(500, 600), "a")), Registered)


def test_one_consumer_too_many():
    sim = SimulatedDispatcher(Rules(max_sessions=2))
    sim.register("a", b"a")
    sim.register("b", b"b")
    assert sim.register("c", b"c").fault is Fault.TOO_MANY_CONSUMERS
    assert sim.register("b", b"b").status == "registered"


def test_operators_take_messages_away():
    sim = SimulatedDispatcher()
    sim.register()
    sim.publish(message_id="a")
    sim.publish(message_id="b", due_ms=START_MS + 1000)
    sim.do(sim.dispatcher.remove(1))
    sim.do(sim.dispatcher.remove(2, "quarantined"))
    assert [letter.reason for letter in sim.of(KeepDeadLetter)] == ["quarantined"]
    assert sim.dispatcher.state.messages == {} and sim.dispatcher.admission.unfinished == 0
    with pytest.raises(UsageError):
        sim.dispatcher.remove(1)


def test_many_messages_among_workers_that_fail():
    """A thousand messages, three workers that fail at random: each is processed or a dead letter, once."""
    chance = random.Random(4)
    sim = SimulatedDispatcher(Rules(limits=AdmissionLimits(max_per_topic_queue=2000), batch=64))
    for worker in "wxy":
        sim.register(worker, worker.encode())
    for number in range(1000):
        sim.publish(message_id=f"m{number}")
    processed, seen = [], 0
    while sim.dispatcher.state.messages:
        fresh = sim.of(Dispatch)[seen:]
        seen += len(fresh)
        for action in fresh:
            one = action.delivery
            if chance.random() < 0.1:
                sim.ask(Nack(one.message_id, one.consumer_id, False), one.consumer_id.encode())
            else:
                sim.ask(Ack(one.message_id, one.consumer_id), one.consumer_id.encode())
                processed.append(one.message_id)
        sim.wait(0.1)
        for session in sim.dispatcher.sessions:
            sim.dispatcher.sessions.heartbeat(
                session.peer, session.consumer_id, session.session_id, sim.seconds
            )
    dead = [letter.queued.facts.message_id for letter in sim.of(KeepDeadLetter)]
    assert len(processed) == len(set(processed)) and not set(processed) & set(dead)
    assert len(processed) + len(dead) == 1000
