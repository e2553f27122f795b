"""The threads that have received a part of a message, and the parts that they have not."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any


class UnfinishedMessages:
    """See the contract. Here the socket asks each thread: nothing is counted."""


class SocketThread:
    """See the contract."""

    def __init__(self, counted: UnfinishedMessages) -> None:
        self.given: tuple[Any, list[Any]] | None = None
        self.stream: Any = None
        self.rest: deque[Any] = deque()
        self.begun: list[Any] = []

    def begin(self, frames: Iterable[Any]) -> None:
        self.begun.extend(frames)

    def end(self) -> None:
        self.begun.clear()

    def leave(self, parts: Iterable[Any]) -> None:
        self.rest.extend(parts)

    def put_back(self, part: Any) -> None:
        self.rest.appendleft(part)

    def take(self) -> Any:
        return self.rest.popleft()

    def clear(self) -> None:
        self.rest.clear()
