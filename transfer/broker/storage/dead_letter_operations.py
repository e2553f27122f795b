"""Operators' calls on dead letters: browse, replay, quarantine, purge. Every change is audited.

A change is one transaction of the store, together with a note of it. Then the note is appended to the audit
and removed. After a crash in between, the note is still there and is audited once.
A replay marks its letters, publishes them one by one, and removes them. A crash in between leaves them in
doubt. Only an explicit request replays a letter in doubt.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence

from transfer.broker.storage.audit import Audit
from transfer.broker.storage.audit_chain import ALL, Action, AuditEvent, AuditWindow, Json
from transfer.broker.storage.dead_letter import DeadLetter, Filter, LetterState
from transfer.broker.storage.dead_letter_requests import (
    MAX_NAME,
    PURGE,
    REPLAY,
    Failure,
    RequestOutcome,
    action_of,
    check_actor,
    check_call,
    check_limit,
    check_text,
    choose,
    letter_summary,
    unfit_to_purge,
    unfit_to_replay,
)
from transfer.broker.storage.dead_letter_table import DeadLetters, Note
from transfer.transports.errors import Closed, LogFull, StateError, TransferError, UsageError

_log = logging.getLogger("transfer.broker")
#: publishes a letter, which is stored on return, to its consumer and topic; the text is the replay's id
Publish = Callable[[DeadLetter, str], None]


class Operator:
    """Runs operators' calls, one at a time. Thread-safe. Calls block on disks and on `publish`.

    The constructor settles changes that a crash interrupted.
    publish: called in the thread that calls `replay`. It raises UsageError, LogFull or Closed if it did not
    publish; after any other error the letter is in doubt. clock: returns unix milliseconds.
    """

    def __init__(
        self,
        letters: DeadLetters,
        audit: Audit,
        publish: Publish,
        *,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._letters = letters
        self._audit = audit
        self._publish = publish
        self._clock = clock
        self._lock = threading.Lock()
        self._settle()
        self._recover()

    @property
    def audit(self) -> Audit:
        """The audit, which records every change."""
        return self._audit

    # -- reading -----------------------------------------------------------------------------------------

    def browse(
        self, filter: Filter, *, after: int = 0, limit: int = 100
    ) -> tuple[Sequence[DeadLetter], int | None]:
        """Returns letters without payloads, and the `after` of the next page; None: it is the last page."""
        limit = check_limit(limit)
        found = self._letters.page(filter, after=after, limit=limit + 1)
        return found[:limit], found[limit - 1].number if len(found) > limit else None

    def inspect(self, id: str, tenant: str | None = None) -> Sequence[DeadLetter]:
        """Returns the letter of a delivery, or all of a message. Reads their payloads, to detect damage."""
        return [self._letters.checked(one) for one in self._letters.find(id, tenant)]

    def begin(self, letter: DeadLetter, nbytes: int) -> bytes:
        """Returns the first bytes of the payload, from the database or from its file."""
        return self._letters.begin(letter, nbytes)

    def events(self, window: AuditWindow = ALL, *, limit: int = 100) -> Sequence[AuditEvent]:
        """Returns audit events, the oldest first."""
        return [*self._audit.events(window, limit=check_limit(limit))]

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
    ) -> RequestOutcome:
        """Publishes letters again. target_consumer and target_topic must equal those of the letters.

        ids: of deliveries, or of messages that have one letter for the target. again: also replays letters in
        doubt, which may have been published before. Raises UsageError for a call that is invalid as a whole,
        the stores' errors, and those errors of `publish` that are no TransferError.
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
            return RequestOutcome(len(wanted), done, tuple(failures), audited)

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
        """Quarantines a message: returns its letter, and whether the change is audited already.
        Raises StateError if the message already has a letter for this consumer and topic, UsageError."""
        for name, text in (("id", message_id), ("consumer", consumer), ("topic", topic)):
            check_text(name, text, MAX_NAME)
        check_text("tenant", tenant, MAX_NAME, empty=True)
        check_actor(actor, reason)
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
                actor, "dead_letter", (message_id,), reason, [], [letter_summary(letter) | {"state": "dead"}]
            )
            if not self._letters.add(letter, note=self._note(action)):
                raise StateError(f"the dead letter {letter.delivery_id!r} is there already")
            return letter, self._audit_note()

    def purge(
        self, ids: Sequence[str], *, actor: str, reason: str, confirm: str, tenant: str | None = None
    ) -> RequestOutcome:
        """Deletes letters. ids: of deliveries, or of messages with one letter."""
        wanted = check_call(ids, actor, reason, confirm, PURGE)
        with self._lock:
            self._settle()
            chosen, failures = choose({id: self._letters.find(id, tenant) for id in wanted}, unfit_to_purge)
            audited = True
            if chosen:
                after: Mapping[str, str] = dict.fromkeys((one.delivery_id for one in chosen), "purged")
                self._letters.remove([*after], self._note(action_of(actor, "purge", reason, chosen, after)))
                audited = self._audit_note()
            return RequestOutcome(
                len(wanted), tuple(one.delivery_id for one in chosen), tuple(failures), audited
            )

    def _replay(
        self, chosen: Sequence[DeadLetter], actor: str, reason: str
    ) -> tuple[tuple[str, ...], list[Failure], bool]:
        """Returns the published deliveries, the failures, and whether the change is audited already."""
        call = uuid.uuid4().hex
        about = json.dumps({"actor": actor, "reason": reason})
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
                    after[letter.delivery_id] = str(LetterState.IN_DOUBT)
                    failures.append(Failure(letter.delivery_id, "in_doubt", str(error)))
        except BaseException:
            # Ctrl-C, or a bug in `publish`: the letter may have been published.
            after[letter.delivery_id] = str(LetterState.IN_DOUBT)
            raise
        finally:
            audited = self._end_replay(action_of(actor, "replay", reason, chosen, after), after)
        return tuple(id for id, state in after.items() if state == "replayed"), failures, audited

    def _end_replay(self, action: Action, after: Mapping[str, str]) -> bool:
        published = [id for id, state in after.items() if state == "replayed"]
        kept = {id: LetterState(state) for id, state in after.items() if state != "replayed"}
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
        """Audits the change just made; returns False, and logs the error, if that fails."""
        try:
            for note in self._letters.notes():
                self._audit.append(_decode_note(note)[1], self._clock())
                self._letters.forget(note)
        except TransferError as error:
            _log.error("an operator's change cannot be audited yet: %s", error)
            return False
        return True

    def _settle(self) -> None:
        """Audits each earlier change that is not audited yet, once. Raises the stores' errors."""
        for note in self._letters.notes():
            after, action = _decode_note(note)
            if not any(event.action == action for event in self._audit.events(AuditWindow(after=after))):
                self._audit.append(action, self._clock())
            self._letters.forget(note)

    def _recover(self) -> None:
        """Ends the replays that a crash interrupted."""
        for letter in self._letters.page(Filter(state=LetterState.REPLAYING), limit=-1):
            try:
                about = json.loads(letter.replay)
                actor, reason = str(about["actor"]), str(about["reason"])
            except (ValueError, KeyError, TypeError):
                actor = reason = ""
            state = str(LetterState.IN_DOUBT)
            id = letter.delivery_id
            _log.warning("a crash interrupted the replay of dead letter %s: it is %s now", id, state)
            self._end_replay(
                action_of(actor, "replay_interrupted", reason, [letter], {id: state}), {id: state}
            )


def _replay_id(call: str, letter: DeadLetter) -> str:
    return f"{call}:{letter.delivery_id}"


def _decode_note(note: Note) -> tuple[int, Action]:
    values = json.loads(note.content)
    after = values.pop("after")
    return after, Action(**values | {"message_ids": tuple(values["message_ids"])})
