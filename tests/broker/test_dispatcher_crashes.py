"""The direct desk: anything in any order, and a crash after any action."""

from __future__ import annotations

import itertools

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.broker.simulated_dispatcher import Shop, replay
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
        self.shop = Shop(self.RULES, self.ROUTES)
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
            self.shop.do([action])
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
        old = self.shop
        events = [decode(raw) for raw in old.written]
        books = replay(events)
        self.shop = Shop(self.RULES, self.ROUTES)
        self.shop.seconds, self.shop.offsets = old.seconds + 1, old.offsets
        self.shop.written = list(old.written)
        assert self.accepted - self.buried - set(books.messages) <= {
            event.number for event in events if isinstance(event, Finished)
        }
        self.perform(self.shop.desk.recover(books, self.shop.now))

    CRASH = st.one_of(st.none(), st.none(), st.integers(0, 6))

    @rule(
        topic=st.sampled_from(["t.a", "t.b", "u"]), priority=st.sampled_from(["bulk", "normal"]), crash=CRASH
    )
    def publish(self, topic, priority, crash):
        facts = MessageInfo("", topic, f"m{next(self.names)}", "p", priority=priority)
        verdict = self.shop.desk.admit(facts)
        if isinstance(verdict, Admitted):
            ref = LogPosition("log", next(self.shop.offsets))
            self.perform(self.shop.desk.accept(verdict, ref, self.shop.now), crash)

    @rule(delay=st.integers(-3, 9), crash=CRASH)
    def publish_with_times(self, delay, crash):
        due = self.shop.now.unix_ms + delay * 1000
        verdict = self.shop.desk.admit(
            MessageInfo("", "t.c", f"m{next(self.names)}", "p", due_ms=due, expires_ms=due + 2000)
        )
        if isinstance(verdict, Admitted):
            ref = LogPosition("log", next(self.shop.offsets))
            self.perform(self.shop.desk.accept(verdict, ref, self.shop.now), crash)

    @rule(consumer=st.sampled_from("wx"), crash=CRASH)
    def register(self, consumer, crash):
        request = Register(consumer, subscriptions=("v",))
        self.perform(self.shop.desk.request(consumer.encode(), request, self.shop.now), crash)

    @rule(consumer=st.sampled_from("wx"), crash=CRASH)
    def deregister(self, consumer, crash):
        request = Deregister(consumer)
        self.perform(self.shop.desk.request(consumer.encode(), request, self.shop.now), crash)

    def some(self, data):
        deliveries = list(self.shop.desk.inflight)
        return data.draw(st.sampled_from(deliveries))

    @precondition(lambda self: len(self.shop.desk.inflight))
    @rule(data=st.data(), crash=CRASH, named=st.booleans())
    def ack(self, data, crash, named):
        one = self.some(data)
        request = Ack(
            one.message_id, one.consumer_id, delivery_id=one.delivery_id if named else None, reply=True
        )
        self.perform(self.shop.desk.request(one.consumer_id.encode(), request, self.shop.now), crash)

    @precondition(lambda self: len(self.shop.desk.inflight))
    @rule(data=st.data(), crash=CRASH, terminal=st.booleans())
    def nack(self, data, crash, terminal):
        one = self.some(data)
        request = Nack(one.message_id, one.consumer_id, terminal, "no")
        self.perform(self.shop.desk.request(one.consumer_id.encode(), request, self.shop.now), crash)

    @precondition(lambda self: self.attempts)
    @rule(data=st.data())
    def stale(self, data):
        """An ACK of a delivery that is over changes nothing."""
        number = data.draw(st.sampled_from(sorted(self.attempts)))
        self.perform(self.shop.desk.tick(self.shop.now))  # what time alone does is done
        before = dict(self.shop.desk.state.messages)
        request = Ack(f"m{number}", "w", delivery_id=f"{number}-99")
        self.perform(self.shop.desk.request(b"w", request, self.shop.now))
        assert self.shop.desk.state.messages == before

    @rule(seconds=st.sampled_from([0.05, 0.3, 3, 6]), crash=CRASH)
    def wait(self, seconds, crash):
        self.shop.seconds += seconds
        for session in list(self.shop.desk.sessions)[:1]:
            request = Heartbeat(session.consumer_id, session.session_id)
            self.perform(self.shop.desk.request(session.peer, request, self.shop.now))
        self.perform(self.shop.desk.tick(self.shop.now), crash)

    # -- what is always so ---------------------------------------------------------------------------------

    @invariant()
    def the_books_are_what_was_written(self):
        desk = self.shop.desk
        assert replay([decode(raw) for raw in self.shop.written]) == desk.state
        assert replay(desk.state.snapshot()) == desk.state

    @invariant()
    def every_message_is_somewhere(self):
        desk = self.shop.desk
        parcels = desk.state.messages
        finished = {event.number for event in map(decode, self.shop.written) if isinstance(event, Finished)}
        assert self.accepted == set(parcels) | finished
        flying = {delivery.number for delivery in desk.inflight}
        assert flying == {number for number, parcel in parcels.items() if parcel.session_id}
        assert all((number in desk.waiting) != (number in flying) for number in parcels)
        assert desk.admission.unfinished == len(parcels) == len(desk.waiting) + len(flying)
        assert desk.admission.waiting == len(desk.waiting)

    @invariant()
    def nobody_holds_too_much(self):
        sessions = list(self.shop.desk.sessions)
        assert sum(len(session.inflight) for session in sessions) == len(self.shop.desk.inflight)
        assert all(len(session.inflight) <= 3 for session in sessions)

    def teardown(self):
        """With consumers that do their work, everything comes to an end."""
        shop = self.shop
        for consumer in "wx":
            self.register(consumer, None)
        for _ in range(200):
            if not shop.desk.state.messages:
                break
            for delivery in list(shop.desk.inflight):
                request = Ack(delivery.message_id, delivery.consumer_id, reply=True)
                self.perform(shop.desk.request(delivery.consumer_id.encode(), request, shop.now))
            shop.seconds += 1
            for session in list(shop.desk.sessions):
                heartbeat = Heartbeat(session.consumer_id, session.session_id)
                self.perform(shop.desk.request(session.peer, heartbeat, shop.now))
            self.perform(shop.desk.tick(shop.now))
        assert shop.desk.state.messages == {}
        assert self.accepted == self.confirmed | self.buried | self.finished_unanswered()
        assert shop.desk.admission.unfinished == shop.desk.admission.waiting == len(shop.desk.inflight) == 0
        assert shop.desk.waiting.seconds_left(shop.now) is None

    def finished_unanswered(self):
        """Acknowledged, but the broker ended before it could say so."""
        events = map(decode, self.shop.written)
        return {event.number for event in events if event == Finished(event.number, End.ACKED)}


TestCrashes = Crashes.TestCase
TestCrashes.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
