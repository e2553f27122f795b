"""pyzmq's exceptions. `ZMQError`, `Again` and `ContextTerminated` are classes of `transfer`.

So `except zmq.ZMQError` catches every error that is raised on purpose, and `except zmq.Again` costs nothing
on the fast path. The texts are longer than pyzmq's and end with a hint; `errno` is the same.
"""

from __future__ import annotations

import errno as _errno

from transfer.transports.errors import Again, ContextTerminated, ZMQBaseError, ZMQError

__all__ = [
    "Again",
    "ContextTerminated",
    "DraftFDWarning",
    "InterruptedSystemCall",
    "NotDone",
    "ZMQBaseError",
    "ZMQBindError",
    "ZMQError",
    "ZMQVersionError",
]


class ZMQBindError(ZMQBaseError):
    """`bind_to_random_port` found no free port."""


class NotDone(ZMQBaseError):
    """`MessageTracker.wait` reached its timeout."""


class InterruptedSystemCall(ZMQError, InterruptedError):  # type: ignore[misc]  # both have strerror
    """Never raised: interrupted calls are repeated. It exists to be caught."""

    errno = _errno.EINTR

    def __init__(self, errno: int = _errno.EINTR, msg: str | None = None) -> None:
        super().__init__(_errno.EINTR, msg)


class ZMQVersionError(NotImplementedError):
    """Never raised: missing functions raise `NotSupported`. It exists to be caught."""

    def __init__(self, min_version: str, msg: str = "Feature") -> None:
        self.min_version = min_version
        self.msg = msg
        super().__init__(f"{msg} requires libzmq >= {min_version}")


def _check_version(min_version: tuple[int, ...], msg: str = "Feature") -> None:
    """For modules of pyzmq: this package has all that they ask for."""


class DraftFDWarning(RuntimeWarning):
    """Never issued: there are no draft sockets. It exists to be filtered."""
