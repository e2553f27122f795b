"""A delivery, one attempt to deliver a message to a consumer, and the time of the next one. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from transfer.transports.errors import InternalError, OptionError


class Status(StrEnum):
    """The status of a delivery. The values are those of the protocol."""

    DISPATCHED = "dispatched"
    ACKED = "acked"
    NACKED = "nacked"
    EXPIRED = "expired"
    RETRY_SCHEDULED = "retry_scheduled"
    DEAD_LETTERED = "dead_lettered"


#: the statuses that may follow each status; a retry is a new delivery
TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    Status.DISPATCHED: frozenset({Status.ACKED, Status.NACKED, Status.EXPIRED}),
    Status.NACKED: frozenset({Status.RETRY_SCHEDULED, Status.DEAD_LETTERED}),
    Status.EXPIRED: frozenset({Status.RETRY_SCHEDULED, Status.DEAD_LETTERED}),
    Status.RETRY_SCHEDULED: frozenset({Status.DEAD_LETTERED}),
    Status.ACKED: frozenset(),
    Status.DEAD_LETTERED: frozenset(),
}


@dataclass(slots=True)
class DirectDelivery:
    """A message that a consumer holds. number: of the message, in the dispatcher's state.

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
        """The name of this attempt: an ACK of an earlier one does not match."""
        return f"{self.number}-{self.attempt}"

    def move(self, status: Status) -> None:
        """Changes the status. Raises InternalError if TRANSITIONS does not allow it."""
        if status not in TRANSITIONS[self.status]:
            raise InternalError(f"delivery {self.delivery_id} cannot go from {self.status} to {status}")
        self.status = status


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a message is retried, and after which delays. Raises OptionError.

    max_attempts: including the first. initial, limit: seconds. factor: between successive delays. jitter: the
    random part of a delay, 0 to 1; it only shortens the delay.
    """

    max_attempts: int = 3
    initial: float = 0.1
    factor: float = 2.0
    limit: float = 30.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise OptionError(f"max_attempts is {self.max_attempts}", hint="1 means no retry")
        if not (0 <= self.initial <= self.limit and self.factor >= 1 and 0 <= self.jitter <= 1):
            raise OptionError(f"{self} makes no sense", hint="initial <= limit, factor >= 1, jitter 0 to 1")

    def exhausted(self, attempt: int) -> bool:
        """Returns whether this attempt was the last one."""
        return attempt >= self.max_attempts

    def delay(self, attempt: int, random: Callable[[], float]) -> float:
        """Returns the seconds from this attempt to the next. random: gives 0 to 1."""
        pause = self.initial
        for _ in range(attempt - 1):  # a power could overflow
            pause = min(pause * self.factor, self.limit)
            if pause >= self.limit:
                break
        return pause * (1 - self.jitter * random())
