"""What operators do to dead letters: look, replay, quarantine, purge. Every change is audited.

A change is one transaction of the store, together with a note of it; then the audit gets the note as an
event, and the note goes. After a crash in between the note is still there, and is audited once.
A replay marks its letters first, publishes them one by one, and removes them: a crash in between
leaves them in doubt, unless `published` can say whether they went out. Nobody replays those by accident.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence

from transfer.broker.storage.audit import Audit
from transfer.broker.storage.audit_chain import ALL, Action, Event, Json, Window
from transfer.broker.storage.dead_letter import DeadLetter, Filter, State
from transfer.broker.storage.dead_letter_requests import (
    MAX_NAME,
    PURGE,
    REPLAY,
    Failure,
    Outcome,
    action_of,
    check_call,
    check_text,
    check_who,
    choose,
    told,
    unfit_to_purge,
    unfit_to_replay,
    within,
)
from transfer.broker.storage.dead_letters import DeadLetters, Note
from transfer.transports.errors import Closed, LogFull, StateError, TransferError, UsageError

_log = logging.getLogger("transfer.broker")
#: publishes a letter to its consumer and topic; kept when it returns. The second is the replay's id
Publish = Callable[[DeadLetter, str], None]
#: whether the replay with this id was published; None: nobody knows
Published = Callable[[str], bool | None]


class Operator:
    """Operators' calls, one at a time; thread-safe. They block: for disks, and for `publish`.

    publish is called in the thread that calls `replay`. It raises UsageError, LogFull or Closed when it did
    not publish; after any other error the letter is in doubt. What a crash left is settled at once.
    clock: unix milliseconds.
    """

    def __init__(
        self,
        letters: DeadLetters,
        audit: Audit,
        publish: Publish,
        *,
        published: Published | None = None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._letters = letters
        self._audit = audit
        self._publish = publish
        self._clock = clock
        self._lock = threading.Lock()
        self._settle()
        self._recover(published or (lambda _: None))

    @property
    def audit(self) -> Audit:
        """The chain that tells of every change."""
        return self._audit

    # -- looking -----------------------------------------------------------------------------------------

    def browse(
        self, asked: Filter, *, after: int = 0, limit: int = 100
    ) -> tuple[Sequence[DeadLetter], int | None]:
        """Letters without their payloads, and what to give as `after` for the next ones; None: no more."""
        limit = within(limit)
        found = self._letters.page(asked, after=after, limit=limit + 1)
        return found[:limit], found[limit - 1].number if len(found) > limit else None

    def inspect(self, id: str, tenant: str | None = None) -> Sequence[DeadLetter]:
        """The letter of a delivery, or all of a message, with their payloads. Reads all of those, so that
        damage is told."""
        return [self._letters.checked(one) for one in self._letters.find(id, tenant)]

    def begin(self, letter: DeadLetter, nbytes: int) -> bytes:
        """The first bytes of its payload, wherever that lies."""
        return self._letters.begin(letter, nbytes)

    def events(self, window: Window = ALL, *, limit: int = 100) -> Sequence[Event]:
        """What was done, the oldest first."""
        return [*self._audit.events(window, limit=within(limit))]

    # -- changing ----------------------------------------------------------------------------------------

    def replay(
        self,
        ids: Sequence[str],
        target_consumer: str,
        target_topic: str,
        *,
        actor: str,
        reason: str,
        confirm: str,
        tenant: str | None = None,
        again: bool = False,
    ) -> Outcome:
        """Publishes letters again, to the consumer and topic that they had, which have to be said exactly.

        ids: of deliveries, or of messages that have one letter for the target. again: those in doubt too,
        which may have been published before. Raises UsageError when the call is wrong as a whole, what
        the stores raise, and what `publish` raises that is no TransferError.
        """
        wanted = check_call(ids, actor, reason, confirm, REPLAY)
        with self._lock:
            self._settle()
            chosen, failures = choose(
                {id: self.inspect(id, tenant) for id in wanted},
                lambda letter: unfit_to_replay(letter, target_consumer, target_topic, again),
            )
            done: tuple[str, ...] = ()
            audited = True
            if chosen:
                done, refused, audited = self._replay(chosen, actor, reason)
                failures += refused
            return Outcome(len(wanted), done, tuple(failures), audited)

    def dead_letter(
        self,
        message_id: str,
        consumer: str,
        topic: str,
        payload: bytes,
        *,
        actor: str,
        reason: str,
        tenant: str = "",
        headers: Mapping[str, Json] | None = None,
    ) -> tuple[DeadLetter, bool]:
        """Quarantines a message by hand: its letter, and whether the audit has it already.

        Raises StateError if the message has a letter for that consumer already, UsageError.
        """
        for name, text in (("id", message_id), ("consumer", consumer), ("topic", topic)):
            check_text(name, text, MAX_NAME)
        check_text("tenant", tenant, MAX_NAME, empty=True)
        check_who(actor, reason)
        now = self._clock()
        letter = DeadLetter(
            delivery_id="/".join(filter(None, ("manual", tenant, consumer, topic, message_id))),
            message_id=message_id,
            tenant=tenant,
            consumer=consumer,
            topic=topic,
            original_topic=topic,
            reason=reason,
            payload=payload,
            payload_bytes=len(payload),
            headers=headers or {},
            first_ms=now,
            last_ms=now,
        )
        with self._lock:
            self._settle()
            if any(
                (one.consumer, one.topic) == (consumer, topic)
                for one in self._letters.find(message_id, tenant)
            ):
                raise StateError(f"{message_id!r} is a dead letter of {consumer!r} and {topic!r} already")
            action = Action(
                actor, "dead_letter", (message_id,), reason, [], [told(letter) | {"state": "dead"}]
            )
            if not self._letters.add(letter, note=self._note(action)):
                raise StateError(f"the dead letter {letter.delivery_id!r} is there already")
            return letter, self._audit_note()

    def purge(
        self, ids: Sequence[str], *, actor: str, reason: str, confirm: str, tenant: str | None = None
    ) -> Outcome:
        """Removes letters for good. ids: of deliveries, or of messages with one letter."""
        wanted = check_call(ids, actor, reason, confirm, PURGE)
        with self._lock:
            self._settle()
            chosen, failures = choose({id: self._letters.find(id, tenant) for id in wanted}, unfit_to_purge)
            audited = True
            if chosen:
                after: Mapping[str, str] = dict.fromkeys((one.delivery_id for one in chosen), "purged")
                self._letters.remove([*after], self._note(action_of(actor, "purge", reason, chosen, after)))
                audited = self._audit_note()
            return Outcome(len(wanted), tuple(one.delivery_id for one in chosen), tuple(failures), audited)

    def _replay(
        self, chosen: Sequence[DeadLetter], actor: str, reason: str
    ) -> tuple[tuple[str, ...], list[Failure], bool]:
        """The deliveries that were published, why others were not, and whether the audit has it."""
        call = uuid.uuid4().hex
        about = json.dumps({"call": call, "actor": actor, "reason": reason})
        self._letters.begin_replay([one.delivery_id for one in chosen], about)
        after: dict[str, str] = {one.delivery_id: str(one.state) for one in chosen}
        failures = []
        letter = chosen[0]
        try:
            for letter in chosen:
                try:
                    self._publish(letter, _replay_id(call, letter))
                    after[letter.delivery_id] = "replayed"
                except (UsageError, LogFull, Closed) as error:
                    failures.append(Failure(letter.delivery_id, "publish", str(error)))
                except TransferError as error:
                    after[letter.delivery_id] = str(State.IN_DOUBT)
                    failures.append(Failure(letter.delivery_id, "in_doubt", str(error)))
        except BaseException:
            # Ctrl-C, or a mistake within: it may have been published.
            after[letter.delivery_id] = str(State.IN_DOUBT)
            raise
        finally:
            audited = self._end_replay(action_of(actor, "replay", reason, chosen, after), after)
        return tuple(id for id, state in after.items() if state == "replayed"), failures, audited

    def _end_replay(self, action: Action, after: Mapping[str, str]) -> bool:
        published = [id for id, state in after.items() if state == "replayed"]
        kept = {id: State(state) for id, state in after.items() if state != "replayed"}
        self._letters.end_replay(published, kept, self._note(action))
        return self._audit_note()

    # -- the audit, and crashes --------------------------------------------------------------------------

    def _note(self, action: Action) -> str:
        event = {
            "after": self._audit.head.sequence,
            "actor": action.actor,
            "operation": action.operation,
            "message_ids": action.message_ids,
            "reason": action.reason,
            "prior_state": action.prior_state,
            "resulting_state": action.resulting_state,
        }
        return json.dumps(event)

    def _audit_note(self) -> bool:
        """Audits what was just done; False if that failed, and was told."""
        try:
            for note in self._letters.notes():
                self._audit.append(_noted(note)[1], self._clock())
                self._letters.forget(note)
        except TransferError as error:
            _log.error("what an operator did is not audited yet: %s", error)
            return False
        return True

    def _settle(self) -> None:
        """Audits what was done before and is not audited, each once. Raises what the stores raise."""
        for note in self._letters.notes():
            after, action = _noted(note)
            if not any(event.action == action for event in self._audit.events(Window(after=after))):
                self._audit.append(action, self._clock())
            self._letters.forget(note)

    def _recover(self, published: Published) -> None:
        """Settles letters that a crash left in mid-replay."""
        for letter in self._letters.page(Filter(state=State.REPLAYING), limit=-1):
            try:
                about = json.loads(letter.replay)
                call, actor, reason = str(about["call"]), str(about["actor"]), str(about["reason"])
            except (ValueError, KeyError, TypeError):
                call = actor = reason = ""
            known = published(_replay_id(call, letter))
            state = {True: "replayed", False: str(State.DEAD), None: str(State.IN_DOUBT)}[known]
            _log.warning("a crash came into the replay of %s, which is %s now", letter.delivery_id, state)
            after = {letter.delivery_id: state}
            self._end_replay(action_of(actor, "replay_interrupted", reason, [letter], after), after)


def _replay_id(call: str, letter: DeadLetter) -> str:
    return f"{call}:{letter.delivery_id}"


def _noted(note: Note) -> tuple[int, Action]:
    said = json.loads(note.content)
    after = said.pop("after")
    return after, Action(**said | {"message_ids": tuple(said["message_ids"])})
