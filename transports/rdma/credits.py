"""Credits: how many eager buffers a sender may fill. Pure.

Both sides count from the start of the connection, so a repeated or late report does no harm. Reports travel
on the control connection: a report that needed a credit itself could deadlock.
"""

from __future__ import annotations

from transfer.transports.errors import ProtocolError


class SendingCredits:
    """The sender's side. `granted`: the total of buffers that the peer granted; `used`: those filled."""

    __slots__ = ("granted", "limit", "used")

    def __init__(self, granted: int) -> None:
        self.granted = granted
        #: no more than the initial number may be open, whatever the peer reports later
        self.limit = granted
        self.used = 0

    @property
    def left(self) -> int:
        return self.granted - self.used

    def use(self) -> None:
        """Counts one filled buffer. The caller has checked `left`."""
        assert self.used < self.granted
        self.used += 1

    def grant(self, total: int) -> int:
        """The peer has granted `total`; returns how many are new. Raises ProtocolError."""
        if total > self.used + self.limit:
            raise ProtocolError(
                "credit", f"{total} buffers granted, at most {self.used + self.limit} can be free"
            )
        new = max(0, total - self.granted)  # an older report may come after a newer one
        self.granted += new
        return new


class ReceivingCredits:
    """The receiver's side. Granted and not yet filled buffers never exceed `buffers`, which are posted.

    A buffer returns to the sender when its messages are consumed, so a slow reader slows its sender down.
    """

    __slots__ = ("arrived", "buffers", "granted", "returned")

    def __init__(self, buffers: int) -> None:
        self.buffers = buffers
        self.granted = buffers
        self.arrived = 0
        self.returned = 0

    def arrive(self) -> None:
        """The peer filled one buffer. Raises ProtocolError without a credit for it."""
        self.arrived += 1
        if self.arrived > self.granted:
            raise ProtocolError("credit", f"{self.arrived} buffers filled, {self.granted} were granted")

    def give_back(self) -> None:
        """The messages of one buffer are consumed."""
        assert self.returned < self.arrived
        self.returned += 1

    def due(self, step: int) -> int | None:
        """The new total to report, once `step` buffers are free. It counts as reported."""
        total = self.buffers + self.returned
        if total - self.granted < step:
            return None
        self.granted = total
        return total
