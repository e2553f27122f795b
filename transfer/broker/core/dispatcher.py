"""The dispatcher of direct delivery: which consumer gets which message, what is retried or given up. Pure.

It takes events and returns actions, which the caller executes in order.
"""

from __future__ import annotations

import random as _random
import uuid
from collections.abc import Callable, Sequence

from transfer.broker.core.delivery import DirectDelivery, Status
from transfer.broker.core.dispatch import DispatchSteps, Rules
from transfer.broker.core.dispatcher_actions import (
    Ack,
    Action,
    Admitted,
    Answer,
    AuditAction,
    Control,
    Deregister,
    Deregistered,
    Fault,
    Full,
    Heartbeat,
    KeepSession,
    Nack,
    NoRoute,
    Now,
    Refused,
    Register,
    Registered,
    Taken,
    Verdict,
)
from transfer.broker.core.dispatcher_events import (
    Accepted,
    DispatcherState,
    End,
    LogPosition,
    MessageInfo,
    Returned,
)
from transfer.broker.core.session_routes import TableRoutes
from transfer.broker.core.sessions import Session
from transfer.transports.errors import UsageError

__all__ = ["Dispatcher", "Rules"]


class Dispatcher(DispatchSteps):
    """The dispatcher of direct delivery. Not thread-safe. The caller executes actions in the order of the
    calls. When an action leads to another call (`unsent`), the new actions go behind those that are left.
    counts: dispatched, acked, nacked, retried, dead_lettered, routed, unroutable, stale_acks, moved and
    others, since the start. new_id: makes session ids. random: gives 0 to 1, for delays between attempts."""

    def __init__(
        self,
        routes: TableRoutes,
        rules: Rules | None = None,
        *,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
        random: Callable[[], float] = _random.random,
    ) -> None:
        super().__init__(routes, rules or Rules(), new_id, random)

    # -- messages ------------------------------------------------------------------------------------------

    def admit(
        self, facts: MessageInfo, destination: str = "", now: Now | None = None, *, awaits: bool = True
    ) -> Verdict:
        """Decides whether a message is taken, and for which consumer; it changes only counts. destination:
        sends it to this consumer, whatever the routes are. now: needed for the delivery time, and to
        recognize that a consumer of the topic disconnected a moment ago, if the message may wait for it
        (`awaits`). Pass `Admitted` to `accept` when the message's bytes are kept."""
        if not destination:
            found = self._choose(facts.tenant, facts.topic)
            if found is None:
                if (
                    now is not None
                    and awaits
                    and self._departed.expects(facts.tenant, facts.topic, now.seconds)
                ):
                    return NoRoute(awaited=True)
                self.counts["unroutable"] += 1
                return NoRoute()
            destination = found
        delay = max(0, facts.due_ms - now.unix_ms) / 1000 if now is not None else 0.0
        limit = self.admission.refuses(facts.tenant, destination, facts.topic, delay)
        if limit is not None:
            return Full(limit)
        return Admitted(facts, destination, self.sessions.live((facts.tenant, destination)) is not None)

    def accept(self, admitted: Admitted, ref: LogPosition, now: Now) -> list[Action]:
        """Takes the message over. Answer the producer when the first action is synced."""
        number, facts = self.state.next_number, admitted.facts
        self._write(Accepted(number, admitted.destination, facts, ref))
        self.admission.began(facts.tenant)
        self.counts["routed"] += 1
        queued = self.state.messages[number]
        if self._is_expired(queued, now):
            self._dead_letter(queued, "expired")
        elif self._wait(queued, now):
            self._give(now)
            if number in self.waiting:
                self._defer(queued)
        return self._done()

    def unsent(self, delivery: DirectDelivery, peer: bytes, now: Now, *, gone: bool) -> list[Action]:
        """Handles a message that could not be sent. The attempt does not count; a message without ACK is
        lost. gone: the peer has disconnected, and its sessions end; otherwise the message is retried a
        little later."""
        found = self.inflight.get(delivery.number)
        if found is not None and found[0] is delivery:
            delay = 0.0 if gone else self.rules.retry.initial
            self._return(
                delivery, Status.EXPIRED, "the message could not be sent", now, delay=delay, counted=False
            )
        else:
            self._uncount(delivery)
        if gone:
            for one in self.sessions.of_peer(peer):
                self._end_session(one, "the consumer disconnected", now)
        return self._done(now)

    def _uncount(self, delivery: DirectDelivery) -> None:
        """Uncounts an attempt that could not be sent, of an ended session, or of a message without ACK."""
        number = delivery.number
        queued = self.state.messages.get(number)
        if delivery.status is Status.DISPATCHED:
            self.counts["lost"] += 1
        elif queued is not None and number in self.waiting and queued.attempt == delivery.attempt:
            self._write(Returned(number, delivery.attempt - 1, "the message could not be sent"))

    def remove(self, number: int, reason: str = "") -> list[Action]:
        """Removes a message for an operator; with a reason it becomes a dead letter. Raises UsageError:
        unknown number."""
        queued = self.state.messages.get(number)
        if queued is None:
            raise UsageError(f"there is no unfinished message {number}")
        found = self.inflight.get(number)
        if found is not None:
            self.inflight.end(found[0])
            self._ready[found[1].key] = None
        self.waiting.discard(queued)
        if reason:
            self._dead_letter(queued, reason)
        else:
            self._finish(queued, End.PURGED)
        return self._done()

    # -- consumers -----------------------------------------------------------------------------------------

    def request(self, peer: bytes, control: Control, now: Now) -> list[Action]:
        """Handles a request of a consumer at `peer`."""
        match control:
            case Register():
                self._register(peer, control, now)
            case Heartbeat():
                self._heartbeat(peer, control, now)
            case Deregister():
                self._deregister(peer, control, now)
            case Ack():
                self._ack(peer, control, now)
            case Nack():
                self._nack(peer, control, now)
        return self._done(now)

    def restore(self, sessions: Sequence[Session], now: Now) -> None:
        """Restores sessions of before a restart and their routes; their consumers may resume them."""
        for session in sessions:
            self.sessions.restore(session, now.seconds)
            self._routes.bind(session)

    # -- time ----------------------------------------------------------------------------------------------

    def tick(self, now: Now) -> list[Action]:
        """Does what is due. Call it when `seconds_left` have passed, or more often."""
        batch = self.rules.batch
        for session in self.sessions.missed(now.seconds, batch):
            self.counts["missed_heartbeats"] += 1
            self._end_session(session, "the consumer missed its heartbeat", now)
        for delivery, session in self.inflight.overdue(now.seconds, batch):
            self.counts["ack_timeouts"] += 1
            self._ready[session.key] = None
            delay = self.rules.retry.delay(delivery.attempt, self._random)
            self._return(delivery, Status.EXPIRED, "no ACK came in time", now, delay=delay)
        for queued in self.waiting.expired(now, batch):
            self._dead_letter(queued, "expired")
        for queued in self.waiting.due(now, batch):
            self._wait(queued, now)
        return self._done(now)

    def seconds_left(self, now: Now) -> float | None:
        """Returns the seconds until `tick` has work; 0: at once. None: nothing is due."""
        if self._ready:
            return 0.0
        times = [self.waiting.seconds_left(now)]
        for deadline in (self.sessions.next_deadline(), self.inflight.next_deadline()):
            times.append(deadline - now.seconds if deadline is not None else None)
        known = [left for left in times if left is not None]
        return max(min(known), 0.0) if known else None

    def recover(self, state: DispatcherState, now: Now) -> list[Action]:
        """Continues with the state of before a restart; call it first. Messages that were in flight are
        retried at once; their attempts count."""
        self.state = state
        for queued in list(state.messages.values()):
            self.admission.began(queued.facts.tenant, again=True)
            if queued.session_id and self.rules.retry.exhausted(queued.attempt):
                self._dead_letter(queued, "exhausted", "the broker ended while it was in flight")
                continue
            if queued.session_id:
                self._write(
                    Returned(queued.number, queued.attempt, "the broker ended while it was in flight")
                )
            self._wait(queued, now)
        return self._done(now)

    # -- requests of consumers -----------------------------------------------------------------------------

    def _register(self, peer: bytes, ask: Register, now: Now) -> None:
        if ask.mode != "direct":
            self._refuse(peer, Fault.UNSUPPORTED_MODE, f"mode {ask.mode!r}: fan-out is on the PUB socket")
            return
        try:
            self._routes.check(ask.tenant, ask.subscriptions)
        except UsageError as error:
            self._refuse(peer, Fault.INVALID_SUBSCRIPTION, str(error))
            return
        before = self.sessions.find((ask.tenant, ask.consumer_id))
        if before is None and len(self.sessions) >= self.rules.max_sessions:
            text = f"{self.rules.max_sessions} consumers are registered"
            self._refuse(peer, Fault.TOO_MANY_CONSUMERS, text)
            return
        if before is not None and before.session_id != ask.session_id:
            self._end_session(before, "the consumer registered again", now)
        registration = self.sessions.register(
            (ask.tenant, ask.consumer_id),
            peer,
            ask.subscriptions,
            ask.capabilities,
            now.seconds,
            resume=ask.session_id,
        )
        session = registration.session
        self._routes.bind(session)
        self._actions.append(KeepSession(session))
        status = "resumed" if registration.resumed else "registered"
        self._actions.append(Answer(peer, Registered(ask.consumer_id, session.session_id, status)))
        self._ready[session.key] = None
        for key in self.waiting.keys(ask.tenant):
            self._reassign_waiting(key, now)

    def _heartbeat(self, peer: bytes, ask: Heartbeat, now: Now) -> None:
        session = self.sessions.heartbeat(peer, ask.consumer_id, ask.session_id, now.seconds)
        if session is None:
            self._refuse(
                peer, Fault.UNKNOWN_SESSION, f"{ask.consumer_id} has no such session: register again"
            )
            return
        self._ready[session.key] = None
        if ask.reply:
            self._actions.append(Answer(peer, Taken("consumer.heartbeat", ask.consumer_id, "", "alive")))

    def _deregister(self, peer: bytes, ask: Deregister, now: Now) -> None:
        session = self.sessions.of(peer, ask.consumer_id, ask.session_id)
        if session is None:
            self._refuse(peer, Fault.UNKNOWN_SESSION, f"{ask.consumer_id} has no such session")
            return
        self._end_session(session, "the consumer deregistered", now)
        self._actions.append(Answer(peer, Deregistered(ask.consumer_id, session.session_id)))

    def _ack(self, peer: bytes, ask: Ack, now: Now) -> None:
        session, delivery = self._find(peer, ask)
        if session is None or delivery is None:
            self._late(peer, ask, session)
            return
        queued = self.state.messages[delivery.number]
        delivery.move(Status.ACKED)
        self.inflight.end(delivery)
        self._finish(queued, End.ACKED)
        self._acked.add(session, delivery)
        self.counts["acked"] += 1
        self._taken(peer, ask, "processed")
        self._ready[session.key] = None

    def _nack(self, peer: bytes, ask: Nack, now: Now) -> None:
        session, delivery = self._find(peer, ask)
        if session is None or delivery is None:
            self._late(peer, ask, session)
            return
        self.counts["nacked"] += 1
        number = delivery.number
        if ask.terminal:
            delivery.move(Status.NACKED)
            delivery.move(Status.DEAD_LETTERED)
            self.inflight.end(delivery)
            self._dead_letter(self.state.messages[number], "terminal", ask.reason)
        else:
            delay = self.rules.retry.delay(delivery.attempt, self._random)
            self._return(delivery, Status.NACKED, ask.reason, now, delay=delay)
        self._taken(peer, ask, "retry_scheduled" if number in self.state.messages else "dead_lettered")
        self._ready[session.key] = None

    def _find(self, peer: bytes, ask: Ack | Nack) -> tuple[Session | None, DirectDelivery | None]:
        """Returns the requesting session, and the delivery that it names, if it is still in flight."""
        session = self.sessions.of(peer, ask.consumer_id, ask.session_id)
        if session is None:
            return None, None
        return session, self.inflight.find(session, ask.message_id, ask.delivery_id)

    def _late(self, peer: bytes, ask: Ack | Nack, session: Session | None) -> None:
        """Answers a request that matches no delivery: a repeated ACK is harmless, others are refused."""
        known = session is not None and self._acked.has(session, ask.message_id, ask.delivery_id)
        if known and isinstance(ask, Ack):
            self.counts["acked_again"] += 1
            self._taken(peer, ask, "duplicate")
            return
        self.counts["stale_acks"] += 1
        if session is None:
            text = "the session has ended, or belongs to another consumer"
        else:
            text = "no such delivery is in flight: it is finished, or was given up"
        self._actions.append(AuditAction(Fault.STALE_ACK, ask.message_id, ask.consumer_id, text))
        refused = Refused(Fault.STALE_ACK, text, ask.message_id, ask.delivery_id or "")
        self._actions.append(Answer(peer, refused))

    def _taken(self, peer: bytes, ask: Ack | Nack, status: str) -> None:
        if ask.reply:
            word = "ack" if isinstance(ask, Ack) else "nack"
            named = ask.consumer_id, ask.message_id
            self._actions.append(Answer(peer, Taken(word, *named, status, ask.delivery_id or "")))

    def _refuse(self, peer: bytes, fault: Fault, text: str) -> None:
        self._actions.append(Answer(peer, Refused(fault, text)))
