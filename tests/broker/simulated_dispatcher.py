"""The dispatcher of direct delivery with a clock of its own, for tests."""

from __future__ import annotations

import itertools

from transfer.broker.core.dispatcher import Dispatcher, Rules
from transfer.broker.core.dispatcher_actions import (
    Admitted,
    Answer,
    Dispatch,
    Now,
    Persist,
    Register,
)
from transfer.broker.core.dispatcher_events import (
    DispatcherState,
    LogPosition,
    MessageInfo,
    encode,
)
from transfer.broker.core.routes import Route, RouteTable
from transfer.broker.core.session_routes import TableRoutes
from transfer.broker.core.topic_patterns import Kind, pattern

START_MS = 1_700_000_000_000


class SimulatedDispatcher:
    """A dispatcher with a clock, over a real table of routes. Carries out its actions and records them."""

    def __init__(self, rules=None, routes=()):
        self.table = RouteTable()
        for number, (text, destination) in enumerate(routes):
            dots = pattern(Kind.DOTS, text)
            self.table.add(Route(f"r{number}", "", dots, destination))
        ids = itertools.count(1)
        self.dispatcher = Dispatcher(
            TableRoutes(self.table),
            rules or Rules(),
            new_id=lambda: f"s{next(ids)}-{id(self)}",
            random=lambda: 0.0,
        )
        self.seconds = 100.0
        self.done = []
        self.written = []
        self.offsets = itertools.count()

    @property
    def now(self):
        return Now(self.seconds, START_MS + round((self.seconds - 100.0) * 1000))

    def do(self, actions):
        for action in actions:
            self.done.append(action)
            if isinstance(action, Persist):
                self.written.append(encode(action.event))
        return actions

    def publish(self, topic="t", message_id="m", destination="", **facts):
        verdict = self.dispatcher.admit(MessageInfo("", topic, message_id, "p", **facts), destination)
        if isinstance(verdict, Admitted):
            self.do(self.dispatcher.accept(verdict, LogPosition("log", next(self.offsets)), self.now))
        return verdict

    def ask(self, request, peer=b"w"):
        return self.do(self.dispatcher.request(peer, request, self.now))

    def register(self, consumer="w", peer=b"w", subscriptions=("t",), **more):
        actions = self.ask(Register(consumer, subscriptions=subscriptions, **more), peer)
        return next(a.reply for a in actions if isinstance(a, Answer))

    def wait(self, seconds):
        self.seconds += seconds
        return self.do(self.dispatcher.tick(self.now))

    def of(self, kind):
        return [action for action in self.done if isinstance(action, kind)]

    @property
    def sent(self):
        """(consumer, message id, attempt) of all that was dispatched."""
        return [(a.session.consumer_id, a.delivery.message_id, a.delivery.attempt) for a in self.of(Dispatch)]

    @property
    def last(self):
        return self.of(Dispatch)[-1].delivery

    def events(self):
        return [action.event for action in self.of(Persist)]


def replay(events):
    """The state that these events give."""
    state = DispatcherState()
    for event in events:
        state.apply(event)
    return state
