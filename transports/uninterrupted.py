"""Steps of which none may be missing, although a signal's handler may raise between any two of them.

The interpreter runs handlers in the main thread only. So what is begun there is done by the reactor
meanwhile, and an interruption ends the waiting for it, not the work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from transports.errors import Closed
from transports.reactor import Reactor

T = TypeVar("T")

#: seconds that the reactor may take: it goes on with the work behind them, too
_PATIENCE = 5.0


def uninterrupted(reactor: Reactor, call: Callable[[], T], otherwise: T) -> T:
    """The call's result; `otherwise` if the reactor has not come to it in time. What it raises in the
    reactor is logged there. Not for callers that hold a lock which the call wants."""
    if threading.current_thread() is not threading.main_thread() or reactor.in_loop():
        return call()
    done = threading.Event()
    results: list[T] = []

    def run() -> None:
        try:
            results.append(call())
        finally:
            done.set()

    try:
        reactor.call_soon(run, otherwise=done.set)
    except Closed:  # the context has ended, and its thread with it
        return call()
    done.wait(_PATIENCE)
    return results[0] if results else otherwise
