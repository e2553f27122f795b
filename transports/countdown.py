"""Calls back once, when the last party of several has ended."""

from __future__ import annotations

from collections.abc import Callable


class Countdown:
    """Calls `released` once, when `left` parties have called `ended`; it gets the first error.

    A signal handler may raise at the beginning of a call of `ended`, or inside of `released`. Then the caller
    repeats the call. Nothing between is a call, so no handler and no other thread runs there.
    """

    __slots__ = ("error", "left", "released")

    def __init__(self, released: Callable[[BaseException | None], None] | None, left: int) -> None:
        self.released = released
        self.left = left
        self.error: BaseException | None = None

    def ended(self, error: BaseException | None) -> None:
        if self.left:
            self.left -= 1
            if error is not None and self.error is None:
                self.error = error
        if not self.left and self.released is not None:
            self.released(self.error)
