"""What groups give and ask: their consumers, what becomes of a message that nobody can process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from transfer.broker.core.groups import Delivery, Group
    from transfer.broker.delivery.message import Message
    from transfer.broker.delivery.topic import Topic
    from transfer.broker.storage.durability import OnComplete
    from transfer.broker.storage.group_journal import GroupIdentity
    from transfer.transports.errors import TransferError

#: payloads of so many bytes are not checked for who reads them in pieces
LARGE = 8 << 20


class Consumer(Protocol):
    """Whoever takes messages of a group, on some connection. in_pieces: it reads payloads of LARGE bytes and
    more by itself, piece by piece, and checks them; those of its messages are not to be looked at."""

    in_pieces: bool

    def deliver(self, messages: Sequence[tuple[Delivery, Message | None]]) -> None:
        """Messages that are the consumer's until it acknowledges them. None: retention or damage took it; the
        consumer should acknowledge it all the same."""

    def removed(self, error: TransferError) -> None:
        """It is no member any more, for this reason: what it holds is not its own."""


class Dead(NamedTuple):
    """A message that nobody could process, with the reason. failing: seconds since it failed first."""

    topic: str
    group: str
    offset: int
    attempts: int
    reason: str
    consumer: str
    failing: float = 0.0


class Served(NamedTuple):
    """A group that is there."""

    named: GroupIdentity
    topic: Topic
    group: Group


#: keeps a dead letter, then calls back with None, or with what went wrong; on the loop
Bury = Callable[[Dead, "Message | None", "OnComplete"], None]
#: whether there is a dead letter of a topic's and group's message; asked at the start, and may wait
IsBuried = Callable[[str, str, int], bool]
