"""Drives direct delivery over the log and the database: executes the actions of the dispatcher."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from transfer import steady_clock
from transfer.broker.core.dispatcher import Dispatcher, Rules
from transfer.broker.core.dispatcher_actions import (
    Action,
    Admitted,
    Answer,
    AuditAction,
    Dispatch,
    DropSession,
    KeepDeadLetter,
    KeepSession,
    NoRoute,
    Now,
    Persist,
)
from transfer.broker.core.dispatcher_events import (
    Accepted,
    End,
    Event,
    Finished,
    LogPosition,
    MessageInfo,
    QueuedMessage,
)
from transfer.broker.core.message import Front, Message, Written
from transfer.broker.core.session_routes import TableRoutes
from transfer.broker.delivery.delivery_sink import DEAD_LETTER_REASONS, Sent
from transfer.broker.delivery.dispatcher_journal import DispatcherJournal
from transfer.broker.storage.dead_letter_writer import (
    finish_dead_lettered,
    keep_letter,
    large_of,
    letter_of_parcel,
)
from transfer.broker.storage.durability import complete_all
from transfer.broker.storage.session_writer import SessionWriter
from transfer.broker.storage.topic import DIRECT_PREFIX
from transfer.log import HOLDS
from transfer.transports.errors import InternalError, LogDamaged, LogFull, TransferError

if TYPE_CHECKING:
    from transfer.broker.core.dispatcher_actions import Control, Verdict
    from transfer.broker.core.routes import RouteTable
    from transfer.broker.delivery.delivery_sink import DeliverySink
    from transfer.broker.delivery.hub import Hub
    from transfer.broker.storage.audit_writer import AuditWriter
    from transfer.broker.storage.database_thread import DatabaseThread
    from transfer.broker.storage.dead_letter_table import DeadLetters
    from transfer.broker.storage.durability import OnComplete
    from transfer.broker.storage.sessions import Sessions
    from transfer.broker.storage.topic import Topic

_log = logging.getLogger("transfer.broker")
#: events in the journal after which a snapshot is written
_SNAPSHOT_AFTER = 100_000
#: bytes of messages that are held in memory, so that the log need not be read
_HELD_BYTES = 32 << 20
#: seconds between retries of writing the journal when the log is full, or of keeping a dead letter
_PAUSE = 0.5
#: topics for which the driver caches whether a route leads anywhere
_MOST_LEADS = 10_000
#: the group for which the log keeps unfinished messages; others may read them later
_GROUP = HOLDS + "direct"
#: the group that acknowledges finished messages in topics that have no other readers
_ALONE = "direct"
#: appends a message to a topic that keeps it
Keep = Callable[["Topic", Message, "OnComplete"], object]
#: topics that the broker itself publishes to
UNROUTABLE, DEAD_LETTERS = "_system.unroutable", "_dlq."


class DispatcherDriver:
    """The driver of a `Dispatcher`. On the broker's loop; see `delivery_sink.DirectDriver`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        hub: Hub,
        table: RouteTable,
        rules: Rules,
        thread: DatabaseThread,
        letters: DeadLetters,
        sessions: Sessions,
        auditing: AuditWriter,
    ) -> None:
        self.table = table
        self._routes = TableRoutes(table)
        # by topic: the version of the routes, and whether one of them leads anywhere
        self._leads: dict[str, tuple[int, bool]] = {}
        self.dispatcher = Dispatcher(self._routes, rules)
        self._loop = loop
        self._hub = hub
        self._thread = thread
        self._letters = letters
        self._sessions = sessions
        self._session_writer = SessionWriter(thread, sessions)
        self._auditing = auditing
        self._sink: DeliverySink | None = None
        self._journal = DispatcherJournal(hub.store.log)
        self._events: list[Event] = []
        self._then: list[OnComplete] = []  # called when those events are on the disk
        # Messages whose acceptance is not on the disk yet, each with what is to be sent of it then.
        self._unsynced: dict[int, Dispatch | None] = {}
        self._withheld: dict[int, QueuedMessage] = {}  # their dead letters are being written
        self._held: OrderedDict[LogPosition, Message] = OrderedDict()
        self._held_bytes = 0
        self._holding: set[str] = set()
        self._actions: deque[Action] = deque()
        self._doing = self._flush_due = self._closed = False
        self._paused = False  # the log is full
        self._alarm: asyncio.TimerHandle | None = None

    def attach(self, sink: DeliverySink) -> None:
        """Sets the sink for messages and replies, and resumes what was unfinished before the restart."""
        self._sink = sink
        self.dispatcher.restore(self._sessions.load(), self._now())
        state = self._journal.load()
        for event in finish_dead_lettered(state, self._letters):
            self._persist(event)
        self._do(self.dispatcher.recover(state, self._now()))

    def close(self) -> None:
        """Writes what is not written yet. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        self._session_writer.close()
        if self._hub.durability.failure is None:
            self._flush()
            if not self._withheld:
                self._journal.snapshot(self.dispatcher.state)

    # -- messages ----------------------------------------------------------------------------------------

    def publish_direct(self, message: Message, facts: MessageInfo, on_complete: OnComplete) -> Verdict:
        """See DirectDriver. Subscribers of other protocols get the message too."""
        verdict = self.dispatcher.admit(facts, now=self._now())
        if not isinstance(verdict, Admitted):
            return verdict
        if self._hub.durability.full:
            raise LogFull(self._hub.full, hint="consumers must acknowledge messages")
        name = f"{facts.tenant}/{facts.topic}" if facts.tenant else facts.topic
        headers = {**(message.headers or {}), "delivery_mode": "direct"}
        direct = Message(name, message.parts, message.front, message.head, headers)
        self.accept(verdict, direct, on_complete, self._hub.keep_now)
        return verdict

    def offer(self, topic: Topic, message: Message, *, nbytes: int | None = None) -> None:
        """Offers a kept message of another protocol to direct routes, which may lead to a consumer.

        nbytes: size of a payload that came in pieces: the driver reads it from the log later.
        """
        if not self.has_route(topic.name):
            return
        headers = message.headers or {}
        name = str(headers.get("message_id") or f"{topic.name}/{message.offset}")
        size = message.nbytes if nbytes is None else nbytes
        facts = MessageInfo("", topic.name, name, message.front.name.lower(), size)
        verdict = self.dispatcher.admit(facts, now=self._now(), awaits=False)
        if isinstance(verdict, Admitted) and message.offset is not None:
            held = message if nbytes is None else None
            self._accept_kept(verdict, LogPosition(topic.log_name, message.offset), held)
        elif not isinstance(verdict, NoRoute):
            self._hub.counts["direct_refused"] += 1

    def has_route(self, topic: str) -> bool:
        """Returns whether a direct route takes messages of this topic."""
        version, leads = self._leads.get(topic, (-1, False))
        if version != self.table.version:
            if len(self._leads) >= _MOST_LEADS:
                self._leads.clear()
            leads = bool(self._routes.destinations("", topic))
            self._leads[topic] = (self.table.version, leads)
        return leads

    def unroutable(self, message: Message, facts: MessageInfo, reason: str) -> None:
        """See DirectDriver."""
        self._hub.counts["unroutable"] += 1
        fields: dict[str, object] = {"topic": facts.topic, "reason": reason}
        fields["producer_id"] = facts.producer_id
        self._publish(UNROUTABLE, message, fields)

    def unsent(self, action: Dispatch, sent: Sent) -> None:
        """See DirectDriver."""
        if sent in DEAD_LETTER_REASONS and action.queued.number in self.dispatcher.state.messages:
            self._do(self.dispatcher.remove(action.queued.number, DEAD_LETTER_REASONS[sent]))
            return
        gone = sent is Sent.GONE
        self._do(self.dispatcher.unsent(action.delivery, action.peer, self._now(), gone=gone))

    def request(self, peer: bytes, control: Control) -> None:
        """See DirectDriver."""
        self._do(self.dispatcher.request(peer, control, self._now()))

    def end_turn(self) -> None:
        """Writes the events of this turn of the loop now, so that they are synced with their messages."""
        if self._then and self._flush_due and not self._paused:
            self._flush()

    def tick(self) -> None:
        """Lets retention remove finished messages. Called about once a second."""
        lowest: dict[str, int] = {}
        for queued in self.dispatcher.state.messages.values():
            topic, offset = queued.ref
            lowest[topic] = min(offset, lowest.get(topic, offset))
        for queued in self._withheld.values():
            topic, offset = queued.ref
            lowest[topic] = min(offset, lowest.get(topic, offset))
        log = self._hub.store.log
        for topic in self._holding - lowest.keys():
            if topic.startswith(DIRECT_PREFIX):  # no other reader wants these
                log.acknowledge(topic, _ALONE, log.range(topic)[1])
            log.leave(topic, _GROUP)
        for topic, offset in lowest.items():
            if log.groups(topic).get(_GROUP) != offset:
                log.acknowledge(topic, _GROUP, offset)
        self._holding = set(lowest)
        # Events in the journal keep the log from giving room back.
        if self._journal.grown > (0 if self._hub.durability.full else _SNAPSHOT_AFTER) and not self._withheld:
            self._snapshot()

    def unfinished(self, topic: Topic) -> list[int]:
        """Returns the numbers of a topic's messages that are not finished yet."""
        names = (topic.log_name, DIRECT_PREFIX + topic.name)
        return [number for number, one in self.dispatcher.state.messages.items() if one.ref.topic in names]

    def purge(self, topic: Topic, *, removed: bool = False) -> None:
        """Forgets the messages of a purged topic. removed: the topic is removed, too."""
        for number in self.unfinished(topic):
            self._do(self.dispatcher.remove(number))
        names = {topic.log_name, DIRECT_PREFIX + topic.name}
        for ref in [ref for ref in self._held if ref.topic in names]:
            self._held_bytes -= self._held.pop(ref).nbytes
        if removed:
            self._holding -= names

    def accept(self, admitted: Admitted, message: Message, on_complete: OnComplete, keep: Keep) -> None:
        """Keeps a message and gives it to the dispatcher. on_complete: called when both are on the disk."""
        topic = self._hub.store.topic(message.topic)
        if not topic.durable:
            topic = self._hub.store.direct_topic(topic)
        errors: list[TransferError | None] = []

        def one_kept(error: TransferError | None) -> None:
            errors.append(error)
            if len(errors) == 2:
                on_complete(errors[0] or errors[1])

        keep(topic, message, one_kept)  # raises LogFull before anything is done
        assert message.offset is not None
        self._then.append(one_kept)
        # The parts of a message that was written before belong to a file: it is read from the log.
        held = None if isinstance(message, Written) else message
        self._accept_kept(admitted, LogPosition(topic.log_name, message.offset), held)

    def _accept_kept(self, admitted: Admitted, ref: LogPosition, message: Message | None) -> None:
        if ref.topic not in self._holding:
            self._holding.add(ref.topic)
            self._hub.store.log.acknowledge(ref.topic, _GROUP, ref.offset)
        if message is not None:
            self._held[ref] = message
            self._held_bytes += message.nbytes
        while self._held_bytes > _HELD_BYTES:
            self._held_bytes -= self._held.popitem(last=False)[1].nbytes
        self._do(self.dispatcher.accept(admitted, ref, self._now()))

    def _message(self, queued: QueuedMessage) -> Message | None:
        """Returns the message as it came; None: retention or damage removed it."""
        held = self._held.get(queued.ref)
        if held is not None:
            return held
        try:
            return self._hub.store.message(*queued.ref)
        except LogDamaged as error:
            _log.error("%s", error)
            self._hub.counts["damaged"] += 1
            return None

    def _publish(self, topic: str, message: Message, words: dict[str, object]) -> None:
        """Publishes a message of the broker itself, with the payload that it is about."""
        headers = {**(message.headers or {}), **words}
        try:
            self._hub.publish(Message(topic, message.parts, Front.BROKER, headers=headers))
        except TransferError as error:
            _log.warning("the broker cannot publish to topic %s: %s", topic, error)

    # -- actions of the dispatcher -----------------------------------------------------------------------

    def _now(self) -> Now:
        return Now(self._loop.time(), steady_clock.unix_ms())

    def _do(self, actions: Sequence[Action]) -> None:
        """Executes actions in order; actions that they cause come after all of them."""
        self._actions.extend(actions)
        if self._doing:
            return
        self._doing = True
        try:
            while self._actions:
                self._do_one(self._actions.popleft())
        finally:
            self._doing = False
        self._set_alarm()

    def _do_one(self, action: Action) -> None:
        match action:
            case Persist(event):
                self._persist(event)
            case Dispatch():
                self._dispatch(action)
            case Answer():
                self._answer(action)
            case KeepDeadLetter():
                self._write_dead_letter(action)
            case KeepSession(session):
                self._session_writer.keep(session)
            case DropSession(session):
                self._session_writer.remove(session)
            case AuditAction():
                self._auditing.record(action.consumer_id, action.operation, (action.message_id,), action.text)

    def _persist(self, event: Event) -> None:
        if isinstance(event, Finished) and event.number in self._withheld:
            return  # `_write_dead_letter` writes it when the letter is kept
        self._events.append(event)
        if isinstance(event, Accepted):
            number = event.number
            self._unsynced[number] = None
            self._then.append(lambda error: self._on_synced(number, error))
        self._flush_soon()

    def _on_synced(self, number: int, error: TransferError | None) -> None:
        """Sends the message: it and its acceptance are on the disk now, the message first."""
        action = self._unsynced.pop(number)
        if action is None or error is not None:
            return
        found = self.dispatcher.inflight.get(number)
        acknowledges = action.session.capabilities.supports_ack
        if not acknowledges or (found is not None and found[0] is action.delivery):
            self._dispatch(action)

    def _dispatch(self, action: Dispatch) -> None:
        if action.queued.number in self._unsynced:
            self._unsynced[action.queued.number] = action
            return
        message = self._message(action.queued)
        if message is None:
            self._do(
                self.dispatcher.remove(
                    action.queued.number, "the message is lost: retention or damage removed it"
                )
            )
            return
        assert self._sink is not None
        sent = self._sink.dispatch(action, message)
        if sent is not Sent.YES:
            self.unsent(action, sent)

    def _answer(self, action: Answer) -> None:
        """Answers when the events that the reply is about are on the disk."""
        sink = self._sink
        assert sink is not None
        if self._events:
            self._then.append(lambda error: None if error else sink.answer(action.peer, action.reply))
            self._flush_soon()
        else:
            sink.answer(action.peer, action.reply)

    def _write_dead_letter(self, action: KeepDeadLetter) -> None:
        """Keeps the dead letter before it finishes the message. After a crash in between, the letter's name
        prevents a second one."""
        queued = action.queued
        self._withheld[action.number] = queued
        message = self._message(queued)
        letter = letter_of_parcel(action, message, time.time_ns() // 1_000_000)
        held = queued.ref in self._held
        large = large_of(message, self._hub.store.log, *queued.ref, held=held)

        def try_it() -> None:
            self._thread.do(lambda: keep_letter(self._letters, letter, large), written)

        def written(error: TransferError | None) -> None:
            if error is not None:
                _log.error("a dead letter could not be kept; the broker retries: %s", error)
                self._loop.call_later(_PAUSE, try_it)
                return
            del self._withheld[action.number]
            self._events.append(Finished(action.number, End.DEAD_LETTERED))
            self._flush_soon()
            if message is not None:
                self._publish(DEAD_LETTERS + queued.facts.topic, message, _words_of(action))

        try_it()

    # -- the journal -------------------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Writes the events of this turn as one record."""
        self._flush_due = self._paused = False
        events, then = self._events, self._then
        if not events and not then:
            return
        try:
            sequence = self._journal.write(events)
        except LogFull as error:
            _log.warning("events of direct delivery are not kept yet: %s", error)
            self._flush_due = self._paused = True
            self._loop.call_later(_PAUSE, self._flush)
            return
        except InternalError as error:
            self._hub.durability.failed(error)
            self._events, self._then = [], []
            complete_all(then)(error)
            return
        self._events, self._then = [], []
        self._hub.durability.when_kept(sequence, complete_all(then) if then else None)

    def _snapshot(self) -> None:
        """Writes a snapshot. It includes the events that are not written yet: a full log takes none."""
        try:
            sequence = self._journal.snapshot(self.dispatcher.state)
        except LogFull as error:
            _log.warning("direct delivery cannot write a snapshot: %s", error)
            return
        then, self._events, self._then = self._then, [], []
        self._hub.durability.when_kept(sequence, complete_all(then) if then else None)

    def _set_alarm(self) -> None:
        left = self.dispatcher.seconds_left(self._now())
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if left is not None and not self._closed:
            self._alarm = self._loop.call_later(left, self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm = None
        self._do(self.dispatcher.tick(self._now()))


def _words_of(letter: KeepDeadLetter) -> dict[str, object]:
    queued = letter.queued
    return {
        "reason": letter.reason,
        "attempts": letter.attempts,
        "original_topic": queued.facts.topic,
        "last_consumer": queued.consumer_id or queued.destination,
        "last_error": letter.error,
    }
