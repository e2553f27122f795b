"""Decodes the messages of abtp's peers: large ones in a pool of threads, each peer's messages in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from transfer.broker.protocols.abtp_envelope import may_be_compressed

if TYPE_CHECKING:
    from transfer.broker.offload_pool import OffloadPool
    from transfer.broker.protocols.abtp import Request
    from transfer.transports.errors import TransferError

#: the frames of a message, the peer's identity first
Frames = list[bytes]
#: called with a peer and its request, or with the error of a request that could not be decoded
OnRequest = Callable[[bytes, "Request | TransferError"], None]
#: called with a peer, a description, and an exception that is not a TransferError
OnError = Callable[[bytes, str, Exception], None]

#: compressed messages from this size on are offloaded: they may expand 255 times
_COMPRESSED = 16 << 10
#: limits of the messages that are queued behind an offloaded message of the same peer
_MOST_QUEUED, _MOST_QUEUED_BYTES = 128, 32 << 20


class RequestReader:
    """Decodes messages on the broker's loop, and large ones in the pool.

    decode: turns frames into a request; it runs on any thread. pool: None decodes everything on the loop.
    on_drained: called when `is_full` may have become false.
    """

    def __init__(
        self,
        decode: Callable[[Frames], Request],
        on_request: OnRequest,
        on_error: OnError,
        pool: OffloadPool | None,
        on_drained: Callable[[], None],
    ) -> None:
        self._decode = decode
        self._on_request = on_request
        self._on_error = on_error
        self._pool = pool
        self._on_drained = on_drained
        #: for each peer with an offloaded message, its later messages
        self._queues: dict[bytes, deque[Frames]] = {}
        self._queued = self._queued_bytes = 0

    @property
    def is_full(self) -> bool:
        """The caller must not add messages now."""
        if self._pool is None or not self._queues:
            return False
        all_busy = len(self._queues) > self._pool.threads  # one message for each thread, and the next one
        return all_busy or self._queued >= _MOST_QUEUED or self._queued_bytes >= _MOST_QUEUED_BYTES

    def add(self, frames: Frames) -> None:
        """Decodes a message now, in the pool, or after earlier messages of its peer."""
        queue = self._queues.get(frames[0])
        if queue is not None:
            queue.append(frames)
            self._queued += 1
            self._queued_bytes += _size(frames)
        elif self._is_large(frames):
            self._queues[frames[0]] = deque()
            self._offload(frames)
        else:
            self._decode_now(frames)

    def _decode_now(self, frames: Frames) -> None:
        try:
            self._on_request(frames[0], self._decode(frames))
        except Exception as error:  # noqa: BLE001 - an error of one peer must not affect others
            self._on_error(frames[0], "a message", error)

    def _offload(self, frames: Frames) -> None:
        assert self._pool is not None
        self._pool.run(partial(self._decode, frames), partial(self._decoded, frames[0]))

    def _decoded(self, peer: bytes, request: Request | TransferError) -> None:
        """Handles an offloaded message, then the peer's queue up to its next large message."""
        queue = self._queues[peer]
        try:
            self._on_request(peer, request)
        except Exception as error:  # noqa: BLE001 - an error of one peer must not affect others
            self._on_error(peer, "a large message", error)
        self._on_drained()
        while queue:
            frames = queue.popleft()
            self._queued -= 1
            self._queued_bytes -= _size(frames)
            if self._is_large(frames):
                self._offload(frames)
                return
            self._decode_now(frames)
        del self._queues[peer]

    def _is_large(self, frames: Frames) -> bool:
        if self._pool is None:
            return False
        if self._pool.takes(_size(frames)):
            return True
        headers = frames[-2] if len(frames) > 4 else b""
        return len(frames[-1]) >= _COMPRESSED and may_be_compressed(headers, frames[-1])


def _size(frames: Frames) -> int:
    return sum(map(len, frames))
