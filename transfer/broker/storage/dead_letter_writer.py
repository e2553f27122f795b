"""Writes the dead letter of a message: the database thread adds it to `dead_letter_table.py`."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from transfer.broker.core.dispatcher_events import End, Finished
from transfer.broker.storage.dead_letter import DeadLetter
from transfer.broker.storage.dead_letter_payloads import INLINE
from transfer.broker.storage.topic import LOG_PREFIX
from transfer.transports.core import crc32c
from transfer.transports.errors import LogDamaged

if TYPE_CHECKING:
    from transfer.broker.core.dispatcher_actions import KeepDeadLetter as ActionLetter
    from transfer.broker.core.dispatcher_events import DispatcherState
    from transfer.broker.core.message import Message
    from transfer.broker.delivery.group_contract import Dead
    from transfer.broker.storage.database_thread import DatabaseThread
    from transfer.broker.storage.dead_letter_payloads import PayloadSource
    from transfer.broker.storage.dead_letter_table import DeadLetters
    from transfer.broker.storage.durability import OnComplete
    from transfer.log import Log

_log = logging.getLogger("transfer.broker")

#: bytes of a payload in one copy
_PIECE = 4 << 20
#: prefix of the names of direct delivery's letters
_DIRECT = "direct/"


class DeadLetterWriter:
    """Writes the dead letters of groups.
    A delivery keeps its name for ever, so a letter that was stored before a crash is not stored twice."""

    def __init__(self, thread: DatabaseThread, letters: DeadLetters, log: Log) -> None:
        self._thread = thread
        self._letters = letters
        self._log = log

    def keep(self, dead: Dead, message: Message | None, on_complete: OnComplete) -> None:
        """Writes a dead letter on the database thread, then calls `on_complete` on the loop. Call it on the
        loop. Until then the group holds the message in the log, from which a large payload is copied."""
        now = time.time_ns() // 1_000_000
        large = large_of(message, self._log, LOG_PREFIX + dead.topic, dead.offset)
        self._thread.do(lambda: keep_letter(self._letters, letter_of(dead, message, now), large), on_complete)

    def is_dead_lettered(self, topic: str, group: str, offset: int) -> bool:
        """Whether this message has a letter. Blocks on the database.
        A crash may have come after the letter, but before its group recorded it."""
        try:
            return self._letters.has(name_of(topic, group, offset))
        except LogDamaged:
            return True


def name_of(topic: str, group: str, offset: int) -> str:
    """Returns the letter's name."""
    return f"{topic}/{group}/{offset}"


def keep_letter(letters: DeadLetters, letter: DeadLetter, large: PayloadSource | None) -> None:
    """Writes a letter, without its payload if the log no longer has it. On the database thread.
    Raises what `DeadLetters.add` raises."""
    try:
        letters.add(letter, large=large)
    except LogDamaged as error:
        if large is None:
            raise
        lost = f"its payload is lost: {error}"
        _log.error("dead letter %s: %s", letter.delivery_id, lost)
        letters.add(replace(letter, payload=b"", last_error=lost[:1000]))


def large_of(
    message: Message | None, log: Log, log_name: str, offset: int, *, held: bool = False
) -> PayloadSource | None:
    """Returns the payload of a message in the log, if it is too large for the database, else None.
    held: the message is in memory, and perhaps not on the disk yet."""
    if message is None or message.nbytes <= INLINE:
        return None
    return (lambda: message.parts) if held else partial(_pieces, log, log_name, offset)


def _pieces(log: Log, log_name: str, offset: int) -> Iterator[memoryview]:
    """Yields a blob in separately mapped pieces, so that copied pieces leave memory. Raises LogDamaged."""
    blob = log.blob_at(log_name, offset)
    if blob is None:
        raise LogDamaged(f"message {offset} of {log_name} is no longer in the log")
    crc = 0
    for begin in range(0, blob.nbytes, _PIECE):
        view = blob.view(begin, min(begin + _PIECE, blob.nbytes))
        if view is None:
            raise LogDamaged(f"the payload of message {offset} of {log_name} is no longer in the log")
        crc = crc32c(view, crc)
        yield view
    if crc != blob.crc:
        raise LogDamaged(f"the payload of message {offset} of {log_name} is damaged")


def _small(message: Message | None) -> bytes:
    return bytes(message.payload) if message is not None and message.nbytes <= INLINE else b""


def letter_of(dead: Dead, message: Message | None, now_ms: int) -> DeadLetter:
    """Returns the letter of a message that no consumer could process, without a large payload.
    message: None if it is no longer in the log."""
    name = name_of(dead.topic, dead.group, dead.offset)
    headers = dict(message.headers or {}) if message is not None else {}
    return DeadLetter(
        delivery_id=name,
        message_id=str(headers.get("message_id", name)),
        consumer=dead.group,
        topic=dead.topic,
        reason=dead.reason[:1000],
        payload=_small(message),
        attempts=dead.attempts,
        last_error=dead.reason[:1000],
        first_ms=now_ms - int(dead.failing * 1000),
        last_ms=now_ms,
        headers=headers,
        payload_bytes=message.nbytes if message is not None else 0,
        front=message.front if message is not None else None,
        head=message.head if message is not None else b"",
    )


def finish_dead_lettered(state: DispatcherState, letters: DeadLetters) -> list[Finished]:
    """Finishes messages whose letters were stored before a crash, but whose end was not; returns the events.
    Also reserves the numbers of stored letters."""
    events = []
    for name, message_id in letters.named(_DIRECT):
        digits = name.removeprefix(_DIRECT)
        if not digits.isdecimal():
            continue  # the letter of a group of the topic "direct"
        number = int(digits)
        state.next_number = max(state.next_number, number + 1)
        parcel = state.messages.get(number)
        if parcel is not None and parcel.facts.message_id == message_id:
            events.append(Finished(number, End.DEAD_LETTERED))
            state.apply(events[-1])
    return events


def letter_of_parcel(dead: ActionLetter, message: Message | None, now_ms: int) -> DeadLetter:
    """Returns the letter of a message of direct delivery, as `letter_of` does."""
    parcel = dead.queued
    return DeadLetter(
        delivery_id=f"{_DIRECT}{dead.number}",
        message_id=parcel.facts.message_id,
        tenant=parcel.facts.tenant,
        consumer=parcel.destination,
        topic=parcel.facts.topic,
        reason=dead.reason[:1000],
        payload=_small(message),
        attempts=dead.attempts,
        last_error=dead.error[:1000],
        first_ms=parcel.failed_ms or now_ms,
        last_ms=now_ms,
        headers=dict(message.headers or {}) if message is not None else {},
        payload_bytes=message.nbytes if message is not None else parcel.facts.nbytes,
        front=message.front if message is not None else None,
        head=message.head if message is not None else b"",
    )
