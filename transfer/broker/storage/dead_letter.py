"""What a dead letter is, and how letters are asked for. Pure.

A letter is *dead*; while it is published again it is *replaying*; a crash in that moment leaves it *in
doubt*, since it may have been published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from transfer.broker.delivery.message import Front
from transfer.broker.storage.audit_chain import Json
from transfer.broker.storage.database import Value


class State(StrEnum):
    """What becomes of a letter."""

    DEAD = "dead"
    REPLAYING = "replaying"
    IN_DOUBT = "in_doubt"


@dataclass(frozen=True, slots=True)
class Reference:
    """Where a large payload lies in the log, of a letter that an earlier version wrote: retention may take
    it."""

    topic: str
    offset: int


@dataclass(frozen=True, slots=True)
class Filed:
    """A large payload in a file of its own (`payloads.Payloads`). check: CRC-32C of its bytes."""

    name: str
    check: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A delivery that was given up.

    delivery_id: names it once and for all; a replay is another delivery. topic: of the delivery, where a
    replay goes; original_topic: what the producer said. first_ms, last_ms: unix milliseconds of the first
    attempt and of the end. payload: bytes, or where they lie; None: not read (`payload_bytes` tells).
    front, head: as the message had them; None: nobody knows, as it was written by hand or by an earlier
    version. head is not read where the payload is not. number: of its row, in the order of arrival.
    payload_bytes: of the message; more than there are where its payload was lost. replay: who replays it and
    why, while it is replaying. damaged: it is not what was written.
    """

    delivery_id: str
    message_id: str
    consumer: str
    topic: str
    reason: str
    payload: bytes | Reference | Filed | None = b""
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
    state: State = State.DEAD
    replay: str = ""
    number: int = 0
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class Filter:
    """Which letters are asked for: all that is given has to be equal."""

    tenant: str | None = None
    consumer: str | None = None
    topic: str | None = None
    message_id: str | None = None
    reason: str | None = None
    state: State | None = None

    def where(self) -> tuple[str, list[Value]]:
        """A condition of SQL and its values."""
        names = ("tenant", "consumer", "topic", "message_id", "reason", "state")
        asked = {name: value for name in names if (value := getattr(self, name)) is not None}
        return " AND ".join(["1", *(f"{name} = ?" for name in asked)]), [str(one) for one in asked.values()]
