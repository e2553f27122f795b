"""Slots for a REQ's open requests: so many for each peer, assigned in the order of the requests."""

from __future__ import annotations

import threading
from collections import deque
from typing import Protocol

from transfer.patterns import PipelinedRequester


class Guest(Protocol):
    """A request that needs a slot."""

    def is_over(self) -> bool:
        """Whether its reply is not wanted any more."""


class RequestPool:
    """most: slots for each peer; 0: any number. Thread-safe."""

    def __init__(self, pattern: PipelinedRequester, most: int) -> None:
        self._pattern, self._most = pattern, most
        self._line: deque[Guest] = deque()
        self._lock = threading.Lock()

    @property
    def waits(self) -> bool:
        """Whether a request waits for a slot."""
        return bool(self._line)

    @property
    def first(self) -> Guest | None:
        """Returns the request that has waited longest."""
        with self._lock:
            self._pass_over()
            return self._line[0] if self._line else None

    def enter(self, guest: Guest) -> int:
        """Begins a request and returns its number. 0: there is no slot, and it waits in line."""
        with self._lock:
            if not self._is_next(guest):
                return 0
            if self._line:
                self._line.popleft()
            return self._pattern.begin()

    def may_enter(self, guest: Guest) -> bool:
        """Whether there is a slot for it now; else it waits in line."""
        with self._lock:
            return self._is_next(guest)

    def leave(self, guest: Guest) -> None:
        """Removes it from the line. Idempotent."""
        with self._lock:
            if guest in self._line:
                self._line.remove(guest)

    def _is_next(self, guest: Guest) -> bool:
        self._pass_over()
        if self._pattern.has_room(self._most) and (not self._line or self._line[0] is guest):
            return True
        if guest not in self._line:
            self._line.append(guest)
        return False

    def _pass_over(self) -> None:
        while self._line and self._line[0].is_over():
            self._line.popleft()
