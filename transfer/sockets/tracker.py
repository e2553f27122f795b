"""The fate of a message that was sent with `track=True`."""

from __future__ import annotations

import threading

from transfer.transports.arguments import seconds
from transfer.transports.errors import Again, Broken, Closed, MessageRefused, NotSupported, unraised
from transfer.transports.waiters import Waiters


class Tracker:
    """Reports when the memory of a message may be reused, and when the peer has consumed it.

    Thread-safe. The message does not depend on it: a tracker may be dropped at any time.
    """

    __slots__ = (
        "_cause", "_changed", "_confirmable", "_confirmed", "_error", "_kept", "_lock", "_outstanding",
        "_rescued", "_was_released",
    )  # fmt: skip

    def __init__(self, confirmable: bool = True) -> None:
        self._lock = threading.RLock()
        self._changed = Waiters(self._lock)
        # Streams that still refer to the memory; -1 until the number of streams is known.
        self._outstanding = -1
        self._confirmable = confirmable
        self._confirmed = False
        self._error: BaseException | None = None
        #: why the connection ends, if this program ends it
        self._cause: Closed | None = None
        self._rescued = self._was_released = False
        #: the memory is never free again: a peer uses it, and this side has ended
        self._kept: Broken | None = None

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
        """Blocks until the memory of the message may be reused.

        Args:
            timeout: seconds; None waits without limit.

        Raises:
            Again: it is not reusable within `timeout`.
            Broken: no peer took the message, or a peer still uses the memory although the context has ended.
        """
        timeout = seconds(timeout)
        if not self._changed.wait_for(lambda: self.done or self._kept is not None, timeout):
            raise Again(
                f"the memory is still in use after {timeout} s",
                hint="is the message received? what was lent to a peer on this host is in use until it is "
                "deleted there",
            )
        if self._kept is not None:
            raise unraised(self._kept)
        if self._error is not None:
            raise self._broken()

    def wait_confirmed(self, timeout: float | None = 30.0) -> None:
        """Blocks until the peer has consumed the message.

        Args:
            timeout: seconds; None waits without limit.

        Raises:
            Again: it is not confirmed within `timeout`.
            Broken: the connection was lost, or this program closed the socket, before the peer confirmed it.
            MessageRefused: the peer does not take it.
            NotSupported: such peers do not confirm (PUB/SUB, peers without hello).
        """
        timeout = seconds(timeout)
        if not self._confirmable:
            raise NotSupported("the peers of this socket do not confirm messages")
        if not self._changed.wait_for(lambda: self._confirmed or self._error is not None, timeout):
            raise Again(f"the peer has not confirmed the message after {timeout} s")
        if not self._confirmed:
            raise self._broken()

    def _broken(self) -> Broken:
        if isinstance(self._error, MessageRefused):
            return MessageRefused(self._error.reason, hint=self._error.hint)
        what, hint = "its peer is gone", "it may or may not have arrived"
        if isinstance(self._error, Closed):  # this side ended the connection
            what, hint = str(self._error).partition("\n  hint: ")[0], self._error.hint or hint
        error = Broken(f"the message is unconfirmed: {what}", hint=hint)
        error.__cause__ = self._error
        return error

    # -- for the socket ------------------------------------------------------------------------

    def _taken(self, streams: int) -> None:
        """Sets how many parties took the message; each calls `_released`, or has called it already."""
        with self._lock:
            self._outstanding += streams + 1
            self._changed.notify_all()

    def _released(self, error: BaseException | None) -> None:
        """Called when no stream refers to the memory any more; again, if a signal handler raised inside."""
        with self._lock:
            if isinstance(error, Broken) and error.keeps_memory:
                self._kept = error
            elif not self._was_released:
                self._was_released = True
                self._outstanding -= 1
                if error is not None and not self._confirmed and not self._rescued:
                    self._error = self._cause or error
            self._changed.notify_all()

    def _closing(self, cause: Closed) -> None:
        """This program closes the socket: what fails from now on fails by that, and not by the peer."""
        self._cause = cause

    def _rescue(self) -> None:
        """Keeps the tracker open when the connection ends: the message, copied to the core's memory, may go
        to another peer. From now on only `_fail` reports a loss."""
        with self._lock:
            self._rescued, self._error = True, None

    def _confirm(self) -> None:
        with self._lock:
            self._confirmed = True
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if not self._confirmed:
                self._error = self._cause or error
            self._changed.notify_all()

    def _not_confirmable(self) -> None:
        with self._lock:
            self._confirmable = False
            self._changed.notify_all()

    def _end(self, error: BaseException) -> None:
        """Ends the tracker: no stream has the message."""
        with self._lock:
            self._outstanding = 0
            self._error = error
            self._changed.notify_all()
