"""Dead letters go into the database, on a thread beside the loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from transfer.broker.core.dispatcher_events import End, Finished
from transfer.broker.delivery.topic import LOG_PREFIX
from transfer.broker.storage.dead_letter import DeadLetter
from transfer.broker.storage.dead_letter_payloads import INLINE
from transfer.transports.core import crc32c
from transfer.transports.errors import LogDamaged

if TYPE_CHECKING:
    from transfer.broker.core.dispatcher_actions import DeadLetter as ActionLetter
    from transfer.broker.core.dispatcher_events import DispatcherState
    from transfer.broker.delivery.group_contract import Dead
    from transfer.broker.delivery.message import Message
    from transfer.broker.storage.database_thread import DatabaseThread
    from transfer.broker.storage.dead_letter_payloads import Large
    from transfer.broker.storage.dead_letters import DeadLetters
    from transfer.broker.storage.durability import OnComplete
    from transfer.log import Log

_log = logging.getLogger("transfer.broker")

#: bytes of a payload that are copied at one time
_PIECE = 4 << 20
#: letters' names of direct delivery begin so
_DIRECT = "direct/"


class DeadLetterWriter:
    """Keeps dead letters of groups. A delivery has one name for ever, so that a letter which was kept before
    a crash is not kept twice. `bury` is called on the loop."""

    def __init__(self, thread: DatabaseThread, letters: DeadLetters, log: Log) -> None:
        self._thread = thread
        self._letters = letters
        self._log = log

    def bury(self, dead: Dead, message: Message | None, on_complete: OnComplete) -> None:
        """Keeps a dead letter; then calls `on_complete` on the loop. Until then its group holds the message
        in the log: a large payload is copied from there."""
        now = time.time_ns() // 1_000_000
        large = large_of(message, self._log, LOG_PREFIX + dead.topic, dead.offset)
        self._thread.do(lambda: keep_letter(self._letters, letter_of(dead, message, now), large), on_complete)

    def is_buried(self, topic: str, group: str, offset: int) -> bool:
        """Whether there is a letter of this message: before a crash its group may not have known. Waits for
        the database."""
        try:
            return self._letters.has(name_of(topic, group, offset))
        except LogDamaged:
            return True


def name_of(topic: str, group: str, offset: int) -> str:
    """The letter's name. Pure."""
    return f"{topic}/{group}/{offset}"


def keep_letter(letters: DeadLetters, letter: DeadLetter, large: Large | None) -> None:
    """Keeps a letter, without its payload where the log has it no more. On the state's thread. Raises what
    `DeadLetters.add` does."""
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
) -> Large | None:
    """The payload of a message that stands in the log there, if it is too large for the database. held: it is
    in memory, and perhaps not on the disk yet."""
    if message is None or message.nbytes <= INLINE:
        return None
    return (lambda: message.parts) if held else partial(_pieces, log, log_name, offset)


def _pieces(log: Log, log_name: str, offset: int) -> Iterator[memoryview]:
    """Each is a mapping of its own: what was copied leaves the memory. Raises LogDamaged."""
    blob = log.blob_at(log_name, offset)
    if blob is None:
        raise LogDamaged(f"message {offset} of {log_name} is not kept any more")
    crc = 0
    for begin in range(0, blob.nbytes, _PIECE):
        view = blob.view(begin, min(begin + _PIECE, blob.nbytes))
        if view is None:
            raise LogDamaged(f"the payload of message {offset} of {log_name} is not kept any more")
        crc = crc32c(view, crc)
        yield view
    if crc != blob.crc:
        raise LogDamaged(f"the payload of message {offset} of {log_name} is not what was written")


def _small(message: Message | None) -> bytes:
    return bytes(message.payload) if message is not None and message.nbytes <= INLINE else b""


def letter_of(dead: Dead, message: Message | None, now_ms: int) -> DeadLetter:
    """The letter of a message that nobody could process, without a payload that is large. message: None if it
    is gone. Pure."""
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


def finish_buried(books: DispatcherState, letters: DeadLetters) -> list[Finished]:
    """Finishes messages whose letters were kept before a crash, which came before that was written; and no
    number of a letter is given again."""
    events = []
    for name, message_id in letters.named(_DIRECT):
        digits = name.removeprefix(_DIRECT)
        if not digits.isdecimal():
            continue  # of a group of the topic "direct"
        number = int(digits)
        books.next_number = max(books.next_number, number + 1)
        parcel = books.messages.get(number)
        if parcel is not None and parcel.facts.message_id == message_id:
            events.append(Finished(number, End.DEAD_LETTERED))
            books.apply(events[-1])
    return events


def letter_of_parcel(dead: ActionLetter, message: Message | None, now_ms: int) -> DeadLetter:
    """The same of a message for direct delivery. Pure."""
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
