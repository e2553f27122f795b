"""A stream on its way through the broker: it forwards frames as they come, and their number is unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from transfer.broker.core.message import Front, Message
from transfer.broker.delivery.streaming_publish import StreamingPublish, UploadPublisher

if TYPE_CHECKING:
    from transfer.broker.core.message import Buffer
    from transfer.broker.delivery.streaming_publishes import StreamingPublishes
    from transfer.broker.delivery.subscriber import BrokerSubscriber
    from transfer.broker.storage.topic import Topic


#: a stream becomes a message only at its end: `Streamed`
_NO_MESSAGE = Message("", (), Front.TTP)


class StreamFrame(Message):
    """A frame of a stream, for subscribers that take frames. frames: its buffers; of a large frame, whose
    data come in pieces, those in front of the data."""

    __slots__ = ("frames",)

    def __init__(self, topic: str, frames: tuple[Buffer, ...]) -> None:
        super().__init__(topic, (), Front.TTP)
        self.frames = frames
        self.nbytes = sum(map(len, frames))


class Streamed(Message):
    """A stream that has ended, as one message. given: subscribers that received its frames."""

    __slots__ = ("given",)

    given: frozenset[BrokerSubscriber]


class FrameStream(StreamingPublish):
    """One stream of one publisher. Its receivers get frames; a slow one pauses the publisher, as in
    StreamingPublish. broken_off: makes the frame that reports to a receiver why no more frames come."""

    __slots__ = ("_broken_off", "_in_frame")

    def __init__(
        self,
        topic: Topic,
        publisher: UploadPublisher,
        receivers: Iterable[BrokerSubscriber],
        uploads: StreamingPublishes,
        ended: Callable[[StreamingPublish], None],
        broken_off: Callable[[str], StreamFrame],
    ) -> None:
        super().__init__(topic, _NO_MESSAGE, 0, publisher, receivers, uploads, None, ended)
        self._broken_off = broken_off
        self._in_frame = False

    @property
    def given(self) -> frozenset[BrokerSubscriber]:
        """The subscribers that received all frames up to now."""
        return frozenset(self._receivers)

    def join(self, subscriber: BrokerSubscriber) -> None:
        """Adds a subscriber: it receives the frames from now on."""
        if subscriber not in self._receivers and subscriber not in self.left_out:
            self._receivers[subscriber] = None
            self._uploads.receives(subscriber, self)

    def frame(self, frame: StreamFrame) -> None:
        """Forwards a whole frame."""
        for receiver in tuple(self._receivers):  # `offer` may disconnect one
            receiver.offer(frame)
        self._update_pause()

    def begin_frame(self, frame: StreamFrame, nbytes: int) -> None:
        """Begins a frame whose data come by `piece` or `piece_spliced`; `end_frame` ends it."""
        for receiver in tuple(self._receivers):
            if not receiver.begin(frame, nbytes):
                self._leave_out(receiver, "two large frames came at once")
        self._in_frame = True

    def end_frame(self) -> None:
        """Ends a frame: all its data were given."""
        self._in_frame = False
        for receiver in tuple(self._receivers):
            receiver.finish()
        self._update_pause()

    def finish(self) -> None:
        """Ends the stream: all frames were given."""
        self._end()

    def abandon(self, reason: str) -> None:
        """See StreamingPublish. A frame reports the reason to receivers; in the middle of a frame they are
        disconnected."""
        if not self.ended and not self._in_frame:
            for receiver in self._remove_receivers():
                receiver.offer(self._broken_off(reason))
        super().abandon(reason)

    def _leave_out(self, receiver: BrokerSubscriber, reason: str) -> None:
        self._leave(receiver)
        self.left_out.append(receiver)
        receiver.offer(self._broken_off(reason))

    def _count(self, nbytes: int) -> None:
        """Counts nothing: the size of a stream is unknown."""
