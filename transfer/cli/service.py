"""The common parts of commands that serve until a signal ends them."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue

from transfer.log_output import FORMAT
from transfer.transports import descriptors

_log = logging.getLogger("transfer")


class StopEvent:
    """An event that a signal handler sets, and the same thread waits for.

    `threading.Event` could deadlock: the handler may interrupt `wait` while it holds the lock that `set`
    takes.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._wakes: SimpleQueue[None] = SimpleQueue()  # its `put` is safe in signal handlers

    def set(self) -> None:
        """Sets the event. Idempotent."""
        self._is_set = True
        self._wakes.put(None)

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._is_set

    def wait(self, timeout: float) -> bool:
        """Waits up to `timeout` seconds. Returns whether the event is set."""
        if not self._is_set:
            with suppress(Empty):
                self._wakes.get(timeout=timeout)
        return self._is_set


@contextmanager
def logged() -> Iterator[None]:
    """Writes the library's log to standard error, each line with its time."""
    logger = logging.getLogger("transfer")
    if logger.handlers:  # by -v or TRANSFER_LOG
        yield
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def settle() -> None:
    """Freezes the objects that exist now: each garbage collection blocks all threads while it visits them."""
    gc.collect()
    gc.freeze()


def raise_descriptor_limit() -> None:
    """Raises this process's limit to the hard limit, and logs that. See `transfer.transports.descriptors`."""
    raised = descriptors.raise_descriptor_limit()
    if raised is not None:
        _log.info("the limit of descriptors (ulimit -n) is %d now, and was %d", raised[1], raised[0])
