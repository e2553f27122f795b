"""One try to deliver a message to one consumer, and when the next one is made. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from transfer.transports.errors import InternalError, OptionError


class Status(StrEnum):
    """Where a delivery stands. The words are the protocol's."""

    DISPATCHED = "dispatched"
    ACKED = "acked"
    NACKED = "nacked"
    EXPIRED = "expired"
    RETRY_SCHEDULED = "retry_scheduled"
    DEAD_LETTERED = "dead_lettered"


#: from each status the ones that may follow. A retry is a delivery of its own.
TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    Status.DISPATCHED: frozenset({Status.ACKED, Status.NACKED, Status.EXPIRED}),
    Status.NACKED: frozenset({Status.RETRY_SCHEDULED, Status.DEAD_LETTERED}),
    Status.EXPIRED: frozenset({Status.RETRY_SCHEDULED, Status.DEAD_LETTERED}),
    Status.RETRY_SCHEDULED: frozenset({Status.DEAD_LETTERED}),
    Status.ACKED: frozenset(),
    Status.DEAD_LETTERED: frozenset(),
}


@dataclass(slots=True)
class Delivery:
    """A message in the hands of a consumer. number: of the message, in the broker's books.

    attempt: counted from 1. dispatched_at, ack_deadline: seconds of the monotonic clock.
    """

    number: int
    message_id: str
    consumer_id: str
    session_id: str
    topic: str
    attempt: int
    dispatched_at: float
    ack_deadline: float
    status: Status = Status.DISPATCHED

    @property
    def delivery_id(self) -> str:
        """Names this try: an ACK of an earlier one does not fit."""
        return f"{self.number}-{self.attempt}"

    def move(self, status: Status) -> None:
        """Raises InternalError where the table has no such step."""
        if status not in TRANSITIONS[self.status]:
            raise InternalError(f"delivery {self.delivery_id} cannot go from {self.status} to {status}")
        self.status = status


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, and after how long, a message is tried again.

    max_attempts: with the first one. initial, limit: seconds. factor: from one pause to the next. jitter:
    the part of a pause that is random, 0 to 1; it only ever shortens. Raises OptionError.
    """

    max_attempts: int = 3
    initial: float = 0.1
    factor: float = 2.0
    limit: float = 30.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise OptionError(f"max_attempts is {self.max_attempts}", hint="1 is: no retry")
        if not (0 <= self.initial <= self.limit and self.factor >= 1 and 0 <= self.jitter <= 1):
            raise OptionError(f"{self} makes no sense", hint="initial <= limit, factor >= 1, jitter 0 to 1")

    def exhausted(self, attempt: int) -> bool:
        """Whether this attempt was the last one."""
        return attempt >= self.max_attempts

    def delay(self, attempt: int, random: Callable[[], float]) -> float:
        """Seconds until the try after this one. random: gives 0 to 1."""
        pause = self.initial
        for _ in range(attempt - 1):  # a power could overflow
            pause = min(pause * self.factor, self.limit)
            if pause >= self.limit:
                break
        return pause * (1 - self.jitter * random())
