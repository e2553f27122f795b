"""Subscribers that choose where they begin (`?begin=`): the log sends them kept messages, then new ones."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from transfer.broker.core.topic_names import read_topic
from transfer.broker.core.topic_patterns import Kind, TopicPattern, pattern
from transfer.broker.delivery.subscriber import BrokerSubscriber, Overflow
from transfer.broker.fronts.native_frames import HELD_FROM, parts_of, unreadable
from transfer.patterns.pub_sub import MAX_SUBSCRIPTIONS, encode_order
from transfer.peer_faults import PeerFaults
from transfer.sockets.connections.state import control
from transfer.sockets.connections.topic_positions import (
    CatchUpSource,
    TopicPosition,
    encode_position,
    encode_skipped,
    encode_withheld,
)
from transfer.throttled_log import ThrottledLog
from transfer.transports.core.wire import Control
from transfer.transports.errors import Broken, Closed, ProtocolError, UsageError

if TYPE_CHECKING:
    from transfer.broker.core.message import Buffer, Message
    from transfer.broker.delivery.hub import Hub
    from transfer.broker.storage.topic import Topic
    from transfer.patterns.base import OutFrame
    from transfer.sockets.peer import Peer
    from transfer.sockets.socket import Socket

#: limit on the queued bytes of one subscriber; the log is read again when half of them are sent
MAX_QUEUED_BYTES = 16 << 20
#: limits on the positions that a subscriber may send, on its requests that wait for the loop, and on their
#: bytes
MAX_POSITIONS, MAX_REQUESTS, MAX_REQUEST_BYTES = 400_000, 2 * MAX_SUBSCRIPTIONS, 16 << 20
#: seconds between two checks of a full queue: no event reports that it has been sent
_POLL_INTERVAL = 0.01
#: seconds of a turn; topics or subscriptions in a step of it; subscriptions that share a pass over the topics
_TURN, _STEP, _MAX_SHARED = 0.005, 500, 5000
#: (the prefix, the number of the subscription or None to end it, whether the subscriber had it before)
Request = tuple[TopicPattern, int | None, bool]
#: (the prefix, the number of the subscription, whether topics without a position begin at the oldest message)
Subscription = tuple[TopicPattern, int, bool]
_DONE = object()

_log = logging.getLogger("transfer.broker")


class CatchUpSubscriber(BrokerSubscriber):
    """One connection that catches up. reported: the positions that it sent, by topic; of several epochs, the
    newest last. delivered: the number of the last message that it has or was sent, by topic; that is the
    offset plus one. offline_since: when it lost a publisher with another log, nanoseconds since 1970.
    subscriptions: how often it subscribed to a prefix. requests: those that have not begun. in_progress:
    the rest of the one that has. scheduled: it waits for its turn. subscribed: it has sent a subscription,
    and may send no more positions. received_bytes: of topics and prefixes; processed_bytes: of those that
    the loop has handled."""

    limit = MAX_QUEUED_BYTES
    overflow = Overflow.SPILL
    waits_for_disk = True
    programs = 0  # the PUB socket counts it

    def __init__(self, socket: Socket, peer: Peer, owner: CatchUpSubscribers, counts: Counter[str]) -> None:
        self.peer = peer
        self.reported: dict[str, list[TopicPosition]] = {}
        self.reported_count = self.reported_bytes = 0
        self.delivered: dict[str, int] = {}
        self.offline_since: int | None = None
        self.subscriptions: Counter[TopicPattern] = Counter()
        self.requests: deque[Request] = deque()
        self.in_progress: Iterator[object] | None = None
        self.received_bytes = self.processed_bytes = 0
        self.scheduled = self.subscribed = False
        self._socket = socket
        self._owner = owner
        self._counts = counts
        limits = peer.agreement.remote.limits if peer.agreement is not None else {}
        self._max_message = limits.get("max_message", 1 << 62)
        peer.stream.send_high_water = peer.stream.send_high_water_bytes = 0  # MAX_QUEUED_BYTES is the limit

    def listening(self, topic: str) -> int:
        return 0

    @property
    def idle(self) -> bool:
        """Whether its connection has ended."""
        return self.peer.stream not in self._socket._links.state.peers

    @property
    def has_requests(self) -> bool:
        return bool(self.requests) or self.in_progress is not None

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
        name = message.topic.encode()
        if number:
            self._owner.report_withheld(self, message.topic, number)
            self.delivered[message.topic] = number
        nbytes = len(data)
        if rest:  # of several frames everything counts, not only the data
            nbytes += len(name) + len(meta or b"") + sum(len(one[1] or b"") + len(one[3]) for one in rest)
        if nbytes > self._max_message:  # it would end each new connection, too
            self.dropped += 1
            self._counts["dropped"] += 1
            self.send_control(encode_skipped(number, nbytes, name))
            return
        frames: list[OutFrame] = [(flags, number, name, meta, data)]
        frames.extend((flags, 0, None, meta, data) for _, meta, flags, data in rest)
        hold = message.nbytes >= HELD_FROM
        with suppress(Broken, Closed):  # it reconnects and sends its position
            self._socket._send_frames(frames, 0, stream=self.peer.stream, hold=hold)
        if self.queued * 2 > self.limit:
            self._owner.poll_soon()

    def send_control(self, data: bytes) -> None:
        with suppress(Broken, Closed):
            self.peer.stream.send(control(data), force=True)
        if self.queued * 2 > self.limit:
            self._owner.poll_soon()

    def on_disk(self) -> None:
        self._owner.schedule(self)

    def begin(self, message: Message, nbytes: int) -> bool:
        return False  # the log has it, if it is kept

    def piece(self, data: Buffer) -> None:
        """Does nothing: no message is begun."""

    def finish(self) -> None:
        """Does nothing: no message is begun."""

    def clear(self) -> None:
        """Frees its memory when it has disconnected: topics may reference it as a listener until their next
        message."""
        self.delivered, self.reported = {}, {}
        self.requests.clear()
        self.in_progress = None

    def close(self, reason: str) -> None:
        self._socket._links.loss.lost(self.peer.stream, ProtocolError("stalled", reason))


class CatchUpSubscribers(CatchUpSource):
    """All catch-up subscribers of one PUB socket. The reactor's thread calls the methods of CatchUpSource;
    the rest runs on the broker's loop."""

    def __init__(
        self, hub: Hub, loop: asyncio.AbstractEventLoop, socket: Socket, counts: Counter[str]
    ) -> None:
        self._epochs = hub.epochs
        self.log = self._epochs.log
        self._hub = hub
        self._loop = loop
        self._socket = socket
        self._counts = counts
        self._faults = PeerFaults(_log)
        self._throttled = ThrottledLog(_log)
        # The reactor adds subscribers, positions and requests; the loop takes them. Each is one atomic call.
        self._subscribers: dict[Any, CatchUpSubscriber] = {}
        #: subscribers with work, in turn
        self._scheduled: deque[CatchUpSubscriber] = deque()
        self._polls = self._runs = False
        socket._links.state.catch_up_source = self

    # -- in the reactor's thread -----------------------------------------------------------------------------

    def subscribe(self, peer: Peer, number: int, prefix: bytes, resubscribes: bool) -> None:
        """See CatchUpSource. Raises ProtocolError."""
        self._add_request(peer, prefix, number, resubscribes)

    def unsubscribe(self, peer: Peer, prefix: bytes) -> None:
        """See CatchUpSource. Raises ProtocolError."""
        self._add_request(peer, prefix, None, False)

    def set_position(self, peer: Peer, position: TopicPosition, topic: bytes) -> None:
        """See CatchUpSource. Raises ProtocolError."""
        subscriber = self._subscriber(peer)
        if subscriber.subscribed or subscriber.reported_count >= MAX_POSITIONS:
            raise ProtocolError("control", f"positions must come first, at most {MAX_POSITIONS:,}")
        epochs = subscriber.reported.setdefault(read_topic(topic), [])
        if not epochs:
            self._count_bytes(subscriber, topic)
            subscriber.reported_bytes += len(topic)
        epochs.append(position)
        subscriber.reported_count += 1

    def set_offline(self, peer: Peer, seconds: float) -> None:
        """See CatchUpSource. Raises ProtocolError."""
        subscriber = self._subscriber(peer)
        if subscriber.subscribed:
            raise ProtocolError("control", "the offline time must come before subscriptions")
        subscriber.offline_since = max(0, time.time_ns() - int(seconds * 1e9))

    def _subscriber(self, peer: Peer) -> CatchUpSubscriber:
        found = self._subscribers.get(peer.stream)
        if found is None:
            found = CatchUpSubscriber(self._socket, peer, self, self._counts)
            self._subscribers[peer.stream] = found
        return found

    def _count_bytes(self, subscriber: CatchUpSubscriber, data: bytes) -> None:
        subscriber.received_bytes += len(data)
        if subscriber.received_bytes - subscriber.processed_bytes > MAX_REQUEST_BYTES:
            text = f"more than {MAX_REQUEST_BYTES:,} bytes of positions and subscriptions"
            raise ProtocolError("control", text)

    def _add_request(self, peer: Peer, prefix: bytes, number: int | None, resubscribes: bool) -> None:
        subscriber = self._subscriber(peer)
        if len(subscriber.requests) >= MAX_REQUESTS:
            raise ProtocolError("control", "subscriptions change too fast")
        subscriber.subscribed = True
        self._count_bytes(subscriber, prefix)
        subscriber.requests.append((_pattern(prefix), number, resubscribes))
        with suppress(RuntimeError):  # the broker ends
            self._loop.call_soon_threadsafe(self.schedule, subscriber)

    # -- requests, on the loop -------------------------------------------------------------------------------

    def schedule(self, subscriber: CatchUpSubscriber) -> None:
        """Schedules a subscriber that has a request, or can read on."""
        if not subscriber.scheduled:
            subscriber.scheduled = True
            self._scheduled.append(subscriber)
        self._run_soon()

    def _run_soon(self, pause: float = 0.0) -> None:
        if not self._runs:
            self._runs = True
            self._loop.call_later(pause, self._run)

    def _run(self) -> None:
        """Handles requests and reads the log, subscribers in turn, for `_TURN`. After requests, other work of
        the loop gets as much time."""
        self._runs = False
        ends, requests = time.monotonic() + _TURN, False
        while self._scheduled and time.monotonic() < ends:
            subscriber = self._scheduled.popleft()
            requests = requests or subscriber.has_requests
            if subscriber.idle:
                self._remove(subscriber)
            elif self._step_or_close(subscriber, ends):
                self._scheduled.append(subscriber)
            else:
                subscriber.scheduled = False
        if self._scheduled:
            self._run_soon(_TURN if requests else 0.0)

    def _step_or_close(self, subscriber: CatchUpSubscriber, ends: float) -> bool:
        """Runs one step. Returns whether there is another one."""
        try:
            return self._step(subscriber, ends)
        except Exception as error:  # noqa: BLE001 - of this subscriber only, which reconnects
            refused = self._faults.refusal("a subscription to a log", error, subscriber.peer.address)
            self._socket._links.loss.lost(subscriber.peer.stream, refused)
            return False

    def _step(self, subscriber: CatchUpSubscriber, ends: float) -> bool:
        if (
            subscriber.has_requests and subscriber.queued > subscriber.limit
        ):  # the peer does not read the answers
            self.poll_soon()
            return False
        if subscriber.in_progress is not None:
            if next(subscriber.in_progress, _DONE) is _DONE:
                subscriber.in_progress = None
        elif subscriber.requests:
            self._begin_requests(subscriber)
        else:
            return self._hub.fanout.catch_up(subscriber, ends)
        return True

    def _begin_requests(self, subscriber: CatchUpSubscriber) -> None:
        """Takes the next request. Consecutive subscriptions share one pass over all topics."""
        taken: list[Subscription] = []
        while subscriber.requests and len(taken) < _MAX_SHARED:
            prefix, number, resubscribes = subscriber.requests[0]
            if number is None and taken:
                break
            subscriber.requests.popleft()
            subscriber.processed_bytes += len(prefix.text.encode()) + subscriber.reported_bytes
            subscriber.reported_bytes = 0
            if number is None:
                self._unsubscribe(subscriber, prefix)
                return
            taken.append((prefix, number, resubscribes or subscriber.peer.catch_up == "old"))
        subscriber.in_progress = self._subscribe(subscriber, taken)

    def _subscribe(self, subscriber: CatchUpSubscriber, taken: list[Subscription]) -> Iterator[object]:
        """Begins the topics of these subscriptions, then confirms them, `_STEP` at a time."""
        found = yield from self._find_topics(subscriber, taken)
        store = self._hub.store
        for count, (topic, begin, end) in enumerate(found):
            if count % _STEP == _STEP - 1:
                yield None
            if store.topics.get(topic.name) is topic:  # not removed meanwhile
                if begin < end or store.range(topic)[1] != end:
                    self._hub.fanout.read_from_log(subscriber, topic, begin)
                subscriber.delivered.setdefault(topic.name, begin)
                position = TopicPosition(begin, self.log.epoch)
                subscriber.send_control(encode_position(position, topic.name.encode()))
        for count, (_, number, _) in enumerate(taken):
            if count % _STEP == _STEP - 1:
                yield None
            subscriber.send_control(encode_order(Control.SUBSCRIBED, number))

    def _find_topics(
        self, subscriber: CatchUpSubscriber, taken: list[Subscription]
    ) -> Generator[None, None, list[tuple[Topic, int, int]]]:
        """Returns the topics, each with the offset to begin at and its end, as of before the subscriptions
        began. From then on the fan-out lets each new message be read from the log."""
        store, matches = self._hub.store, _Prefixes(taken)
        known, found = set(store.topics.values()), []
        for count, topic in enumerate(known):
            if count % _STEP == _STEP - 1:
                yield None
            if topic.durable and (first := matches.first(topic.name)) is not None:
                found.append((topic, *self._first_offset(subscriber, topic, old=first[2])))
        for count, (prefix, _, _) in enumerate(taken):
            if count % _STEP == _STEP - 1:
                yield None
            self._hub.subscribe(subscriber, prefix)
            subscriber.subscriptions[prefix] += 1
        for topic in reversed(store.topics.values()):
            if topic in known:
                break
            if topic.durable and matches.first(topic.name) is not None:
                low, _ = store.range(topic)
                found.append((topic, low, low))
        return found

    def _first_offset(self, subscriber: CatchUpSubscriber, topic: Topic, old: bool) -> tuple[int, int]:
        """Returns the offset at which the subscriber begins to read the topic, and the topic's end."""
        store = self._hub.store
        low, end = store.range(topic)
        number, reported = subscriber.delivered.get(topic.name), subscriber.reported.pop(topic.name, None)
        if number is None and reported is not None:
            old, valid = True, (self._epochs.valid_number(topic.log_name, one) for one in reversed(reported))
            number = next((one for one in valid if one is not None), None)
            if number is None or number < reported[-1].number:
                text = "%s has message %d of topic %r, which is not in this log: was a backup restored?"
                where = subscriber.peer.address, reported[-1].number, topic.name
                self._throttled.log(logging.WARNING, "log", text, *where)
        if number is None or number > end:
            number = low if old else end
            if not old and subscriber.offline_since is not None:
                number = store.log.offset_at(topic.log_name, subscriber.offline_since)
        return number, end

    def _unsubscribe(self, subscriber: CatchUpSubscriber, prefix: TopicPattern) -> None:
        subscriber.subscriptions[prefix] -= 1
        if subscriber.subscriptions[prefix] <= 0:
            del subscriber.subscriptions[prefix]
            self._hub.unsubscribe(subscriber, prefix)

    def report_withheld(self, subscriber: CatchUpSubscriber, name: str, number: int) -> None:
        """Reports the messages in front of this one that are not for subscribers: the gap is none."""
        before, topic = subscriber.delivered.get(name, number), self._hub.store.topics.get(name)
        if topic is not None and before + 1 < number:
            for offsets in topic.withheld.within(before, number - 1):
                numbers = range(offsets.start + 1, offsets.stop + 1)
                subscriber.send_control(encode_withheld(numbers, name.encode()))

    # -- timers ----------------------------------------------------------------------------------------------

    def poll_soon(self) -> None:
        """Schedules a check of the subscribers: one of them has a full queue."""
        if not self._polls:
            self._polls = True
            self._loop.call_later(_POLL_INTERVAL, self._poll)

    def _poll(self) -> None:
        self._polls = False
        for subscriber in list(self._subscribers.values()):
            if subscriber.idle:
                self._remove(subscriber)
            elif subscriber.has_requests or subscriber in self._hub.fanout.behind:
                self.schedule(subscriber)
                self.poll_soon()

    def tick(self) -> None:
        """Removes subscribers whose connections have ended. Called about once a second."""
        self.poll_soon()

    def _remove(self, subscriber: CatchUpSubscriber) -> None:
        self._subscribers.pop(subscriber.peer.stream, None)
        self._hub.leave(subscriber)
        subscriber.clear()

    def close(self) -> None:
        """Removes all subscribers. Idempotent."""
        self._socket._links.state.catch_up_source = None
        for subscriber in list(self._subscribers.values()):
            self._remove(subscriber)


class _Prefixes:
    """Finds the first of many subscriptions that matches a topic, with one look-up for each length."""

    def __init__(self, subscriptions: list[Subscription]) -> None:
        self._places = {one[0].text: place for place, one in reversed([*enumerate(subscriptions)])}
        self._subscriptions = subscriptions
        self._lengths = sorted({len(text) for text in self._places})

    def first(self, topic: str) -> Subscription | None:
        places = [self._places.get(topic[:length]) for length in self._lengths if length <= len(topic)]
        found = [place for place in places if place is not None]
        return self._subscriptions[min(found)] if found else None


def _pattern(prefix: bytes) -> TopicPattern:
    try:
        return pattern(Kind.PREFIX, prefix.decode())
    except (UnicodeDecodeError, UsageError) as error:
        raise ProtocolError("control", f"no topic begins with {prefix!r:.80}") from error
