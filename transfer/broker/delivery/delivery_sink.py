"""The interface between direct delivery and the front whose peers are its consumers."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from transfer.broker.core.dispatcher_actions import Control, Dispatch, Reply, Verdict
    from transfer.broker.core.dispatcher_events import MessageInfo
    from transfer.broker.core.message import Message
    from transfer.transports.errors import TransferError


class Sent(Enum):
    """The result of sending a message to a consumer.

    YES: the socket has it. BUSY: too much waits for this consumer already. GONE: the consumer has
    disconnected. FAILED: the message cannot be encoded as the consumer wants it, and a retry would not help.
    UNSUPPORTED_CODEC: the consumer did not list the codec of the message.
    """

    YES = "yes"
    BUSY = "busy"
    GONE = "gone"
    FAILED = "failed"
    UNSUPPORTED_CODEC = "unsupported_codec"


#: a message with one of these results becomes a dead letter, for this reason
DEAD_LETTER_REASONS = {
    Sent.FAILED: "the message could not be encoded",
    Sent.UNSUPPORTED_CODEC: "the consumer does not support the codec of the message",
}


class DeliverySink(Protocol):
    """Sends messages and replies to peers: the front implements it."""

    def dispatch(self, action: Dispatch, message: Message) -> Sent:
        """Sends a message with the details of its delivery. If the result is not YES, call
        `Dispatcher.unsent`. The result is YES too for a large message that another thread encodes; if it
        cannot be sent later, `DirectDriver.unsent` reports it. Later messages to the same peer are sent
        behind it."""

    def answer(self, peer: bytes, reply: Reply) -> None:
        """Answers a consumer. The reply is dropped if the consumer has disconnected or does not read."""


class DirectDriver(Protocol):
    """Direct delivery over a log and a database: a `Dispatcher`, and the code that executes its actions. On
    the broker's loop; nothing blocks. The front calls `attach` once, before anything else."""

    def attach(self, courier: DeliverySink) -> None:
        """Sets the sink that messages and replies go to from now on."""

    def publish_direct(
        self, message: Message, facts: MessageInfo, on_complete: Callable[[TransferError | None], None]
    ) -> Verdict:
        """Takes a message for one consumer. Raises LogFull: nothing was taken. on_complete: called if the
        verdict is `Admitted`: when the message is synced, or with the reason why it is not kept."""

    def unsent(self, action: Dispatch, sent: Sent) -> None:
        """Reports that a message which the sink had taken could not be sent after all."""

    def unroutable(self, message: Message, facts: MessageInfo, reason: str) -> None:
        """Publishes to `_system.unroutable` a message for which no consumer was ever known."""

    def request(self, peer: bytes, control: Control) -> None:
        """Handles a consumer's request; the reply goes to the sink."""
