"""Groups of consumers: messages go out of the log, acknowledgements go into it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING

from transfer.broker.core.groups import Change, Delay, Delivery, Group, Outcome
from transfer.broker.delivery.dead_letter_router import DeadLetterRouter
from transfer.broker.delivery.group_activity import GroupActivity
from transfer.broker.delivery.group_contract import Bury, Consumer, IsBuried, Served
from transfer.broker.delivery.group_reader import GroupReader
from transfer.broker.delivery.topic import Recent
from transfer.broker.delivery.turns import InTurns
from transfer.broker.storage.durability import complete
from transfer.broker.storage.group_journal import GroupIdentity, GroupJournal
from transfer.broker.storage.group_journal_writer import GroupJournalWriter
from transfer.transports.errors import UsageError

if TYPE_CHECKING:
    from transfer.broker.delivery.message import Message
    from transfer.broker.delivery.topic import Topic
    from transfer.broker.storage.durability import Durability, OnComplete
    from transfer.broker.storage.store import Store

_log = logging.getLogger("transfer.broker")

#: deliveries that go out at once
_AT_ONCE = 256
#: seconds in which they go out of one group: then it is the turn of others
_PUMPING = 0.005
#: groups that are looked at in one turn of the loop, or written or removed in one tick: some 10 ms
_GROUPS_AT_ONCE = 200
#: groups that there may be, unless it is chosen otherwise
MOST_GROUPS = 10_000


class Groups:
    """All groups of the broker. On its loop.

    delay: until the next attempt, see `engine.groups.Delay`. bury, is_buried: keep dead letters. expire:
    seconds without a consumer after which a group is removed; None: never. most: groups that there may be.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: Store,
        durability: Durability,
        counts: Counter[str],
        delay: Delay,
        bury: Bury,
        is_buried: IsBuried,
        expire: float | None = None,
        most: int = MOST_GROUPS,
    ) -> None:
        self._loop = loop
        self._store = store
        self._durability = durability
        self._counts = counts
        self._delay = delay
        self._is_buried = is_buried
        self._most = most
        self._recent = Recent()
        self._reading = GroupReader(store, counts)
        self._journal = GroupJournal(store.log)
        self._groups: dict[tuple[str, str], Served] = {}
        self._by_topic: dict[Topic, list[Served]] = {}
        self._claimed: set[tuple[str, str]] = set()  # topics and groups of the fronts' own
        self._last_number = 0
        #: those for which something may have come
        self._to_pump: InTurns[Served] = InTurns(loop, _GROUPS_AT_ONCE, self._pump)
        self._notes = GroupJournalWriter(loop, self._journal, durability, self._books)
        self.activity = GroupActivity(self._journal, expire)
        #: is told (topic, group, seconds without a consumer) of a group that is removed for its age
        self.on_expired: Callable[[str, str, float], None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._closed = False
        self.dead_letters = DeadLetterRouter(loop, self._reading, counts, bury, self._note)
        #: is told (topic, group, consumer, offsets) of acknowledgements that were refused
        self.told_stale: Callable[[str, str, str, Sequence[int]], None] | None = None
        self._restore()

    def close(self) -> None:
        """Writes what is not written yet, and a summary. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        self._to_pump.clear()
        self._notes.close()

    @property
    def served(self) -> list[Served]:
        """All groups."""
        return list(self._groups.values())

    def publish(self, message: Message, group: str, on_complete: OnComplete) -> None:
        """Takes a message for one group of its topic alone: others have done with it, and who has subscribed
        is not told. told: when it is on the disk.

        Raises UsageError when there is no such group, LogFull, InternalError when the log has failed.
        """
        served = self._groups.get((message.topic, group))
        if served is None:
            raise UsageError(
                f"topic {message.topic!r} has no group {group!r}", hint="it begins when a consumer joins it"
            )
        self.keep_apart(served.topic, message, on_complete, served)

    def keep_apart(
        self, topic: Topic, message: Message, on_complete: OnComplete, served: Served | None = None
    ) -> None:
        """Keeps a message that is for this group alone, or for none. See `publish`. Raises LogFull,
        InternalError."""
        sequence = self._store.append(topic, message)
        assert message.offset is not None
        self._durability.appended(topic, message, sequence, on_complete, message.nbytes)
        for other in self._by_topic.get(topic, ()):
            if other is not served:
                other.group.bury(message.offset)
                self._note(other, None)

    # -- consumers ---------------------------------------------------------------------------------------

    def served_for(self, topic: str, name: str, begin: str = "new") -> Served:
        """The group of this name, which begins if it is not there: at what comes from now on ("new"), or at
        the oldest message there is ("old").

        Raises UsageError when the topic keeps nothing, there are too many groups, or a front has claimed this
        one; LogFull.
        """
        self.check_unclaimed(topic, name)
        return self._groups.get((topic, name)) or self._begin(topic, name, begin)

    def claimed(self, topic: str, name: str) -> Served:
        """A group that is a front's from now on, as long as the broker runs: it begins at the oldest message,
        stays however long it has no consumer, and clients cannot join it. Raises as `served_for`."""
        self._claimed.add((topic, name))
        return self._groups.get((topic, name)) or self._begin(topic, name, "old")

    def check_unclaimed(self, topic: str, name: str) -> None:
        """Raises UsageError for a group that is a front's own."""
        if (topic, name) in self._claimed:
            raise UsageError(
                f"group {name!r} of topic {topic!r} is that of all who PULL from the topic's queue",
                hint="take another name; transfer groups seek moves the queue",
            )

    def join(
        self,
        consumer: Consumer,
        served: Served,
        window: int,
        timeout: float | None = None,
        *,
        paused: bool = False,
    ) -> None:
        """The consumer takes messages as one of this group, `window` at a time at most. timeout: seconds
        after which one that it holds goes to another; None: when it leaves. paused: see `pause`. Raises
        UsageError when the group was removed."""
        if not self._is_there(served):
            raise UsageError(f"group {served.named.name!r} of topic {served.named.topic!r} was removed")
        served.group.join(consumer, window, timeout)
        served.group.pause(consumer, paused)
        self._to_pump.add([served])

    def pause(self, consumer: Consumer, served: Served, paused: bool) -> None:
        """Whether the consumer takes nothing for now: too much is on its way to it already."""
        served.group.pause(consumer, paused)
        if not paused:
            self._to_pump.add([served])

    def leave(self, consumer: Consumer, served: Served) -> None:
        """It has gone: what it held goes to others at once."""
        returned = served.group.leave(consumer, self._loop.time())
        self._counts["returned"] += len(returned)
        for delivery, outcome in returned:
            if outcome is Outcome.DEAD:
                self.dead_letters.route(
                    served, delivery, "its consumers went away while they had it, each time"
                )
        self._to_pump.add([served])

    def find(self, topic: str, name: str) -> Served:
        """The group. Raises UsageError when there is none."""
        served = self.served_as(topic, name)
        if served is None:
            raise UsageError(f"topic {topic!r} has no group {name!r}", hint="transfer groups list")
        return served

    def served_as(self, topic: str, name: str) -> Served | None:
        """The group, if it is there."""
        return self._groups.get((topic, name))

    def of_topic(self, topic: Topic) -> list[Served]:
        """The groups of a topic."""
        return list(self._by_topic.get(topic, ()))

    def remove(self, topic: str, name: str, why: str) -> int:
        """Ends a group; its consumers hear the reason. The record's sequence. Raises UsageError, LogFull."""
        served = self.find(topic, name)
        self._store.log.leave(served.topic.log_name, name)
        sequence = self._journal.remove(served.named.number)
        del self._groups[topic, name]
        its = self._by_topic[served.topic]
        its.remove(served)
        if not its:
            del self._by_topic[served.topic]
            served.topic.recent = None
        self._end(served, UsageError(f"group {name!r} of topic {topic!r} {why}", hint="join it again"))
        self.activity.forget(served.named.number)
        self._durability.when_kept(sequence, None)
        return sequence

    def seek(self, topic: str, name: str, offset: int, why: str) -> int:
        """The group goes on with this offset, or with the oldest message that is there; its consumers hear
        the reason, and have to join again. Where it goes on. Raises UsageError, LogFull."""
        before = self.find(topic, name)
        low, high = self._store.range(before.topic)
        if offset > high:
            raise UsageError(f"offset {offset} of topic {topic!r}, which ends at {high}")
        offset = max(offset, low)
        named = before.named._replace(begin=offset)
        sequence = self._journal.reset(named.number, offset)
        self._by_topic[before.topic].remove(before)
        served = self._serve(named, before.topic, offset)
        self._acknowledge(served)
        self._end(before, UsageError(f"group {name!r} of topic {topic!r} {why}", hint="join it again"))
        self._durability.when_kept(sequence, None)
        return offset

    def purge(self, topic: Topic, end: int) -> None:
        """The topic has no messages before `end` any more: its groups have done with them. Raises LogFull."""
        for served in self._by_topic.get(topic, ()):
            self._notes.forget(served.named.number)
            served.group.changes = []
            served.group.purge(end)
            self._durability.when_kept(self._journal.reset(served.named.number, served.group.cursor), None)
            served.group.changes.extend(served.group.summary())  # of what is behind the end
            self._pump(served)

    def _end(self, served: Served, error: UsageError) -> None:
        self._notes.forget(served.named.number)
        for consumer in served.group.members:
            served.group.leave(consumer, self._loop.time())
            consumer.removed(error)  # type: ignore[attr-defined]

    def _is_there(self, served: Served) -> bool:
        return self._groups.get((served.named.topic, served.named.name)) is served

    def ack(
        self,
        consumer: Consumer,
        served: Served,
        deliveries: Sequence[tuple[int, int]],
        on_complete: OnComplete | None = None,
    ) -> list[tuple[int, int]]:
        """(offset, attempt) of what the consumer has done; those that are not its own any more come back.

        told: when all of it is on the disk.
        """
        group = served.group
        stale = group.ack_many(consumer, deliveries)
        self._counts["acked"] += len(deliveries) - len(stale)
        if stale:
            self._counts["stale_acks"] += len(stale)
            if self.told_stale is not None:
                named, offsets = served.named, [offset for offset, _ in stale]
                self.told_stale(named.topic, named.name, str(consumer), offsets)
        self._pump(served)
        self._note(served, on_complete)
        self.activity.used(served.named.number)
        return stale

    def nack(
        self, consumer: Consumer, served: Served, delivery: tuple[int, int], reason: str, *, retry: bool
    ) -> Outcome:
        """The consumer could not do it; see `Group.nack`."""
        offset, attempt = delivery
        outcome = served.group.nack(consumer, offset, attempt, self._loop.time(), retry=retry)
        self._counts["nacked"] += outcome in (Outcome.AGAIN, Outcome.DEAD)
        if outcome is Outcome.DEAD:
            self.dead_letters.route(served, Delivery(consumer, offset, attempt), reason)
        self._pump(served)
        return outcome

    def give_back(self, consumer: Consumer, served: Served, delivery: tuple[int, int], reason: str) -> None:
        """The consumer never had it in hands; see `Group.give_back`."""
        offset, attempt = delivery
        outcome = served.group.give_back(consumer, offset, attempt, self._loop.time())
        self._counts["returned"] += outcome is Outcome.AGAIN
        if outcome is Outcome.DEAD:
            self.dead_letters.route(served, Delivery(consumer, offset, attempt), reason)
        self._pump(served)

    def kept(self, topics: Sequence[Topic]) -> None:
        """Messages of these topics are on the disk now."""
        self._to_pump.add(served for topic in topics for served in self._by_topic.get(topic, ()))

    def end_turn(self) -> None:
        """All that came at once was taken: what somebody waits for is written now."""
        self._notes.end_turn()

    def tick(self, *, full: bool = False) -> None:
        """About once a second: what groups are done with, retention may take. full: the log is."""
        log = self._store.log
        behind = (
            served
            for served in self._groups.values()
            if log.acknowledged(served.topic.log_name, served.named.name) != served.group.cursor
        )
        for served in list(islice(behind, _GROUPS_AT_ONCE)):
            self._acknowledge(served)
            key = served.named.topic, served.named.name
            self._groups[key] = self._groups.pop(key)  # the others come before it in the next tick
        self._notes.tick(full=full)
        for served, idle in islice(self.activity.tick(self._groups.values()), _GROUPS_AT_ONCE):
            if served.named[1:3] in self._claimed:
                continue
            self.remove(served.named.topic, served.named.name, f"was without consumers for {idle:.0f} s")
            self._counts["groups_expired"] += 1
            if self.on_expired is not None:
                self.on_expired(served.named.topic, served.named.name, idle)

    # -- deliveries --------------------------------------------------------------------------------------

    def _pump(self, served: Served) -> None:
        """What can go out goes out."""
        group, now = served.group, self._loop.time()
        for delivery, outcome in group.expire(now):
            self._counts["expired"] += 1
            if outcome is Outcome.DEAD:
                self.dead_letters.route(served, delivery, "it was not acknowledged in time")
        more, ends = True, monotonic() + _PUMPING
        while more and (taken := group.take(served.topic.kept, now, _AT_ONCE)):
            sent = self._reading.send(served, taken, now)
            more = sent == _AT_ONCE or 0 < sent < len(taken)
            if more and monotonic() >= ends:
                self._to_pump.add_later(served)
                break
        self._note(served, None)
        self._set_alarm(group.due())

    def _set_alarm(self, due: float | None) -> None:
        """Something is to be done then, if not before."""
        if due is None or self._closed:
            return
        if self._alarm is not None:
            if self._alarm.when() <= due:
                return
            self._alarm.cancel()
        self._alarm = self._loop.call_at(due, self._alarmed)

    def _alarmed(self) -> None:
        self._alarm = None
        now, due = self._loop.time(), []
        for served in self._groups.values():
            when = served.group.due()
            if when is not None and when <= now:
                due.append(served)
            else:
                self._set_alarm(when)
        self._to_pump.add(due)

    # -- what has to survive -----------------------------------------------------------------------------

    def _note(self, served: Served, on_complete: OnComplete | None) -> None:
        if not self._is_there(served):  # it was removed, and another group may have its number
            if on_complete is not None:
                complete(on_complete, UsageError(f"group {served.named.name!r} was removed"))
            return
        self._notes.note(served.named.number, served.group, on_complete)

    def _books(self) -> Iterator[tuple[int, int, list[Change]]]:
        for served in self._groups.values():
            yield served.named.number, served.group.cursor, served.group.summary()

    # -- groups ------------------------------------------------------------------------------------------

    def _begin(self, topic_name: str, name: str, begin: str) -> Served:
        if len(self._groups) >= self._most:
            raise UsageError(
                f"group {name!r} is one more than the {self._most} that there may be",
                hint="transfer groups remove; groups.expire removes those that are not used",
            )
        topic = self._store.durable_topic(topic_name)
        low, high = self._store.range(topic)
        named = GroupIdentity(self._last_number + 1, topic_name, name, low if begin == "old" else high)
        served = self._serve(named, topic, named.begin)
        self._acknowledge(served)
        self._durability.when_kept(self._journal.add(named), None)
        return served

    def _serve(self, named: GroupIdentity, topic: Topic, begin: int) -> Served:
        served = Served(named, topic, Group(begin, self._delay))
        topic.recent = self._recent
        self._last_number = max(self._last_number, named.number)
        self._groups[named.topic, named.name] = served
        self._by_topic.setdefault(topic, []).append(served)
        return served

    def _acknowledge(self, served: Served) -> None:
        self._store.log.acknowledge(served.topic.log_name, served.named.name, served.group.cursor)

    def _restore(self) -> None:
        """The groups of an earlier run: their summaries, and what stands in the journal behind them."""
        places: dict[int, int] = {}
        groups: dict[int, Group] = {}
        for named in self._journal.groups():
            place, begin, changes = self._journal.summary(named.number) or (0, named.begin, [])
            served = self._serve(named, self._store.durable_topic(named.topic), begin)
            for change in changes:
                served.group.apply(change)
            places[named.number], groups[named.number] = place, served.group
        for place, number, change in self._journal.read():
            if number in groups and place >= places[number]:
                groups[number].apply(change)
        for served in self._groups.values():
            for offset in served.group.unfinished:
                if self._is_buried(*served.named[1:3], offset):
                    served.group.bury(offset)
            served.group.ready(self._loop.time())
            self._note(served, None)
