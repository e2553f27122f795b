"""The native front: transfer's sockets over any transport, with tensors as they are.

PUSH, PUB or REQ send messages of two or more parts: topic, payload. SUB receives topics by prefix, with
`?begin=` also the messages that were kept. DEALER speaks the protocol of `transfer.broker.protocols.native`:
the broker acknowledges messages when they are kept, and consumers of a group acknowledge what they have
processed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import transfer
from transfer.broker.core.registry import Registry
from transfer.broker.core.topic_patterns import Kind, pattern
from transfer.broker.fronts.native_publisher import NativePublisher
from transfer.broker.fronts.native_queue import NativeQueue
from transfer.broker.fronts.native_requests import NativeRequests
from transfer.broker.fronts.native_sockets import LoopSocket, Publications, Pushes
from transfer.broker.fronts.native_uploads import UploadLimits

if TYPE_CHECKING:
    from transfer.broker.delivery.hub import Hub
    from transfer.sockets.socket import Socket


@dataclass(frozen=True, slots=True)
class NativeSettings:
    """Settings of the native front. Endpoints; "" for none. requests: for DEALER and REQ; pushes: PUSH, PUB;
    subscriptions: SUB. queues: endpoints for PULL, by topic. max_message: bytes of a message;
    max_message_in_pieces: of one in pieces; stall_timeout: seconds that a program may stop in the middle of
    such a one."""

    requests: str = "tcp://127.0.0.1:5580"
    pushes: str = "tcp://127.0.0.1:5581"
    subscriptions: str = "tcp://127.0.0.1:5582"
    max_message: int = 4 << 30
    queues: Mapping[str, str] = field(default_factory=dict)
    max_message_in_pieces: int = 64 << 30
    stall_timeout: float = 30.0


class NativeFront:
    """The sockets of this front. On the broker's loop."""

    def __init__(
        self, hub: Hub, loop: asyncio.AbstractEventLoop, context: transfer.Context, settings: NativeSettings
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._hub = hub
        self._loop = loop
        self._sockets: list[LoopSocket] = []
        self._publisher: NativePublisher | None = None
        self._queues: list[NativeQueue] = []
        self.endpoints: dict[str, str] = {}
        try:
            if settings.requests:
                pieces = UploadLimits(
                    settings.max_message_in_pieces, settings.max_message, settings.stall_timeout
                )
                requests = NativeRequests(hub, loop, context, self.counters, pieces)
                self._add("requests", requests, settings)
            if settings.pushes:
                self._add("pushes", Pushes(hub, loop, context, self.counters), settings)
                publications = Publications(hub, loop, context, self.counters)
                self._sockets.append(publications)
                publications.listen(self.endpoints["pushes"], settings.max_message)
            if settings.subscriptions:
                self._publisher = NativePublisher(
                    hub, loop, context, settings.subscriptions, settings.max_message
                )
                self.endpoints["subscriptions"] = self._publisher.endpoint
                hub.subscribe(self._publisher, pattern(Kind.PREFIX, ""))
            for topic, endpoint in settings.queues.items():
                queue = NativeQueue(hub, loop, context, self.counters, topic, endpoint)
                self._queues.append(queue)
                self.endpoints[f"queue {topic}"] = queue.endpoint
        except BaseException:
            self.close()
            raise

    def _add(self, name: str, added: LoopSocket, settings: NativeSettings) -> None:
        self._sockets.append(added)
        self.endpoints[name] = added.listen(getattr(settings, name), settings.max_message)

    @property
    def registry(self) -> Registry | None:
        """The registry of announced endpoints; None where there is none."""
        found = (one.registrations.registry for one in self._sockets if isinstance(one, NativeRequests))
        return next(found, None)

    @property
    def connections(self) -> int:
        """The number of connected peers."""
        return sum(len(one.peers()) for one in self._all_sockets())

    def _all_sockets(self) -> list[Socket]:
        publishers = [self._publisher.socket] if self._publisher is not None else []
        sockets = [one.socket for one in self._sockets] + [queue.socket for queue in self._queues]
        return sockets + publishers

    def tick(self, now: float) -> None:
        """Checks for programs that have disconnected, about once a second."""
        for one in self._sockets:
            one.tick()
        if self._publisher is not None:
            self._publisher.catch_up.tick()

    def close(self) -> None:
        """Closes the sockets. Idempotent."""
        for queue in self._queues:
            queue.close()
        self._queues.clear()
        for one in self._sockets:
            one.close()
        self._sockets.clear()
        if self._publisher is not None:
            self._hub.leave(self._publisher)
            self._publisher.catch_up.close()
            self._publisher.socket.close(0)
