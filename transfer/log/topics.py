"""The topics and the state of a log, as memory has them, and the records that change them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from transfer.log.checks import MAX_NAME, check_name
from transfer.log.holes import Holes, give_back
from transfer.log.index import Topic
from transfer.log.journal import Journal
from transfer.log.record import HEADER_SIZE, Flag, Kind, state_body
from transfer.log.recovery import Recovered
from transfer.log.segment import Segment
from transfer.log.state import HIGHEST, discarded_key, forget_topic, group_key, topic_key, topic_value

#: of a record of discarded blobs; that of a topic's end is shorter
_RANGE_BODY = len(state_body(discarded_key(0, 0), bytes(8)))
_STATE, _REMOVED = int(Kind.STATE), int(Flag.REMOVED)
#: room for what `discard` and `drop` append
ENOUGH = 2 * HEADER_SIZE + 2 * _RANGE_BODY
#: groups of such names keep messages from retention, and read none
HOLDS = "\0"
#: nobody wants any message of a topic that was dropped
DROPPED = 1 << 64


class Topics:
    """To be used with the journal's lock. journal: where it is written; set by the log before the first use.

    named, numbered: the topics. state: all keys and values, the log's own among them. holes: see `Holes`.
    """

    journal: Journal

    def __init__(self, found: Recovered) -> None:
        self.numbered = found.topics
        self.named = {topic.name: topic for topic in found.topics.values()}
        self.state = found.state
        self.holes = Holes()
        highest = int.from_bytes(found.state.get(HIGHEST, b""), "little")
        self._highest = max(highest, max(found.topics, default=0))
        for topic in [one for one in found.topics.values() if self.named[one.name] is not one]:
            del self.numbered[topic.number]  # a crash came into `purge`
            forget_topic(self.state, topic.number)

    # -- topics ------------------------------------------------------------------------------------------

    def need(self, name: str) -> Topic:
        """The topic, which is made if there is none. May let others in. Raises UsageError, LogFull."""
        topic = self.named.get(name)
        if topic is not None:
            return topic
        check_name(name)
        self.journal.make_room(2 * MAX_NAME)
        topic = self.named.get(name)  # somebody may have come in between
        return self._make(name) if topic is None else topic

    def begin(self, name: str, end: int) -> bool:
        """Makes a topic whose next message has this offset. False: there is one of this name. Raises
        UsageError, LogFull."""
        check_name(name)
        self.journal.make_room(2 * MAX_NAME, limited=False)
        if name in self.named:
            return False
        self._make(name, end)
        return True

    def _make(self, name: str, end: int = 0) -> Topic:
        """A topic of this name from now on; there is room for it."""
        self._highest += 1
        topic = Topic(name, self._highest, end)
        self.journal.append(_STATE, 0, 0, 0, 0, state_body(topic_key(topic.number), topic_value(topic)))
        self.named[name] = self.numbered[topic.number] = topic
        return topic

    def with_room(self, name: str, size: int, *, limited: bool = True) -> Topic:
        """The topic, and room for a record with a body of `size` bytes, when nobody dropped it meanwhile."""
        while True:
            topic = self.need(name)
            self.journal.make_room(size, limited=limited)
            if self.named.get(name) is topic:
                return topic

    def all_with_room(self, names: Iterable[str], size: int) -> dict[str, Topic]:
        """The topics, and room for records with bodies of `size` bytes and further headers."""
        while True:
            topics = {name: self.need(name) for name in names}
            self.journal.make_room(size)
            if all(self.named.get(name) is topic for name, topic in topics.items()):
                return topics

    def drop(self, name: str) -> int | None:
        """Ends a topic; there is room for it. See `Log.drop`."""
        found = self.named.pop(name, None)
        return self._end(found) if found is not None else None

    def purge(self, name: str) -> int | None:
        """Ends a topic's messages. See `Log.purge`."""
        self.journal.make_room(2 * MAX_NAME + ENOUGH, limited=False)
        before = self.named.get(name)
        if before is None:
            return None
        # In this order: behind a crash in between, the younger one of two topics of one name counts.
        after = self._make(name, before.end)
        for group in before.groups:
            after.groups[group] = after.end
            self.put(group_key(after.number, group), after.end.to_bytes(8, "little"))
        self.journal.make_room(ENOUGH, limited=False)
        return self._end(before)

    def _end(self, found: Topic) -> int:
        """The topic is gone, whose name is another's or nobody's; there is room for it."""
        del self.numbered[found.number]
        forget_topic(self.state, found.number)
        self.put(HIGHEST, self._highest.to_bytes(4, "little"))
        body = state_body(topic_key(found.number), b"")
        sequence, _, _ = self.journal.append(_STATE, _REMOVED, 0, 0, 0, body)
        self.ask(found, found.discarded.missing(0, found.end), sequence)
        found.discarded = found.discarded.joined(0, found.end)
        return sequence

    def discard(self, topic: Topic, begin: int, end: int) -> int | None:
        """Ends blobs; there is room for it. See `Log.discard`."""
        missing = topic.discarded.missing(begin, end)
        if not missing:
            return None
        sequence = 0
        for low, high in topic.discard(begin, end):
            if high:
                sequence = self.put(discarded_key(topic.number, low), high.to_bytes(8, "little"))
            else:  # it went up in another; whoever reads the old record merges both
                self.state.pop(discarded_key(topic.number, low))
        self.ask(topic, missing, sequence)
        return sequence

    # -- state -------------------------------------------------------------------------------------------

    def put(self, key: bytes, value: bytes | None) -> int:
        """Appends a key's value, or its end: the record's sequence. May let others in before it does.

        Raises LogFull.
        """
        body = state_body(key, value or b"")
        self.journal.make_room(len(body), limited=False)
        sequence, _, _ = self.journal.append(_STATE, _REMOVED if value is None else 0, 0, 0, 0, body)
        if value is None:
            self.state.pop(key, None)
        else:
            self.state[key] = value
        return sequence

    def snapshot(self) -> Iterator[tuple[bytes, bytes]]:
        """All state, as a new segment repeats it."""
        for topic in self.numbered.values():
            yield topic_key(topic.number), topic_value(topic)
        yield from self.state.items()

    # -- what the journal asks ---------------------------------------------------------------------------

    def acknowledged(self, number: int) -> int | None:
        """The offset before which all groups of a topic have acknowledged; None: it has no group."""
        topic = self.numbered.get(number)
        if topic is None:
            return DROPPED
        return min(topic.groups.values()) if topic.groups else None

    def needed_from(self, number: int) -> int:
        """The offset from which on a topic's messages are needed: all of them, if nobody reads it as a group.
        Who only holds (`HOLDS`) does not say that others need them no more."""
        topic = self.numbered.get(number)
        if topic is None:
            return DROPPED
        if all(name.startswith(HOLDS) for name in topic.groups):
            return 0
        return min(topic.groups.values())

    def held_from(self, number: int) -> int:
        """The offset from which on retention keeps a topic's messages: none without groups."""
        found = self.acknowledged(number)
        return DROPPED if found is None else found

    def forget(self, segment: Segment) -> None:
        """The segment is gone."""
        for number in {run.topic for run in segment.runs}:
            if (topic := self.numbered.get(number)) is not None:
                topic.forget(segment.first)

    def wanted(self, number: int, offset: int) -> bool:
        """True if the blob of this message, if it has one, is to be whole. Needs no lock."""
        topic = self.numbered.get(number)
        return topic is not None and offset >= topic.begin and offset not in topic.discarded

    def ask(self, topic: Topic, ranges: Iterable[tuple[int, int]], sequence: int = -1) -> None:
        """The blobs of these messages can be given back when the record is synced."""
        for begin, end in ranges:
            self.holes.ask(sequence, topic, begin, end)

    def relieve(self) -> None:
        """Gives back what was discarded, what was viewed too."""
        due = self.holes.due(self.journal.synced, self.journal.segments, again=True)
        self.holes.keep(give_back(due))
