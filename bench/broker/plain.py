"""TTP by plain sockets, as light as possible, so that the broker is the bottleneck."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

from bench.work import Failed
from transfer.broker.protocols.ttp import HEADER_SIZE, WANTED, TtpKind, encode_head

_BUFFER = 1 << 20
#: the position of the kind in a header
_KIND_AT = 6
#: seconds after which a receiver sends the broker a heartbeat, which is answered
_BEAT = 30.0
_PATIENCE = 60.0


def _asked(connection: socket.socket, topic: str) -> None:
    """Subscribes, and waits for the answer, which must be the first message."""
    connection.sendall(encode_head(TtpKind.SUBSCRIBE, topic.encode(), flags=WANTED, stream_id=1))
    answer = connection.recv(HEADER_SIZE, socket.MSG_WAITALL)
    if len(answer) != HEADER_SIZE or answer[_KIND_AT] != TtpKind.ACK:
        raise Failed(f"no ACK, but {answer!r}")


class Source:
    """A publisher of prepared frames."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, _PATIENCE)

    def send(self, frames: memoryview) -> None:
        """Sends all bytes."""
        self._socket.sendall(frames)

    def close(self) -> None:
        """Ends the connection when the broker has read all bytes."""
        with self._socket:
            _asked(self._socket, "nothing")


class Drain:
    """A subscriber that counts bytes. Raises TimeoutError (nothing arrives), ConnectionError (the end)."""

    def __init__(self, address: tuple[str, int], topic: str) -> None:
        self.received = 0
        self._socket = socket.create_connection(address, _PATIENCE)
        self._buffer = memoryview(bytearray(_BUFFER))
        self._beat = time.monotonic()
        try:
            _asked(self._socket, topic)
        except BaseException:
            self._socket.close()
            raise

    def until(self, nbytes: int) -> Iterator[int]:
        """Receives until so many bytes have arrived in all; yields their number so far."""
        while self.received < nbytes:
            got = self._socket.recv_into(self._buffer)
            if not got:
                raise ConnectionError("the broker has closed the connection")
            self.received += got
            if time.monotonic() - self._beat > _BEAT:
                self._beat = time.monotonic()
                self._socket.sendall(encode_head(TtpKind.HEARTBEAT))
            yield self.received

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()


def frame_size(topic: str, nbytes: int) -> int:
    """Returns the bytes of a PUBLISH."""
    return HEADER_SIZE + len(topic) + nbytes
