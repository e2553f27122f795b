"""What a program gives to send or to receive into, checked as pyzmq does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transfer.transports import core
from transfer.transports.arguments import wrong
from transfer.transports.errors import ArgumentError, UsageError, not_a_buffer


def payload_of(data: Any) -> Any:
    """Returns data that the core can send. Raises ArgumentError."""
    if isinstance(data, core.Frame):
        return data.data
    if isinstance(data, str):
        raise not_a_buffer(data)
    return data


def room_in(buffer: Any, nbytes: int) -> int:
    """Returns how many bytes of a buffer to write; `nbytes`: 0 for all. Raises ArgumentError, BufferError,
    ValueError."""
    try:
        view = memoryview(buffer)
    except TypeError:
        raise wrong("the memory to receive into", buffer, "a bytearray, or an array") from None
    with view:
        if view.readonly:
            raise BufferError("the buffer is read-only")
        if not 0 <= nbytes <= view.nbytes:
            raise ValueError(f"{nbytes} bytes do not fit into {view.nbytes}")
        if not view.c_contiguous:
            raise BufferError("the buffer is not contiguous")
        return nbytes or view.nbytes


def check_parts(given: Any) -> None:
    """Checks a list of parts. Raises ArgumentError if it is none, UsageError if it is empty."""
    if isinstance(given, str | bytes | bytearray | memoryview) or not isinstance(given, Sequence):
        raise wrong("the parts of a message", given, "a list; send() sends one part")
    if not given:
        raise UsageError("a message has at least one part")


def size_of(data: Any) -> int:
    """Returns the bytes of a buffer. Raises ArgumentError."""
    try:
        with memoryview(data) as view:
            return view.nbytes
    except TypeError:
        raise not_a_buffer(data) from None


def checked_part(index: int, part: Any) -> Any:
    """Checks one part of several, before anything is sent. Raises ArgumentError."""
    if not isinstance(part, core.Frame):
        try:
            memoryview(part).release()
        except TypeError:
            error = not_a_buffer(part)
            raise ArgumentError(f"part {index} ({part!r:.40}): {error}") from None
    return payload_of(part)
