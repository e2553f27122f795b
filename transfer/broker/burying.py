"""Dead letters go into the database, on a thread beside the loop."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from transfer.broker.state.letter import DeadLetter, Reference
from transfer.broker.topic import LOG_PREFIX
from transports.errors import LogDamaged

if TYPE_CHECKING:
    from transfer.broker.durability import Told
    from transfer.broker.engine.direct_actions import DeadLetter as ActionLetter
    from transfer.broker.groups import Dead
    from transfer.broker.message import Message
    from transfer.broker.state.dead_letters import DeadLetters
    from transfer.broker.state.thread import StateThread

#: payloads up to so many bytes lie in the database, larger ones stay in the log
_INLINE = 64 << 10


class Burying:
    """Keeps dead letters of groups. A delivery has one name for ever, so that a letter which was kept before
    a crash is not kept twice. `bury` is called on the loop."""

    def __init__(self, thread: StateThread, letters: DeadLetters) -> None:
        self._thread = thread
        self._letters = letters

    def bury(self, dead: Dead, message: Message | None, told: Told) -> None:
        """Keeps a dead letter; then calls `told` on the loop."""
        letter = letter_of(dead, message, time.time_ns() // 1_000_000)
        self._thread.do(lambda: self._letters.add(letter), told)

    def is_buried(self, topic: str, group: str, offset: int) -> bool:
        """Whether there is a letter of this message: before a crash its group may not have known. Waits for
        the database."""
        try:
            return self._letters.get(name_of(topic, group, offset)) is not None
        except LogDamaged:
            return True


def name_of(topic: str, group: str, offset: int) -> str:
    """The letter's name. Pure."""
    return f"{topic}/{group}/{offset}"


def letter_of(dead: Dead, message: Message | None, now_ms: int) -> DeadLetter:
    """The letter of a message that nobody could process. message: None if it is gone. Pure."""
    name = name_of(dead.topic, dead.group, dead.offset)
    headers = dict(message.headers or {}) if message is not None else {}
    payload: bytes | Reference = b""
    nbytes = 0
    if message is not None:
        nbytes = message.nbytes
        payload = (
            bytes(message.payload) if nbytes <= _INLINE else Reference(LOG_PREFIX + dead.topic, dead.offset)
        )
    return DeadLetter(
        delivery_id=name,
        message_id=str(headers.get("message_id", name)),
        consumer=dead.group,
        topic=dead.topic,
        reason=dead.reason[:1000],
        payload=payload,
        attempts=dead.attempts,
        last_error=dead.reason[:1000],
        last_ms=now_ms,
        headers=headers,
        payload_bytes=nbytes,
    )


def letter_of_parcel(dead: ActionLetter, message: Message | None, now_ms: int) -> DeadLetter:
    """The letter of a message for direct delivery. message: None if it is gone. Pure."""
    parcel = dead.parcel
    payload: bytes | Reference = b""
    if message is not None:
        small = message.nbytes <= _INLINE
        payload = bytes(message.payload) if small else Reference(*parcel.ref)
    return DeadLetter(
        delivery_id=f"direct/{dead.number}",
        message_id=parcel.facts.message_id,
        tenant=parcel.facts.tenant,
        consumer=parcel.destination,
        topic=parcel.facts.topic,
        reason=dead.reason[:1000],
        payload=payload,
        attempts=dead.attempts,
        last_error=dead.error[:1000],
        last_ms=now_ms,
        headers=dict(message.headers or {}) if message is not None else {},
        payload_bytes=parcel.facts.nbytes,
    )
