"""A client for PyBroker's protocol.

with PyBrokerClient("127.0.0.1") as broker:
    broker.publish("logs", b"hello")
    for data in broker.follow("logs"):
        print(data)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from transfer.broker.clients.connection import ClientConnection, flat
from transfer.broker.protocols.pybroker import (
    GONE,
    GONE_SIZE,
    LENGTH_SIZE,
    PORT,
    encode_fetch,
    encode_publish,
    read_length,
    read_oldest,
)
from transfer.transports.arguments import patience
from transfer.transports.errors import Again, ProtocolError, UsageError

if TYPE_CHECKING:
    from transfer.transports.security.settings import Security


class PyBrokerClient:
    """One connection. Thread-safe: calls wait for each other.

    timeout: seconds for each call. security: certificates, instead of those of the TRANSFER_TLS_ variables.
    Raises Again (no answer in time), Broken (no broker is there), HandshakeError (TLS failed), SecurityError
    (a token is configured, and the protocol has none). Any error except UsageError ends the connection: make
    another client then.
    """

    def __init__(
        self, host: str, port: int = PORT, *, timeout: float = 30.0, security: Security | None = None
    ) -> None:
        self._connection = ClientConnection(host, port, timeout=timeout, security=security)
        self._timeout = self._connection.timeout
        self._lock = threading.Lock()  # answers have no id: each belongs to the last request

    def publish(self, topic: str, payload: Any) -> None:
        """Appends a payload (anything with a contiguous buffer) to a topic's stream of bytes.

        The protocol has no answer to it: if the broker refuses the payload, it closes the connection, and the
        next call raises Broken. Raises UsageError (topic, size), Again, Broken, Closed.
        """
        data = flat(payload)
        head = encode_publish(topic, len(data))
        self._connection.send((head, data))

    def fetch(self, topic: str, offset: int = 0) -> bytes | bytearray:
        """Returns the bytes of a topic's stream from an offset on: 1 MiB at most, none at its end or beyond.

        It reads what is on the broker's disk, which may be a moment behind `publish`. Add the number of bytes
        to the offset for the next call. Raises UsageError (the offset is not kept any more, see `oldest`),
        Again, Broken, Closed.
        """
        found, oldest = self._request(topic, offset)
        if found is None:
            raise UsageError(
                f"offset {offset} of topic {topic!r} is not kept any more",
                hint=f"the oldest kept offset is {oldest}",
            )
        return found

    def oldest(self, topic: str) -> int:
        """Returns a topic's oldest kept offset; 0 if nothing was removed. Raises as `fetch`."""
        return self._request(topic, 0)[1]

    def follow(
        self, topic: str, offset: int = 0, *, interval: float = 0.1, timeout: float | None = None
    ) -> Iterator[bytes | bytearray]:
        """Yields the bytes of a topic's stream from an offset on, in pieces, as they arrive.

        interval: seconds between two fetches while nothing is new. timeout: seconds; None: the client's;
        float("inf") waits for ever. Raises Again when nothing came for so long, else as `fetch`.
        """
        limit = self._timeout if timeout is None else patience(timeout, endless=False) or 0.0
        interval = patience(interval, "interval", endless=False) or 0.0
        deadline = time.monotonic() + limit
        while True:
            data = self.fetch(topic, offset)
            if data:
                offset += len(data)
                yield data
                deadline = time.monotonic() + limit
            elif time.monotonic() >= deadline:
                raise Again(f"nothing came on topic {topic!r} behind {offset} for {limit:g} s")
            else:
                self._connection.rest(min(interval, max(0.0, deadline - time.monotonic())))

    def close(self) -> None:
        """Closes the connection; a call that waits in another thread raises Closed. Idempotent."""
        self._connection.close()

    def __enter__(self) -> PyBrokerClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _request(self, topic: str, offset: int) -> tuple[bytes | bytearray | None, int]:
        """Returns (the bytes, or None if they are not kept any more; the oldest offset that is known)."""
        request = encode_fetch(topic, offset)
        with self._lock:
            try:
                self._connection.send((request,))
                nbytes = read_length(self._connection.receive(LENGTH_SIZE))
                if nbytes == GONE:
                    return None, read_oldest(self._connection.receive(GONE_SIZE - LENGTH_SIZE))
                return self._connection.receive(nbytes), 0
            except (Again, ProtocolError):  # the rest of the answer may arrive later, for a wrong request
                self._connection.close()
                raise
