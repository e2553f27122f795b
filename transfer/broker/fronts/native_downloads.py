"""Large messages that consumers fetch in ranges: only the bytes in transfer take memory."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from transfer.broker.core.message import Front, Message
from transfer.broker.delivery.group_contract import LARGE
from transfer.broker.protocols.native import Op
from transfer.broker.protocols.native_pieces import PIECE, Place
from transfer.transports.core import crc32c
from transfer.transports.errors import LogDamaged, TransferError

if TYPE_CHECKING:
    from transfer.broker.core.groups import Delivery
    from transfer.broker.fronts.native_consumers import NativeConsumer
    from transfer.broker.service_threads import ServiceThreads
    from transfer.broker.storage.store import Store
    from transfer.broker.storage.topic import Topic

_log = logging.getLogger("transfer.broker")

#: bytes of one message in transfer, however much its consumer requests
_WINDOW = 16 << 20
#: bytes that are read at once for one program, of all messages that it fetches
MOST_ASKED = 32 << 20

#: a range of a message: its bytes, or the reason why there are none
_Read = memoryview | TransferError


def is_large(message: Message) -> bool:
    """Returns whether consumers that support it fetch this message in ranges."""
    return message.nbytes >= LARGE


class RangeReader:
    """A thread that reads ranges one after the other, used on the broker's loop. counts: of the hub."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: Store,
        counts: Counter[str],
        threads: ServiceThreads | None = None,
    ) -> None:
        self.store = store
        self.counts = counts
        self._loop = loop
        initializer = threads.add_current if threads is not None else None
        self._thread = ThreadPoolExecutor(1, "transfer-broker-ranges", initializer)

    def close(self) -> None:
        """Ends the thread. Idempotent."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def do(self, read: Callable[[], _Read], done: Callable[[_Read], object]) -> None:
        """Reads in the thread, then calls `done` on the loop."""

        def work() -> None:
            try:
                found = read()
            except TransferError as error:
                found = error
            except Exception as error:  # noqa: BLE001 - of this message only
                _log.exception("a message cannot be read")
                found = LogDamaged(f"a message cannot be read: {error!r}")
            self.call_on_loop(lambda: done(found))

        self._thread.submit(work)

    def call_on_loop(self, call: Callable[[], object]) -> None:
        """Calls a function on the loop, from any thread; does nothing if the loop has ended."""
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop is closed: the broker has ended
            return


class Allowance:
    """Limits what is read at once for one program, of all large messages that it fetches. paused: nothing is
    read, because the program does not read what it is sent."""

    def __init__(self) -> None:
        self.paused = False
        self._asked = 0  # bytes that are being read
        self._starved: dict[_Offer, None] = {}

    def take(self, offer: _Offer, nbytes: int) -> bool:
        """Returns whether these bytes may be read now. False: the offer is called when it may go on."""
        if self.paused or self._asked >= MOST_ASKED:
            self._starved[offer] = None
            return False
        self._asked += nbytes
        return True

    def give_back(self, nbytes: int) -> None:
        """Releases bytes that have been read."""
        self._asked -= nbytes
        self.go_on()

    def go_on(self) -> None:
        """Calls waiting offers in turn, while there is room."""
        while self._starved and not self.paused and self._asked < MOST_ASKED:
            offer = next(iter(self._starved))
            del self._starved[offer]
            offer.go_on()


class Offers:
    """The large messages that one consumer was offered. allowance: of its program."""

    def __init__(
        self, reader: RangeReader, topic: Topic, taker: NativeConsumer, allowance: Allowance | None = None
    ) -> None:
        self.reader = reader
        self.topic = topic
        self.taker = taker
        self.allowance = allowance or Allowance()
        self._offers: dict[int, _Offer] = {}

    def offer(self, delivery: Delivery, message: Message) -> None:
        """Offers a message."""
        earlier = self._offers.get(delivery.offset)
        if earlier is not None:  # its consumer was too slow
            earlier.closed = True
            self.taker.stale([(earlier.offset, earlier.attempt)])
        self._offers[delivery.offset] = _Offer(self, delivery.offset, delivery.attempt, message.nbytes)
        place = Place(delivery.offset, delivery.attempt, message.nbytes)
        parts = message.head if message.front is Front.NATIVE else b""
        self.taker.send(Op.OFFER, place, parts)

    def fetch(self, place: Place) -> bool:
        """Sends all bytes before a position. Returns False if the consumer has no such delivery."""
        offer = self._offers.get(place.offset)
        if offer is None or offer.attempt != place.attempt:
            return False
        offer.fetch(place.position)
        return True

    def forget(self, deliveries: Iterable[tuple[int, int]]) -> None:
        """Forgets deliveries, (offset, attempt) each, that the consumer has finished."""
        for offset, attempt in deliveries:
            offer = self._offers.get(offset)
            if offer is not None and offer.attempt == attempt:
                offer.closed = True
                del self._offers[offset]

    def close(self) -> None:
        """Forgets all offers: the consumer has gone."""
        self.forget([(offer.offset, offer.attempt) for offer in self._offers.values()])

    def lost(self, offer: _Offer, error: TransferError) -> None:
        """Handles a message that retention or damage removed."""
        self.forget([(offer.offset, offer.attempt)])
        _log.error("message %d of topic %r: %s", offer.offset, self.topic.name, error)
        self.reader.counts["damaged"] += 1
        self.reader.store.note_damage(self.topic.log_name, offer.offset, error)
        self.taker.gone(offer.offset, offer.attempt)


class _Offer:
    """One message in transfer to one consumer, from its first byte to its last."""

    def __init__(self, offers: Offers, offset: int, attempt: int, nbytes: int) -> None:
        self.offset = offset
        self.attempt = attempt
        self.closed = False
        self._offers = offers
        self._nbytes = nbytes
        self._wanted = self._asked = self._sent = self._released = 0
        self._views: set[weakref.ref[Any]] = set()
        self._range: Callable[[int, int], _Read] | None = None

    def fetch(self, position: int) -> None:
        self._wanted = max(self._wanted, min(position, self._nbytes))
        self.go_on()

    def go_on(self) -> None:
        """Reads ahead as far as the consumer wants, within a window after the bytes that have left this
        process."""
        allowance = self._offers.allowance
        while not self.closed and self._asked < min(self._wanted, self._released + _WINDOW):
            begin, end = self._asked, min(self._asked + PIECE, self._nbytes)
            if not allowance.take(self, end - begin):
                return
            self._asked = end
            self._read(begin, end)

    def _read(self, begin: int, end: int) -> None:
        def done(found: _Read) -> None:
            self._send(found)
            self._offers.allowance.give_back(end - begin)

        self._offers.reader.do(lambda: self._view(begin, end), done)

    def _send(self, found: _Read) -> None:
        if self.closed:
            return
        if isinstance(found, TransferError):
            self._offers.lost(self, found)
            return
        begin, self._sent = self._sent, self._sent + len(found)
        self._watch(found)
        place = Place(self.offset, self.attempt, begin)
        self._offers.taker.send(Op.RANGE, place, data=found)

    def _watch(self, view: memoryview) -> None:
        """Counts the bytes as sent when their memory is freed, which may happen in any thread at any time."""
        nbytes, call_on_loop = len(view), self._offers.reader.call_on_loop

        def left(gone: weakref.ref[Any]) -> None:
            call_on_loop(lambda: self._left(gone, nbytes))

        self._views.add(weakref.ref(view.obj, left))

    def _left(self, view: weakref.ref[Any], nbytes: int) -> None:
        self._views.discard(view)
        self._released += nbytes
        self.go_on()

    # -- on the reader's thread --------------------------------------------------------------------------

    def _view(self, begin: int, end: int) -> _Read:
        """Reads the next range; the last one only if the whole payload is undamaged."""
        if self._range is None:
            self._range = ranges_of(self._offers.reader.store, self._offers.topic, self.offset)
        return self._range(begin, end)


def ranges_of(store: Store, topic: Topic, offset: int) -> Callable[[int, int], _Read]:
    """Returns a function that reads a message's payload range by range, and checks it at the end. Raises
    TransferError."""
    blob = store.log.blob_at(topic.log_name, offset)
    if blob is None:
        raise LogDamaged("the message is not kept any more")
    crc = 0

    def read(begin: int, end: int) -> _Read:
        nonlocal crc
        view = blob.view(begin, end)
        if view is None:
            return LogDamaged("the message is not kept any more, or is cut short")
        crc = crc32c(view, crc)  # this reads it from the disk, too, without the GIL
        if end == blob.nbytes and crc != blob.crc:
            return LogDamaged("the payload differs from what was written")
        return view

    return read
