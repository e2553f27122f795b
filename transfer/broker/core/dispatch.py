"""The steps of direct delivery: messages wait, are sent to a consumer, come back, are finished. Pure.

`Persist` carries the events that must survive a restart. The state (`DispatcherState`) follows from the
events; queues, sessions and timers are made from the state again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from transfer.broker.core.admission import Admission, AdmissionLimits, Limit
from transfer.broker.core.delivery import DirectDelivery, RetryPolicy, Status
from transfer.broker.core.departed_consumers import DepartedConsumers
from transfer.broker.core.dispatcher_actions import (
    Action,
    Dispatch,
    DropSession,
    KeepDeadLetter,
    Now,
    Persist,
)
from transfer.broker.core.dispatcher_events import (
    Dispatched,
    DispatcherState,
    End,
    Event,
    Finished,
    Moved,
    QueuedMessage,
    Returned,
)
from transfer.broker.core.in_flight import Acked, InFlight
from transfer.broker.core.priority_queue import WEIGHTS
from transfer.broker.core.session_routes import TableRoutes
from transfer.broker.core.sessions import ConsumerKey, Session, SessionTable
from transfer.broker.core.waiting_messages import WaitingMessages


@dataclass(frozen=True, slots=True)
class Rules:
    """The dispatcher's limits and times; times in seconds. ack_timeout: after which an unacknowledged message
    is retried. heartbeat_timeout: after which a silent session ends. route_grace: for which the broker
    expects an ended session's consumer to come back for its topics. remembered: acknowledged messages that
    are known, to distinguish a repeated ACK from a stale one. max_sessions: limit on registered
    consumers. batch: limit on the messages that one call sends, retries or dead-letters, so that other
    work is not blocked."""

    limits: AdmissionLimits = field(default_factory=AdmissionLimits)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    ack_timeout: float = 30.0
    heartbeat_timeout: float = 30.0
    weights: Mapping[str, int] = field(default_factory=lambda: WEIGHTS)
    route_grace: float = 0.0
    remembered: int = 8192
    max_sessions: int = 10_000
    batch: int = 256


class DispatchSteps:
    """The state of a dispatcher, and the steps that its requests consist of. Not thread-safe."""

    def __init__(
        self, routes: TableRoutes, rules: Rules, new_id: Callable[[], str], random: Callable[[], float]
    ) -> None:
        self.rules = rules
        self.state = DispatcherState()
        self.admission = Admission(rules.limits)
        self.waiting = WaitingMessages(self.admission, rules.weights)
        self.sessions = SessionTable(rules.heartbeat_timeout, new_id)
        self.inflight = InFlight()
        self.counts: Counter[str] = Counter()
        self._routes = routes
        self._random = random
        self._acked = Acked(rules.remembered)
        self._departed = DepartedConsumers(rules.route_grace)
        #: consumers for which messages may be ready
        self._ready: dict[ConsumerKey, None] = {}
        self._actions: list[Action] = []

    # -- dispatching ---------------------------------------------------------------------------------------

    def _done(self, now: Now | None = None) -> list[Action]:
        if now is not None:
            self._give(now)
        actions, self._actions = self._actions, []
        return actions

    def _give(self, now: Now) -> None:
        """Dispatches waiting messages to consumers with room; at most `batch` messages."""
        left = self.rules.batch
        while self._ready and left > 0:
            key = next(iter(self._ready))
            session = self.sessions.live(key)
            queued = None
            if session is not None and self._has_room(session):
                queued = self.waiting.take(key)
            if session is None or queued is None:
                del self._ready[key]
                continue
            left -= 1
            self._ready[key] = self._ready.pop(key)  # other consumers get their turn
            if self._is_expired(queued, now):
                self._dead_letter(queued, "expired")
            else:
                self._dispatch(queued, session, now)

    def _dispatch(self, queued: QueuedMessage, session: Session, now: Now) -> None:
        number, facts, attempt = queued.number, queued.facts, queued.attempt + 1
        deadline = now.seconds + self.rules.ack_timeout
        delivery = DirectDelivery(
            number,
            facts.message_id,
            session.consumer_id,
            session.session_id,
            facts.topic,
            attempt,
            now.seconds,
            deadline,
        )
        self.counts["dispatched"] += 1
        if session.capabilities.supports_ack:
            self._write(Dispatched(number, attempt, session.consumer_id, session.session_id))
            self.inflight.begin(delivery, session, facts.nbytes)
        else:
            self._finish(queued, End.SENT)
            self._acked.add(session, delivery)
        self._actions.append(Dispatch(session.peer or b"", session, delivery, queued))

    def _has_room(self, session: Session) -> bool:
        """Returns whether the session may get another message."""
        limits = self.rules.limits
        window = min(session.capabilities.max_inflight, limits.max_inflight_per_consumer)
        return len(session.inflight) < window and session.held < limits.max_inflight_bytes

    def _choose(self, tenant: str, topic: str) -> str | None:
        """Returns the first connected destination, else the first. None: there is no route."""
        destinations = self._routes.destinations(tenant, topic)
        for destination in destinations:
            if self.sessions.live((tenant, destination)) is not None:
                return destination
        return destinations[0] if destinations else None

    # -- waiting -------------------------------------------------------------------------------------------

    def _wait(self, queued: QueuedMessage, now: Now, delay: float = 0.0) -> bool:
        """Queues a message; a connected consumer is preferred to one that is not. True: it waits only for its
        consumer."""
        if delay <= 0 and not queued.facts.pinned and self.sessions.live(queued.key) is None:
            other = self._choose(queued.facts.tenant, queued.facts.topic)
            if other is not None and self.sessions.live((queued.facts.tenant, other)) is not None:
                self._move(queued, other)
        if not self.waiting.put(queued, now, delay):
            return False
        self._ready[queued.key] = None
        return True

    def _reassign_waiting(self, key: ConsumerKey, now: Now) -> None:
        """Moves messages that wait for a disconnected consumer to a connected one, if a route leads to it."""
        if self.sessions.live(key) is not None:
            return
        for queued in self.waiting.ready(key):
            if not queued.facts.pinned:
                self.waiting.discard(queued)
                self._wait(queued, now)

    def _move(self, queued: QueuedMessage, destination: str) -> None:
        self.counts["moved"] += 1
        self._write(Moved(queued.number, destination))

    def _return(
        self,
        delivery: DirectDelivery,
        status: Status,
        error: str,
        now: Now,
        *,
        delay: float = 0.0,
        counted: bool = True,
    ) -> None:
        """Ends a failed delivery: the message is retried, or becomes a dead letter. counted: the attempt
        counts."""
        self.inflight.end(delivery)
        delivery.move(status)
        queued = self.state.messages[delivery.number]
        queued.failed_ms = queued.failed_ms or now.unix_ms
        if counted and self.rules.retry.exhausted(delivery.attempt):
            delivery.move(Status.DEAD_LETTERED)
            self._dead_letter(queued, "exhausted", error)
        elif self._is_expired(queued, now):
            delivery.move(Status.DEAD_LETTERED)
            self._dead_letter(queued, "expired", error)
        else:
            delivery.move(Status.RETRY_SCHEDULED)
            self._write(Returned(queued.number, delivery.attempt - (not counted), error))
            self.counts["retried" if counted else "unsent"] += 1
            self._wait(queued, now, delay)

    def _defer(self, queued: QueuedMessage) -> None:
        if self.sessions.live(queued.key) is None:
            self.admission.defer()
        else:
            self.admission.count(Limit.INFLIGHT)

    def _end_session(self, session: Session, error: str, now: Now) -> None:
        self.sessions.end(session)
        self._routes.unbind(session)
        self._departed.add(session, now.seconds)
        self._actions.append(DropSession(session))
        for number in sorted(session.inflight):
            found = self.inflight.get(number)
            if found is not None:
                self._return(found[0], Status.EXPIRED, error, now)
        self._reassign_waiting(session.key, now)

    # -- finishing -----------------------------------------------------------------------------------------

    def _dead_letter(self, queued: QueuedMessage, reason: str, error: str = "") -> None:
        """Makes a dead letter, which is kept before the message is finished: a crash in between keeps it
        twice rather than not at all."""
        letter = KeepDeadLetter(queued.number, queued, reason, queued.attempt, error or queued.error)
        self._actions.append(letter)
        self._finish(queued, End.DEAD_LETTERED)
        self.counts["dead_lettered"] += 1

    def _finish(self, queued: QueuedMessage, end: End) -> None:
        self._write(Finished(queued.number, end))
        self.admission.finished(queued.facts.tenant)

    def _is_expired(self, queued: QueuedMessage, now: Now) -> bool:
        return 0 < queued.facts.expires_ms <= now.unix_ms

    def _write(self, event: Event) -> None:
        self.state.apply(event)
        self._actions.append(Persist(event))
