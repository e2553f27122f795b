"""What comes from abtp's peers, each one's messages in their order, though large ones are read beside the
loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from transfer.protocols.abtp_envelope import may_be_compressed

if TYPE_CHECKING:
    from transfer.broker.beside import Beside
    from transfer.protocols.abtp import Request
    from transports.errors import TransferError

#: the frames of a message, the peer's identity first
Frames = list[bytes]
#: is given a peer, and what it asks, or why that could not be read
Done = Callable[[bytes, "Request | TransferError"], None]
#: is given a peer, what went wrong, and the exception, which is none of ours
Failed = Callable[[bytes, str, Exception], None]

#: compressed bytes that are read beside the loop: they may be some 255 times as many
_COMPRESSED = 16 << 10
#: messages that wait behind large ones of their peers, and their bytes: then no more are taken
_MOST, _MOST_BYTES = 128, 32 << 20


class Incoming:
    """On the broker's loop. read: frames to a request, on any thread. beside: reads large ones; without it,
    all are read in place. relieved: is called when it may be less full than it was.
    """

    def __init__(
        self,
        read: Callable[[Frames], Request],
        done: Done,
        failed: Failed,
        beside: Beside | None,
        relieved: Callable[[], None],
    ) -> None:
        self._read = read
        self._done = done
        self._failed = failed
        self._beside = beside
        self._relieved = relieved
        #: by the peer of one that is read beside the loop, what came behind it
        self._reading: dict[bytes, deque[Frames]] = {}
        self._behind = self._behind_bytes = 0

    @property
    def full(self) -> bool:
        """Enough is on its way or waits: no more may be taken now."""
        if self._beside is None or not self._reading:
            return False
        busy = len(self._reading) > self._beside.threads  # one for each, and one that is next
        return busy or self._behind >= _MOST or self._behind_bytes >= _MOST_BYTES

    def take(self, frames: Frames) -> None:
        """The next message."""
        behind = self._reading.get(frames[0])
        if behind is not None:
            behind.append(frames)
            self._behind += 1
            self._behind_bytes += _size(frames)
        elif self._is_large(frames):
            self._reading[frames[0]] = deque()
            self._run(frames)
        else:
            self._do(frames)

    def _do(self, frames: Frames) -> None:
        try:
            self._done(frames[0], self._read(frames))
        except Exception as error:  # noqa: BLE001 - of this peer; the others are heard
            self._failed(frames[0], "a message", error)

    def _run(self, frames: Frames) -> None:
        assert self._beside is not None
        self._beside.run(partial(self._read, frames), partial(self._come_back, frames[0]))

    def _come_back(self, peer: bytes, request: Request | TransferError) -> None:
        """A large one was read: those behind it are, up to the next large one."""
        behind = self._reading[peer]
        try:
            self._done(peer, request)
        except Exception as error:  # noqa: BLE001 - of this peer; the others are heard
            self._failed(peer, "a large message", error)
        self._relieved()
        while behind:
            frames = behind.popleft()
            self._behind -= 1
            self._behind_bytes -= _size(frames)
            if self._is_large(frames):
                self._run(frames)
                return
            self._do(frames)
        del self._reading[peer]

    def _is_large(self, frames: Frames) -> bool:
        """It takes long to read."""
        if self._beside is None:
            return False
        if self._beside.takes(_size(frames)):
            return True
        headers = frames[-2] if len(frames) > 4 else b""
        return len(frames[-1]) >= _COMPRESSED and may_be_compressed(headers, frames[-1])


def _size(frames: Frames) -> int:
    return sum(map(len, frames))
