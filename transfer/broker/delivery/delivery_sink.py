"""What direct delivery does for the front that brings its consumers, and what it asks of that."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from transfer.broker.core.dispatcher_actions import Control, Dispatch, Reply, Verdict
    from transfer.broker.core.dispatcher_events import MessageInfo
    from transfer.broker.delivery.message import Message
    from transfer.transports.errors import TransferError


class Sent(Enum):
    """What became of a message that was to be sent. YES: the socket has it. BUSY: too much waits for its
    consumer already. GONE: nobody is there any more. FAILED: it cannot be written as its consumer wants it,
    and another try would not help. UNSUPPORTED_CODEC: the consumer did not list the
    codec of the message."""

    YES = "yes"
    BUSY = "busy"
    GONE = "gone"
    FAILED = "failed"
    UNSUPPORTED_CODEC = "unsupported_codec"


#: a message with one of these results becomes a dead letter with this reason
DEAD_LETTER_REASONS = {
    Sent.FAILED: "it could not be packed",
    Sent.UNSUPPORTED_CODEC: "its consumer does not support its codec",
}


class DeliverySink(Protocol):
    """Who brings messages and answers to peers: the front."""

    def dispatch(self, action: Dispatch, message: Message) -> Sent:
        """Sends a message, and what the action says of its delivery. Not YES: tell `Dispatcher.unsent`.

        YES, too, for a large one that is made ready beside the loop; `DirectDriver.unsent` tells if it
        cannot be sent then. What is sent to the same peer meanwhile comes behind it.
        """

    def answer(self, peer: bytes, reply: Reply) -> None:
        """Answers a consumer; one that is gone, or does not read, is left without."""


class DirectDriver(Protocol):
    """Direct delivery over a log and a database: a `Dispatcher`, and somebody who does its actions.

    On the broker's loop; nothing waits. The front calls `attach` once, before anything else.
    """

    def attach(self, courier: DeliverySink) -> None:
        """Messages and answers go this way from now on."""

    def publish_direct(
        self, message: Message, facts: MessageInfo, on_complete: Callable[[TransferError | None], None]
    ) -> Verdict:
        """A message for one consumer. told: called when it is synced, or with the reason why it is not
        kept, if the verdict is `Admitted`; else never. Raises LogFull: nothing was taken."""

    def unsent(self, action: Dispatch, sent: Sent) -> None:
        """A message that the courier had taken could not be sent after all."""

    def unroutable(self, message: Message, facts: MessageInfo, reason: str) -> None:
        """Nobody was ever told to get it: `_system.unroutable` hears of it."""

    def request(self, peer: bytes, control: Control) -> None:
        """What a consumer asks; it is answered by the courier."""
