"""SUBs that say where they begin (`?begin=`): each is given what its topics keep, and what comes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from patterns.pub_sub import MAX_SUBSCRIPTIONS, encode_order
from transfer.broker.engine.grammar import Kind, Pattern, pattern
from transfer.broker.fronts.own_parts import HELD_FROM, parts_of, unreadable
from transfer.broker.log_runs import LogRuns
from transfer.broker.subscriber import Overflow, Subscriber
from transfer.links.places import Keeper, Place, encode_place, encode_too_large
from transfer.links.state import control
from transfer.peer_faults import PeerFaults
from transfer.protocols.names import read_topic
from transfer.throttled_log import ThrottledLog
from transports.errors import Broken, Closed, ProtocolError, UsageError
from transports.wire import Control

if TYPE_CHECKING:
    from patterns.base import OutFrame
    from transfer.broker.hub import Hub
    from transfer.broker.message import Buffer, Message
    from transfer.broker.topic import Topic
    from transfer.peer import Peer
    from transfer.socket import SocketMethods

#: bytes that wait for one of them; it reads on from the log when half of them are gone
LIMIT = 16 << 20
#: places that one may tell, orders of one that may wait until the loop comes to them, and bytes of both
MOST_PLACES, MOST_ORDERS, MOST_SAID = 400_000, 2 * MAX_SUBSCRIPTIONS, 16 << 20
#: seconds between two looks whether one has taken what waits for it: no event says so
_LOOK = 0.01
#: seconds of a turn; topics that one order looks at before others come to their turn
_TURN, _STEP = 0.005, 500
#: (what is subscribed, the number of the subscription; None: it ends one, whether it was told before)
Order = tuple[Pattern, int | None, bool]
_DONE = object()

_log = logging.getLogger("transfer.broker")


class KeptReader(Subscriber):
    """One of them, by its connection. told: where it says that it was, by topic: in several
    runs, the newest last. places: the number of the
    last message that it has or was given; numbers are offsets and one more. since: nanoseconds since 1970,
    when it lost a publisher that kept another log. wanted: how often it subscribed to a prefix. orders: those
    that it gave, not done yet. doing: the rest of one of them. busy: it waits for its turn."""

    limit = LIMIT
    overflow = Overflow.SPILL
    waits_for_disk = True
    programs = 0  # the PUB socket counts it

    def __init__(self, socket: SocketMethods, peer: Peer, readers: KeptReaders, counts: Counter[str]) -> None:
        self.peer = peer
        self.told: dict[str, list[Place]] = {}
        self.tellings = 0  # of them
        self.places: dict[str, int] = {}
        self.since: int | None = None
        self.wanted: Counter[Pattern] = Counter()
        self.orders: deque[Order] = deque()
        self.doing: Iterator[object] | None = None
        self.said = self.heard = 0  # bytes of topics and prefixes; the loop is done with so many of them
        self.placed = 0  # of topics alone, until it subscribes
        self.busy = self.subscribed = False
        self._socket = socket
        self._readers = readers
        self._counts = counts
        limits = peer.agreement.remote.limits if peer.agreement is not None else {}
        self._most = limits.get("max_message", 1 << 62)
        peer.stream.send_high_water = peer.stream.send_high_water_bytes = 0  # the limit stands here

    def listening(self, topic: str) -> int:
        return 0

    @property
    def idle(self) -> bool:
        """Its connection has ended."""
        return self.peer.stream not in self._socket._links.peers

    @property
    def has_orders(self) -> bool:
        """It said something that is not done yet."""
        return bool(self.orders) or self.doing is not None

    @property
    def queued(self) -> int:
        found: int = self.peer.stream.queued_bytes
        return found

    def offer(self, message: Message) -> None:
        try:
            (_, meta, flags, data), *rest = parts_of(message)
        except ProtocolError as error:
            unreadable(message, error, self._counts)
            self.dropped += 1
            return
        number = 0 if message.offset is None else message.offset + 1
        if number:
            self.places[message.topic] = number
        name = message.topic.encode()
        nbytes = len(data)
        if rest:  # of several frames all counts, and not the data alone
            nbytes += len(name) + len(meta or b"") + sum(len(one[1] or b"") + len(one[3]) for one in rest)
        if nbytes > self._most:  # it would end the connection, again and again
            self.dropped += 1
            self._counts["dropped"] += 1
            self.say(encode_too_large(number, nbytes, name))
            return
        frames: list[OutFrame] = [(flags, number, name, meta, data)]
        frames.extend((flags, 0, None, meta, data) for _, meta, flags, data in rest)
        hold = message.nbytes >= HELD_FROM
        with suppress(Broken, Closed):  # it comes back, and says how far it was
            self._socket._send_frames(frames, 0, stream=self.peer.stream, hold=hold)
        if self.queued * 2 > self.limit:
            self._readers.look_soon()

    def say(self, order: bytes) -> None:
        """A control frame."""
        with suppress(Broken, Closed):
            self.peer.stream.send(control(order), force=True)
        if self.queued * 2 > self.limit:
            self._readers.look_soon()

    def on_disk(self) -> None:
        self._readers.wake(self)

    def begin(self, message: Message, nbytes: int) -> bool:
        return False  # it is read from the log, if it is kept

    def piece(self, data: Buffer) -> None:
        """None is begun."""

    def finish(self) -> None:
        """None is begun."""

    def close(self, reason: str) -> None:
        self._socket._links.lost(self.peer.stream, ProtocolError("stalled", reason))


class KeptReaders(Keeper):
    """All of one PUB socket. On the broker's loop, but for what a Keeper is told, in the reactor's thread."""

    def __init__(
        self, hub: Hub, loop: asyncio.AbstractEventLoop, socket: SocketMethods, counts: Counter[str]
    ) -> None:
        self._runs = LogRuns(hub.store.log)
        self.log = self._runs.log
        self._hub = hub
        self._loop = loop
        self._socket = socket
        self._counts = counts
        self._faults = PeerFaults(_log)
        self._throttled = ThrottledLog(_log)
        # The reactor adds readers, places and orders, the loop takes them: each by one call, in that order.
        self._readers: dict[Any, KeptReader] = {}
        #: those with something to do, each of which has its turn
        self._busy: deque[KeptReader] = deque()
        self._looks = self._works = False
        socket._links.keeper = self

    # -- in the reactor's thread -----------------------------------------------------------------------------

    def subscribed(self, peer: Peer, number: int, prefix: bytes, again: bool) -> None:
        """See Keeper. Raises ProtocolError."""
        self._order(peer, prefix, number, again)

    def unsubscribed(self, peer: Peer, prefix: bytes) -> None:
        """See Keeper. Raises ProtocolError."""
        self._order(peer, prefix, None, False)

    def placed(self, peer: Peer, place: Place, topic: bytes) -> None:
        """See Keeper. Raises ProtocolError."""
        reader = self._reader(peer)
        if reader.subscribed or reader.tellings >= MOST_PLACES:
            raise ProtocolError("control", f"places come first, and are at most {MOST_PLACES:,}")
        runs = reader.told.setdefault(read_topic(topic), [])
        if not runs:
            self._count(reader, topic)
            reader.placed += len(topic)
        runs.append(place)
        reader.tellings += 1

    def away(self, peer: Peer, seconds: float) -> None:
        """See Keeper. Raises ProtocolError."""
        reader = self._reader(peer)
        if reader.subscribed:
            raise ProtocolError("control", "how long it was away comes first")
        reader.since = max(0, time.time_ns() - int(seconds * 1e9))

    def _reader(self, peer: Peer) -> KeptReader:
        reader = self._readers.get(peer.stream)
        if reader is None:
            reader = self._readers[peer.stream] = KeptReader(self._socket, peer, self, self._counts)
        return reader

    def _count(self, reader: KeptReader, said: bytes) -> None:
        reader.said += len(said)
        if reader.said - reader.heard > MOST_SAID:
            raise ProtocolError("control", f"more than {MOST_SAID:,} bytes of places and subscriptions")

    def _order(self, peer: Peer, prefix: bytes, number: int | None, again: bool) -> None:
        reader = self._reader(peer)
        if len(reader.orders) >= MOST_ORDERS:
            raise ProtocolError("control", "subscriptions come and go too fast")
        reader.subscribed = True
        self._count(reader, prefix)
        reader.orders.append((_pattern(prefix), number, again))
        with suppress(RuntimeError):  # the broker ends
            self._loop.call_soon_threadsafe(self.wake, reader)

    # -- orders, on the loop ---------------------------------------------------------------------------------

    def wake(self, reader: KeptReader) -> None:
        """It has something to do: an order, or to read on."""
        if not reader.busy:
            reader.busy = True
            self._busy.append(reader)
        self._work_soon()

    def _work_soon(self, pause: float = 0.0) -> None:
        if not self._works:
            self._works = True
            self._loop.call_later(pause, self._work)

    def _work(self) -> None:
        """Does what was ordered, and reads, by turns, for a moment. After orders others have as long."""
        self._works = False
        ends, ordered = time.monotonic() + _TURN, False
        while self._busy and time.monotonic() < ends:
            reader = self._busy.popleft()
            ordered = ordered or reader.has_orders
            if reader.idle:
                self._leave(reader)
            elif self._does_more(reader, ends):
                self._busy.append(reader)
            else:
                reader.busy = False
        if self._busy:
            self._work_soon(_TURN if ordered else 0.0)

    def _does_more(self, reader: KeptReader, ends: float) -> bool:
        """One step; whether there is another one."""
        try:
            return self._step(reader, ends)
        except Exception as error:  # noqa: BLE001 - of this reader: it comes back, and others have their turns
            refused = self._faults.refusal("a subscription to what is kept", error, reader.peer.address)
            reader.close(str(refused))
            return False

    def _step(self, reader: KeptReader, ends: float) -> bool:
        if reader.has_orders and reader.queued > reader.limit:  # it does not read the answers
            self.look_soon()
            return False
        if reader.doing is not None:
            if next(reader.doing, _DONE) is _DONE:
                reader.doing = None
        elif reader.orders:
            wanted, number, again = reader.orders.popleft()
            reader.heard += len(wanted.text.encode()) + reader.placed
            reader.placed = 0
            if number is None:
                self._unsubscribe(reader, wanted)
            else:
                reader.doing = self._subscribe(reader, wanted, number, again)
        else:
            return self._hub.fanout.relieved(reader, ends)
        return True

    def _subscribe(self, reader: KeptReader, wanted: Pattern, number: int, again: bool) -> Iterator[object]:
        """Finds the topics, a few at a time; begins them; tells where that is, a few at a time."""
        store, fanout = self._hub.store, self._hub.fanout
        known, found = set(store.topics.values()), []
        old = again or reader.peer.begins == "old"
        for count, topic in enumerate(known):
            if count % _STEP == _STEP - 1:
                yield None
            if topic.durable and wanted.matches(topic.name):
                found.append((topic, *self._place(reader, topic, old), topic.messages))
        self._hub.subscribe(reader, wanted)  # from here on what comes is read from the log, if not before
        reader.wanted[wanted] += 1
        for topic in reversed(store.topics.values()):
            if topic in known:
                break
            if topic.durable and wanted.matches(topic.name):
                found.append((topic, store.range(topic)[0], True, 0))
        for count, (topic, place, more, messages) in enumerate(found):
            if count % _STEP == _STEP - 1:
                yield None
            if store.topics.get(topic.name) is topic:  # it was not removed meanwhile
                if more or topic.messages != messages:
                    fanout.read_from_log(reader, topic, place)
                reader.places.setdefault(topic.name, place)
                reader.say(encode_place(Place(place, self.log.run), topic.name.encode()))
        reader.say(encode_order(Control.SUBSCRIBED, number))

    def _place(self, reader: KeptReader, topic: Topic, old: bool) -> tuple[int, bool]:
        """Where it reads on, or begins; whether there is more."""
        store = self._hub.store
        low, end = store.range(topic)
        place, told = reader.places.get(topic.name), reader.told.pop(topic.name, None)
        if place is None and told is not None:
            old, agreed = True, (self._runs.agreed(topic.log_name, one) for one in reversed(told))
            place = next((one for one in agreed if one is not None), None)
            if place is None or place < told[-1].number:
                text = "%s has message %d of topic %r, which this log has not: was a backup put back?"
                where = reader.peer.address, told[-1].number, topic.name
                self._throttled.say(logging.WARNING, "log", text, *where)
        if place is None or place > end:
            place = low if old else end
            if not old and reader.since is not None:
                place = store.log.offset_at(topic.log_name, reader.since)
        return place, place < end

    def _unsubscribe(self, reader: KeptReader, wanted: Pattern) -> None:
        reader.wanted[wanted] -= 1
        if reader.wanted[wanted] <= 0:
            del reader.wanted[wanted]
            self._hub.unsubscribe(reader, wanted)

    # -- by the clock ----------------------------------------------------------------------------------------

    def look_soon(self) -> None:
        """One of them has much that waits for it."""
        if not self._looks:
            self._looks = True
            self._loop.call_later(_LOOK, self._look)

    def _look(self) -> None:
        self._looks = False
        for reader in list(self._readers.values()):
            if reader.idle:
                self._leave(reader)
            elif reader.has_orders or self._hub.fanout.has_behind(reader):
                self.wake(reader)
                self.look_soon()

    def tick(self) -> None:
        """About once a second: who has gone."""
        self.look_soon()

    def _leave(self, reader: KeptReader) -> None:
        self._readers.pop(reader.peer.stream, None)
        self._hub.leave(reader)

    def close(self) -> None:
        """Idempotent."""
        self._socket._links.keeper = None
        for reader in list(self._readers.values()):
            self._leave(reader)


def _pattern(prefix: bytes) -> Pattern:
    try:
        return pattern(Kind.PREFIX, prefix.decode())
    except (UnicodeDecodeError, UsageError) as error:
        raise ProtocolError("control", f"{prefix!r:.80} is nothing that a topic begins with") from error
