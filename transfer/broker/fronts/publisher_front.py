"""Shared code of simple fronts: connections that publish, and peers that stop in the middle of a message."""

from __future__ import annotations

import logging
import socket
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Generic, TypeVar

from transfer.broker.net.connection import Connection
from transfer.broker.net.connection_group import ConnectionGroup
from transfer.throttled_log import ThrottledLog
from transfer.transports.errors import ProtocolError, TransferError

if TYPE_CHECKING:
    from transfer.broker.core.message import Buffer, Message
    from transfer.broker.delivery.hub import Hub
    from transfer.broker.delivery.streaming_publish import StreamingPublish

_log = logging.getLogger("transfer.broker")

#: payloads from this size on are forwarded as they come; smaller ones whole
LARGE_FROM = 64 << 10
#: payloads up to this size are copied: a view of one would hold the memory of a thousand others
SMALL = 4 << 10


@dataclass(frozen=True, slots=True)
class PublishingSettings:
    """Limits of a front. max_payload: bytes of a payload. stall_timeout: seconds that a peer may stop in the
    middle of a message."""

    max_payload: int = (1 << 32) - 1
    stall_timeout: float = 30.0


def kept(data: memoryview) -> Buffer:
    """Returns the bytes of a payload that was read, in the form to keep."""
    return bytes(data) if len(data) <= SMALL else data


_Settings = TypeVar("_Settings", bound=PublishingSettings)


class FrontShared(Generic[_Settings]):
    """State that all connections of one front share. counters, connections: see PublishingFront."""

    def __init__(self, hub: Hub, lines: ConnectionGroup, settings: _Settings, names: Iterable[str]) -> None:
        self.hub = hub
        self.lines = lines
        self.settings = settings
        self.counters: Counter[str] = Counter(dict.fromkeys(names, 0))
        self.connections: set[PublishingConnection[_Settings]] = set()
        self.throttled = ThrottledLog(_log)


class PublishingConnection(Connection, Generic[_Settings]):
    """A connection whose peer publishes. A message that cannot be taken ends it: these protocols have no
    negative answer."""

    def __init__(self, shared: FrontShared[_Settings], connection: socket.socket, peer: str) -> None:
        self._shared = shared
        self._upload: StreamingPublish | None = None
        self._partial = False  # only the beginning of a frame has come
        self._excused = 0.0  # when it was last paused, for which the peer is not responsible
        super().__init__(shared.lines, connection, peer)
        shared.connections.add(self)

    @abstractmethod
    def take(self, data: memoryview, position: int) -> int:
        """Handles the frame that begins there. Returns its bytes, or 0 if it is not whole."""

    def take_frames(self, data: memoryview) -> int:
        """See Connection."""
        position, end = 0, len(data)
        while position < end and self._upload is None and not self.closed and not self.paused:
            taken = self.take(data, position)
            if not taken:
                break
            position += taken
            if monotonic() >= self.turn_ends:
                self.give_way()
        self._partial = position < end
        return position

    def publish(self, message: Message, nbytes: int) -> None:
        """Publishes a whole message of this size. Raises ProtocolError if it cannot be taken."""
        try:
            self._shared.hub.publish(message, publisher=self)
        except TransferError as error:
            raise ProtocolError("refused", str(error)) from error
        counters = self._shared.counters
        counters["published"] += 1
        counters["published_bytes"] += nbytes

    def publish_large(self, message: Message, nbytes: int) -> None:
        """Publishes a message whose payload follows; `take` then returns the bytes in front of it."""
        try:
            self._upload = self._shared.hub.begin(
                message, nbytes, self, self._completed, revoke=self._completed
            )
        except TransferError as error:
            raise ProtocolError("refused", str(error)) from error
        self._shared.counters["published_bytes"] += nbytes
        self.expect(nbytes)

    def check_size(self, nbytes: int) -> None:
        """Raises ProtocolError if a payload is larger than this broker takes."""
        largest = self._shared.settings.max_payload
        if nbytes > largest:
            raise ProtocolError("too_large", f"{nbytes} bytes exceed the limit of {largest}")

    def body(self, data: memoryview) -> None:
        """See Connection."""
        if self._upload is not None:
            self._upload.piece(data)

    def body_ended(self) -> None:
        """See Connection."""
        upload, self._upload, self._partial = self._upload, None, False
        if upload is not None:
            self._shared.counters["published"] += 1
            upload.finish()
            self._shared.hub.apply_backpressure(self)

    def refuse(self, error: ProtocolError) -> None:
        """See Connection."""
        self._shared.throttled.log(
            logging.INFO, "refused", "the broker refuses a request of %s: %s", self.peer, error
        )
        self._shared.counters["refused"] += 1
        self.close(str(error))

    def lost(self, reason: str) -> None:
        """See Connection. The front forgets it."""
        self._shared.connections.discard(self)
        upload, self._upload = self._upload, None
        if upload is not None:
            self._shared.counters["broken_off"] += 1
            upload.abandon(reason)

    def _completed(self, error: TransferError | None) -> None:
        """Handles the result of a large payload: if it is not kept, the publisher must not believe that it
        is."""
        if error is not None and not self.closed:
            self.refuse(ProtocolError("refused", str(error)))

    def is_stalled(self, now: float) -> bool:
        """Returns whether the peer stopped in the middle of a message for too long."""
        if self.paused:
            self._excused = now
        elif self._partial or self._upload is not None:
            return now - max(self.last_read, self._excused) >= self._shared.settings.stall_timeout
        return False


class PublishingFront(ABC, Generic[_Settings]):
    """All connections of one protocol. On the broker's loop. counters: events by name, since the start; all
    names exist from the start."""

    #: published, published_bytes: messages taken, and their payloads. broken_off: large ones whose peer
    #: disconnected. refused: connections ended for an invalid request. stall_timeout: ended because the peer
    #: stopped in the middle
    names: tuple[str, ...] = ("published", "published_bytes", "broken_off", "refused", "stalled")

    def __init__(self, hub: Hub, lines: ConnectionGroup, settings: _Settings) -> None:
        self._shared = FrontShared(hub, lines, settings, self.names)
        self.counters: dict[str, int] = self._shared.counters

    @abstractmethod
    def connected(self, connection: socket.socket, peer: str) -> Connection:
        """Takes an accepted connection, in non-blocking mode."""

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._shared.connections)

    def tick(self, now: float) -> None:
        """Ends connections whose peer stalls. Called about once a second with the loop's time."""
        for connection in list(self._shared.connections):
            if connection.is_stalled(now):
                self.counters["stalled"] += 1
                stalled = self._shared.settings.stall_timeout
                connection.close(f"the peer stopped in the middle of a message for {stalled:g} s")

    def close(self) -> None:
        """Ends all connections. Idempotent."""
        for connection in list(self._shared.connections):
            connection.close("the broker ends")
