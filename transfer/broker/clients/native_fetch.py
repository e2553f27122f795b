"""Fetches large messages from the broker into one block of memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from transfer.broker.protocols.native import Head, Op
from transfer.broker.protocols.native_pieces import PIECE, Place, decode_place, encode_place, unpack_parts
from transfer.transports import core
from transfer.transports.core.wire import Flag
from transfer.transports.errors import Broken, ProtocolError

if TYPE_CHECKING:
    from transfer.broker.clients.native import BrokerClient
    from transfer.transports.core.contract import Frame

#: bytes that it requests ahead of the received ones
_WINDOW = 8 * PIECE
#: flags of a part that determine the format of its bytes
_KEPT = int(Flag.TENSOR | Flag.EXTENDED | Flag.LZ4)


class Offered:
    """A large message that the broker offers, and its received bytes. With the client's lock.

    gone: it will not arrive: another consumer has it, or it does not exist any more.
    """

    def __init__(self, head: Head) -> None:
        place, parts = decode_place(head)
        self.offset = place.offset
        self.attempt = place.attempt
        self.nbytes = place.position
        self.number = head.number
        self.gone = False
        self.received = 0
        self._requested = 0
        self._parts = parts
        self._memory: Any = None

    @property
    def key(self) -> tuple[int, int, int]:
        """Identifies the delivery."""
        return self.number, self.offset, self.attempt

    @property
    def settled(self) -> bool:
        """Whether it is complete, or gone."""
        return self.gone or self.received == self.nbytes

    def next_request(self) -> bytes | None:
        """Returns the FETCH to send now; None if there is none."""
        end = min(self.nbytes, self.received + _WINDOW)
        if self.gone or (end - self._requested < _WINDOW // 4 and not self._requested < end == self.nbytes):
            return None
        self._requested = end
        return encode_place(Op.FETCH, self.number, Place(self.offset, self.attempt, end))

    def take(self, place: Place, data: Any, memory: Any) -> None:
        """Takes a RANGE. memory: allocates the block for the whole message. Raises ProtocolError."""
        if self._memory is None:
            self._memory = memoryview(memory(self.nbytes)).cast("B")
        end = self.received + len(data)
        if place.position != self.received or end > self.nbytes:
            raise ProtocolError("range", f"bytes {place.position} of a message, not {self.received}")
        core.copy_into(self._memory[self.received : end], data)
        self.received = end

    def frames(self) -> list[Frame]:
        """Returns the parts of the complete message."""
        make = core.Frame
        parts = unpack_parts(self._parts)
        if not parts:
            return [make(self._memory)]
        found, at = [], 0
        for flags, meta, nbytes in parts:
            found.append(make(self._memory[at : at + nbytes], flags=flags & _KEPT, meta=meta or None))
            at += nbytes
        return found


class Fetches:
    """The large messages that a client's consumers are fetching."""

    def __init__(self, client: BrokerClient, memory: Any) -> None:
        self._client = client
        self._memory = memory
        self._open: dict[tuple[int, int, int], Offered] = {}

    def open(self, offered: Offered) -> None:
        """Adds a message to fetch. With the client's lock."""
        self._open[offered.key] = offered

    def fetch(self, offered: Offered, timeout: float | None) -> bool:
        """Fetches the missing bytes of an open message. Returns False if it is gone.

        timeout: seconds without progress; None: the client's. Raises Again, Broken, Closed; a later call
        continues.
        """
        received = -1
        while True:
            with self._client.wait_until(
                lambda: offered.settled or offered.received > received,  # noqa: B023 - called before the next turn
                timeout,
                "nothing more of a large message received",
            ):
                received = offered.received
                if offered.settled:
                    self._open.pop(offered.key, None)
                    return not offered.gone
                self._request(offered)

    def on_range(self, head: Head, frames: list[Frame]) -> None:
        """Handles a RANGE. Raises ProtocolError."""
        place, _ = decode_place(head)
        offered = self._open.get((head.number, place.offset, place.attempt))
        if offered is not None:
            if len(frames) != 1:
                raise ProtocolError("parts", f"a RANGE of {len(frames)} parts")
            offered.take(place, frames[0].buffer, self._memory)
            self._request(offered)

    def _request(self, offered: Offered) -> None:
        fetch = offered.next_request()
        if fetch is not None:
            try:
                self._client.put([fetch])
            except Broken:
                return  # `on_connection_lost` was called

    def on_revoked(self, number: int, deliveries: Iterable[tuple[int, int]]) -> None:
        """Drops (offset, attempt) deliveries that do not belong to this consumer any more."""
        for offset, attempt in deliveries if self._open else ():
            offered = self._open.pop((number, offset, attempt), None)
            if offered is not None:
                offered.gone = True

    def on_connection_lost(self) -> None:
        """Drops all messages, since the connection has ended."""
        for offered in self._open.values():
            offered.gone = True
        self._open.clear()
