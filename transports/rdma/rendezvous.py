"""Large payloads: announced by the sender, READ by the receiver in chunks, then reported as done. Pure.

An announcement stands in the eager stream instead of the frame's data, as `wire.REFERENCE`:
remote key, number of the announcement, address, length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from transfer.transports.core.wire import REFERENCE
from transfer.transports.errors import ProtocolError

CHUNK = 1 << 20
#: pending READs on one queue pair
WINDOW = 8
#: open announcements of a peer
MAX_OPEN = 1024
_NUMBERS = 1 << 32


class RendezvousAnnouncement(NamedTuple):
    """rkey: key of the sender's region. number: ascending. address, length: of the payload, in bytes."""

    rkey: int
    number: int
    address: int
    length: int

    def encode(self) -> bytes:
        return REFERENCE.pack(*self)


def next_number(number: int) -> int:
    return (number + 1) % _NUMBERS


class RendezvousOffer:
    """The open announcements of the peer: the receiver's check."""

    def __init__(self, max_message: int) -> None:
        self.max_message = max_message
        self._next = 1
        self._open: set[int] = set()

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, number: int) -> bool:
        return number in self._open

    def take(self, reference: bytes) -> RendezvousAnnouncement:
        """Checks it before anything is allocated. Raises ProtocolError.

        The peer's device checks whether the memory is really the peer's: a foreign key or address fails the
        READ, and ends that connection only.
        """
        announced = RendezvousAnnouncement(*REFERENCE.unpack(reference))
        if announced.length > self.max_message:
            raise ProtocolError(
                "too_large",
                f"{announced.length} bytes, the limit is {self.max_message}",
                hint="raise maxmsgsize",
            )
        if not announced.length or announced.address + announced.length > 1 << 64:
            raise ProtocolError("rendezvous", f"{announced.length} bytes announced at {announced.address:#x}")
        if announced.number != self._next:
            raise ProtocolError("rendezvous", f"announcement {announced.number} where {self._next} is due")
        if len(self._open) >= MAX_OPEN:
            raise ProtocolError("rendezvous", f"more than {MAX_OPEN} announcements are open")
        self._next = next_number(announced.number)
        self._open.add(announced.number)
        return announced

    def done(self, number: int) -> None:
        self._open.remove(number)


class Reading:
    """One payload on its way into our memory. `place` is set when its first chunk is requested."""

    __slots__ = ("announcement", "left", "owner", "place", "requested")

    def __init__(self, announcement: RendezvousAnnouncement, owner: Any) -> None:
        self.announcement = announcement
        self.owner = owner
        self.place: Any = None
        #: bytes requested, and bytes that have not arrived
        self.requested = 0
        self.left = announcement.length


class ReadChunk(NamedTuple):
    reading: Reading
    offset: int
    length: int


class Window:
    """Chooses the next chunk to READ: announcements in order, a few chunks at once. For one stream."""

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
        """The payload of the next chunk, or None if there is none or the window is full."""
        return self._waiting[0] if self._waiting and self.under_way < self._limit else None

    def add(self, reading: Reading) -> None:
        self._waiting.append(reading)

    def take(self) -> ReadChunk:
        """The next chunk of `first`; it counts as pending."""
        reading = self._waiting[0]
        length = min(self._chunk, reading.announcement.length - reading.requested)
        chunk = ReadChunk(reading, reading.requested, length)
        reading.requested += length
        if reading.requested == reading.announcement.length:
            self._waiting.popleft()
        self.under_way += 1
        return chunk

    def arrived(self, chunk: ReadChunk) -> bool:
        """A chunk has arrived. True when its payload is complete."""
        self.under_way -= 1
        chunk.reading.left -= chunk.length
        return not chunk.reading.left
