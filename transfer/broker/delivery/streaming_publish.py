"""A large payload on its way through the broker, which forwards its first bytes before it has the last."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Protocol

from transfer.broker.core.message import Message
from transfer.transports.errors import UsageError

if TYPE_CHECKING:
    from transfer.broker.core.message import Buffer
    from transfer.broker.delivery.announced import Announcement
    from transfer.broker.delivery.streaming_publishes import StreamingPublishes
    from transfer.broker.delivery.subscriber import BrokerSubscriber
    from transfer.broker.net.splice import SplicedChunk
    from transfer.broker.storage.blob_writer import BlobWrite
    from transfer.broker.storage.topic import Topic
    from transfer.transports.errors import TransferError


#: bytes a second that a payload must bring while other publishers wait for room to announce, or its receivers
#: wait for other messages
PACE = 64 << 10
#: limit on the bytes that all unkept payloads together gather for receivers which get them whole
MOST_GATHERED = 64 << 20


class UploadPublisher(Protocol):
    """The source of a payload; the broker can pause it."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...


class StreamingPublish:
    """One payload that comes in pieces. Made by `Hub.begin`; used on the broker's loop only. Its receivers
    are the subscribers that had room for it when it began. The publisher is paused while the disk is
    behind or a receiver has more waiting than its limit. `Hub.tick` disconnects a receiver that reads
    nothing for `patience` seconds meanwhile, and a publisher whose bytes hardly come while a receiver has
    other messages. uploads: all that are open; this one is among them until it ends, then `ended` is
    called. ended, broken: all bytes were given; the publisher broke it off. announcement: of a payload
    whose missing bytes count. revoke: reports to the publisher's connection that the broker gives it up."""

    # a broker may have hundreds of thousands of them, as streams
    __slots__ = (
        "_announcement",
        "_gathered",
        "_left",
        "_on_end",
        "_pace",
        "_publisher",
        "_receivers",
        "_since",
        "_slow",
        "_uploads",
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
        publisher: UploadPublisher,
        receivers: Iterable[BrokerSubscriber],
        uploads: StreamingPublishes,
        writing: BlobWrite | None,
        ended: Callable[[StreamingPublish], None],
        announcement: Announcement | None = None,
        revoke: Callable[[TransferError], None] | None = None,
    ) -> None:
        self.topic = topic
        self.message = message
        self.nbytes = nbytes
        self.writing = writing
        #: subscribers that had no room when it began
        self.left_out: list[BrokerSubscriber] = []
        self._gathered: list[bytes] | None = None
        self.ended = self.broken = False
        self.revoke = revoke
        self._announcement = announcement
        self._pace = (0.0, nbytes)  # since when fewer bytes than PACE came, and how many were missing then
        self._on_end = ended
        self._left = nbytes
        self._publisher = publisher
        self._receivers = dict.fromkeys(receivers)
        self._slow = False  # a slow receiver pauses the publisher
        #: for each slow receiver: since when how many bytes wait
        self._since: dict[BrokerSubscriber, tuple[float, int]] = {}
        self._uploads = uploads
        uploads.add(self)
        if announcement is not None:
            uploads.announced[self] = None

    def leave_out(self, subscribers: list[BrokerSubscriber]) -> None:
        """Notes subscribers that had no room when it began, for example for another large message. If the log
        does not keep the payload, it is gathered for them in memory, within MOST_GATHERED."""
        self.left_out = subscribers
        free = any(one.queued + self.nbytes <= one.limit for one in subscribers)
        if free and self.writing is None and self._uploads.gathered + self.nbytes <= MOST_GATHERED:
            self._uploads.gathered += self.nbytes
            self._gathered = []

    def whole(self) -> Message | None:
        """Returns the message with its payload, at the end, if it was gathered."""
        gathered, self._gathered = self._gathered, None
        if gathered is None:
            return None
        self._uploads.gathered -= self.nbytes
        begun = self.message
        return Message(begun.topic, (b"".join(gathered),), begun.front, begun.head, begun.headers)

    def piece(self, data: Buffer) -> None:
        """Forwards the next bytes. Raises UsageError if they are more than were announced."""
        self._count(len(data))
        for receiver in tuple(self._receivers):  # `piece` may disconnect one
            receiver.piece(data)
        if self._gathered is not None:
            self._gathered.append(bytes(data))
        if self.writing is not None:
            self.writing.write(data)
        self._update_pause()

    @property
    def accepts_spliced(self) -> bool:
        """Whether the next bytes may come in a pipe: they are not kept, and all receivers accept it."""
        keeps = self.writing is not None or self._gathered is not None
        return not keeps and all(receiver.accepts_spliced for receiver in self._receivers)

    def piece_spliced(self, data: SplicedChunk) -> None:
        """Forwards the next bytes from a pipe, as `piece`."""
        self._count(len(data))
        for receiver in tuple(self._receivers):
            receiver.piece_spliced(data)
        if self.writing is not None:
            self.writing.write(data.memory())
        self._update_pause()

    def finish(self) -> None:
        """Ends the payload: all bytes were given. Raises UsageError if some are missing."""
        if self._left:
            raise UsageError(f"{self._left} of {self.nbytes} bytes are missing")
        for receiver in tuple(self._receivers):
            receiver.finish()
        self._end()
        if self.writing is not None:
            self.writing.finish()

    def abandon(self, reason: str) -> None:
        """Breaks off the payload; receivers that wait for the rest are disconnected. Idempotent."""
        if self.ended or self.broken:
            return
        self.broken = True
        for receiver in self._remove_receivers():
            receiver.close(f"the publisher broke off a message of topic {self.topic.name!r}: {reason}")
        self._end()
        if self.writing is not None:
            self.writing.abandon()

    def lost(self, receiver: BrokerSubscriber) -> None:
        """Removes a receiver that has disconnected."""
        if receiver in self._receivers:
            self._leave(receiver)
            self._update_pause()

    def on_drained(self, receiver: BrokerSubscriber) -> None:
        """Resumes the publisher if it can go on: a receiver has written its queue."""
        if self._slow and receiver in self._receivers:
            self._update_pause()

    @property
    def receivers(self) -> Collection[BrokerSubscriber]:
        """The subscribers that receive it in pieces."""
        return self._receivers

    def recheck(self, now: float, patience: float) -> list[BrokerSubscriber]:
        """Resumes the publisher if it can go on. Returns the receivers that read nothing for `patience`
        seconds."""
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
        self._update_pause()
        return late

    def is_slow(self, now: float) -> bool:
        """Returns whether its bytes hardly come while it holds a part of what may be announced."""
        return self._announcement is not None and self.slow_for(now) >= 1.0

    def slow_for(self, now: float) -> float:
        """Returns the seconds, since the first call, for which fewer bytes than PACE came."""
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
            raise UsageError(f"{nbytes} bytes came for a payload of which only {self._left} are missing")
        self._left -= nbytes
        if self._announcement is not None:
            self._announcement.arrived(nbytes)

    def _update_pause(self) -> None:
        slow = not self.ended and any(one.queued > one.limit for one in self._receivers)
        if slow != self._slow:
            self._slow = slow
            if slow:
                self._uploads.slow.add(self)
                self._publisher.pause()
            else:
                self._uploads.slow.discard(self)
                self._since.clear()
                self._publisher.resume()

    def _end(self) -> None:
        self.ended = True
        if self._announcement is not None:
            self._announcement.end()
        self._update_pause()
        self._uploads.ended(self)
        self._on_end(self)

    def _leave(self, receiver: BrokerSubscriber) -> None:
        del self._receivers[receiver]
        self._since.pop(receiver, None)
        self._uploads.let_go(receiver, self)

    def _remove_receivers(self) -> list[BrokerSubscriber]:
        """Removes all receivers, and returns them."""
        receivers = list(self._receivers)
        for receiver in receivers:
            self._leave(receiver)
        return receivers


def takes(receiver: BrokerSubscriber, message: Message, nbytes: int) -> bool:
    """Returns whether a receiver begins with a message whose payload comes in pieces."""
    return receiver.queued <= receiver.limit and receiver.begin(message, nbytes)
