"""Tensors on a GPU within one process: the receiver gets the sender's own memory, or a copy on that GPU.

Both sides only give work to their streams, and wait for none. Lent memory is its owner's again when the
receiver has deleted the tensor and the work that its stream had by then is done. Never ran on a GPU.
"""

from __future__ import annotations

import _thread
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from transfer.transports import cuda
from transfer.transports.countdown import Countdown
from transfer.transports.errors import DeviceError, RegistrationError
from transfer.transports.gpu import OnGpu

if TYPE_CHECKING:
    from transfer.transports.core.contract import OutFrame

Released = Callable[[BaseException | None], None]


@cache
def every_gpu() -> frozenset[bytes]:
    """The UUIDs of the GPUs that this process sees."""
    driver = cuda.load()
    return frozenset() if driver is None else driver.uuids()


def has_payload(frames: Sequence[OutFrame]) -> bool:
    return any(type(frame[4]) is OnGpu for frame in frames)


def passed(
    frames: Sequence[OutFrame], hold: bool, released: Released | None
) -> tuple[list[OutFrame], Released | None]:
    """The frames with payloads as their receiver gets them, and whom to inform when the others have ended.

    hold: the tensors' own memory, and `released` is called behind the last of them; else copies. Raises
    RegistrationError("gpu"): there is no memory for a copy.
    """
    parts = Countdown(released, 1) if hold else None
    try:
        given = [_passed(frame, parts) if type(frame[4]) is OnGpu else frame for frame in frames]
    except (DeviceError, RuntimeError, MemoryError) as error:  # the libraries' are of the last two kinds
        raise RegistrationError("gpu", f"a tensor cannot be passed on its GPU: {error}") from error
    return given, released if parts is None else parts.ended


def _passed(frame: OutFrame, parts: Countdown | None) -> OutFrame:
    from transfer.transports.core.native.cuda import GpuEvent, event_after
    from transfer.transports.core.native.gpu_payload import GpuPayload

    sent: OnGpu = frame[4]
    driver = cuda.load()
    assert driver is not None
    context = driver.context(sent.index)
    ready = GpuEvent(context)
    if parts is None:
        kept, pointer = sent.copied()
    else:
        kept, pointer = sent, sent.pointer
        parts.left += 1
    # A finalizer at the interpreter's end can import nothing, so it is given what it calls.
    end = partial(_ended, os.getpid(), event_after, ready, kept, parts)
    payload = GpuPayload(context, pointer, sent.nbytes, ready, _host_memory(), end)
    ready.record(sent.stream)
    return (*frame[:4], payload)


@cache
def _host_memory() -> Any:
    """For payloads that their receiver reads on the host."""
    from transfer.transports.core.native.pool import Pool

    return Pool()


def _ended(pid: int, event_after: Any, ready: Any, kept: Any, parts: Countdown | None, used: Any) -> None:
    """A payload is deleted: in any statement of any thread, so that another one waits and informs."""
    if pid != os.getpid():  # a forked child has no GPU
        return
    last = ready
    with suppress(DeviceError):  # a GPU that fails does no more work
        if used is not None:
            last = event_after(*used)
    try:
        _thread.start_new_thread(_finish, (last, kept, parts))
    except (RuntimeError, MemoryError):
        _finish(last, kept, parts)


def _finish(last: Any, kept: Any, parts: Countdown | None) -> None:
    """kept: the memory, as long as this takes."""
    with suppress(DeviceError):
        last.synchronize()
    if parts is not None:
        parts.ended(None)
