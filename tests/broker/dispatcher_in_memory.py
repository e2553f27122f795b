"""Direct delivery without a disk: the dispatcher and a driver in memory, on a loop."""

from __future__ import annotations

import time
from collections import deque

from transfer.broker.core.dispatcher import Dispatcher, Rules
from transfer.broker.core.dispatcher_actions import (
    Admitted,
    Answer,
    AuditAction,
    Dispatch,
    KeepDeadLetter,
    Now,
    Persist,
)
from transfer.broker.core.dispatcher_events import Finished, LogPosition, encode
from transfer.broker.core.routes import Route, RouteTable
from transfer.broker.core.session_routes import TableRoutes
from transfer.broker.core.topic_patterns import Kind, pattern
from transfer.broker.delivery.delivery_sink import DEAD_LETTER_REASONS, Sent


class DispatcherInMemory:
    """A `DirectDriver`. letters, audits, lost: what it was told to keep."""

    def __init__(self, loop, rules=None, routes=()):
        self._loop = loop
        self.table = RouteTable()
        for number, (text, destination) in enumerate(routes):
            dots = pattern(Kind.DOTS, text)
            self.table.add(Route(f"r{number}", "", dots, destination))
        self.dispatcher = Dispatcher(TableRoutes(self.table), rules or Rules())
        self.written, self.letters, self.audits, self.lost = [], [], [], []
        self._messages = []
        self._timer = None

    def attach(self, sink):
        self._sink = sink
        self._tick()

    def close(self):
        self._timer.cancel()

    @property
    def now(self):
        return Now(self._loop.time(), int(time.time() * 1000))

    def publish_direct(self, message, facts, on_complete):
        verdict = self.dispatcher.admit(facts)
        if isinstance(verdict, Admitted):
            self._messages.append(message)
            self._do(
                self.dispatcher.accept(verdict, LogPosition("memory", len(self._messages) - 1), self.now)
            )
            self._loop.call_soon(on_complete, None)
        return verdict

    def unsent(self, action, sent):
        self._do(self._given_up(action, sent))

    def _given_up(self, action, sent):
        if sent in DEAD_LETTER_REASONS:
            return self.dispatcher.remove(action.queued.number, DEAD_LETTER_REASONS[sent])
        return self.dispatcher.unsent(action.delivery, action.peer, self.now, gone=sent is Sent.GONE)

    def unroutable(self, message, facts, reason):
        self.lost.append((facts.topic, facts.message_id, reason))

    def request(self, peer, control):
        self._do(self.dispatcher.request(peer, control, self.now))

    def _do(self, actions):
        actions = deque(actions)
        while actions:
            match actions.popleft():
                case Persist(event):
                    self.written.append(encode(event))
                    assert not isinstance(event, Finished) or event.number < self.dispatcher.state.next_number
                case Dispatch(queued=queued) as action:
                    sent = self._sink.dispatch(action, self._messages[queued.ref.offset])
                    if sent is not Sent.YES:
                        actions += self._given_up(action, sent)
                case Answer(peer, reply):
                    self._sink.answer(peer, reply)
                case KeepDeadLetter() as letter:
                    self.letters.append(letter)
                case AuditAction() as audit:
                    self.audits.append(audit)

    def _tick(self):
        self._do(self.dispatcher.tick(self.now))
        self._timer = self._loop.call_later(0.005, self._tick)
