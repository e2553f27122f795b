"""Fan-out: offers each message to its subscribers, and lets slow ones read it from the log later."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from transfer.broker.core.pattern_index import PatternIndex
from transfer.broker.core.subscriptions import TopicSubscriptions
from transfer.broker.core.topic_patterns import Kind
from transfer.broker.delivery.frame_stream import Streamed
from transfer.broker.delivery.subscriber import BrokerSubscriber, Overflow
from transfer.transports.errors import LogDamaged

if TYPE_CHECKING:
    from transfer.broker.core.message import Message
    from transfer.broker.core.topic_patterns import TopicPattern
    from transfer.broker.delivery.streaming_publish import StreamingPublish
    from transfer.broker.storage.store import Store
    from transfer.broker.storage.topic import Topic

_log = logging.getLogger("transfer.broker")
#: bytes that the broker reads from the log at once for a subscriber that is behind
_READ = 1 << 20
#: damaged messages that are skipped at once; the others are skipped at the next call
_MOST_DAMAGED = 100
#: subscriptions that end in one turn of the loop, so that other work is not blocked: some 5 ms
AT_ONCE = 1000


class _Behind:
    """Where a subscriber reads a topic. offset: of its next message. given: offsets of later messages that it
    already received in pieces."""

    __slots__ = ("given", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.given: set[int] = set()


class Fanout:
    """The subscriptions of all fronts. On the broker's loop. A subscriber without room is behind on a durable
    topic if its overflow is SPILL: from that message on it reads the topic from the log, until it reaches
    the end. behind: the topics on which subscribers are behind. soon: calls a function in the loop's next
    turn."""

    def __init__(
        self, store: Store, counts: Counter[str], soon: Callable[[Callable[[], None]], object]
    ) -> None:
        self._store = store
        self._counts = counts
        self._soon = soon
        self._index: PatternIndex[BrokerSubscriber] = PatternIndex()
        self._subscriptions: dict[BrokerSubscriber, TopicSubscriptions] = {}
        #: subscriptions of departed subscribers that are still in the index
        self._departed: deque[tuple[BrokerSubscriber, TopicSubscriptions]] = deque()
        self.behind: dict[BrokerSubscriber, dict[Topic, _Behind]] = {}
        self._reading: set[BrokerSubscriber] = set()

    # -- subscriptions -----------------------------------------------------------------------------------

    def subscribe(self, subscriber: BrokerSubscriber, pattern: TopicPattern) -> None:
        """Subscribes to a pattern. Idempotent. Raises UsageError if the subscriber, or all of them, have too
        many."""
        mine = self._subscriptions.get(subscriber)
        if mine is None:
            mine = TopicSubscriptions(subscriber.most)
        elif pattern in mine:
            return
        mine.add(pattern, self._index)
        self._subscriptions[subscriber] = mine
        self._index.add(pattern, subscriber)

    def unsubscribe(self, subscriber: BrokerSubscriber, pattern: TopicPattern) -> bool:
        """Ends a subscription. Returns whether there was one."""
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

    def unsubscribe_some(self, subscriber: BrokerSubscriber) -> bool:
        """Ends some of a subscriber's subscriptions. Returns whether more are left."""
        for pattern in list(islice(self._subscriptions.get(subscriber, ()), AT_ONCE)):
            self.unsubscribe(subscriber, pattern)
        return subscriber in self._subscriptions

    def leave(self, subscriber: BrokerSubscriber) -> None:
        """Removes a subscriber: it receives nothing more. Its subscriptions leave the index in the next
        turns."""
        self.behind.pop(subscriber, None)
        mine = self._subscriptions.pop(subscriber, None)
        if mine is None:
            return
        self._index.version += 1
        self._departed.append((subscriber, mine))
        if len(self._departed) == 1:
            self._soon(self._clear_some)

    def _clear_some(self) -> None:
        """Removes some subscriptions of departed subscribers from the index."""
        for _ in range(AT_ONCE):
            subscriber, mine = self._departed[0]
            self._index.discard(mine.pop(), subscriber)
            if not mine:
                self._departed.popleft()
                if not self._departed:
                    return
        self._soon(self._clear_some)

    def _behind_by(self, subscriber: BrokerSubscriber, pattern: TopicPattern) -> list[Topic]:
        """Returns the topics of a pattern on which a subscriber is behind."""
        topics = self.behind.get(subscriber, {})
        if pattern.kind is Kind.EXACT:
            topic = self._store.topics.get(pattern.text)
            return [topic] if topic is not None and topic in topics else []
        return [topic for topic in topics if pattern.matches(topic.name)]

    def forget(self, topic: Topic) -> None:
        """Forgets a removed topic: no subscriber is behind on it any more."""
        for subscriber in list(self.behind):
            if self.is_behind(subscriber, topic):
                self._caught_up(subscriber, topic)

    def subscriptions(self) -> Mapping[BrokerSubscriber, TopicSubscriptions]:
        """Returns the subscriptions of each subscriber."""
        return self._subscriptions

    def listeners(self, topic: Topic) -> list[BrokerSubscriber]:
        """Returns the subscribers of this topic, each once."""
        if topic.version != self._index.version:
            found = dict.fromkeys(self._index.match(topic.name))
            topic.listeners = [one for one in found if one in self._subscriptions]
            topic.version = self._index.version
        return topic.listeners

    # -- messages ----------------------------------------------------------------------------------------

    def deliver(self, topic: Topic, messages: Sequence[Message], nbytes: int) -> None:
        """Offers whole messages of a topic, in order, to all its subscribers. nbytes: of their payloads."""
        offset = messages[0].offset
        streamed = messages[0] if type(messages[0]) is Streamed else None  # it comes alone
        listeners = topic.listeners if topic.version == self._index.version else self.listeners(topic)
        for subscriber in listeners:
            if streamed is not None and self._has_frames(subscriber, topic, streamed):
                continue
            if self.behind and self.is_behind(subscriber, topic):
                continue
            if subscriber.waits_for_disk and offset is not None:
                self.read_from_log(subscriber, topic, offset)
            elif subscriber.queued + nbytes <= subscriber.limit:
                subscriber.offer_many(messages)
            else:
                self._offer_some(subscriber, topic, messages)
        if streamed is not None:  # groups may hold the message, which must not hold ended connections
            streamed.given = frozenset()

    def _has_frames(self, subscriber: BrokerSubscriber, topic: Topic, streamed: Streamed) -> bool:
        """Returns whether a subscriber received the stream's frames, or takes frames and came too late."""
        if subscriber in streamed.given:
            if streamed.offset is not None:
                self.given(subscriber, topic, streamed.offset)
            return True
        return subscriber.takes_frames and streamed.offset is None

    def _offer_some(self, subscriber: BrokerSubscriber, topic: Topic, messages: Sequence[Message]) -> None:
        """Offers the messages for which a subscriber has room."""
        for message in messages:
            if not subscriber.queued or subscriber.queued + message.nbytes <= subscriber.limit:
                subscriber.offer(message)
                continue
            self.left_out(subscriber, topic, message.offset)
            if self.is_behind(subscriber, topic):
                return

    def is_behind(self, subscriber: BrokerSubscriber, topic: Topic) -> bool:
        """Returns whether the subscriber reads this topic from the log."""
        return bool(self.behind) and topic in self.behind.get(subscriber, ())

    def left_out(self, subscriber: BrokerSubscriber, topic: Topic, offset: int | None) -> None:
        """Handles a message for which a subscriber had no room. offset: in the log; None: it is not kept."""
        if subscriber.idle or not self._wants(subscriber, topic):
            return
        overflow = subscriber.overflow
        if overflow is Overflow.SPILL and offset is not None:
            self._counts["spilled"] += 1
            topics = self.behind.setdefault(subscriber, {})
            if topic not in topics:
                topics[topic] = _Behind(offset)
        elif overflow is Overflow.CLOSE:
            self._counts["closed_slow"] += 1
            subscriber.close("the subscriber did not read its messages as fast as they came")
        else:
            subscriber.dropped += 1
            self._counts["dropped"] += 1

    def deliver_late(self, upload: StreamingPublish) -> None:
        """Offers a message that came in pieces, and is not kept, to subscribers that had no room when it
        began."""
        message = upload.whole()
        for subscriber in upload.left_out:
            if message is None or subscriber.queued + message.nbytes > subscriber.limit:
                self.left_out(subscriber, upload.topic, None)
            elif not subscriber.idle and self._wants(subscriber, upload.topic):
                subscriber.offer(message)

    def wait_for(self, topic: Topic, offset: int) -> None:
        """Lets subscribers that wait for the disk read this appended message, including those that joined
        meanwhile."""
        for subscriber in self.listeners(topic):
            if subscriber.waits_for_disk:
                self.read_from_log(subscriber, topic, offset)

    def read_from_log(self, subscriber: BrokerSubscriber, topic: Topic, offset: int) -> None:
        """Lets a subscriber read on from this kept message, unless it already reads from an earlier one."""
        if not subscriber.idle and self._wants(subscriber, topic):
            topics = self.behind.setdefault(subscriber, {})
            if topic not in topics:
                topics[topic] = _Behind(offset)
            elif offset < topics[topic].offset:
                topics[topic].offset = offset

    def given(self, subscriber: BrokerSubscriber, topic: Topic, offset: int) -> None:
        """Notes the offset of a message that a subscriber received in pieces, so that it does not read it
        again from the log."""
        if self.is_behind(subscriber, topic):
            self.behind[subscriber][topic].given.add(offset)

    def _wants(self, subscriber: BrokerSubscriber, topic: Topic) -> bool:
        """Returns whether the subscriber is still there and still subscribes to the topic."""
        return subscriber in self._subscriptions and self._index.holds(topic.name, subscriber)

    # -- subscribers that are behind ---------------------------------------------------------------------

    def kept(self) -> None:
        """Lets subscribers read on: more is on the disk."""
        for subscriber in list(self.behind):
            if subscriber.waits_for_disk:
                subscriber.on_disk()
            else:
                self.catch_up(subscriber)

    def catch_up(self, subscriber: BrokerSubscriber, ends: float = math.inf) -> bool:
        """Lets a subscriber that has room again read what it missed from the log. ends: on the monotonic
        clock, when other work gets its turn. Returns whether some topics are left for lack of time."""
        if subscriber not in self.behind or subscriber in self._reading:
            return False  # `offer` may call this at once, in the middle of `_read_on`
        self._reading.add(subscriber)
        try:
            for topic in list(self.behind[subscriber]):
                if not self._read_on(subscriber, topic, ends):
                    return False
                if time.monotonic() >= ends:
                    return subscriber in self.behind
            return False
        finally:
            self._reading.discard(subscriber)

    def _read_on(self, subscriber: BrokerSubscriber, topic: Topic, ends: float) -> bool:
        """Reads a topic for a subscriber. Returns whether it has room for more; the next call begins with
        other topics."""
        topics = self.behind.get(subscriber, {})  # it may have disconnected in `offer`
        if topic in topics:
            topics[topic] = topics.pop(topic)
        damaged = 0
        while (behind := self.behind.get(subscriber, {}).get(topic)) is not None:
            if subscriber.idle:
                self._caught_up(subscriber, topic)
                return True
            if subscriber.queued * 2 > subscriber.limit:
                return False
            low, end = self._store.range(topic)
            self._count_missed(subscriber, topic, behind.offset, low)  # removed by retention
            behind.offset = max(behind.offset, low)
            try:
                messages = self._store.read(topic, behind.offset, nbytes=min(_READ, subscriber.limit // 2))
            except LogDamaged as error:
                _log.error("%s", error)
                self._counts["damaged"] += 1
                self._count_missed(subscriber, topic, behind.offset, behind.offset + 1)
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
                return True  # the rest is not on the disk yet; `kept` continues
        return True

    def _give(
        self, subscriber: BrokerSubscriber, topic: Topic, behind: _Behind, messages: list[Message]
    ) -> None:
        for message in messages:
            if not self.is_behind(subscriber, topic):  # it disconnected in `offer`
                return
            offset = message.offset or 0
            self._count_missed(subscriber, topic, behind.offset, offset)
            behind.offset = offset + 1
            if offset in behind.given:
                behind.given.discard(offset)
            elif message.only_for is None:
                subscriber.offer(message)

    def _count_missed(self, subscriber: BrokerSubscriber, topic: Topic, begin: int, end: int) -> None:
        if begin < end:
            messages = end - begin - sum(map(len, topic.withheld.within(begin, end)))
            subscriber.dropped += messages
            self._counts["dropped"] += messages

    def _caught_up(self, subscriber: BrokerSubscriber, topic: Topic) -> None:
        topics = self.behind[subscriber]
        del topics[topic]
        if not topics:
            del self.behind[subscriber]
