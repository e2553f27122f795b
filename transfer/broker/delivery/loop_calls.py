"""Calls from operators' threads to the broker's loop, which wait for their end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from transfer.transports.errors import Again, InternalError, TransferError

if TYPE_CHECKING:
    from transfer.broker.storage.durability import OnComplete

T = TypeVar("T")
_log = logging.getLogger("transfer.broker")
#: seconds that the loop, or the disk, has for an answer
_PATIENCE = 60.0


def run_on_loop(loop: asyncio.AbstractEventLoop, work: Callable[[], T]) -> T:
    """Calls `work` on the loop, and returns its result. Raises its TransferErrors, InternalError, Again."""

    def begin(on_complete: OnComplete) -> None:
        found.append(work())
        on_complete(None)

    found: list[T] = []
    wait_for(loop, begin)
    return found[0]


def wait_for(loop: asyncio.AbstractEventLoop, begin: Callable[[OnComplete], None]) -> None:
    """Calls `begin` on the loop, and waits until its callback is called. Raises as `run_on_loop`, and the
    callback's error. After Again it is unknown whether the change is made."""
    ended: Future[None] = Future()

    def on_complete(error: TransferError | None) -> None:
        if ended.done():
            return
        if error is None:
            ended.set_result(None)
        else:
            ended.set_exception(error)

    def run() -> None:
        try:
            begin(on_complete)
        except TransferError as error:
            on_complete(error)
        except Exception as error:  # noqa: BLE001 - raised in the thread that waits
            _log.exception("an operator's request failed")
            on_complete(InternalError(f"the change could not be made: {error!r}"))

    loop.call_soon_threadsafe(run)
    try:
        ended.result(_PATIENCE)
    except TimeoutError as error:
        raise Again(f"the broker, or its disk, did not answer within {_PATIENCE:g} s") from error
