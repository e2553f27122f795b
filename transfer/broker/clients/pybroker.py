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
from types import TracebackType
from typing import TYPE_CHECKING, Any

from transfer.broker.clients.connection import Connection, flat
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
    """One connection; any thread may call, and one call waits for another.

    timeout: seconds for each call. security: certificates, instead of what the TRANSFER_TLS_ variables say.
    Raises Again (no answer in time), Broken (no broker is there), HandshakeError (no TLS with it),
    SecurityError (there is a token, and the protocol knows none). After any error but UsageError the
    connection has ended; make another client.
    """

    def __init__(
        self, host: str, port: int = PORT, *, timeout: float = 30.0, security: Security | None = None
    ) -> None:
        self._connection = Connection(host, port, timeout=timeout, security=security)
        self._timeout = self._connection.timeout
        self._lock = threading.Lock()  # an answer is the one to the last request

    def publish(self, topic: str, payload: Any) -> None:
        """Appends a payload (anything with a contiguous buffer) to a topic's stream of bytes.

        The protocol has no answer to it: what the broker does not take ends the connection, and the next call
        raises Broken. Raises UsageError (topic, size), Again, Broken, Closed.
        """
        data = flat(payload)
        head = encode_publish(topic, len(data))
        self._connection.send((head, data))

    def fetch(self, topic: str, offset: int = 0) -> bytes | bytearray:
        """The bytes of a topic's stream from an offset on: 1 MiB at most, none at its end or beyond.

        It shows what is on the broker's disk, which may be a moment behind `publish`. The next offset is this
        one plus their number. Raises UsageError (the offset is not kept any more, see `oldest`), Again,
        Broken, Closed.
        """
        found, oldest = self._ask(topic, offset)
        if found is None:
            raise UsageError(
                f"offset {offset} of topic {topic!r} is not kept any more",
                hint=f"the oldest that is there is {oldest}",
            )
        return found

    def oldest(self, topic: str) -> int:
        """The first offset of a topic that is still kept; 0 if nothing was removed. Raises as `fetch`."""
        return self._ask(topic, 0)[1]

    def follow(
        self, topic: str, offset: int = 0, *, interval: float = 0.1, timeout: float | None = None
    ) -> Iterator[bytes | bytearray]:
        """The bytes of a topic's stream from an offset on, as they come, one piece behind the other.

        interval: seconds until it asks again where it was told that there is nothing new. timeout: seconds;
        the client's if None; float("inf") waits for ever. Raises Again when nothing came for so long, else as
        `fetch`.
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
        """Ends the connection; a call that waits in another thread raises Closed. Idempotent."""
        self._connection.close()

    def __enter__(self) -> PyBrokerClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, topic: str, offset: int) -> tuple[bytes | bytearray | None, int]:
        """(the bytes, or None if they are not kept any more; the oldest offset that is known to be there)."""
        request = encode_fetch(topic, offset)
        with self._lock:
            try:
                self._connection.send((request,))
                nbytes = read_length(self._connection.receive(LENGTH_SIZE))
                if nbytes == GONE:
                    return None, read_oldest(self._connection.receive(GONE_SIZE - LENGTH_SIZE))
                return self._connection.receive(nbytes), 0
            except (Again, ProtocolError):  # the rest of the answer may still come, and fits no other request
                self._connection.close()
                raise
