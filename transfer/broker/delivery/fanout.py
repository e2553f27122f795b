"""Who is told of a message as it comes, and what becomes of those who cannot follow."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from transfer.broker.core.pattern_index import PatternIndex
from transfer.broker.core.subscriptions import Subscriptions
from transfer.broker.core.topic_patterns import Kind
from transfer.broker.delivery.frame_stream import Streamed
from transfer.broker.delivery.subscriber import Overflow, Subscriber
from transfer.transports.errors import LogDamaged

if TYPE_CHECKING:
    from transfer.broker.core.topic_patterns import Pattern
    from transfer.broker.delivery.message import Message
    from transfer.broker.delivery.streaming_publish import StreamingPublish
    from transfer.broker.delivery.topic import Topic
    from transfer.broker.storage.store import Store

_log = logging.getLogger("transfer.broker")
#: bytes that one look into the log reads for a subscriber that is behind
_READ = 1 << 20
#: damaged messages that are passed over at once; the others at the next occasion
_MOST_DAMAGED = 100
#: subscriptions that end in one turn of the loop, so that others come to theirs: some 5 ms
AT_ONCE = 1000


class _Behind:
    """Where a subscriber reads a topic. offset: of its next message. given: offsets of messages behind it
    that it was given already, in pieces, as they came."""

    __slots__ = ("given", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.given: set[int] = set()


class Fanout:
    """The subscriptions of all fronts. On the broker's loop.

    A subscriber without room is behind on a durable topic if it wants to spill: from that message on it
    reads the topic from the log, until it has come to the end. soon: calls something in the loop's next turn.
    """

    def __init__(
        self, store: Store, counts: Counter[str], soon: Callable[[Callable[[], None]], object]
    ) -> None:
        self._store = store
        self._counts = counts
        self._soon = soon
        self._index: PatternIndex[Subscriber] = PatternIndex()
        self._subscriptions: dict[Subscriber, Subscriptions] = {}
        #: what the index still has of subscribers that have gone
        self._departed: deque[tuple[Subscriber, Subscriptions]] = deque()
        self._behind: dict[Subscriber, dict[Topic, _Behind]] = {}
        self._reading: set[Subscriber] = set()

    # -- subscriptions -----------------------------------------------------------------------------------

    def subscribe(self, subscriber: Subscriber, pattern: Pattern) -> None:
        """The same twice is harmless. Raises UsageError if it has, or all have, too much."""
        mine = self._subscriptions.get(subscriber)
        if mine is None:
            mine = Subscriptions(subscriber.most)
        elif pattern in mine:
            return
        mine.add(pattern, self._index)
        self._subscriptions[subscriber] = mine
        self._index.add(pattern, subscriber)

    def unsubscribe(self, subscriber: Subscriber, pattern: Pattern) -> bool:
        """Whether it had subscribed so."""
        mine = self._subscriptions.get(subscriber)
        if mine is None or pattern not in mine:
            return False
        mine.discard(pattern)
        if not mine:
            del self._subscriptions[subscriber]
        self._index.discard(pattern, subscriber)
        for topic in self._behind_by(subscriber, pattern):
            if not self._wants(subscriber, topic):
                self._caught_up(subscriber, topic)
        return True

    def unsubscribe_some(self, subscriber: Subscriber) -> bool:
        """Ends some of its subscriptions. Whether there are more."""
        for pattern in list(islice(self._subscriptions.get(subscriber, ()), AT_ONCE)):
            self.unsubscribe(subscriber, pattern)
        return subscriber in self._subscriptions

    def leave(self, subscriber: Subscriber) -> None:
        """It has gone, and is told nothing more. Its subscriptions leave the index in the next turns."""
        self._behind.pop(subscriber, None)
        mine = self._subscriptions.pop(subscriber, None)
        if mine is None:
            return
        self._index.version += 1
        self._departed.append((subscriber, mine))
        if len(self._departed) == 1:
            self._soon(self._clear_some)

    def _clear_some(self) -> None:
        """Takes what is left of those who have gone out of the index, some of it."""
        for _ in range(AT_ONCE):
            subscriber, mine = self._departed[0]
            self._index.discard(mine.pop(), subscriber)
            if not mine:
                self._departed.popleft()
                if not self._departed:
                    return
        self._soon(self._clear_some)

    def _behind_by(self, subscriber: Subscriber, pattern: Pattern) -> list[Topic]:
        """The topics of a pattern on which a subscriber is behind."""
        topics = self._behind.get(subscriber, {})
        if pattern.kind is Kind.EXACT:
            topic = self._store.topics.get(pattern.text)
            return [topic] if topic is not None and topic in topics else []
        return [topic for topic in topics if pattern.matches(topic.name)]

    def forget(self, topic: Topic) -> None:
        """The topic is gone: nobody is behind on it."""
        for subscriber in list(self._behind):
            if self.is_behind(subscriber, topic):
                self._caught_up(subscriber, topic)

    def subscriptions(self) -> Mapping[Subscriber, Subscriptions]:
        """Who has subscribed to what."""
        return self._subscriptions

    def listeners(self, topic: Topic) -> list[Subscriber]:
        """Who is told of this topic's messages, each once."""
        if topic.version != self._index.version:
            found = dict.fromkeys(self._index.match(topic.name))
            topic.listeners = [one for one in found if one in self._subscriptions]
            topic.version = self._index.version
        return topic.listeners

    def is_heard(self, topic: Topic) -> bool:
        """Whether somebody would miss a message of this topic."""
        return any(not subscriber.idle for subscriber in self.listeners(topic))

    # -- messages ----------------------------------------------------------------------------------------

    def tell(self, topic: Topic, message: Message) -> None:
        """Offers a whole message to all who subscribed."""
        nbytes = message.nbytes
        streamed = message if type(message) is Streamed else None
        given = streamed.given if streamed is not None else ()
        for subscriber in self.listeners(topic):
            if subscriber in given:
                if message.offset is not None:
                    self.given(subscriber, topic, message.offset)
                continue
            if self.is_behind(subscriber, topic):
                continue
            if subscriber.waits_for_disk and message.offset is not None:
                self.read_from_log(subscriber, topic, message.offset)
                continue
            if streamed is not None and subscriber.takes_frames and message.offset is None:
                continue  # it came in the middle
            if subscriber.queued and subscriber.queued + nbytes > subscriber.limit:
                self.left_out(subscriber, topic, message.offset)
            else:
                subscriber.offer(message)
        if streamed is not None:  # it may be held for groups, and would hold connections that have ended
            streamed.given = frozenset()

    def is_behind(self, subscriber: Subscriber, topic: Topic) -> bool:
        """It reads this topic from the log."""
        return bool(self._behind) and topic in self._behind.get(subscriber, ())

    def has_behind(self, subscriber: Subscriber) -> bool:
        """It reads some topic from the log."""
        return subscriber in self._behind

    def left_out(self, subscriber: Subscriber, topic: Topic, offset: int | None) -> None:
        """A subscriber had no room for a message. offset: in the log; None: it is not kept."""
        if subscriber.idle or not self._wants(subscriber, topic):
            return
        overflow = subscriber.overflow
        if overflow is Overflow.SPILL and offset is not None:
            self._counts["spilled"] += 1
            topics = self._behind.setdefault(subscriber, {})
            if topic not in topics:
                topics[topic] = _Behind(offset)
        elif overflow is Overflow.CLOSE:
            self._counts["closed_slow"] += 1
            subscriber.close("it did not take its messages as fast as they came")
        else:
            subscriber.dropped += 1
            self._counts["dropped"] += 1

    def tell_late(self, passage: StreamingPublish) -> None:
        """A message that came in pieces, and is not kept, to those who had no room when it began."""
        message = passage.whole()
        for subscriber in passage.left_out:
            if message is None or subscriber.queued + message.nbytes > subscriber.limit:
                self.left_out(subscriber, passage.topic, None)
            elif not subscriber.idle and self._wants(subscriber, passage.topic):
                subscriber.offer(message)

    def wait_for(self, topic: Topic, offset: int) -> None:
        """This message is appended: those who wait for the disk read on there, also who came while it did."""
        for subscriber in self.listeners(topic):
            if subscriber.waits_for_disk:
                self.read_from_log(subscriber, topic, offset)

    def read_from_log(self, subscriber: Subscriber, topic: Topic, offset: int) -> None:
        """A subscriber is to read on at this message, which is kept, if it does not at an earlier one."""
        if not subscriber.idle and self._wants(subscriber, topic):
            topics = self._behind.setdefault(subscriber, {})
            if topic not in topics:
                topics[topic] = _Behind(offset)
            elif offset < topics[topic].offset:
                topics[topic].offset = offset

    def given(self, subscriber: Subscriber, topic: Topic, offset: int) -> None:
        """A message that came in pieces has its offset now: whoever was given them, and is behind, does not
        want it from the log again."""
        if self.is_behind(subscriber, topic):
            self._behind[subscriber][topic].given.add(offset)

    def _wants(self, subscriber: Subscriber, topic: Topic) -> bool:
        """It is still there, and still subscribes."""
        return subscriber in self._subscriptions and self._index.holds(topic.name, subscriber)

    # -- who is behind -----------------------------------------------------------------------------------

    @property
    def behind(self) -> int:
        """Subscribers that are behind."""
        return len(self._behind)

    def kept(self) -> None:
        """More is on the disk, and can be read."""
        for subscriber in list(self._behind):
            if subscriber.waits_for_disk:
                subscriber.on_disk()
            else:
                self.relieved(subscriber)

    def relieved(self, subscriber: Subscriber, ends: float = math.inf) -> bool:
        """It has room again: what it missed comes from the log. ends: on the clock, when others come to their
        turn. Whether there was no time for some of its topics."""
        if subscriber not in self._behind or subscriber in self._reading:
            return False  # what it is offered may relieve it at once, in the middle of `_read_on`
        self._reading.add(subscriber)
        try:
            for topic in list(self._behind[subscriber]):
                if not self._read_on(subscriber, topic, ends):
                    return False
                if time.monotonic() >= ends:
                    return subscriber in self._behind
            return False
        finally:
            self._reading.discard(subscriber)

    def _read_on(self, subscriber: Subscriber, topic: Topic, ends: float) -> bool:
        """Whether there is room for more. Other topics come first the next time."""
        topics = self._behind.get(subscriber, {})  # it may have gone by what it was given
        if topic in topics:
            topics[topic] = topics.pop(topic)
        damaged = 0
        while (behind := self._behind.get(subscriber, {}).get(topic)) is not None:
            if subscriber.idle:
                self._caught_up(subscriber, topic)
                return True
            if subscriber.queued * 2 > subscriber.limit:
                return False
            low, end = self._store.range(topic)
            self._missed(subscriber, low - behind.offset)  # retention was faster
            behind.offset = max(behind.offset, low)
            try:
                messages = self._store.read(topic, behind.offset, nbytes=min(_READ, subscriber.limit // 2))
            except LogDamaged as error:
                _log.error("%s", error)
                self._counts["damaged"] += 1
                self._missed(subscriber, 1)
                behind.offset += 1
                damaged += 1
                if damaged >= _MOST_DAMAGED:
                    return True
                continue
            if messages:
                self._give(subscriber, topic, behind, messages)
                if time.monotonic() >= ends:
                    return True
            elif behind.offset >= end:
                self._caught_up(subscriber, topic)
            else:
                return True  # the rest is not on the disk yet; `kept` comes back
        return True

    def _give(self, subscriber: Subscriber, topic: Topic, behind: _Behind, messages: list[Message]) -> None:
        for message in messages:
            if not self.is_behind(subscriber, topic):  # it has gone by what it was given before
                return
            offset = message.offset or 0
            self._missed(subscriber, offset - behind.offset)
            behind.offset = offset + 1
            if offset in behind.given:
                behind.given.discard(offset)
            else:
                subscriber.offer(message)

    def _missed(self, subscriber: Subscriber, messages: int) -> None:
        if messages > 0:
            subscriber.dropped += messages
            self._counts["dropped"] += messages

    def _caught_up(self, subscriber: Subscriber, topic: Topic) -> None:
        topics = self._behind[subscriber]
        del topics[topic]
        if not topics:
            del self._behind[subscriber]
