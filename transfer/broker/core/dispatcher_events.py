"""The events of direct delivery, and how they are encoded in the log. Pure.

An event is `version 1 | kind 1 | number 8`, little-endian, then the fields of its class: integers of a fixed
size, then texts as a 4-byte length and UTF-8. The same events in order, applied by `DispatcherState.apply`,
give the same state.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from transfer.transports.errors import LogDamaged

VERSION = 1
_HEAD = struct.Struct("<BBQ")
_ACCEPTED = struct.Struct("<QQQQIB")
_ATTEMPT = struct.Struct("<I")
_LENGTH = struct.Struct("<I")


class LogPosition(NamedTuple):
    """The place of a message's bytes: a topic of the log and an offset."""

    topic: str
    offset: int


@dataclass(frozen=True, slots=True)
class MessageInfo:
    """What the dispatcher knows of a message. Times in milliseconds since 1970, 0: none.

    expires_ms: when it expires. due_ms: when it is due; it waits until then. priority: a class
    (`priority_queue.WEIGHTS`). pinned: it is for this destination only, whatever other routes exist.
    """

    tenant: str
    topic: str
    message_id: str
    producer_id: str
    nbytes: int = 0
    priority: str = "normal"
    expires_ms: int = 0
    due_ms: int = 0
    pinned: bool = False


class End(IntEnum):
    """How a message was finished. The numbers stand in the log: they never change."""

    ACKED = 1
    SENT = 2  # to a consumer that does not acknowledge
    DEAD_LETTERED = 3
    PURGED = 4  # by an operator


@dataclass(frozen=True, slots=True)
class Accepted:
    """The broker took a message for a destination. attempt, error, consumer_id: of earlier attempts, in a
    snapshot."""

    number: int
    destination: str
    facts: MessageInfo
    ref: LogPosition
    attempt: int = 0
    error: str = ""
    consumer_id: str = ""


@dataclass(frozen=True, slots=True)
class Dispatched:
    """An attempt begins; the event is written before the message is sent."""

    number: int
    attempt: int
    consumer_id: str
    session_id: str


@dataclass(frozen=True, slots=True)
class Returned:
    """The message waits again. attempt: attempts that count; one fewer if the last could not be sent."""

    number: int
    attempt: int
    error: str


@dataclass(frozen=True, slots=True)
class Moved:
    """The message waits for another destination, because its first one is gone."""

    number: int
    destination: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The broker has finished the message; its bytes need not be kept."""

    number: int
    end: End


Event = Accepted | Dispatched | Returned | Moved | Finished
_KINDS: dict[type[Event], int] = {Accepted: 1, Dispatched: 2, Returned: 3, Moved: 4, Finished: 5}


def encode(event: Event) -> bytes:
    """Encodes an event."""
    head = _HEAD.pack(VERSION, _KINDS[type(event)], event.number)
    match event:
        case Accepted(_, destination, facts, ref, attempt, error, consumer_id):
            numbers = (facts.nbytes, facts.expires_ms, facts.due_ms, ref.offset, attempt, facts.pinned)
            texts = (facts.tenant, facts.topic, facts.message_id, facts.producer_id, facts.priority)
            more = (ref.topic, destination, error, consumer_id)
            return head + _ACCEPTED.pack(*numbers) + _texts(*texts, *more)
        case Dispatched(_, attempt, consumer_id, session_id):
            return head + _ATTEMPT.pack(attempt) + _texts(consumer_id, session_id)
        case Returned(_, attempt, error):
            return head + _ATTEMPT.pack(attempt) + _texts(error)
        case Moved(_, destination):
            return head + _texts(destination)
        case Finished(_, end):
            return head + bytes((end,))


def decode(data: bytes | memoryview) -> Event:
    """Decodes an event. Raises LogDamaged."""
    try:
        version, kind, number = _HEAD.unpack_from(data)
        if version != VERSION:
            raise ValueError(f"version {version}")
        return _decode(kind, number, data)
    except (struct.error, ValueError, IndexError) as error:
        raise LogDamaged(f"an event of direct delivery cannot be read: {error}") from error


def _decode(kind: int, number: int, data: bytes | memoryview) -> Event:
    at = _HEAD.size
    match kind:
        case 1:
            nbytes, expires, due, offset, attempt, pinned = _ACCEPTED.unpack_from(data, at)
            texts = _read(data, at + _ACCEPTED.size, 9)
            tenant, topic, message_id, producer_id, priority, kept_in, destination, error, consumer = texts
            facts = MessageInfo(
                tenant, topic, message_id, producer_id, nbytes, priority, expires, due, bool(pinned)
            )
            return Accepted(
                number, destination, facts, LogPosition(kept_in, offset), attempt, error, consumer
            )
        case 2:
            return Dispatched(number, *_ATTEMPT.unpack_from(data, at), *_read(data, at + _ATTEMPT.size, 2))
        case 3:
            return Returned(number, *_ATTEMPT.unpack_from(data, at), *_read(data, at + _ATTEMPT.size, 1))
        case 4:
            return Moved(number, *_read(data, at, 1))
        case 5:
            if len(data) != at + 1:
                raise ValueError("wrong length")
            return Finished(number, End(data[at]))
    raise ValueError(f"kind {kind}")


def _texts(*texts: str) -> bytes:
    return b"".join(_LENGTH.pack(len(data)) + data for data in (text.encode() for text in texts))


def _read(data: bytes | memoryview, at: int, count: int) -> list[str]:
    texts: list[str] = []
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size + length
        texts.append(str(data[at - length : at], "utf-8"))
    if at != len(data):
        raise ValueError("wrong length")
    return texts


@dataclass(slots=True)
class QueuedMessage:
    """A message that is not finished. attempt: attempts that were begun. error: of the last one.

    session_id: the session that holds it; "": it waits. consumer_id: that held it last. failed_ms: time of
    the first failure since the start, in milliseconds since 1970; 0: none.
    """

    number: int
    destination: str
    facts: MessageInfo
    ref: LogPosition
    attempt: int = 0
    error: str = ""
    consumer_id: str = ""
    session_id: str = ""
    failed_ms: int = field(default=0, compare=False)

    @property
    def key(self) -> tuple[str, str]:
        """The consumer that the message is for."""
        return self.facts.tenant, self.destination


@dataclass(slots=True)
class DispatcherState:
    """All unfinished messages, by number. next_number: of the next accepted message."""

    messages: dict[int, QueuedMessage] = field(default_factory=dict)
    next_number: int = 1

    def apply(self, event: Event) -> None:
        """Applies an event. It ignores messages that are finished or unknown."""
        if isinstance(event, Accepted):
            self.messages[event.number] = QueuedMessage(
                event.number, event.destination, event.facts, event.ref, event.attempt, event.error,
                event.consumer_id,
            )  # fmt: skip
        self.next_number = max(self.next_number, event.number + 1)
        queued = self.messages.get(event.number)
        if queued is None:
            return
        match event:
            case Dispatched():
                queued.attempt, queued.session_id = event.attempt, event.session_id
                queued.consumer_id = event.consumer_id
            case Returned():
                queued.attempt, queued.session_id, queued.error = event.attempt, "", event.error
            case Moved():
                queued.destination = event.destination
            case Finished():
                del self.messages[event.number]
            case Accepted():
                pass

    def snapshot(self) -> list[Event]:
        """Returns the shortest list of events that gives this state and may replace all events so far.

        Its first event names the last number used, so that no number is used twice.
        """
        last = self.next_number - 1
        events: list[Event] = [Finished(last, End.PURGED)] if last and last not in self.messages else []
        for number, queued in self.messages.items():
            before = queued.attempt, queued.error, queued.consumer_id
            events.append(Accepted(number, queued.destination, queued.facts, queued.ref, *before))
            if queued.session_id:
                events.append(Dispatched(number, queued.attempt, queued.consumer_id, queued.session_id))
        return events
