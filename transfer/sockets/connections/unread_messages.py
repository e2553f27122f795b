"""Messages that a lost peer sent before its end and that are not read yet."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from transfer.transports.base import Stream
from transfer.transports.errors import Broken

if TYPE_CHECKING:
    from transfer.transports.core.contract import Frame, OutFrame, Sink


class UnreadMessages(Stream):
    """A stream that only returns the remaining messages, then ends. It replaces the closed stream, so that
    the core serves it before all others and wakes waiting threads. Thread-safe."""

    ended = True

    def __init__(self, messages: Iterable[list[Frame]], peer: Any) -> None:
        self.peer = peer
        self._messages = deque(messages)
        self._lock = threading.Lock()

    def holds(self, sequence: int) -> bool:
        """Whether a message of this number is left."""
        return any(frames[0].sequence == sequence for frames in self._messages)

    def take(self, sink: Sink | None = None) -> list[Frame] | None:
        with self._lock:
            if self.handed is None:
                if not self._messages:
                    raise Broken("the peer is gone, and all its messages were received")
                self.handed = self._messages[0]
                self._messages.popleft()
            return self.handed

    def consume(self, frames: list[Frame]) -> None:
        """Does nothing: the lost stream counted the message."""

    def send(
        self,
        frames: Sequence[OutFrame],
        *,
        force: bool = False,
        hold: bool = False,
        released: Callable[[BaseException | None], None] | None = None,
    ) -> int:
        raise Broken("the peer is gone")

    def flush(self) -> bool:
        return True

    def take_unsent(self) -> list[list[OutFrame]]:
        return []

    def close(self) -> int:
        with self._lock:
            self._messages.clear()
        return 0

    def subscribe(self, prefix: bytes) -> None:
        """Does nothing: this stream sends nothing."""

    def unsubscribe(self, prefix: bytes) -> bool:
        return False

    def matches(self, topic: bytes) -> bool:
        return False
