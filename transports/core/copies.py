"""Copies of data that do not change with the memory that was sent."""

from __future__ import annotations

from collections.abc import Iterable
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any

from transfer.transports.arguments import whole, wrong
from transfer.transports.errors import UsageError
from transfer.transports.sizes import LARGE

if TYPE_CHECKING:
    from transfer.transports.core.contract import OutFrame


def owned(frames: Iterable[OutFrame]) -> list[OutFrame]:
    """The message with immutable data: `bytes` themselves, else a copy.

    Raises TypeError for memory that only a device can read.
    """
    return [frame if type(frame[4]) is bytes else (*frame[:4], copy_of(frame[4])) for frame in frames]


def unsent(messages: Iterable[list[OutFrame]]) -> list[list[OutFrame]]:
    """For `Stream.take_unsent`: the messages as `owned` makes them, before their senders are informed.

    Data that only a device can read counts as sent, and so do the messages before it.
    """
    kept: list[list[OutFrame]] = []
    for frames in messages:
        try:
            kept.append(owned(frames))
        except TypeError:
            kept.clear()
    return kept


def counted(messages: Iterable[list[OutFrame]]) -> int:
    """For `Stream.drop_unsent`: the number of messages."""
    return sum(1 for _ in messages)


def room_in(buffer: Any, nbytes: int = 0) -> memoryview:
    """The first `nbytes` of memory to receive into; 0: all. Raises UsageError if it cannot hold them."""
    try:
        view = memoryview(buffer)
    except TypeError:
        raise wrong("the memory to receive into", buffer, "a bytearray, or an array") from None
    nbytes = whole(nbytes, "nbytes")
    if view.readonly or not view.c_contiguous:
        raise UsageError(
            f"the memory to receive into is {'read-only' if view.readonly else 'not contiguous'}",
            hint="receive into a bytearray or a contiguous array, or use recv()",
        )
    if nbytes > view.nbytes:
        raise UsageError(f"nbytes={nbytes}, and the memory to receive into has {view.nbytes} bytes")
    return view.cast("B")[: nbytes or view.nbytes]


def pour(target: memoryview, source: memoryview) -> None:
    """Copies flat bytes of the same length; many of them without the GIL."""
    if source.nbytes < LARGE or target.readonly:  # which raises the error
        target[:] = source
        return
    from transfer.transports.core import copy_into  # importing this package loads no core

    copy_into(target, source)


def copy_of(data: Any) -> bytes | bytearray:
    """The bytes of a contiguous buffer as they lie in memory; large ones are copied without the GIL."""
    # Row- or column-major: as the cores send them.
    flat = PickleBuffer(data).raw()
    if flat.nbytes < LARGE:
        return bytes(flat)
    copy = bytearray(flat.nbytes)
    pour(memoryview(copy), flat)
    return copy
