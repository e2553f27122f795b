"""The front for PyBroker: PUBLISH, without an answer, and FETCH from a topic's stream of bytes."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transfer.broker.core.message import Buffer, Front, Message
from transfer.broker.fronts.publisher_front import (
    LARGE_FROM,
    FrontShared,
    PublishingConnection,
    PublishingFront,
    PublishingSettings,
    kept,
)
from transfer.broker.protocols.pybroker import (
    MAX_ANSWER,
    Publish,
    PyBrokerFetch,
    encode_gone,
    encode_length,
    read_request,
)
from transfer.broker.storage.store import PositionRemoved
from transfer.broker.turns import call_after_turns
from transfer.transports.errors import LogDamaged, UsageError

if TYPE_CHECKING:
    from transfer.broker.delivery.hub import Hub
    from transfer.broker.net.connection_group import ConnectionGroup

_log = logging.getLogger("transfer.broker")

#: bytes of answers in one turn, of all connections; the last answer may exceed it
_TURN = 64 << 10
#: bytes that a payload counts for at least
_LEAST = 64
#: answers of more buffers are copied into one: each buffer costs an entry in a system call
_MOST_BUFFERS = 64


@dataclass(frozen=True, slots=True)
class PyBrokerSettings(PublishingSettings):
    """Settings of the front. max_payload, stall_timeout: see PublishingSettings; a peer that does not read
    its answers stalls, too. max_pending: bytes of answers that may wait for a peer before its next request is
    handled."""

    max_pending: int = 4 << 20


class _Fetches:
    """Serves the FETCHes of all connections in turns of limited size: 1 MiB takes some 20 ms."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[PyBrokerConnection, PyBrokerFetch]] = deque()
        self._left = _TURN  # bytes in this turn

    def add(self, connection: PyBrokerConnection, request: PyBrokerFetch) -> None:
        """Serves a request now, or in a later turn; its connection is not read until then."""
        if self._left <= 0:
            connection.pause()
            self._waiting.append((connection, request))
            return
        self._left -= connection.serve(request)
        if self._left <= 0:
            call_after_turns(self._loop, self._next)

    def _next(self) -> None:
        self._left = _TURN
        while self._waiting and self._left > 0:
            connection, request = self._waiting.popleft()
            try:
                if not connection.closed:
                    self.add(connection, request)
            except Exception:  # noqa: BLE001 - of this connection only
                connection.fail()
            finally:
                connection.resume()


class PyBrokerConnection(PublishingConnection[PyBrokerSettings]):
    """One connection; its requests are served in order."""

    def __init__(
        self, shared: FrontShared[PyBrokerSettings], fetches: _Fetches, connection: socket.socket, peer: str
    ) -> None:
        self._fetches = fetches
        self._waits = False  # the connection is not read until its answers are written
        self._waiting = 0  # queued bytes at the last check
        self._moved = 0.0  # when that number last changed
        super().__init__(shared, connection, peer)

    def take(self, data: memoryview, position: int) -> int:
        """See PublishingConnection."""
        request = read_request(data, position)
        if request is None:
            return 0
        if isinstance(request, Publish):
            return self._publish(request, data, position)
        self._fetches.add(self, request)
        return request.size

    def on_drained(self) -> None:
        """See Connection."""
        if self._waits:
            self._waits = False
            self.resume()

    def is_stalled(self, now: float) -> bool:
        """See PublishingConnection."""
        if not self._waits:
            return super().is_stalled(now)
        if self.queued != self._waiting:
            self._waiting, self._moved = self.queued, now
        return now - self._moved >= self._shared.settings.stall_timeout

    def _publish(self, request: Publish, data: memoryview, position: int) -> int:
        topic, size, nbytes = request
        self.check_size(nbytes)
        if nbytes >= LARGE_FROM:
            self.publish_large(Message(topic, (), Front.PYBROKER), nbytes)
            return size
        begin = position + size
        end = begin + nbytes
        if end > len(data):
            return 0
        self.publish(Message(topic, (kept(data[begin:end]),), Front.PYBROKER), nbytes)
        return end - position

    def serve(self, request: PyBrokerFetch) -> int:
        """Answers a request. Returns the bytes that the answer counts for."""
        topic, _, offset = request
        try:
            count, parts = self._answer(topic, offset)
        except LogDamaged as error:
            _log.error("%s cannot be answered: %s", self.peer, error)
            self._shared.counters["damaged"] += 1
            self.close(str(error))
            return 0
        self._shared.counters["fetched"] += 1
        for part in parts:
            self.write(part)
        if self.queued >= self._shared.settings.max_pending:
            self._waits = True
            self._waiting, self._moved = self.queued, self._loop.time()
            self.pause()
        return max(_LEAST * count, sum(map(len, parts)))

    def _answer(self, topic: str, offset: int) -> tuple[int, list[Buffer]]:
        """Returns (payloads, answer). Raises LogDamaged."""
        hub, counters = self._shared.hub, self._shared.counters
        try:
            parts = hub.stream(topic, offset, MAX_ANSWER)
        except PositionRemoved as error:
            counters["gone"] += 1
            return 0, [encode_gone(error.next)]
        except UsageError:  # the stream ends before this offset
            parts = []
        nbytes, count = sum(map(len, parts)), len(parts)
        counters["fetched_bytes"] += nbytes
        if count > _MOST_BUFFERS:
            parts = [b"".join(parts)]
        return count, [encode_length(nbytes), *parts]


class PyBrokerFront(PublishingFront[PyBrokerSettings]):
    """All connections of PyBroker's protocol. See PublishingFront."""

    #: fetched, fetched_bytes: FETCH answered, and their bytes. gone: answered that the offset is not kept any
    #: more. damaged: connections ended because the requested bytes are damaged on the disk
    names = (*PublishingFront.names, "fetched", "fetched_bytes", "gone", "damaged")

    def __init__(self, hub: Hub, lines: ConnectionGroup, settings: PyBrokerSettings) -> None:
        super().__init__(hub, lines, settings)
        self._fetches = _Fetches(lines.loop)

    def connected(self, connection: socket.socket, peer: str) -> PyBrokerConnection:
        """See PublishingFront."""
        return PyBrokerConnection(self._shared, self._fetches, connection, peer)
