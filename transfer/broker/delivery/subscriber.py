"""The base class of subscribers: connections that receive messages as they come."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

from transfer.broker.core.subscriptions import Most

if TYPE_CHECKING:
    from transfer.broker.core.message import Buffer, Message
    from transfer.broker.net.splice import SplicedChunk


class Overflow(Enum):
    """What happens to a message for which a subscriber's queue has no room.

    DROP: the broker drops it for this subscriber, and counts it. SPILL: the subscriber reads it from the log
    when there is room again; a topic that keeps nothing drops it. CLOSE: the subscriber's connection ends.
    """

    DROP = "drop"
    SPILL = "spill"
    CLOSE = "close"


class BrokerSubscriber(ABC):
    """A connection that has subscribed; each front has a subclass. Used on the broker's loop only.

    passive: it receives every topic, so a topic with no other subscriber may be removed. idle: no program
    would miss what it does not get. limit: bytes that may wait for it. overflow: what happens beyond them.
    dropped: messages that it did not get. most: limits on its subscriptions.
    """

    passive: bool = False
    limit: int = 64 << 20
    overflow: Overflow = Overflow.SPILL
    dropped: int = 0
    most: Most = Most()
    #: it reads kept messages from the log, when they are on the disk (`on_disk`): it may report its position
    waits_for_disk: bool = False
    #: it receives streams frame by frame, as they come, instead of one message at their end
    takes_frames: bool = False

    @property
    def idle(self) -> bool:
        return False

    @property
    def programs(self) -> int:
        """The number of programs that it stands for."""
        return 1

    def listening(self, topic: str) -> int:
        """Returns how many of its programs subscribe to this topic, as far as it is known."""
        return 1

    def on_disk(self) -> None:
        """Reports that more may be on the disk, to a subscriber that waits for the disk and is not at the
        end."""

    @property
    @abstractmethod
    def queued(self) -> int:
        """Bytes that wait until the subscriber reads them."""

    @abstractmethod
    def offer(self, message: Message) -> None:
        """Queues a whole message; the broker has checked `queued` and `limit` before. Never blocks.

        It does not raise if the peer is gone: the end of the connection is reported separately. The message's
        buffers stay valid while they are referenced; after this call the front references what it still
        needs.
        """

    def offer_many(self, messages: Sequence[Message]) -> None:
        """Queues whole messages, in order: see `offer`."""
        for message in messages:
            self.offer(message)

    @abstractmethod
    def begin(self, message: Message, nbytes: int) -> bool:
        """Begins a large message whose payload of `nbytes` bytes comes by `piece`, then `finish`; its `parts`
        are empty. Messages that are offered meanwhile go behind it. False: the subscriber cannot take it,
        for example during another one, and is treated as if it had no room."""

    @abstractmethod
    def piece(self, data: Buffer) -> None:
        """Queues the next bytes of the payload that was begun. The publisher is paused while `queued` exceeds
        `limit`."""

    @property
    def accepts_spliced(self) -> bool:
        """Whether it takes bytes in a pipe as well as in memory (`piece_spliced`)."""
        return False

    def piece_spliced(self, data: SplicedChunk) -> None:
        """Queues bytes from a pipe, as `piece`; the pipe is empty when it returns."""
        if not self.accepts_spliced:
            self.piece(data.memory())

    @abstractmethod
    def finish(self) -> None:
        """Ends the payload: all its bytes were given."""

    @abstractmethod
    def close(self, reason: str) -> None:
        """Ends the connection: it is too slow, or what was begun cannot be finished. Idempotent."""
