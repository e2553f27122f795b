"""The direct desk: what is tried again, and what happens when consumers come and go."""

from __future__ import annotations

import random

import pytest

from tests.broker.simulated_dispatcher import START_MS, Shop, replay
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
    shop = Shop()
    shop.register()
    shop.publish()
    shop.ask(Nack("m", "w", False, "busy"))
    assert shop.desk.seconds_left(shop.now) == pytest.approx(0.1)
    shop.wait(0.09)
    assert len(shop.sent) == 1
    shop.wait(0.02)
    assert shop.sent[-1] == ("w", "m", 2)
    shop.ask(Nack("m", "w", False, "busy"))
    shop.wait(0.19)
    assert len(shop.sent) == 2
    shop.wait(0.02)
    actions = shop.ask(Nack("m", "w", False, "still busy", reply=True))
    letter = next(action for action in actions if isinstance(action, KeepDeadLetter))
    assert (letter.reason, letter.attempts, letter.error) == ("exhausted", 3, "still busy")
    assert letter.queued.consumer_id == "w" and letter.queued.facts.topic == "t"
    assert actions[-1].reply.status == "dead_lettered"
    assert actions.index(letter) < actions.index(Persist(Finished(1, End.DEAD_LETTERED)))
    assert shop.desk.state.messages == {} and shop.desk.counts["retried"] == 2


def test_a_terminal_error_is_not_tried_again():
    shop = Shop()
    shop.register()
    shop.publish()
    shop.ask(Nack("m", "w", True, "cannot be read"))
    [letter] = shop.of(KeepDeadLetter)
    assert (letter.reason, letter.attempts, letter.error) == ("terminal", 1, "cannot be read")
    assert shop.last.status is Status.DEAD_LETTERED


def test_no_ack_in_time_is_tried_again():
    shop = Shop(Rules(heartbeat_timeout=1000, ack_timeout=30))
    shop.register()
    shop.publish()
    shop.wait(29.9)
    assert len(shop.sent) == 1
    shop.wait(0.1)
    shop.wait(0.1)
    assert shop.sent[-1] == ("w", "m", 2) and shop.desk.counts["ack_timeouts"] == 1


def test_an_expired_message_is_a_dead_letter_wherever_it_is():
    shop = Shop(Rules(heartbeat_timeout=1000), [("t", "w")])
    shop.publish(message_id="waiting", expires_ms=START_MS + 50)
    shop.wait(0.05)
    shop.publish(message_id="late", expires_ms=START_MS + 50)
    shop.register(subscriptions=())
    shop.publish(message_id="in hands", expires_ms=START_MS + 100)
    shop.wait(1)
    assert len(shop.desk.inflight) == 1  # whoever has it may still finish it
    shop.ask(Nack("in hands", "w", False))
    letters = [(letter.queued.facts.message_id, letter.reason) for letter in shop.of(KeepDeadLetter)]
    assert letters == [("waiting", "expired"), ("late", "expired"), ("in hands", "expired")]


def test_a_message_waits_for_its_time():
    shop = Shop(Rules(heartbeat_timeout=1000))
    shop.register()
    shop.publish(due_ms=START_MS + 2_000)
    assert shop.sent == [] and shop.desk.waiting.scheduled == 1
    assert shop.desk.seconds_left(shop.now) == pytest.approx(2.0)
    shop.wait(1.9)
    assert shop.sent == []
    shop.wait(0.2)
    assert shop.sent == [("w", "m", 1)] and shop.desk.waiting.scheduled == 0


def test_what_could_not_be_sent_was_no_try():
    shop = Shop(Rules(retry=RetryPolicy(max_attempts=1)))
    shop.register()
    shop.publish()
    shop.do(shop.desk.unsent(shop.last, b"w", shop.now, gone=False))
    assert shop.desk.counts["unsent"] == 1 and shop.of(KeepDeadLetter) == []
    shop.wait(0.1)
    assert shop.sent == [("w", "m", 1), ("w", "m", 1)]
    shop.do(shop.desk.unsent(shop.last, b"w", shop.now, gone=True))
    assert shop.of(DropSession) and shop.of(KeepDeadLetter) == []
    shop.register(peer=b"again")
    assert shop.sent[-1] == ("w", "m", 1) and len(shop.sent) == 3


def test_a_batch_for_a_peer_that_is_gone():
    """The first that cannot be sent ends the session; those behind it were no tries either."""
    shop = Shop(routes=[("t", "w")])
    for number in range(3):
        shop.publish(message_id=f"m{number}")
    shop.register(subscriptions=())
    deliveries = [action.delivery for action in shop.of(Dispatch)]
    for delivery in deliveries:
        shop.do(shop.desk.unsent(delivery, b"w", shop.now, gone=True))
    assert [parcel.attempt for parcel in shop.desk.state.messages.values()] == [0, 0, 0]
    assert replay([decode(raw) for raw in shop.written]) == shop.desk.state
    shop.register(subscriptions=())
    assert [entry[1:] for entry in shop.sent[3:]] == [("m0", 1), ("m1", 1), ("m2", 1)]
    assert shop.desk.counts["lost"] == 0


def test_what_needed_no_ack_is_lost_if_it_cannot_be_sent():
    shop = Shop()
    shop.register(capabilities=ConsumerCapabilities(supports_ack=False))
    shop.publish()
    shop.do(shop.desk.unsent(shop.last, b"w", shop.now, gone=False))
    assert shop.desk.counts["lost"] == 1 and shop.desk.state.messages == {}


# --- coming and going ---------------------------------------------------------------------------------------


def test_a_missed_heartbeat_gives_its_messages_to_others_at_once():
    shop = Shop(Rules(heartbeat_timeout=10))
    session = shop.register("w", b"w").session_id
    shop.register("x", b"x")
    shop.publish()
    shop.wait(9)
    shop.ask(Heartbeat("x", next(s.session_id for s in shop.desk.sessions if s.consumer_id == "x")), b"x")
    shop.wait(1)
    assert shop.sent == [("w", "m", 1), ("x", "m", 2)]
    assert shop.desk.counts["missed_heartbeats"] == 1 and [
        drop.session.session_id for drop in shop.of(DropSession)
    ] == [session]
    assert Moved(1, "x") in shop.events()
    assert len(shop.table) == 1  # the routes of the dead session went with it


def test_heartbeats_keep_a_session():
    shop = Shop(Rules(heartbeat_timeout=10))
    session = shop.register().session_id
    for _ in range(5):
        shop.wait(8)
        assert shop.ask(Heartbeat("w", session)) == []
    assert shop.ask(Heartbeat("w", session, reply=True))[-1].reply.status == "alive"
    shop.wait(10)
    assert shop.ask(Heartbeat("w", session))[-1].reply.fault is Fault.UNKNOWN_SESSION


def test_its_only_consumer_comes_back():
    shop = Shop()
    shop.register()
    shop.publish()
    shop.ask(Deregister("w"))
    assert isinstance(shop.done[-1].reply, Deregistered) and len(shop.table) == 0
    assert shop.publish(message_id="other") == NoRoute()
    shop.register()
    assert shop.sent == [("w", "m", 1), ("w", "m", 2)]


def test_what_waits_for_the_dead_goes_to_the_living():
    shop = Shop(routes=[("t", "w"), ("t", "x")])
    shop.publish()
    shop.publish(message_id="pinned", pinned=True, destination="w")
    shop.register("x", b"x", ())
    assert shop.sent == [("x", "m", 1)]
    shop.register("w", b"w", ())
    assert shop.sent[1:] == [("w", "pinned", 1)]


def test_a_resumed_session_keeps_what_it_has():
    shop = Shop()
    session = shop.register().session_id
    shop.publish()
    again = shop.register(peer=b"new", session_id=session)
    assert again == Registered("w", session, "resumed") and len(shop.sent) == 1
    shop.ask(Ack("m", "w"), b"new")
    assert shop.desk.state.messages == {}


def test_subscriptions_that_may_not_be_change_nothing():
    shop = Shop()
    session = shop.register().session_id
    for bad in ("orders.>.created", "", "a b", ">.x"):
        refused = shop.register(subscriptions=("t", bad))
        assert isinstance(refused, Refused) and refused.fault is Fault.INVALID_SUBSCRIPTION
    assert shop.register(mode="fanout").fault is Fault.UNSUPPORTED_MODE
    assert [one.session_id for one in shop.desk.sessions] == [session]


def test_subscriptions_of_too_many_shapes_are_refused():
    """Each shape costs a step of every look-up: consumers may not have any number of them."""

    def of_shapes(first, last):
        return tuple(
            ".".join("*" if number >> place & 1 else "a" for place in range(12))
            for number in range(first + 1, last + 1)
        )

    shop = Shop()
    refused = shop.register(subscriptions=of_shapes(0, 129))
    assert isinstance(refused, Refused) and refused.fault is Fault.INVALID_SUBSCRIPTION
    for number in range(8):
        shop.register(f"w{number}", b"w", subscriptions=of_shapes(128 * number, 128 * number + 128))
    assert shop.table.steps("", ".".join("a" * 12)) == 1024
    assert shop.register("v", b"v", subscriptions=of_shapes(2000, 2001)).fault is Fault.INVALID_SUBSCRIPTION
    assert isinstance(shop.register("v", b"v", subscriptions=(*of_shapes(500, 600), "a", ">")), Refused)
    assert isinstance(shop.register("v", b"v", subscriptions=(*of_shapes(500, 600), "a")), Registered)


def test_one_consumer_too_many():
    shop = Shop(Rules(most_sessions=2))
    shop.register("a", b"a")
    shop.register("b", b"b")
    assert shop.register("c", b"c").fault is Fault.TOO_MANY_CONSUMERS
    assert shop.register("b", b"b").status == "registered"


def test_operators_take_messages_away():
    shop = Shop()
    shop.register()
    shop.publish(message_id="a")
    shop.publish(message_id="b", due_ms=START_MS + 1000)
    shop.do(shop.desk.remove(1))
    shop.do(shop.desk.remove(2, "quarantined"))
    assert [letter.reason for letter in shop.of(KeepDeadLetter)] == ["quarantined"]
    assert shop.desk.state.messages == {} and shop.desk.admission.unfinished == 0
    with pytest.raises(UsageError):
        shop.desk.remove(1)


def test_many_messages_among_workers_that_fail():
    """A thousand messages, three workers that fail at random: each is processed or a dead letter, once."""
    chance = random.Random(4)
    shop = Shop(Rules(limits=AdmissionLimits(max_per_topic_queue=2000), batch=64))
    for worker in "wxy":
        shop.register(worker, worker.encode())
    for number in range(1000):
        shop.publish(message_id=f"m{number}")
    processed, seen = [], 0
    while shop.desk.state.messages:
        fresh = shop.of(Dispatch)[seen:]
        seen += len(fresh)
        for action in fresh:
            one = action.delivery
            if chance.random() < 0.1:
                shop.ask(Nack(one.message_id, one.consumer_id, False), one.consumer_id.encode())
            else:
                shop.ask(Ack(one.message_id, one.consumer_id), one.consumer_id.encode())
                processed.append(one.message_id)
        shop.wait(0.1)
        for session in shop.desk.sessions:
            shop.desk.sessions.heartbeat(session.peer, session.consumer_id, session.session_id, shop.seconds)
    dead = [letter.queued.facts.message_id for letter in shop.of(KeepDeadLetter)]
    assert len(processed) == len(set(processed)) and not set(processed) & set(dead)
    assert len(processed) + len(dead) == 1000
