"""Large messages on their way from the broker to a program: fetched into one piece of memory."""

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

#: bytes that are asked for ahead of what came
_WINDOW = 8 * PIECE
#: flags of a part that say how its bytes are to be read
_KEPT = int(Flag.TENSOR | Flag.EXTENDED | Flag.LZ4)


class Offered:
    """A large message that the broker offers, and what came of it. With the client's lock.

    gone: it will not come: another consumer has it, or nobody any more.
    """

    def __init__(self, head: Head) -> None:
        place, parts = decode_place(head)
        self.offset = place.offset
        self.attempt = place.attempt
        self.nbytes = place.position
        self.number = head.number
        self.gone = False
        self.came = 0
        self._asked = 0
        self._parts = parts
        self._memory: Any = None

    @property
    def key(self) -> tuple[int, int, int]:
        """Which delivery it is."""
        return self.number, self.offset, self.attempt

    @property
    def settled(self) -> bool:
        """It is whole, or gone."""
        return self.gone or self.came == self.nbytes

    def wish(self) -> bytes | None:
        """The FETCH that is to be sent now, if there is one."""
        asked = min(self.nbytes, self.came + _WINDOW)
        if self.gone or (asked - self._asked < _WINDOW // 4 and not self._asked < asked == self.nbytes):
            return None
        self._asked = asked
        return encode_place(Op.FETCH, self.number, Place(self.offset, self.attempt, asked))

    def take(self, place: Place, data: Any, memory: Any) -> None:
        """A RANGE. memory: where all of it goes, from the first on. Raises ProtocolError."""
        if self._memory is None:
            self._memory = memoryview(memory(self.nbytes)).cast("B")
        end = self.came + len(data)
        if place.position != self.came or end > self.nbytes:
            raise ProtocolError("range", f"bytes {place.position} of a message, not {self.came}")
        core.copy_into(self._memory[self.came : end], data)
        self.came = end

    def frames(self) -> list[Frame]:
        """Its parts, when it is whole."""
        make = core.Frame
        parts = unpack_parts(self._parts)
        if not parts:
            return [make(self._memory)]
        found, at = [], 0
        for flags, meta, nbytes in parts:
            found.append(make(self._memory[at : at + nbytes], flags=flags & _KEPT, meta=meta or None))
            at += nbytes
        return found


class Fetching:
    """The large messages that a client's consumers fetch at the moment."""

    def __init__(self, client: BrokerClient, memory: Any) -> None:
        self._client = client
        self._memory = memory
        self._open: dict[tuple[int, int, int], Offered] = {}

    def open(self, offered: Offered) -> None:
        """It is to be fetched. With the client's lock."""
        self._open[offered.key] = offered

    def fetch(self, offered: Offered, timeout: float | None) -> bool:
        """Fetches what is missing of one that is open. False: it is gone. Raises Again when nothing comes for
        so long (None: the client's time-out), Broken, Closed; it can go on then."""
        came = -1
        while True:
            with self._client.waited(
                lambda: offered.settled or offered.came > came,  # noqa: B023 - called before the next turn
                timeout,
                "nothing more of a large message came",
            ):
                came = offered.came
                if offered.settled:
                    self._open.pop(offered.key, None)
                    return not offered.gone
                self._ask(offered)

    def heard(self, head: Head, frames: list[Frame]) -> None:
        """A RANGE. Raises ProtocolError."""
        place, _ = decode_place(head)
        offered = self._open.get((head.number, place.offset, place.attempt))
        if offered is not None:
            if len(frames) != 1:
                raise ProtocolError("parts", f"a RANGE of {len(frames)} parts")
            offered.take(place, frames[0].buffer, self._memory)
            self._ask(offered)

    def _ask(self, offered: Offered) -> None:
        wish = offered.wish()
        if wish is not None:
            try:
                self._client.put([wish])
            except Broken:
                return  # `lost` was told

    def gone(self, number: int, deliveries: Iterable[tuple[int, int]]) -> None:
        """The broker says that these are not this consumer's any more: (offset, attempt) each."""
        for offset, attempt in deliveries if self._open else ():
            offered = self._open.pop((number, offset, attempt), None)
            if offered is not None:
                offered.gone = True

    def lost(self) -> None:
        """The connection has ended."""
        for offered in self._open.values():
            offered.gone = True
        self._open.clear()
