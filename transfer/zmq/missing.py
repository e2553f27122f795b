"""Functions of pyzmq that cannot work here: each raises the reason."""

from __future__ import annotations

import time
import warnings
from typing import NoReturn

from transfer.transports.errors import NotSupported

__all__ = ["Stopwatch", "get_includes", "get_library_dirs"]


def get_includes() -> NoReturn:
    """Raises NotSupported."""
    raise NotSupported("there is no libzmq to compile against")


def get_library_dirs() -> NoReturn:
    """Raises NotSupported."""
    raise NotSupported("there is no libzmq to link with")


class Stopwatch:
    """Microseconds between `start` and `stop`; deprecated, as in pyzmq."""

    def __init__(self) -> None:
        warnings.warn("Stopwatch is deprecated: use time.monotonic", DeprecationWarning, stacklevel=2)
        self._started = 0.0

    def start(self) -> None:
        self._started = time.monotonic()

    def stop(self) -> int:
        return int((time.monotonic() - self._started) * 1e6)
