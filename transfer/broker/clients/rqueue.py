"""A client for rqueue's protocol.

with RqueueClient("127.0.0.1") as queue:
    queue.subscribe("news")
    queue.publish("news", b"hello")
    print(queue.recv().content)
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from transfer.broker.clients.connection import ClientConnection, flat
from transfer.broker.protocols.rqueue import (
    PORT,
    RqueueHead,
    Type,
    encode_deregister,
    encode_publish,
    encode_remove,
    encode_subscribe,
    read_head,
)
from transfer.transports.arguments import patience
from transfer.transports.errors import ProtocolError

if TYPE_CHECKING:
    from transfer.transports.security.settings import Security

#: bytes of a NOTIFICATION in front of its topic
_FIRST = 6


class Notification(NamedTuple):
    """A received message."""

    topic: str
    content: bytes | bytearray


class RqueueClient:
    """One connection. Thread-safe: one thread receives while others publish.

    timeout: default of each call, in seconds. security: certificates, instead of those of the TRANSFER_TLS_
    variables. Raises Again (no answer in time), Broken (no broker is there), HandshakeError (TLS failed),
    SecurityError (a token is configured, and the protocol has none). The protocol has no answers: if the
    broker refuses a request, it closes the connection, and a later call raises Broken.
    """

    def __init__(
        self, host: str, port: int = PORT, *, timeout: float = 30.0, security: Security | None = None
    ) -> None:
        self._connection = ClientConnection(host, port, timeout=timeout, security=security)
        self._timeout = self._connection.timeout
        self._lock = threading.Lock()
        self._start = b""  # of a message, until its head is complete
        self._head: RqueueHead | None = None  # of a message whose content has not arrived

    def publish(self, topic: str, content: Any) -> None:
        """Publishes anything with a contiguous buffer.

        Raises UsageError (topic, size), Again, Broken, Closed.
        """
        data = flat(content)
        self._connection.send((encode_publish(topic, len(data)), data))

    def subscribe(self, topic: str) -> None:
        """Subscribes to a topic. Idempotent. Raises as `publish`."""
        self._connection.send((encode_subscribe(topic),))

    def remove(self, topic: str) -> None:
        """Ends a subscription, if there is one. Messages that were sent already still arrive."""
        self._connection.send((encode_remove(topic),))

    def deregister(self) -> None:
        """Ends all subscriptions. Messages that were sent already still arrive."""
        self._connection.send((encode_deregister(),))

    def recv(self, timeout: float | None = None) -> Notification:
        """Returns the next message of the subscribed topics, also a message that this client published.

        timeout: seconds; None: the client's; float("inf") waits for ever. Raises Again (no part of the
        message is lost), Broken, Closed, ProtocolError.
        """
        deadline = time.monotonic() + (
            self._timeout if timeout is None else patience(timeout, endless=False) or 0.0
        )
        with self._lock:
            try:
                head = self._head = self._head or self._receive_head(deadline)
            except ProtocolError:
                self._connection.close()
                raise
            content = self._connection.receive(head.nbytes, timeout=deadline - time.monotonic())
            self._head = None
            return Notification(head.topic, content)

    def close(self) -> None:
        """Closes the connection; a call that waits in another thread raises Closed. Idempotent."""
        self._connection.close()

    def __enter__(self) -> RqueueClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _receive_head(self, deadline: float) -> RqueueHead:
        while True:
            head = read_head(self._start)
            if head is not None:
                self._start = b""
                if head.type is not Type.NOTIFICATION:
                    raise ProtocolError("type", f"{head.type.name} is no message of a broker")
                return head
            needed = self._start[-1] if self._start else _FIRST
            self._start += self._connection.receive(needed, timeout=deadline - time.monotonic())
