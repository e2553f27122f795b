"""The interface of groups: their consumers, and the dead letters of messages that no consumer can process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from transfer.broker.core.groups import Delivery, Group
    from transfer.broker.core.message import Message
    from transfer.broker.storage.durability import OnComplete
    from transfer.broker.storage.group_journal import GroupIdentity
    from transfer.broker.storage.topic import Topic
    from transfer.transports.errors import TransferError

#: the broker does not check payloads of this size or more for consumers that read them in pieces
LARGE = 8 << 20


class GroupConsumer(Protocol):
    """A consumer that takes messages of a group, on some connection. in_pieces: it fetches payloads of LARGE
    bytes and more by itself, in pieces, and checks them; the broker must not read those."""

    in_pieces: bool

    def deliver(self, messages: Sequence[tuple[Delivery, Message | None]]) -> None:
        """Delivers messages, which the consumer holds until it acknowledges them. None: retention or damage
        removed the message; the consumer acknowledges it all the same."""

    def removed(self, error: TransferError) -> None:
        """Reports that the consumer is removed from the group, with the reason: it no longer holds any
        message."""


class Dead(NamedTuple):
    """A message that no consumer could process, with the reason. failing: seconds since the first failure."""

    topic: str
    group: str
    offset: int
    attempts: int
    reason: str
    consumer: str
    failing: float = 0.0


class Served(NamedTuple):
    """A group that exists, with its topic."""

    named: GroupIdentity
    topic: Topic
    group: Group


#: keeps a dead letter, then calls back with None or the error; on the loop
StoreDeadLetter = Callable[[Dead, "Message | None", "OnComplete"], None]
#: whether a message of a topic and group has a dead letter; called at the start, and may block
IsDeadLettered = Callable[[str, str, int], bool]
