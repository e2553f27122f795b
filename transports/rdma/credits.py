"""Credits: how many eager buffers a sender may fill. Pure.

Both sides count from the beginning, so a report that comes twice or late does no harm. They travel on
the connection beside: a return that needed a credit itself could deadlock.
"""

from __future__ import annotations

from transfer.transports.errors import ProtocolError


class SendingCredits:
    """The sender's side. `granted`: buffers that the peer gave us in all; `used`: those we filled."""

    __slots__ = ("granted", "limit", "used")

    def __init__(self, granted: int) -> None:
        self.granted = granted
        #: never more than at the beginning may be open, whatever the peer says later
        self.limit = granted
        self.used = 0

    @property
    def left(self) -> int:
        return self.granted - self.used

    def use(self) -> None:
        """One buffer is filled. The caller has looked at `left`."""
        assert self.used < self.granted
        self.used += 1

    def grant(self, total: int) -> int:
        """The peer has given `total` in all; how many are new. Raises ProtocolError."""
        if total > self.used + self.limit:
            raise ProtocolError(
                "credit", f"{total} buffers granted, at most {self.used + self.limit} can be free"
            )
        new = max(0, total - self.granted)  # an older report may come behind a newer one
        self.granted += new
        return new


class ReceivingCredits:
    """The receiver's side. Granted and not yet filled never exceeds `buffers`, which are posted.

    A buffer goes back to the sender when its messages are consumed, so a slow reader slows its sender.
    """

    __slots__ = ("arrived", "buffers", "granted", "returned")

    def __init__(self, buffers: int) -> None:
        self.buffers = buffers
        self.granted = buffers
        self.arrived = 0
        self.returned = 0

    def arrive(self) -> None:
        """The peer filled one. Raises ProtocolError when it had no right to."""
        self.arrived += 1
        if self.arrived > self.granted:
            raise ProtocolError("credit", f"{self.arrived} buffers filled, {self.granted} were granted")

    def give_back(self) -> None:
        """What was in one buffer is consumed."""
        assert self.returned < self.arrived
        self.returned += 1

    def due(self, step: int) -> int | None:
        """The new total to tell the sender, once `step` buffers came together. It counts as told."""
        total = self.buffers + self.returned
        if total - self.granted < step:
            return None
        self.granted = total
        return total
