"""The threads that have received a part of a message, and the parts that they have not."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any


class UnreadParts:
    """See the contract."""

    def __init__(self) -> None:
        self.threads = 0


class ReceivingThread:
    """See the contract. Here the socket asks each time: nothing is counted."""

    def __init__(self, unread: UnreadParts) -> None:
        self.given: tuple[Any, list[Any]] | None = None
        self.stream: Any = None
        self.rest: deque[Any] = deque()

    def leave(self, parts: Iterable[Any]) -> None:
        self.rest.extend(parts)

    def put_back(self, part: Any) -> None:
        self.rest.appendleft(part)

    def take(self) -> Any:
        return self.rest.popleft()

    def clear(self) -> None:
        self.rest.clear()
