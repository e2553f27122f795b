"""Collects requests of one thread that go to the broker in one message."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from transfer.broker.protocols.native import LARGEST_NUMBER, Op
from transfer.broker.protocols.native_batch import LARGEST_BODY, WORD_COST, encode_several

#: requests in one message at most
_MOST = 1000
_NO_THREAD = LARGEST_NUMBER  # no thread has this number


class Batch:
    """The requests that one thread has collected. Used with the client's lock."""

    def __init__(self) -> None:
        self._thread = _NO_THREAD
        self.forget()

    @property
    def is_mine(self) -> bool:
        """Whether it collects the calling thread's requests."""
        return self._thread == threading.get_ident()

    def begin(self) -> bool:
        """Begins to collect for this thread. Returns False if a batch has begun: then do not call `end`."""
        if self._thread != _NO_THREAD:
            return False
        self._thread = threading.get_ident()
        return True

    def end(self) -> list[Any]:
        """Ends the batch, and returns its requests as one message; empty if there are none."""
        words = self.taken()
        self._thread = _NO_THREAD
        return words

    def add(self, frames: Sequence[Any]) -> list[Any]:
        """Adds a request: its head and its parts. Returns the message that has to be sent now, or nothing."""
        head, *parts = frames
        before: list[Any] = []
        if len(self._words) >= _MOST or self._size + len(head) + WORD_COST > LARGEST_BODY:
            before = self.taken()
        self._words.append((head, len(parts)))
        self._parts += parts
        self._size += len(head) + WORD_COST
        return before

    def taken(self) -> list[Any]:
        """Takes the requests that this thread has collected so far, as one message."""
        if not self._words or not self.is_mine:
            return []
        words, parts = self._words, self._parts
        self.forget()
        if len(words) == 1:
            return [words[0][0], *parts]
        return [encode_several(Op.SEVERAL, words), *parts]

    def forget(self) -> None:
        """Drops all requests: the connection has ended."""
        self._words: list[tuple[bytes, int]] = []
        self._parts: list[Any] = []
        self._size = 0  # bytes of heads
