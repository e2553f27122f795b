"""The broker's front for TTP v2: its limits, its connections, its counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from transfer.broker.core.subscriptions import Most
from transfer.broker.core.topic_patterns import Kind, check_topic
from transfer.broker.fronts.ttp_connection import TtpConnection
from transfer.broker.fronts.ttp_streams import StreamsShared
from transfer.broker.protocols.ttp import TtpLimits, decode_topic

if TYPE_CHECKING:
    import socket

    from transfer.broker.delivery.hub import Hub
    from transfer.broker.net.connection_group import ConnectionGroup

#: number of topics that are cached by their bytes
_TOPICS = 4096
_COUNTERS = (
    "published",
    "streams",
    "chunks",
    "subscribed",
    "heartbeats",
    "refused",
    "broken",
    "idle",
    "stalled",
)


@dataclass(frozen=True, slots=True)
class TtpSettings:
    """The limits of the front, in bytes and seconds.

    max_meta, max_data: of a frame; max_data: of a kept stream, too. max_stream_memory: of a stream in memory,
    or of the descriptions of its chunks; max_memory: of all streams in memory. max_streams: open streams of
    one connection. max_subscriptions, max_pattern_shapes: of one connection; max_pattern_shapes_total: of all
    connections (see Most). idle_timeout: seconds of silence after which a connection ends, and a stream is
    given up.
    """

    max_meta: int = 64 << 10
    max_data: int = 64 << 30
    max_stream_memory: int = 64 << 20
    max_memory: int = 1 << 30
    max_streams: int = 256
    max_subscriptions: int = 1_000_000
    max_pattern_shapes: int = 128
    max_pattern_shapes_total: int = 1024
    idle_timeout: float = 60.0


class TtpFront:
    """All connections that speak TTP. Used on the broker's loop only. counters: see docs/protocols/ttp.md."""

    def __init__(self, hub: Hub, lines: ConnectionGroup, settings: TtpSettings | None = None) -> None:
        self.hub = hub
        self.settings = settings or TtpSettings()
        self.limits = TtpLimits(meta=self.settings.max_meta, data=self.settings.max_data)
        self.shared = StreamsShared(self.settings.max_memory)
        self.most = Most(
            self.settings.max_subscriptions,
            self.settings.max_pattern_shapes,
            self.settings.max_pattern_shapes_total,
        )
        self.counters = dict.fromkeys(_COUNTERS, 0)
        #: by their bytes, so that finding a frame's topic takes one look-up
        self.topics: dict[bytes, str] = {}
        self._lines = lines
        self._connections: set[TtpConnection] = set()

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    def connected(self, connection: socket.socket, peer: str) -> TtpConnection:
        """Takes an accepted connection, in non-blocking mode."""
        taken = TtpConnection(self, self._lines, connection, peer)
        self._connections.add(taken)
        return taken

    def disconnected(self, connection: TtpConnection) -> None:
        """Forgets a connection that has ended."""
        self._connections.discard(connection)

    def tick(self, now: float) -> None:
        """Ends idle connections and stalled streams, and sends heartbeats to silent subscribers. now: the
        loop's time."""
        for connection in list(self._connections):
            connection.tick(now)

    def close(self) -> None:
        """Ends all connections. Idempotent."""
        for connection in list(self._connections):
            connection.close("the broker ends")

    def topic(self, name: bytes) -> str:
        """Returns the topic that a frame names. Raises ProtocolError, UsageError."""
        topic = decode_topic(name)
        check_topic(topic, Kind.PATHS)
        if len(self.topics) >= _TOPICS:
            self.topics.clear()
        self.topics[name] = topic
        return topic
