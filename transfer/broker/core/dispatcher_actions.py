"""What the direct desk is asked, and what it wants done. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from transfer.broker.core.admission import Limit
from transfer.broker.core.delivery import Delivery
from transfer.broker.core.dispatcher_events import Event, MessageInfo, QueuedMessage
from transfer.broker.core.sessions import Capabilities, Session


class Now(NamedTuple):
    """The time, as the caller reads it: seconds of the monotonic clock, and milliseconds since 1970, of a
    clock that is not set either.

    Deadlines of sessions and acknowledgements, and pauses between tries, are of the first; what messages
    say of themselves is of the second.
    """

    seconds: float
    unix_ms: int


# --- what consumers ask -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Register:
    """A consumer is there. subscriptions: patterns that are routes to it while the session lasts.

    session_id: the session that it had before, to go on with it.
    """

    consumer_id: str
    tenant: str = ""
    mode: str = "direct"
    subscriptions: tuple[str, ...] = ()
    capabilities: Capabilities = field(default_factory=Capabilities)
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The consumer is still there. reply: it wants an answer although all is well; so below."""

    consumer_id: str
    session_id: str
    reply: bool = False


@dataclass(frozen=True, slots=True)
class Deregister:
    """The consumer goes."""

    consumer_id: str
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class Ack:
    """The message was processed. delivery_id: which try it was; without it, the oldest in flight is meant."""

    message_id: str
    consumer_id: str
    session_id: str | None = None
    delivery_id: str | None = None
    reply: bool = False


@dataclass(frozen=True, slots=True)
class Nack:
    """The message was not processed. terminal: no other try can help."""

    message_id: str
    consumer_id: str
    terminal: bool
    reason: str = ""
    session_id: str | None = None
    delivery_id: str | None = None
    reply: bool = False


Control = Register | Heartbeat | Deregister | Ack | Nack


# --- what they are answered -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Registered:
    """status: "registered" or "resumed"."""

    consumer_id: str
    session_id: str
    status: str


@dataclass(frozen=True, slots=True)
class Deregistered:
    consumer_id: str
    session_id: str


@dataclass(frozen=True, slots=True)
class Taken:
    """A heartbeat, ack or nack was taken. delivery_id: the one that it named. status: "alive",
    "processed", "duplicate", "retry_scheduled", "dead_lettered"."""

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
    """delivery_id: the one that the request named."""

    fault: Fault
    text: str
    message_id: str = ""
    delivery_id: str = ""


Reply = Registered | Deregistered | Taken | Refused


# --- what a producer's message meets ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Admitted:
    """It may be kept, and then be given to `accept`. live: its consumer is there."""

    facts: MessageInfo
    destination: str
    live: bool


@dataclass(frozen=True, slots=True)
class Full:
    """There is no room for it, by this limit."""

    limit: Limit


@dataclass(frozen=True, slots=True)
class NoRoute:
    """No consumer gets this topic. awaited: one did a moment ago, and may be restarting."""

    awaited: bool = False


Verdict = Admitted | Full | NoRoute


# --- what is to be done, in this order --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Persist:
    """The event is to be written before anything after it is done, and to be synced before anything after
    it is answered."""

    event: Event


@dataclass(frozen=True, slots=True)
class Dispatch:
    """The message goes to a consumer. If it cannot be sent: `Dispatcher.unsent`."""

    peer: bytes
    session: Session
    delivery: Delivery
    parcel: QueuedMessage


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The message is to be kept as a dead letter. It may come twice, with the same number, after a crash.

    reason: "exhausted", "terminal", "expired" or an operator's word. attempts: that were made.
    """

    number: int
    parcel: QueuedMessage
    reason: str
    attempts: int
    error: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A consumer is told something."""

    peer: bytes
    reply: Reply


@dataclass(frozen=True, slots=True)
class Audit:
    """Something that an operator may want to know later. operation: a constant word."""

    operation: str
    message_id: str
    consumer_id: str
    text: str


@dataclass(frozen=True, slots=True)
class KeepSession:
    """The session is to be known after a restart (`Dispatcher.restore`), as it is now."""

    session: Session


@dataclass(frozen=True, slots=True)
class DropSession:
    """The session has ended."""

    session: Session


Action = Persist | Dispatch | DeadLetter | Answer | Audit | KeepSession | DropSession
