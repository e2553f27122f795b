"""Large payloads: announced by the sender, READ by the receiver in chunks, then told to be done. Pure.

An announcement stands in the eager stream where the frame's data would be, as `wire.REFERENCE`:
remote key, number of the announcement, address, length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from transfer.transports.core.wire import REFERENCE
from transfer.transports.errors import ProtocolError

CHUNK = 1 << 20
#: READs that are under way at once, on one queue pair
WINDOW = 8
#: announcements that a peer may have open
MAX_OPEN = 1024
_NUMBERS = 1 << 32


class Announcement(NamedTuple):
    """rkey: key of the sender's region. number: counts up. address, length: in bytes, of the payload."""

    rkey: int
    number: int
    address: int
    length: int

    def encode(self) -> bytes:
        return REFERENCE.pack(*self)


def next_number(number: int) -> int:
    return (number + 1) % _NUMBERS


class Announced:
    """What the peer announced and we did not say to be done: the receiver's check."""

    def __init__(self, max_message: int) -> None:
        self.max_message = max_message
        self._next = 1
        self._open: set[int] = set()

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, number: int) -> bool:
        return number in self._open

    def take(self, reference: bytes) -> Announcement:
        """Checks it before anything is allocated. Raises ProtocolError.

        Whether the memory is really the peer's, its device decides: a foreign key or address fails
        the READ, and with it that connection only.
        """
        said = Announcement(*REFERENCE.unpack(reference))
        if said.length > self.max_message:
            raise ProtocolError(
                "too_large", f"{said.length} bytes, the limit is {self.max_message}", hint="raise maxmsgsize"
            )
        if not said.length or said.address + said.length > 1 << 64:
            raise ProtocolError("rendezvous", f"{said.length} bytes announced at {said.address:#x}")
        if said.number != self._next:
            raise ProtocolError("rendezvous", f"announcement {said.number} where {self._next} is due")
        if len(self._open) >= MAX_OPEN:
            raise ProtocolError("rendezvous", f"more than {MAX_OPEN} announcements are open")
        self._next = next_number(said.number)
        self._open.add(said.number)
        return said

    def done(self, number: int) -> None:
        self._open.remove(number)


class Reading:
    """One payload on its way into our memory. `place` is set when its first chunk is asked for."""

    __slots__ = ("announcement", "asked", "left", "owner", "place")

    def __init__(self, announcement: Announcement, owner: Any) -> None:
        self.announcement = announcement
        self.owner = owner
        self.place: Any = None
        #: bytes asked for, and bytes that did not come yet
        self.asked = 0
        self.left = announcement.length


class Chunk(NamedTuple):
    reading: Reading
    offset: int
    length: int


class Window:
    """Which chunk is READ next: announcements in their order, a few chunks at once. One stream's."""

    def __init__(self, limit: int = WINDOW, chunk: int = CHUNK) -> None:
        self.under_way = 0
        self._limit = limit
        self._chunk = chunk
        self._waiting: deque[Reading] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Reading]:
        return iter(self._waiting)

    @property
    def first(self) -> Reading | None:
        """Whose chunk is next, or None if there is none or no room."""
        return self._waiting[0] if self._waiting and self.under_way < self._limit else None

    def add(self, reading: Reading) -> None:
        self._waiting.append(reading)

    def take(self) -> Chunk:
        """The next chunk of `first`; it counts as under way."""
        reading = self._waiting[0]
        length = min(self._chunk, reading.announcement.length - reading.asked)
        chunk = Chunk(reading, reading.asked, length)
        reading.asked += length
        if reading.asked == reading.announcement.length:
            self._waiting.popleft()
        self.under_way += 1
        return chunk

    def arrived(self, chunk: Chunk) -> bool:
        """This chunk is here. True when its payload is complete."""
        self.under_way -= 1
        chunk.reading.left -= chunk.length
        return not chunk.reading.left
