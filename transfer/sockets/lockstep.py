"""Several threads on one REQ or REP: one thread at a time sends, one at a time receives."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from transfer.transports.errors import Again

if TYPE_CHECKING:
    from transfer.transports.core.contract import Turn

#: sides of `Turn` (core/contract.pyi)
SENDING, RECEIVING = 0, 1
#: seconds after which a thread that waits for another one checks whether the socket was closed
_LOOK = 0.1


def enter(turn: Turn, side: int, timeout: int, check: Callable[[], None]) -> int:
    """Waits while another thread is inside; `turn.leave` must follow. Returns the milliseconds that are left.

    check: raises Closed if the socket was closed meanwhile. Raises Again, Closed, and StateError if this same
    thread is inside (a signal handler).
    """
    # `map`: no signal handler runs between the call and the return, nor after it.
    [entered] = map(turn.enter, (side,), (0.0,))
    if entered:
        return timeout
    deadline = time.monotonic() + timeout / 1000
    while True:
        left = _LOOK if timeout < 0 else min(_LOOK, deadline - time.monotonic())
        if left <= 0:
            doing = "receiving" if side else "sending"
            raise Again(f"another thread is {doing} on this socket")
        after = timeout if timeout < 0 else max(0, int((deadline - left - time.monotonic()) * 1000))
        [entered] = map(turn.enter, (side,), (left,))
        if entered:
            return after
        check()
