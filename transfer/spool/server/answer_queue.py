"""Makes answers that take long in slices, in turns."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from transfer.spool.format.rows import Arrays

#: makes an answer: yields the bytes that it is about to allocate, then at each place where it may pause;
#: returns the rows and their number
Slices = Generator[int, None, "tuple[Arrays, int]"]

T = TypeVar("T")
#: seconds for which one answer is made before the others have their turn
_SLICE = 0.01
#: bytes from which on an answer waits until no other one of that size is being made
LARGE = 64 << 20


class _Answer(Generic[T]):
    __slots__ = ("large", "made", "slices")

    def __init__(self, slices: Generator[int, None, T], made: Callable[[T | Exception], None]) -> None:
        self.slices = slices
        self.made = made
        self.large = False


class AnswerQueue:
    """Answers in the making, each for 10 ms at a time. For one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._running: deque[_Answer[Any]] = deque()
        self._waiting: deque[_Answer[Any]] = deque()  # large answers, made one at a time

    @property
    def busy(self) -> bool:
        """Whether `turn` has work to do."""
        return bool(self._running)

    def begin(self, slices: Generator[int, None, T], made: Callable[[T | Exception], None]) -> None:
        """Makes an answer, at once if it is small. made: called with it, maybe within this call."""
        answer = _Answer(slices, made)
        try:
            answer.large = next(slices) > LARGE
        except StopIteration as stop:
            made(stop.value)
        except Exception as error:  # noqa: BLE001 - of this answer; the client gets it
            made(error)
        else:
            if answer.large and any(one.large for one in self._running):
                self._waiting.append(answer)
            else:
                self._go_on(answer)

    def turn(self) -> None:
        """Runs one slice of each answer."""
        for _ in range(len(self._running)):
            self._go_on(self._running.popleft())

    def _go_on(self, answer: _Answer[T]) -> None:
        until = self._clock() + _SLICE
        try:
            next(answer.slices)
            while self._clock() < until:
                next(answer.slices)
        except StopIteration as stop:
            self._ended(answer, stop.value)
        except Exception as error:  # noqa: BLE001 - of this answer; the client gets it
            self._ended(answer, error)
        else:
            self._running.append(answer)

    def _ended(self, answer: _Answer[T], made: T | Exception) -> None:
        if answer.large and self._waiting:
            self._running.append(self._waiting.popleft())
        answer.made(made)


def whole(slices: Slices) -> tuple[Arrays, int]:
    """Makes the answer without a pause."""
    while True:
        try:
            next(slices)
        except StopIteration as stop:
            made: tuple[Arrays, int] = stop.value
            return made
