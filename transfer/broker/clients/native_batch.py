"""Words of one thread that go to the broker in one message."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from transfer.broker.protocols.native import LARGEST_NUMBER, Op
from transfer.broker.protocols.native_batch import LARGEST_BODY, WORD_COST, encode_several

#: words in one message at most
_MOST = 1000
_NOBODY = LARGEST_NUMBER  # no thread has this number


class Batch:
    """Used with the client's lock."""

    def __init__(self) -> None:
        self._thread = _NOBODY
        self.forget()

    @property
    def here(self) -> bool:
        """Whether what this thread says is gathered."""
        return self._thread == threading.get_ident()

    def begin(self) -> bool:
        """From now on, for this thread. False: it has begun already, or another thread gathers, and then
        nothing is to be ended."""
        if self._thread != _NOBODY:
            return False
        self._thread = threading.get_ident()
        return True

    def end(self) -> list[Any]:
        """What was gathered, as one message; nothing if there is none. The end of it."""
        words = self.taken()
        self._thread = _NOBODY
        return words

    def add(self, frames: Sequence[Any]) -> list[Any]:
        """One word: its head and its parts. What has to go now, as one message."""
        head, *parts = frames
        before: list[Any] = []
        if len(self._words) >= _MOST or self._size + len(head) + WORD_COST > LARGEST_BODY:
            before = self.taken()
        self._words.append((head, len(parts)))
        self._parts += parts
        self._size += len(head) + WORD_COST
        return before

    def taken(self) -> list[Any]:
        """What was gathered so far by this thread, as one message."""
        if not self._words or not self.here:
            return []
        words, parts = self._words, self._parts
        self.forget()
        if len(words) == 1:
            return [words[0][0], *parts]
        return [encode_several(Op.SEVERAL, words), *parts]

    def forget(self) -> None:
        """The connection has ended."""
        self._words: list[tuple[bytes, int]] = []
        self._parts: list[Any] = []
        self._size = 0  # bytes of heads
