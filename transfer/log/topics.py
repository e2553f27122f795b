"""The topics and the state of a log in memory, and the records that change them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from transfer.log.checks import MAX_NAME, check_name
from transfer.log.holes import Holes, give_back
from transfer.log.index import LogTopic
from transfer.log.journal import Journal
from transfer.log.record import HEADER_SIZE, RecordFlag, RecordKind, state_body
from transfer.log.recovery import Recovery
from transfer.log.segment import Segment
from transfer.log.state import HIGHEST, discarded_key, forget_topic, group_key, topic_key, topic_value

#: bytes of the body of a discard record; that of a topic's removal is shorter
_RANGE_BODY = len(state_body(discarded_key(0, 0), bytes(8)))
_STATE, _REMOVED = int(RecordKind.STATE), int(RecordFlag.REMOVED)
#: room for the records of `discard` and `drop`
ENOUGH = 2 * HEADER_SIZE + 2 * _RANGE_BODY
#: prefix of the names of groups that only keep messages from retention, and read none
HOLDS = "\0"
#: the first needed offset of a dropped topic: no message is needed
DROPPED = 1 << 64


class Topics:
    """The topics and the state. Use it with the journal's lock.

    journal: the log sets it before the first use. named, numbered: the topics. state: all keys and values,
    including the log's internal ones. holes: see `Holes`.
    """

    journal: Journal

    def __init__(self, found: Recovery) -> None:
        self.numbered = found.topics
        self.named = {topic.name: topic for topic in found.topics.values()}
        self.state = found.state
        self.holes = Holes()
        highest = int.from_bytes(found.state.get(HIGHEST, b""), "little")
        self._highest = max(highest, max(found.topics, default=0))
        for topic in [one for one in found.topics.values() if self.named[one.name] is not one]:
            del self.numbered[topic.number]  # a crash interrupted `purge`
            forget_topic(self.state, topic.number)

    # -- topics ------------------------------------------------------------------------------------------

    def need(self, name: str) -> LogTopic:
        """Returns the topic, and makes it if it is new. May release the lock. Raises UsageError, LogFull."""
        topic = self.named.get(name)
        if topic is not None:
            return topic
        check_name(name)
        self.journal.make_room(2 * MAX_NAME)
        topic = self.named.get(name)  # another thread may have made it
        return self._make(name) if topic is None else topic

    def begin(self, name: str, end: int) -> bool:
        """Makes a topic whose next message has this offset. Returns False if the topic exists.
        Raises UsageError, LogFull."""
        check_name(name)
        self.journal.make_room(2 * MAX_NAME, limited=False)
        if name in self.named:
            return False
        self._make(name, end)
        return True

    def _make(self, name: str, end: int = 0) -> LogTopic:
        """Makes a topic; there must be room for its record."""
        self._highest += 1
        topic = LogTopic(name, self._highest, end)
        self.journal.append(_STATE, 0, 0, 0, 0, state_body(topic_key(topic.number), topic_value(topic)))
        self.named[name] = self.numbered[topic.number] = topic
        return topic

    def with_room(self, name: str, size: int, *, limited: bool = True) -> LogTopic:
        """Returns the topic, after making it and room for a record with a body of `size` bytes."""
        while True:
            topic = self.need(name)
            self.journal.make_room(size, limited=limited)
            if self.named.get(name) is topic:
                return topic

    def all_with_room(self, names: Iterable[str], size: int) -> dict[str, LogTopic]:
        """Returns the topics, after making them and room for records; `size`: without the first header."""
        while True:
            topics = {name: self.need(name) for name in names}
            self.journal.make_room(size)
            if all(self.named.get(name) is topic for name, topic in topics.items()):
                return topics

    def drop(self, name: str) -> int | None:
        """Removes a topic; there must be room for the records. See `Log.drop`."""
        found = self.named.pop(name, None)
        return self._end(found) if found is not None else None

    def purge(self, name: str) -> int | None:
        """Removes a topic's messages. See `Log.purge`."""
        self.journal.make_room(2 * MAX_NAME + ENOUGH, limited=False)
        before = self.named.get(name)
        if before is None:
            return None
        # In this order: after a crash in between, the newer one of two topics with the same name counts.
        after = self._make(name, before.end)
        for group in before.groups:
            after.groups[group] = after.end
            self.put(group_key(after.number, group), after.end.to_bytes(8, "little"))
        self.journal.make_room(ENOUGH, limited=False)
        return self._end(before)

    def _end(self, found: LogTopic) -> int:
        """Removes a topic, which has no name any more; there must be room for the records."""
        del self.numbered[found.number]
        forget_topic(self.state, found.number)
        self.put(HIGHEST, self._highest.to_bytes(4, "little"))
        body = state_body(topic_key(found.number), b"")
        sequence, _, _ = self.journal.append(_STATE, _REMOVED, 0, 0, 0, body)
        self.free_blobs(found, found.discarded.missing(0, found.end), sequence)
        found.discarded = found.discarded.joined(0, found.end)
        return sequence

    def discard(self, topic: LogTopic, begin: int, end: int) -> int | None:
        """Discards blobs; there must be room for the records. See `Log.discard`."""
        missing = topic.discarded.missing(begin, end)
        if not missing:
            return None
        sequence = 0
        for low, high in topic.discard(begin, end):
            if high:
                sequence = self.put(discarded_key(topic.number, low), high.to_bytes(8, "little"))
            else:  # it is merged into another range; recovery merges the old record too
                self.state.pop(discarded_key(topic.number, low))
        self.free_blobs(topic, missing, sequence)
        return sequence

    # -- state -------------------------------------------------------------------------------------------

    def put(self, key: bytes, value: bytes | None) -> int:
        """Appends a key's value, or its removal; returns the record's sequence.
        May release the lock before it appends. Raises LogFull."""
        body = state_body(key, value or b"")
        self.journal.make_room(len(body), limited=False)
        sequence, _, _ = self.journal.append(_STATE, _REMOVED if value is None else 0, 0, 0, 0, body)
        if value is None:
            self.state.pop(key, None)
        else:
            self.state[key] = value
        return sequence

    def snapshot(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields all state, with which a new segment begins."""
        for topic in self.numbered.values():
            yield topic_key(topic.number), topic_value(topic)
        yield from self.state.items()

    # -- for the journal ---------------------------------------------------------------------------------

    def acknowledged(self, number: int) -> int | None:
        """Returns the offset before which all groups of a topic have acknowledged; None: it has no group."""
        topic = self.numbered.get(number)
        if topic is None:
            return DROPPED
        return min(topic.groups.values()) if topic.groups else None

    def needed_from(self, number: int) -> int:
        """Returns the first offset that a topic's groups need; 0 if no group reads it.
        Groups that only hold messages (`HOLDS`) do not count: other readers may need the messages before."""
        topic = self.numbered.get(number)
        if topic is None:
            return DROPPED
        if all(name.startswith(HOLDS) for name in topic.groups):
            return 0
        return min(topic.groups.values())

    def held_from(self, number: int) -> int:
        """Returns the first offset that a topic's groups keep from retention; none without groups."""
        found = self.acknowledged(number)
        return DROPPED if found is None else found

    def forget(self, segment: Segment) -> None:
        """Removes the messages of a removed segment."""
        for number in {run.topic for run in segment.runs}:
            if (topic := self.numbered.get(number)) is not None:
                topic.forget(segment.first)

    def wanted(self, number: int, offset: int) -> bool:
        """Whether this message exists and its blob, if it has one, is not discarded. Needs no lock."""
        topic = self.numbered.get(number)
        return topic is not None and offset >= topic.begin and offset not in topic.discarded

    def free_blobs(self, topic: LogTopic, ranges: Iterable[tuple[int, int]], sequence: int = -1) -> None:
        """Frees the blobs of these messages when the record is synced."""
        for begin, end in ranges:
            self.holes.add(sequence, topic, begin, end)

    def free_discarded(self) -> None:
        """Frees the discarded blobs that have no views, including those that had views before."""
        due = self.holes.due(self.journal.synced, self.journal.segments, again=True)
        self.holes.keep(give_back(due))
