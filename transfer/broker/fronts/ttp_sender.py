"""The sending half of a TTP connection: whole messages, and large ones that come in pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from transfer.broker.core.message import Buffer, Front, Message
from transfer.broker.delivery.frame_stream import StreamFrame
from transfer.broker.delivery.subscriber import BrokerSubscriber
from transfer.broker.fronts.ttp_frames import frames_of, opening
from transfer.broker.net.connection import Connection
from transfer.broker.net.connection_group import ConnectionGroup, copy_small_view

if TYPE_CHECKING:
    import socket

    from transfer.broker.net.splice import SplicedChunk

_TTP = Front.TTP  # members of an enum are slow to access


class TtpOutgoing(Connection, BrokerSubscriber):
    """A connection that sends frames. It sends nothing else between the pieces of a PUBLISH."""

    queued: int = 0
    takes_frames = True

    def __init__(self, lines: ConnectionGroup, connection: socket.socket, peer: str) -> None:
        self._missing = -1  # bytes of a payload in pieces that are still to come; -1: there is none
        self._behind: deque[Sequence[Buffer]] = deque()  # frames that wait for the end of that payload
        super().__init__(lines, connection, peer)

    @property
    def in_payload(self) -> bool:
        """Whether a PUBLISH is being sent in pieces, between which nothing else can be sent."""
        return self._missing >= 0

    def send(self, frames: Sequence[Buffer]) -> None:
        """Sends whole frames, now or after the payload that is being sent."""
        if self._missing >= 0:
            self.hold(frames)
        else:
            self.write(*frames)

    def hold(self, frames: Sequence[Buffer]) -> None:
        """Queues frames until the payload in pieces has ended."""
        if not self.closed:
            self._behind.append(tuple(map(copy_small_view, frames)))
            self.queued += sum(map(len, frames))

    def offer(self, message: Message) -> None:
        """See Subscriber."""
        self.offer_many((message,))

    def offer_many(self, messages: Sequence[Message]) -> None:
        """See Subscriber. A frame that came by TTP is forwarded as it is."""
        frames: list[Buffer] = []
        for message in messages:
            if type(message) is StreamFrame:
                frames += message.frames
            elif message.raw is None or message.front is not _TTP:
                frames += frames_of(message)
            else:
                frames.append(message.raw)
        if self._missing >= 0:
            self.hold(frames)
        else:
            self.write(*frames)

    def begin(self, message: Message, nbytes: int) -> bool:
        """See Subscriber."""
        if self._missing >= 0:
            return False
        self.send(message.frames if type(message) is StreamFrame else (opening(message, nbytes),))
        self._missing = nbytes
        return True

    def piece(self, data: Buffer) -> None:
        """See Subscriber."""
        self._missing -= len(data)
        self.write(data)

    @property
    def accepts_spliced(self) -> bool:
        """See Subscriber."""
        return self.has_pipes

    def piece_spliced(self, data: SplicedChunk) -> None:
        """See Subscriber."""
        self._missing -= len(data)
        self.write_spliced(data)

    def finish(self) -> None:
        """See Subscriber."""
        self._missing = -1
        behind, self._behind = self._behind, deque()
        for frames in behind:
            self.queued -= sum(map(len, frames))
            self.send(frames)

    def lost(self, reason: str) -> None:
        """See Connection."""
        self._behind.clear()  # its frames hold memory that connections read into
