"""The limit of a message, for all of its frames together."""

from __future__ import annotations

from transfer.transports.core.wire import MAX_FRAMES, Flag
from transfer.transports.errors import ProtocolError

_CONTROL, _MORE = int(Flag.CONTROL), int(Flag.MORE)


class Size:
    """The size of the message being received: the limit is for all its frames together."""

    __slots__ = ("frames", "nbytes")

    def __init__(self) -> None:
        self.frames = self.nbytes = 0

    def add(self, flags: int, nbytes: int, limit: int) -> None:
        """Adds one frame, before memory is allocated for it. Raises ProtocolError."""
        if flags & _CONTROL:
            return
        self.frames += 1
        self.nbytes += nbytes
        if self.frames > MAX_FRAMES:
            raise ProtocolError("length", f"a message of more than {MAX_FRAMES} frames")
        if self.frames > 1 and self.nbytes > limit:
            raise ProtocolError(
                "too_large",
                f"a message of {self.nbytes} bytes, the limit is {limit}",
                hint="raise maxmsgsize",
            )
        if not flags & _MORE:
            self.frames = self.nbytes = 0
