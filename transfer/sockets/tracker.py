"""What became of a message that was sent with `track=True`."""

from __future__ import annotations

import threading

from transfer.transports.arguments import seconds
from transfer.transports.errors import Again, Broken, NotSupported


class Tracker:
    """Tells when the memory of a message is the caller's again, and when the peer consumed it.

    Thread-safe. Kept alive by nobody: dropping it changes nothing for the message.
    """

    __slots__ = ("_confirmable", "_confirmed", "_error", "_outstanding", "_rescued", "_state")

    def __init__(self, confirmable: bool = True) -> None:
        self._state = threading.Condition(threading.Lock())
        # Streams that still refer to the memory; -1 until it is known how many took the message.
        self._outstanding = -1
        self._confirmable = confirmable
        self._confirmed = False
        self._error: BaseException | None = None
        self._rescued = False

    @property
    def done(self) -> bool:
        """True when the memory may be changed and reused."""
        return self._outstanding == 0

    @property
    def confirmed(self) -> bool:
        """True when the peer's application has received the message."""
        return self._confirmed

    @property
    def error(self) -> BaseException | None:
        """Why the message may be lost, or None."""
        return self._error

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the memory is the caller's again. `timeout` in seconds; None is endless.

        Raises Again when the time is over, Broken when the message could not be handed over.
        """
        timeout = seconds(timeout)
        with self._state:
            if not self._state.wait_for(lambda: self.done, timeout):
                raise Again(f"the message is still in flight after {timeout} s")
            if self._error is not None:
                raise self._broken()

    def wait_confirmed(self, timeout: float | None = 30.0) -> None:
        """Waits until the peer consumed the message. `timeout` in seconds; None is endless.

        Raises Again when the time is over, Broken when the peer went before it confirmed, and
        NotSupported where peers do not confirm (PUB/SUB, peers without hello).
        """
        timeout = seconds(timeout)
        with self._state:
            if not self._confirmable:
                raise NotSupported("the peers of this socket do not confirm messages")
            if not self._state.wait_for(lambda: self._confirmed or self._error is not None, timeout):
                raise Again(f"the peer has not confirmed the message after {timeout} s")
            if not self._confirmed:
                raise self._broken()

    def _broken(self) -> Broken:
        error = Broken("the message is unconfirmed: its peer is gone", hint="it may or may not have arrived")
        error.__cause__ = self._error
        return error

    # -- for the socket ------------------------------------------------------------------------

    def _taken(self, streams: int) -> None:
        """So many streams took the message; each calls `_released` once, or did already."""
        with self._state:
            self._outstanding += streams + 1
            self._state.notify_all()

    def _released(self, error: BaseException | None) -> None:
        with self._state:
            self._outstanding -= 1
            if error is not None and not self._confirmed and not self._rescued:
                self._error = error
            self._state.notify_all()

    def _rescue(self) -> None:
        """The connection ended, but the message may go to another peer, out of memory of our own. That
        the first stream gave it up is no loss then: from now on only `_fail` tells of one."""
        with self._state:
            self._rescued, self._error = True, None

    def _confirm(self) -> None:
        with self._state:
            self._confirmed = True
            self._state.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self._state:
            if not self._confirmed:
                self._error = error
            self._state.notify_all()

    def _not_confirmable(self) -> None:
        with self._state:
            self._confirmable = False
            self._state.notify_all()

    def _end(self, error: BaseException) -> None:
        """No stream has the message."""
        with self._state:
            self._outstanding = 0
            self._error = error
            self._state.notify_all()
