"""The payloads of a measurement: a head with time, measurement and publisher, and padding."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from importlib import import_module

from transfer.transports.errors import comes_with

#: nanoseconds of the monotonic clock, which all processes of one machine share; the numbers of the
#: measurement and of the publisher
_HEAD = struct.Struct("<QQH")
_SCALE = 2  # LZ4 compresses a payload to about the half


class Payloads:
    """Makes payloads of one publisher in a measurement; both are numbers.

    nbytes: size of a payload before compression. Raises NotSupported.
    """

    def __init__(self, run: int, publisher: int, nbytes: int, *, compress: bool) -> None:
        self._names = (run, publisher)
        size = nbytes - _HEAD.size
        self._rest = os.urandom(size // _SCALE) + bytes(size - size // _SCALE)
        self._pack = _lz4("compress") if compress else None

    def next(self) -> bytes:
        """Makes a payload with the current time."""
        made = _HEAD.pack(time.monotonic_ns(), *self._names) + self._rest
        return made if self._pack is None else self._pack(made)


class Opened:
    """Reads payloads of a measurement. Raises NotSupported."""

    def __init__(self, run: int, *, compress: bool) -> None:
        self._run = run
        self._unpack = _lz4("decompress") if compress else None

    def read(self, payload: bytes | memoryview) -> tuple[int, int] | None:
        """Decompresses a payload. Returns (its latency in nanoseconds, the publisher's number).

        Returns None if it belongs to an earlier measurement.
        """
        now = time.monotonic_ns()
        if self._unpack is not None:
            try:
                payload = self._unpack(payload)
            except RuntimeError:  # it is not compressed
                return None
        published, run, publisher = _HEAD.unpack_from(payload)
        return (now - published, publisher) if run == self._run else None


def check_compression() -> None:
    """Raises NotSupported if LZ4 is not installed."""
    _lz4("compress")


def _lz4(name: str) -> Callable[[bytes | memoryview], bytes]:
    with comes_with("lz4", "compression"):
        found: Callable[[bytes | memoryview], bytes] = getattr(import_module("lz4.frame"), name)
    return found
