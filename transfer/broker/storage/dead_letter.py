"""Dead letters and filters for them. Does no I/O.

A letter is *dead*. While the broker publishes it again it is *replaying*. A crash during a replay leaves it
*in doubt*: it may have been published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from transfer.broker.core.message import Front
from transfer.broker.storage.audit_chain import Json
from transfer.broker.storage.database import Value


class LetterState(StrEnum):
    """The state of a dead letter."""

    DEAD = "dead"
    REPLAYING = "replaying"
    IN_DOUBT = "in_doubt"


@dataclass(frozen=True, slots=True)
class Reference:
    """A large payload's place in the log, in a letter of an earlier version. Retention may delete it."""

    topic: str
    offset: int


@dataclass(frozen=True, slots=True)
class PayloadFile:
    """The file of a large payload (see `Payloads`). check: CRC-32C of its bytes."""

    name: str
    check: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that could not be delivered.

    delivery_id: identifies the delivery for ever; a replay is another delivery.
    topic: the topic of the delivery, to which a replay publishes.
    original_topic: the topic that the producer named.
    first_ms, last_ms: unix milliseconds of the first attempt and of the end.
    payload: the bytes, or their place; None: not read, `payload_bytes` has the size.
    payload_bytes: size of the message's payload, even if the payload is lost.
    front, head: those of the message; front None: unknown, as an operator or an earlier version wrote the
        letter. head is read only together with the payload.
    number: number of the row, in order of arrival.
    replay: who replays it and why, during a replay.
    damaged: the stored letter fails its checksum.
    """

    delivery_id: str
    message_id: str
    consumer: str
    topic: str
    reason: str
    payload: bytes | Reference | PayloadFile | None = b""
    tenant: str = ""
    original_topic: str = ""
    attempts: int = 0
    last_error: str = ""
    first_ms: int = 0
    last_ms: int = 0
    headers: Mapping[str, Json] = field(default_factory=dict)
    payload_bytes: int = 0
    front: Front | None = None
    head: bytes = b""
    state: LetterState = LetterState.DEAD
    replay: str = ""
    number: int = 0
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects letters: a letter must equal every given value."""

    tenant: str | None = None
    consumer: str | None = None
    topic: str | None = None
    message_id: str | None = None
    reason: str | None = None
    state: LetterState | None = None

    def where(self) -> tuple[str, list[Value]]:
        """Returns an SQL condition and its values."""
        names = ("tenant", "consumer", "topic", "message_id", "reason", "state")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return " AND ".join(["1", *(f"{name} = ?" for name in given)]), [str(one) for one in given.values()]
