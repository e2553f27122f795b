"""What commands share that serve until a signal ends them."""

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


class Asked:
    """An event that a signal's handler sets, and its thread waits for. `threading.Event` would not do: the
    handler may interrupt its `wait` where that holds the lock that `set` takes."""

    def __init__(self) -> None:
        self._is_set = False
        self._wakes: SimpleQueue[None] = SimpleQueue()  # made to be used in handlers

    def set(self) -> None:
        """Idempotent."""
        self._is_set = True
        self._wakes.put(None)

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._is_set

    def wait(self, timeout: float) -> bool:
        """For so many seconds at most; whether it is set then."""
        if not self._is_set:
            with suppress(Empty):
                self._wakes.get(timeout=timeout)
        return self._is_set


@contextmanager
def logged() -> Iterator[None]:
    """What the library logs goes to standard error, one line each with its time."""
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
    """What was made until now stays: the collector, before which all threads wait, need not look through it
    again and again."""
    gc.collect()
    gc.freeze()


def raise_descriptor_limit() -> None:
    """To the hard limit, for this process: see `transfer.transports.descriptors`. The log says so."""
    raised = descriptors.raise_descriptor_limit()
    if raised is not None:
        _log.info("the limit of descriptors (ulimit -n) is %d now, and was %d", raised[1], raised[0])
