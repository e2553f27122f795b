"""The requests that the dispatcher takes, and the actions that it returns. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from transfer.broker.core.admission import Limit
from transfer.broker.core.delivery import DirectDelivery
from transfer.broker.core.dispatcher_events import Event, MessageInfo, QueuedMessage
from transfer.broker.core.sessions import ConsumerCapabilities, Session


class Now(NamedTuple):
    """The time, as the caller reads it. Neither clock is ever set back.

    seconds: of the monotonic clock, for deadlines of sessions and acknowledgements, and for delays between
    attempts. unix_ms: milliseconds since 1970, for the times in messages.
    """

    seconds: float
    unix_ms: int


# --- requests of consumers --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Register:
    """Registers a consumer. subscriptions: patterns that are routes to it while the session lasts.
    session_id: its earlier session, to resume it."""

    consumer_id: str
    tenant: str = ""
    mode: str = "direct"
    subscriptions: tuple[str, ...] = ()
    capabilities: ConsumerCapabilities = field(default_factory=ConsumerCapabilities)
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Reports that the consumer is alive. reply: it wants an answer in any case; so below."""

    consumer_id: str
    session_id: str
    reply: bool = False


@dataclass(frozen=True, slots=True)
class Deregister:
    """Ends the consumer's session."""

    consumer_id: str
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class Ack:
    """Acknowledges a message. delivery_id: the attempt; None: the oldest in flight."""

    message_id: str
    consumer_id: str
    session_id: str | None = None
    delivery_id: str | None = None
    reply: bool = False


@dataclass(frozen=True, slots=True)
class Nack:
    """Reports that the consumer could not process a message. terminal: a retry cannot help."""

    message_id: str
    consumer_id: str
    terminal: bool
    reason: str = ""
    session_id: str | None = None
    delivery_id: str | None = None
    reply: bool = False


Control = Register | Heartbeat | Deregister | Ack | Nack


# --- replies to consumers ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Registered:
    """Confirms a registration. status: "registered" or "resumed"."""

    consumer_id: str
    session_id: str
    status: str


@dataclass(frozen=True, slots=True)
class Deregistered:
    consumer_id: str
    session_id: str


@dataclass(frozen=True, slots=True)
class Taken:
    """Confirms a heartbeat, ack or nack.

    delivery_id: the one that the request named. status: "alive", "processed", "duplicate", "retry_scheduled",
    "dead_lettered".
    """

    request: str
    consumer_id: str
    message_id: str
    status: str
    delivery_id: str = ""


class Fault(StrEnum):
    """Why a consumer's request was refused."""

    STALE_ACK = "stale_ack"
    UNKNOWN_SESSION = "unknown_session"
    INVALID_SUBSCRIPTION = "invalid_subscription"
    UNSUPPORTED_MODE = "unsupported_mode"
    TOO_MANY_CONSUMERS = "too_many_consumers"


@dataclass(frozen=True, slots=True)
class Refused:
    """Refuses a request. delivery_id: the one that the request named."""

    fault: Fault
    text: str
    message_id: str = ""
    delivery_id: str = ""


Reply = Registered | Deregistered | Taken | Refused


# --- verdicts on a producer's message ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Admitted:
    """The message may be kept, and then be passed to `accept`. live: its consumer is connected."""

    facts: MessageInfo
    destination: str
    live: bool


@dataclass(frozen=True, slots=True)
class Full:
    """There is no room for the message, by this limit."""

    limit: Limit


@dataclass(frozen=True, slots=True)
class NoRoute:
    """No consumer gets this topic. awaited: one did a moment ago, and may be restarting."""

    awaited: bool = False


Verdict = Admitted | Full | NoRoute


# --- actions, which the caller executes in order ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Persist:
    """Write the event before the actions after it, and sync it before any answer after it."""

    event: Event


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send the message to a consumer. If it cannot be sent, call `Dispatcher.unsent`."""

    peer: bytes
    session: Session
    delivery: DirectDelivery
    queued: QueuedMessage


@dataclass(frozen=True, slots=True)
class KeepDeadLetter:
    """Keep the message as a dead letter. After a crash it may be repeated with the same number.

    reason: "exhausted", "terminal", "expired" or an operator's reason. attempts: those made.
    """

    number: int
    queued: QueuedMessage
    reason: str
    attempts: int
    error: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Send a reply to a consumer."""

    peer: bytes
    reply: Reply


@dataclass(frozen=True, slots=True)
class AuditAction:
    """Write a record for operators into the audit log. operation: a constant word."""

    operation: str
    message_id: str
    consumer_id: str
    text: str


@dataclass(frozen=True, slots=True)
class KeepSession:
    """Keep the session as it is now, for `Dispatcher.restore` after a restart."""

    session: Session


@dataclass(frozen=True, slots=True)
class DropSession:
    """Forget the session, which has ended."""

    session: Session


Action = Persist | Dispatch | KeepDeadLetter | Answer | AuditAction | KeepSession | DropSession
