"""The dispatcher of direct delivery: anything in any order, and a crash after any action."""

from __future__ import annotations

import itertools

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.broker.simulated_dispatcher import SimulatedDispatcher, replay
from transfer.broker.core.admission import AdmissionLimits
from transfer.broker.core.dispatcher import Rules
from transfer.broker.core.dispatcher_actions import (
    Ack,
    Admitted,
    Answer,
    Deregister,
    Dispatch,
    Heartbeat,
    KeepDeadLetter,
    Nack,
    Persist,
    Register,
    Taken,
)
from transfer.broker.core.dispatcher_events import (
    Accepted,
    End,
    Finished,
    LogPosition,
    MessageInfo,
    decode,
)


class Crashes(RuleBasedStateMachine):
    """Anything in any order; the broker may end after any action. Checked from outside, by what was done."""

    RULES = Rules(
        limits=AdmissionLimits(max_inflight_per_consumer=3, max_per_topic_queue=8, max_queued_direct=12),
        heartbeat_timeout=20,
        ack_timeout=5,
        batch=4,
    )
    ROUTES = (("t.*", "w"), ("t.*", "x"), ("u", "x"))

    def __init__(self):
        super().__init__()
        self.sim = SimulatedDispatcher(self.RULES, self.ROUTES)
        self.confirmed = set()  # numbers whose ACK was answered
        self.buried = set()
        self.accepted = set()
        self.attempts = {}  # number -> the last attempt that was sent
        self.names = itertools.count()

    # -- the machine ---------------------------------------------------------------------------------------

    def perform(self, actions, crash=None):
        """Does all actions, or the first few and then crashes."""
        number = None
        for action in actions[:crash]:
            self.sim.do([action])
            match action:
                case Persist(Accepted(number=accepted)):
                    self.accepted.add(accepted)
                case Persist(Finished(number=number)):
                    pass
                case KeepDeadLetter(number=dead):
                    assert dead not in self.confirmed
                    self.buried.add(dead)
                case Answer(_, Taken("ack", _, _, "processed")):
                    self.confirmed.add(number)
                case Dispatch():
                    delivery = action.delivery
                    assert delivery.number not in self.confirmed, "it was acknowledged"
                    assert self.attempts.get(delivery.number, 0) < delivery.attempt <= 3
                    self.attempts[delivery.number] = delivery.attempt
        if crash is not None and crash < len(actions):
            self.restart()

    def restart(self):
        old = self.sim
        events = [decode(raw) for raw in old.written]
        books = replay(events)
        self.sim = SimulatedDispatcher(self.RULES, self.ROUTES)
        self.sim.seconds, self.sim.offsets = old.seconds + 1, old.offsets
        self.sim.written = list(old.written)
        assert self.accepted - self.buried - set(books.messages) <= {
            event.number for event in events if isinstance(event, Finished)
        }
        self.perform(self.sim.dispatcher.recover(books, self.sim.now))

    CRASH = st.one_of(st.none(), st.none(), st.integers(0, 6))

    @rule(
        topic=st.sampled_from(["t.a", "t.b", "u"]), priority=st.sampled_from(["bulk", "normal"]), crash=CRASH
    )
    def publish(self, topic, priority, crash):
        facts = MessageInfo("", topic, f"m{next(self.names)}", "p", priority=priority)
        verdict = self.sim.dispatcher.admit(facts)
        if isinstance(verdict, Admitted):
            ref = LogPosition("log", next(self.sim.offsets))
            self.perform(self.sim.dispatcher.accept(verdict, ref, self.sim.now), crash)

    @rule(delay=st.integers(-3, 9), crash=CRASH)
    def publish_with_times(self, delay, crash):
        due = self.sim.now.unix_ms + delay * 1000
        verdict = self.sim.dispatcher.admit(
            MessageInfo("", "t.c", f"m{next(self.names)}", "p", due_ms=due, expires_ms=due + 2000)
        )
        if isinstance(verdict, Admitted):
            ref = LogPosition("log", next(self.sim.offsets))
            self.perform(self.sim.dispatcher.accept(verdict, ref, self.sim.now), crash)

    @rule(consumer=st.sampled_from("wx"), crash=CRASH)
    def register(self, consumer, crash):
        request = Register(consumer, subscriptions=("v",))
        self.perform(self.sim.dispatcher.request(consumer.encode(), request, self.sim.now), crash)

    @rule(consumer=st.sampled_from("wx"), crash=CRASH)
    def deregister(self, consumer, crash):
        request = Deregister(consumer)
        self.perform(self.sim.dispatcher.request(consumer.encode(), request, self.sim.now), crash)

    def some(self, data):
        deliveries = list(self.sim.dispatcher.inflight)
        return data.draw(st.sampled_from(deliveries))

    @precondition(lambda self: len(self.sim.dispatcher.inflight))
    @rule(data=st.data(), crash=CRASH, named=st.booleans())
    def ack(self, data, crash, named):
        one = self.some(data)
        request = Ack(
            one.message_id, one.consumer_id, delivery_id=one.delivery_id if named else None, reply=True
        )
        self.perform(self.sim.dispatcher.request(one.consumer_id.encode(), request, self.sim.now), crash)

    @precondition(lambda self: len(self.sim.dispatcher.inflight))
    @rule(data=st.data(), crash=CRASH, terminal=st.booleans())
    def nack(self, data, crash, terminal):
        one = self.some(data)
        request = Nack(one.message_id, one.consumer_id, terminal, "no")
        self.perform(self.sim.dispatcher.request(one.consumer_id.encode(), request, self.sim.now), crash)

    @precondition(lambda self: self.attempts)
    @rule(data=st.data())
    def stale(self, data):
        """An ACK of a delivery that is over changes nothing."""
        number = data.draw(st.sampled_from(sorted(self.attempts)))
        self.perform(self.sim.dispatcher.tick(self.sim.now))  # what time alone does is done
        before = dict(self.sim.dispatcher.state.messages)
        request = Ack(f"m{number}", "w", delivery_id=f"{number}-99")
        self.perform(self.sim.dispatcher.request(b"w", request, self.sim.now))
        assert self.sim.dispatcher.state.messages == before

    @rule(seconds=st.sampled_from([0.05, 0.3, 3, 6]), crash=CRASH)
    def wait(self, seconds, crash):
        self.sim.seconds += seconds
        for session in list(self.sim.dispatcher.sessions)[:1]:
            request = Heartbeat(session.consumer_id, session.session_id)
            self.perform(self.sim.dispatcher.request(session.peer, request, self.sim.now))
        self.perform(self.sim.dispatcher.tick(self.sim.now), crash)

    # -- what is always so ---------------------------------------------------------------------------------

    @invariant()
    def the_books_are_what_was_written(self):
        dispatcher = self.sim.dispatcher
        assert replay([decode(raw) for raw in self.sim.written]) == dispatcher.state
        assert replay(dispatcher.state.snapshot()) == dispatcher.state

    @invariant()
    def every_message_is_somewhere(self):
        dispatcher = self.sim.dispatcher
        parcels = dispatcher.state.messages
        finished = {event.number for event in map(decode, self.sim.written) if isinstance(event, Finished)}
        assert self.accepted == set(parcels) | finished
        flying = {delivery.number for delivery in dispatcher.inflight}
        assert flying == {number for number, parcel in parcels.items() if parcel.session_id}
        assert all((number in dispatcher.waiting) != (number in flying) for number in parcels)
        assert dispatcher.admission.unfinished == len(parcels) == len(dispatcher.waiting) + len(flying)
        assert dispatcher.admission.waiting == len(dispatcher.waiting)

    @invariant()
    def nobody_holds_too_much(self):
        sessions = list(self.sim.dispatcher.sessions)
        assert sum(len(session.inflight) for session in sessions) == len(self.sim.dispatcher.inflight)
        assert all(len(session.inflight) <= 3 for session in sessions)

    def teardown(self):
        """With consumers that do their work, everything comes to an end."""
        sim = self.sim
        for consumer in "wx":
            self.register(consumer, None)
        for _ in range(200):
            if not sim.dispatcher.state.messages:
                break
            for delivery in list(sim.dispatcher.inflight):
                request = Ack(delivery.message_id, delivery.consumer_id, reply=True)
                self.perform(sim.dispatcher.request(delivery.consumer_id.encode(), request, sim.now))
            sim.seconds += 1
            for session in list(sim.dispatcher.sessions):
                heartbeat = Heartbeat(session.consumer_id, session.session_id)
                self.perform(sim.dispatcher.request(session.peer, heartbeat, sim.now))
            self.perform(sim.dispatcher.tick(sim.now))
        assert sim.dispatcher.state.messages == {}
        assert self.accepted == self.confirmed | self.buried | self.finished_unanswered()
        assert (
            sim.dispatcher.admission.unfinished
            == sim.dispatcher.admission.waiting
            == len(sim.dispatcher.inflight)
            == 0
        )
        assert sim.dispatcher.waiting.seconds_left(sim.now) is None

    def finished_unanswered(self):
        """Acknowledged, but the broker ended before it could say so."""
        events = map(decode, self.sim.written)
        return {event.number for event in events if event == Finished(event.number, End.ACKED)}


TestCrashes = Crashes.TestCase
TestCrashes.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
