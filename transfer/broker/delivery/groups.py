"""Consumer groups: the broker delivers messages from the log and writes their acknowledgements into it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING

from transfer.broker.core.groups import Change, Delay, Delivery, DeliveryOutcome, Group
from transfer.broker.delivery.dead_letter_router import DeadLetterRouter
from transfer.broker.delivery.group_activity import GroupActivity
from transfer.broker.delivery.group_contract import GroupConsumer, IsDeadLettered, Served, StoreDeadLetter
from transfer.broker.delivery.group_reader import GroupReader
from transfer.broker.storage.durability import complete
from transfer.broker.storage.group_journal import GroupIdentity, GroupJournal
from transfer.broker.storage.group_journal_writer import GroupJournalWriter
from transfer.broker.storage.topic import Recent
from transfer.broker.turns import InTurns
from transfer.transports.errors import UsageError

if TYPE_CHECKING:
    from transfer.broker.core.message import Message
    from transfer.broker.storage.durability import Durability, OnComplete
    from transfer.broker.storage.store import Store
    from transfer.broker.storage.topic import Topic

_log = logging.getLogger("transfer.broker")

#: deliveries that one read sends
_AT_ONCE = 256
#: seconds for which one group sends before other groups get their turn
_PUMPING = 0.005
#: groups that are served in one turn of the loop, or written or removed in one tick: some 10 ms
_GROUPS_AT_ONCE = 200
#: default limit on the number of groups
MOST_GROUPS = 10_000


class Groups:
    """All groups of the broker, on its loop.

    delay: before the next attempt, see `core.groups.Delay`. store_dead_letter, is_dead_lettered: keep dead
    letters. expire: seconds without a consumer after which a group is removed; None: never. most: limit on
    the number of groups.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: Store,
        durability: Durability,
        counts: Counter[str],
        delay: Delay,
        store_dead_letter: StoreDeadLetter,
        is_dead_lettered: IsDeadLettered,
        expire: float | None = None,
        most: int = MOST_GROUPS,
    ) -> None:
        self._loop = loop
        self._store = store
        self._durability = durability
        self._counts = counts
        self._delay = delay
        self._is_dead_lettered = is_dead_lettered
        self._most = most
        self._recent = Recent()
        self._reading = GroupReader(store, counts)
        self._journal = GroupJournal(store.log)
        self._groups: dict[tuple[str, str], Served] = {}
        self._by_topic: dict[Topic, list[Served]] = {}
        self._claimed: set[tuple[str, str]] = set()  # topics and groups that fronts own
        self._last_number = 0
        #: groups for which there may be new messages
        self._to_pump: InTurns[Served] = InTurns(loop, _GROUPS_AT_ONCE, self._pump)
        self._notes = GroupJournalWriter(loop, self._journal, durability, self._books)
        self.activity = GroupActivity(self._journal, expire)
        #: called with (topic, group, seconds without a consumer) when a group has expired
        self.on_expired: Callable[[str, str, float], None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._closed = False
        self.dead_letters = DeadLetterRouter(loop, self._reading, counts, store_dead_letter, self._note)
        #: called with (topic, group, consumer, offsets) when acknowledgements were refused
        self.on_stale: Callable[[str, str, str, Sequence[int]], None] | None = None
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
        """Takes a message for one group only: other groups skip it and subscribers do not receive it.
        on_complete: called when it is on the disk. Raises UsageError when there is no such group, LogFull,
        InternalError when the log has failed."""
        served = self._groups.get((message.topic, group))
        if served is None:
            raise UsageError(
                f"topic {message.topic!r} has no group {group!r}",
                hint="a group is made when a consumer joins it",
            )
        self.keep_apart(served.topic, message, on_complete, served)

    def keep_apart(
        self, topic: Topic, message: Message, on_complete: OnComplete, served: Served | None = None
    ) -> None:
        """Keeps a message for this group only, or for none. See `publish`. Raises LogFull, InternalError."""
        message.only_for = served.named.name if served is not None else ""
        sequence = self._store.append(topic, message)
        assert message.offset is not None
        self._durability.appended(topic, message, sequence, on_complete, message.nbytes)
        for other in self._by_topic.get(topic, ()):
            if other is not served:
                other.group.mark_dead_lettered(message.offset)
                self._note(other, None)

    # -- consumers ---------------------------------------------------------------------------------------

    def served_for(self, topic: str, name: str, begin: str = "new") -> Served:
        """Returns the group of this name, and makes it if it does not exist.

        begin: a new group begins at messages from now on ("new"), or at the oldest message ("old"). Raises
        UsageError when the topic keeps nothing, there are too many groups, or a front owns this one; LogFull.
        """
        self.check_unclaimed(topic, name)
        return self._groups.get((topic, name)) or self._begin(topic, name, begin)

    def claimed(self, topic: str, name: str) -> Served:
        """Returns a group that a front owns from now on, until the broker ends. Clients cannot join it. It
        begins at the oldest message and does not expire. Raises as `served_for`."""
        self._claimed.add((topic, name))
        return self._groups.get((topic, name)) or self._begin(topic, name, "old")

    def check_unclaimed(self, topic: str, name: str) -> None:
        """Raises UsageError for a group that a front owns."""
        if (topic, name) in self._claimed:
            raise UsageError(
                f"group {name!r} of topic {topic!r} belongs to the PULL clients of the topic's queue",
                hint="choose another name; transfer groups seek moves the queue",
            )

    def join(
        self,
        consumer: GroupConsumer,
        served: Served,
        window: int,
        timeout: float | None = None,
        *,
        paused: bool = False,
    ) -> None:
        """Adds a consumer to the group; it holds at most `window` messages.

        timeout: seconds after which a message that it holds goes to another consumer; None: when it leaves.
        paused: see `pause`. Raises UsageError when the group was removed.
        """
        if not self._is_there(served):
            raise UsageError(f"group {served.named.name!r} of topic {served.named.topic!r} was removed")
        served.group.join(consumer, window, timeout)
        served.group.pause(consumer, paused)
        self._to_pump.add([served])

    def pause(self, consumer: GroupConsumer, served: Served, paused: bool) -> None:
        """Pauses a consumer, or resumes it. A paused consumer gets nothing: too much is on its way to it
        already."""
        served.group.pause(consumer, paused)
        if not paused:
            self._to_pump.add([served])

    def leave(self, consumer: GroupConsumer, served: Served) -> None:
        """Removes a consumer that has gone: what it held goes to others at once."""
        returned = served.group.leave(consumer, self._loop.time())
        self._counts["returned"] += len(returned)
        for delivery, outcome in returned:
            if outcome is DeliveryOutcome.DEAD:
                self.dead_letters.route(
                    served, delivery, "each of its consumers disconnected while it held the message"
                )
        self._to_pump.add([served])

    def find(self, topic: str, name: str) -> Served:
        """Returns the group. Raises UsageError when there is none."""
        served = self.served_as(topic, name)
        if served is None:
            raise UsageError(f"topic {topic!r} has no group {name!r}", hint="transfer groups list")
        return served

    def served_as(self, topic: str, name: str) -> Served | None:
        """Returns the group, or None."""
        return self._groups.get((topic, name))

    def of_topic(self, topic: Topic) -> list[Served]:
        """Returns the groups of a topic."""
        return list(self._by_topic.get(topic, ()))

    def remove(self, topic: str, name: str, why: str) -> int:
        """Removes a group and reports the reason to its consumers. Returns the record's sequence. Raises
        UsageError, LogFull."""
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
        """Moves the group to this offset, or to the oldest message; its consumers get the reason and have to
        join again. Returns where it goes on. Raises UsageError, LogFull."""
        before = self.find(topic, name)
        low, high = self._store.range(before.topic)
        if offset > high:
            raise UsageError(f"offset {offset} is behind the end of topic {topic!r}, which is {high}")
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
        """Marks messages before `end`, which the topic no longer has, as processed. Raises LogFull."""
        for served in self._by_topic.get(topic, ()):
            self._notes.forget(served.named.number)
            served.group.changes = []
            served.group.purge(end)
            self._durability.when_kept(self._journal.reset(served.named.number, served.group.cursor), None)
            served.group.changes.extend(served.group.summary())  # of messages after `end`
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
        consumer: GroupConsumer,
        served: Served,
        deliveries: Sequence[tuple[int, int]],
        on_complete: OnComplete | None = None,
    ) -> list[tuple[int, int]]:
        """Acknowledges deliveries, (offset, attempt). Returns those that the consumer no longer holds.
        on_complete: called when all of it is on the disk."""
        group = served.group
        stale = group.ack_many(consumer, deliveries)
        self._counts["acked"] += len(deliveries) - len(stale)
        if stale:
            self._counts["stale_acks"] += len(stale)
            if self.on_stale is not None:
                named, offsets = served.named, [offset for offset, _ in stale]
                self.on_stale(named.topic, named.name, str(consumer), offsets)
        self._pump(served)
        self._note(served, on_complete)
        self.activity.used(served.named.number)
        return stale

    def nack(
        self, consumer: GroupConsumer, served: Served, delivery: tuple[int, int], reason: str, *, retry: bool
    ) -> DeliveryOutcome:
        """Refuses a delivery that the consumer could not process; see `Group.nack`."""
        offset, attempt = delivery
        outcome = served.group.nack(consumer, offset, attempt, self._loop.time(), retry=retry)
        self._counts["nacked"] += outcome in (DeliveryOutcome.AGAIN, DeliveryOutcome.DEAD)
        if outcome is DeliveryOutcome.DEAD:
            self.dead_letters.route(served, Delivery(consumer, offset, attempt), reason)
        self._pump(served)
        return outcome

    def give_back(
        self, consumer: GroupConsumer, served: Served, delivery: tuple[int, int], reason: str
    ) -> None:
        """Returns a delivery that never reached the consumer; see `Group.give_back`."""
        offset, attempt = delivery
        outcome = served.group.give_back(consumer, offset, attempt, self._loop.time())
        self._counts["returned"] += outcome is DeliveryOutcome.AGAIN
        if outcome is DeliveryOutcome.DEAD:
            self.dead_letters.route(served, Delivery(consumer, offset, attempt), reason)
        self._pump(served)

    def kept(self, topics: Sequence[Topic]) -> None:
        """Serves the groups of these topics: new messages are on the disk."""
        due: list[Served] = []
        for topic in topics:
            due += self._by_topic.get(topic, ())
        if due:
            self._to_pump.add(due)

    def end_turn(self) -> None:
        """Writes now what callers wait for: the turn of the loop ends."""
        self._notes.end_turn()

    def tick(self, *, full: bool = False) -> None:
        """Lets retention remove what groups have processed, and removes expired groups. Called about once a
        second. full: the log is full."""
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
        """Sends what can be sent."""
        group, now = served.group, self._loop.time()
        for delivery, outcome in group.expire(now):
            self._counts["expired"] += 1
            if outcome is DeliveryOutcome.DEAD:
                self.dead_letters.route(served, delivery, "the message was not acknowledged in time")
        more, ends = True, monotonic() + _PUMPING
        while more and (taken := group.take(served.topic.kept, now, _AT_ONCE)):
            sent, passed_over = self._reading.send(served, taken, now)
            more = passed_over or sent == _AT_ONCE or 0 < sent < len(taken)
            if more and monotonic() >= ends:
                self._to_pump.add_later(served)
                break
        self._note(served, None)
        self._set_alarm(group.due())

    def _set_alarm(self, due: float | None) -> None:
        """Sets a timer for the next expiry or retry, unless an earlier one is set."""
        if due is None or self._closed:
            return
        if self._alarm is not None:
            if self._alarm.when() <= due:
                return
            self._alarm.cancel()
        self._alarm = self._loop.call_at(due, self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm = None
        now, due = self._loop.time(), []
        for served in self._groups.values():
            when = served.group.due()
            if when is not None and when <= now:
                due.append(served)
            else:
                self._set_alarm(when)
        self._to_pump.add(due)

    # -- the journal -------------------------------------------------------------------------------------

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
                f"group {name!r} is one more than the {self._most} groups that are allowed",
                hint="transfer groups remove; groups.idle_age removes unused ones",
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
        """Restores the groups of an earlier run from their summaries and the journal after them."""
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
                if self._is_dead_lettered(*served.named[1:3], offset):
                    served.group.mark_dead_lettered(offset)
            served.group.ready(self._loop.time())
            self._note(served, None)
