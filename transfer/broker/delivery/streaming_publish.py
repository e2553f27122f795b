"""A large payload on its way through the broker: its first bytes go out before its last are in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Protocol

from transfer.broker.delivery.message import Message
from transfer.transports.errors import UsageError

if TYPE_CHECKING:
    from transfer.broker.delivery.announced import Announcement
    from transfer.broker.delivery.message import Buffer
    from transfer.broker.delivery.streaming_publishes import StreamingPublishes
    from transfer.broker.delivery.subscriber import Subscriber
    from transfer.broker.delivery.topic import Topic
    from transfer.broker.net.splice import SplicedChunk
    from transfer.broker.storage.blob_writer import BlobWrite
    from transfer.transports.errors import TransferError


#: bytes that a payload has to bring in a second, if others wait for its share of what may be announced, or
#: its receivers for others' messages
PACE = 64 << 10
#: bytes of payloads that are kept nowhere and go to some receivers whole, of all publishers together
MOST_GATHERED = 64 << 20


class Publisher(Protocol):
    """Whoever a payload comes from, and can be made to wait."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...


class StreamingPublish:
    """One payload that comes in pieces. Made by `Hub.begin`; used on the broker's loop only.

    Its receivers are those who were subscribed when it began and had room for it. While one of them has more
    waiting than its limit, or the disk is behind, whoever publishes is paused; a receiver that takes nothing
    for `patience` seconds meanwhile is cut off (`Hub.tick`), so that it holds up nobody for longer; and so is
    a publisher whose bytes hardly come, if a receiver has something else to receive.
    passages: those on their way, of which it is one until it ends; then `ended` is called.
    ended, broken: all of it was given; the publisher broke it off. announcement: of a payload whose missing
    bytes count. revoke: tells the publisher's connection that the broker gives it up.
    """

    # a broker may have hundreds of thousands of them, as streams
    __slots__ = (
        "_announcement",
        "_gathered",
        "_left",
        "_pace",
        "_passages",
        "_publisher",
        "_receivers",
        "_since",
        "_slow",
        "_told_end",
        "broken",
        "ended",
        "left_out",
        "message",
        "nbytes",
        "revoke",
        "topic",
        "writing",
    )

    def __init__(
        self,
        topic: Topic,
        message: Message,
        nbytes: int,
        publisher: Publisher,
        receivers: Iterable[Subscriber],
        passages: StreamingPublishes,
        writing: BlobWrite | None,
        ended: Callable[[StreamingPublish], None],
        announcement: Announcement | None = None,
        revoke: Callable[[TransferError], None] | None = None,
    ) -> None:
        self.topic = topic
        self.message = message
        self.nbytes = nbytes
        self.writing = writing
        #: who subscribed, but had no room when it began
        self.left_out: list[Subscriber] = []
        self._gathered: list[bytes] | None = None
        self.ended = self.broken = False
        self.revoke = revoke
        self._announcement = announcement
        self._pace = (0.0, nbytes)  # since when less than PACE came, and what was missing then
        self._told_end = ended
        self._left = nbytes
        self._publisher = publisher
        self._receivers = dict.fromkeys(receivers)
        self._slow = False  # the publisher is paused for a receiver's sake
        #: since when each slow receiver has had so many bytes waiting
        self._since: dict[Subscriber, tuple[float, int]] = {}
        self._passages = passages
        passages.add(self)
        if announcement is not None:
            passages.announced[self] = None

    def leave_out(self, subscribers: list[Subscriber]) -> None:
        """They had no room when it began: another one was on its way to them, say. What the log does not
        keep is gathered for them here, as far as there is memory for it."""
        self.left_out = subscribers
        free = any(one.queued + self.nbytes <= one.limit for one in subscribers)
        if free and self.writing is None and self._passages.gathered + self.nbytes <= MOST_GATHERED:
            self._passages.gathered += self.nbytes
            self._gathered = []

    def whole(self) -> Message | None:
        """The message with its payload, at the end, if it was gathered."""
        gathered, self._gathered = self._gathered, None
        if gathered is None:
            return None
        self._passages.gathered -= self.nbytes
        begun = self.message
        return Message(begun.topic, (b"".join(gathered),), begun.front, begun.head, begun.headers)

    def piece(self, data: Buffer) -> None:
        """The next bytes. Raises UsageError if they are more than were announced."""
        self._count(len(data))
        for receiver in tuple(self._receivers):  # one may go by it
            receiver.piece(data)
        if self._gathered is not None:
            self._gathered.append(bytes(data))
        if self.writing is not None:
            self.writing.write(data)
        self._look()

    @property
    def pours(self) -> bool:
        """The next bytes may come in a pipe: they need not be kept, and all receivers take them so."""
        gathered = self._gathered is not None
        return self.writing is None and not gathered and all(receiver.pours for receiver in self._receivers)

    def poured(self, data: SplicedChunk) -> None:
        """As `piece`, for bytes in a pipe."""
        self._count(len(data))
        for receiver in tuple(self._receivers):
            receiver.poured(data)
        if self.writing is not None:
            self.writing.write(data.memory())
        self._look()

    def finish(self) -> None:
        """All bytes were given. Raises UsageError if some are missing."""
        if self._left:
            raise UsageError(f"{self._left} of {self.nbytes} bytes are missing")
        for receiver in tuple(self._receivers):
            receiver.finish()
        self._end()
        if self.writing is not None:
            self.writing.finish()

    def abandon(self, reason: str) -> None:
        """The rest will not come: receivers, who wait for it, are cut off. Idempotent."""
        if self.ended or self.broken:
            return
        self.broken = True
        for receiver in self._let_go():
            receiver.close(f"a message of topic {self.topic.name!r} was broken off: {reason}")
        self._end()
        if self.writing is not None:
            self.writing.abandon()

    def lost(self, receiver: Subscriber) -> None:
        """A receiver has gone."""
        if receiver in self._receivers:
            self._leave(receiver)
            self._look()

    def relieved(self, receiver: Subscriber) -> None:
        """A receiver has written all that waited for it: the publisher may go on."""
        if self._slow and receiver in self._receivers:
            self._look()

    @property
    def receivers(self) -> Collection[Subscriber]:
        """Who is given it, piece by piece."""
        return self._receivers

    def look_again(self, now: float, patience: float) -> list[Subscriber]:
        """Lets the publisher go on if it can. The receivers that took nothing for `patience` seconds."""
        late = []
        for receiver in self._receivers:
            if receiver.queued <= receiver.limit:
                self._since.pop(receiver, None)
                continue
            since, queued = self._since.get(receiver, (now, receiver.queued))
            if receiver.queued < queued or receiver not in self._since:
                self._since[receiver] = (now, receiver.queued)
            elif now - since >= patience:
                late.append(receiver)
        self._look()
        return late

    def is_slow(self, now: float) -> bool:
        """Its bytes hardly come, and it holds a part of what may be announced."""
        return self._announcement is not None and self.slow_for(now) >= 1.0

    def slow_for(self, now: float) -> float:
        """Seconds for which its bytes hardly came, since it was looked at first: less than PACE."""
        since, left = self._pace
        came = left - self._left
        if self._slow or (self.writing is not None and self.writing.is_paused):
            since = 0.0
        if not since or came >= PACE * max(1.0, now - since):
            self._pace = now, self._left
            return 0.0
        return now - since

    def _count(self, nbytes: int) -> None:
        if nbytes > self._left:
            raise UsageError(f"{nbytes} bytes of a payload of which {self._left} are missing")
        self._left -= nbytes
        if self._announcement is not None:
            self._announcement.arrived(nbytes)

    def _look(self) -> None:
        slow = not self.ended and any(one.queued > one.limit for one in self._receivers)
        if slow != self._slow:
            self._slow = slow
            if slow:
                self._passages.slow.add(self)
                self._publisher.pause()
            else:
                self._passages.slow.discard(self)
                self._since.clear()
                self._publisher.resume()

    def _end(self) -> None:
        self.ended = True
        if self._announcement is not None:
            self._announcement.end()
        self._look()
        self._passages.ended(self)
        self._told_end(self)

    def _leave(self, receiver: Subscriber) -> None:
        del self._receivers[receiver]
        self._since.pop(receiver, None)
        self._passages.let_go(receiver, self)

    def _let_go(self) -> list[Subscriber]:
        """Who received it; none of them does any more."""
        receivers = list(self._receivers)
        for receiver in receivers:
            self._leave(receiver)
        return receivers


def takes(receiver: Subscriber, message: Message, nbytes: int) -> bool:
    """Whether a receiver begins with a message whose payload comes in pieces."""
    return receiver.queued <= receiver.limit and receiver.begin(message, nbytes)
