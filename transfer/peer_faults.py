"""Counts unexpected exceptions that peers' bytes cause, and logs them at a bounded rate."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable

from transfer.transports.errors import InternalError, TransferError

#: seconds within which it logs a peer's faults of one kind once
_QUIET = 60.0
#: kinds of faults that it logs within that time; it only counts others
_MOST = 100


class PeerFaults:
    """The faults of a thread or loop that serves many peers. Thread-safe.

    The handler of each message calls `note` in its `except`, answers or drops that peer, and continues with
    the next message. count: number of all faults.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._logged: dict[Hashable, float] = {}

    def note(self, what: str, error: BaseException, peer: Hashable = None) -> InternalError:
        """Counts a fault, and logs it with its traceback if it is new. Returns the error for the peer."""
        if self._is_new((what, peer, type(error))):
            self._log.error("%s failed: %.200r", what, error, exc_info=error)
        return InternalError(
            f"{what} failed: {error!r:.200}", hint="the log of the program has the traceback"
        )

    def warn(self, what: str, error: BaseException, peer: str) -> None:
        """Counts a fault that only the peer can cause, and logs one line if its kind is new.

        It omits the error's text, which may contain bytes of the peer, such as a token.
        """
        if self._is_new((what, None, type(error))):
            self._log.warning("%s of %s cannot be read: %s", what, peer, type(error).__name__)

    def _is_new(self, key: Hashable) -> bool:
        now = self._clock()
        with self._lock:
            self.count += 1
            if self._logged and next(iter(self._logged.values())) + _QUIET <= now:
                self._logged = {key: at for key, at in self._logged.items() if at + _QUIET > now}
            new = key not in self._logged and len(self._logged) < _MOST
            if new:
                self._logged[key] = now
        return new

    def refusal(self, what: str, error: Exception, peer: Hashable = None) -> TransferError:
        """Returns the error for the peer: a TransferError unchanged; `note` handles any other."""
        return error if isinstance(error, TransferError) else self.note(what, error, peer)
