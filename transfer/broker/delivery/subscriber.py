"""What the broker knows of somebody who is told messages as they come."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import TYPE_CHECKING

from transfer.broker.core.subscriptions import Most

if TYPE_CHECKING:
    from transfer.broker.delivery.message import Buffer, Message
    from transfer.broker.net.splice import SplicedChunk


class Overflow(Enum):
    """What happens to a message for which a subscriber's queue has no room.

    DROP: it is dropped for this subscriber, and counted. SPILL: it is read from the log when there is room
    again; where the topic keeps nothing it is dropped. CLOSE: the subscriber's connection ends.
    """

    DROP = "drop"
    SPILL = "spill"
    CLOSE = "close"


class Subscriber(ABC):
    """One connection that has subscribed; each front has a class of its own. Used on the broker's loop only.

    passive: it hears all there is, whoever wants it: a topic that nobody else hears may be forgotten. idle:
    nobody is there to miss what it is not given. limit: bytes that may wait for it. overflow: what happens
    beyond them. dropped: messages that it was not given. most: what it may subscribe to.
    """

    passive: bool = False
    limit: int = 64 << 20
    overflow: Overflow = Overflow.SPILL
    dropped: int = 0
    most: Most = Most()
    #: what is kept comes to it from the log, when it is on the disk (`on_disk`): it may say how far it is
    waits_for_disk: bool = False
    #: it is given streams frame by frame, as they come, instead of one message at their end
    takes_frames: bool = False

    @property
    def idle(self) -> bool:
        return False

    @property
    def programs(self) -> int:
        """How many programs it stands for."""
        return 1

    def listening(self, topic: str) -> int:
        """How many of them hear this topic, of those that it is known of."""
        return 1

    def on_disk(self) -> None:
        """Of one that waits for the disk, and has not come to the end: more is there, or may be."""

    @property
    @abstractmethod
    def queued(self) -> int:
        """Bytes that wait until it takes them."""

    @abstractmethod
    def offer(self, message: Message) -> None:
        """Queues a whole message; the broker has looked at `queued` and `limit` before. Never waits, never
        raises because the peer is gone (the connection's end is told by itself).

        The buffers of the message stay valid as long as they are referenced; after this call the front
        holds what it still needs.
        """

    @abstractmethod
    def begin(self, message: Message, nbytes: int) -> bool:
        """A large message whose payload of `nbytes` bytes comes piece by piece (`piece`, then `finish`);
        its `parts` are empty. What is offered meanwhile goes behind it. False: the subscriber cannot take
        it (another one is still on its way, say), and it is treated as if there was no room.
        """

    @abstractmethod
    def piece(self, data: Buffer) -> None:
        """The next bytes of the payload that was begun. Whoever publishes is paused while `queued` is over
        `limit`."""

    @property
    def pours(self) -> bool:
        """It takes bytes in a pipe as well as memory (`poured`)."""
        return False

    def poured(self, data: SplicedChunk) -> None:
        """As `piece`, for bytes in a pipe, which is emptied when it returns."""
        if not self.pours:
            self.piece(data.memory())

    @abstractmethod
    def finish(self) -> None:
        """All bytes of the payload were given."""

    @abstractmethod
    def close(self, reason: str) -> None:
        """Ends the connection: what was begun cannot be finished, or it was too slow. Idempotent."""
