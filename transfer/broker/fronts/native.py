"""The broker's own front: transfer's sockets over any transport, with tensors as they are.

PUSH, PUB or REQ give messages of two parts and more: topic, payload. SUB receives the topics that begin with
what it subscribed to, with `?begin=` also what was kept of them. DEALER speaks the protocol of
`transfer.broker.protocols.native`: messages are acknowledged when they are kept, and consumers of a group
acknowledge what they have processed.
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
from transfer.broker.fronts.native_requests import Requests
from transfer.broker.fronts.native_sockets import LoopSocket, Publications, Pushes
from transfer.broker.fronts.native_uploads import Limits

if TYPE_CHECKING:
    from transfer.broker.delivery.hub import Hub
    from transfer.sockets.socket import SocketMethods


@dataclass(frozen=True, slots=True)
class NativeSettings:
    """Endpoints; "" for none. requests: where DEALER and REQ connect; pushes: PUSH, PUB; subscriptions: SUB.
    queues: by topic, where PULL connects. largest: bytes of a message at most, and of one in pieces; stalled:
    seconds that a program may stop in the middle of that."""

    requests: str = "tcp://127.0.0.1:5580"
    pushes: str = "tcp://127.0.0.1:5581"
    subscriptions: str = "tcp://127.0.0.1:5582"
    largest: int = 4 << 30
    queues: Mapping[str, str] = field(default_factory=dict)
    largest_in_pieces: int = 64 << 30
    stalled: float = 30.0


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
                pieces = Limits(settings.largest_in_pieces, settings.largest, settings.stalled)
                requests = Requests(hub, loop, context, self.counters, pieces)
                self._add("requests", requests, settings)
            if settings.pushes:
                self._add("pushes", Pushes(hub, loop, context, self.counters), settings)
                publications = Publications(hub, loop, context, self.counters)
                self._sockets.append(publications)
                publications.listen(self.endpoints["pushes"], settings.largest)
            if settings.subscriptions:
                self._publisher = NativePublisher(
                    hub, loop, context, settings.subscriptions, settings.largest
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

    def _add(self, name: str, heard: LoopSocket, settings: NativeSettings) -> None:
        self._sockets.append(heard)
        self.endpoints[name] = heard.listen(getattr(settings, name), settings.largest)

    @property
    def registry(self) -> Registry | None:
        """Who has announced himself; None where nobody can."""
        found = (heard.registrations.books for heard in self._sockets if isinstance(heard, Requests))
        return next(found, None)

    @property
    def connections(self) -> int:
        """Peers that are connected."""
        return sum(len(one.peers()) for one in self._all_sockets())

    def _all_sockets(self) -> list[SocketMethods]:
        publishers = [self._publisher.socket] if self._publisher is not None else []
        sockets = [heard.socket for heard in self._sockets] + [queue.socket for queue in self._queues]
        return sockets + publishers

    def tick(self, now: float) -> None:
        """About once a second: who has gone."""
        for heard in self._sockets:
            heard.tick()
        if self._publisher is not None:
            self._publisher.catch_up.tick()

    def close(self) -> None:
        """Ends the sockets. Idempotent."""
        for queue in self._queues:
            queue.close()
        self._queues.clear()
        for heard in self._sockets:
            heard.close()
        self._sockets.clear()
        if self._publisher is not None:
            self._hub.leave(self._publisher)
            self._publisher.catch_up.close()
            self._publisher.socket.close(0)
