"""Sends messages to abtp's peers, to each in order; a pool of threads compresses large ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from transfer.broker.delivery.delivery_sink import Sent
from transfer.transports.errors import TransferError

if TYPE_CHECKING:
    from transfer.broker.offload_pool import OffloadPool

#: the frames of a message, the peer's identity first
Frames = list[bytes]
#: called when a message that was taken (`Sent.YES`) could not be sent later, with the result
Failed = Callable[[Sent], None]


class _Waiting:
    """A message that cannot be sent yet. frames: None while the pool makes them."""

    __slots__ = ("failed", "frames", "lost")

    def __init__(self, frames: Frames | None, failed: Failed) -> None:
        self.frames = frames
        self.failed = failed
        self.lost = False  # its frames could not be made


class AbtpOutgoing:
    """The messages to peers, on the broker's loop. send: gives frames to the socket. pool: makes frames of
    large messages."""

    def __init__(self, send: Callable[[Frames], Sent], pool: OffloadPool | None) -> None:
        self._send = send
        self._pool = pool
        self._waiting: dict[bytes, deque[_Waiting]] = {}

    def takes(self, nbytes: int) -> bool:
        """Returns whether the pool makes the frames of a payload of this size (`pack`)."""
        return self._pool is not None and self._pool.takes(nbytes)

    def send(self, frames: Frames, failed: Failed) -> Sent:
        """Sends a message, or queues it behind an earlier one that is not ready."""
        queue = self._waiting.get(frames[0])
        if queue is None:
            return self._send(frames)
        queue.append(_Waiting(frames, failed))
        return Sent.YES

    def pack(self, peer: bytes, packed: Callable[[], Frames], failed: Failed) -> Sent:
        """Queues a message whose frames the pool makes."""
        assert self._pool is not None
        waiting = _Waiting(None, failed)
        self._waiting.setdefault(peer, deque()).append(waiting)

        def done(made: Frames | TransferError) -> None:
            if isinstance(made, TransferError):
                waiting.lost = True
            else:
                waiting.frames = made
            self._go_on(peer)

        self._pool.run(packed, done)
        return Sent.YES

    def _go_on(self, peer: bytes) -> None:
        """Sends the messages that are ready, up to the first that is not."""
        queue = self._waiting.get(peer)
        gone: list[tuple[_Waiting, Sent]] = []
        while queue and (queue[0].frames is not None or queue[0].lost):
            one = queue.popleft()
            sent = self._send(one.frames) if one.frames is not None else Sent.FAILED
            if sent is not Sent.YES:
                gone.append((one, sent))
        if queue is not None and not queue:
            del self._waiting[peer]
        for one, sent in gone:  # at the end: the callbacks may send more
            one.failed(sent)
