"""The common parts of commands that serve until a signal ends them."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeVar

from transfer.cli.heap_trimmer import HeapTrimmer
from transfer.log_output import FORMAT
from transfer.transports import descriptors
from transfer.transports.errors import InternalError, LogDamaged, LogInUse, OptionError, TransferError

if TYPE_CHECKING:
    from transfer.broker.server import Broker
    from transfer.spool.server.server import Spool

_log = logging.getLogger("transfer")
#: seconds between two checks whether a service works
_CHECK_INTERVAL = 0.2


Opened = TypeVar("Opened")


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


def opened(make: Callable[[], Opened], folder: Path, what: str, *, option: str, damaged: str) -> Opened:
    """Opens a broker or a spool. Raises its errors with hints. damaged: the hint for a damaged folder."""
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"{folder} is no folder", hint=f"name a folder for the {what} alone with {option}")
    try:
        return make()
    except LogInUse as error:
        hint = "end it first, or use another folder"
        raise LogInUse(f"another {what} runs on {folder}", hint=hint) from error
    except LogDamaged as error:
        text = f"{folder} is damaged, and nothing was changed: {_without_hint(error)}"
        raise LogDamaged(text, hint=damaged) from error


def run_until(stop: StopEvent, service: Broker | Spool, ended: str, *, hint: str) -> None:
    """Waits for `stop`. Raises InternalError, with the text `ended` and a hint, when the service failed."""
    gc.collect()
    gc.freeze()  # each garbage collection blocks all threads while it visits the objects that exist now
    heap = HeapTrimmer()
    while not stop.wait(_CHECK_INTERVAL):
        heap.trim()
        if service.failure is not None:
            raise InternalError(f"{ended}: {_without_hint(service.failure)}", hint=hint)


def _without_hint(error: TransferError) -> str:
    return str(error).partition("\n  hint: ")[0]


def raise_descriptor_limit() -> None:
    """Raises this process's limit to the hard limit, and logs that. See `transfer.transports.descriptors`."""
    raised = descriptors.raise_descriptor_limit()
    if raised is not None:
        _log.info("the limit of descriptors (ulimit -n) is %d now, and was %d", raised[1], raised[0])
