"""The state of a consumer group of one topic: held, done and failed messages.

Pure: no I/O, thread or clock; `now` is in seconds of any clock that never goes back. A `Change` must survive
a restart: the same changes, applied to a new group, give the same state, except that no consumer holds a
message; messages that were in flight are delivered again.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, IntEnum
from typing import NamedTuple

from transfer.broker.core.offsets import Offsets

#: attempts after which a message is given up if its consumers disconnect while they hold it: it may be why
MOST_LOST = 16
#: seconds until the next attempt, after so many attempts; None: there is none
Delay = Callable[[int], float | None]


class GroupEventKind(IntEnum):
    """What happened to messages. The numbers stand in the log: they never change."""

    SENT = 1  # as attempt number `attempt`
    DONE = 2  # acknowledged, or a dead letter


class Change(NamedTuple):
    """An event that must survive a restart, for the messages [begin, end)."""

    kind: GroupEventKind
    begin: int
    end: int
    attempt: int = 0


class Delivery(NamedTuple):
    """A message that is sent to a consumer. offset and attempt together identify the delivery."""

    consumer: object
    offset: int
    attempt: int


class DeliveryOutcome(Enum):
    """The result of an acknowledgement or a return. DONE: acknowledged. REPEATED: it was acknowledged before;
    harmless. STALE: the consumer no longer holds this delivery (it timed out, or its session ended).
    AGAIN: it is delivered again. DEAD: no attempt is left."""

    DONE = "done"
    REPEATED = "repeated"
    STALE = "stale"
    AGAIN = "again"
    DEAD = "dead"


class _Held(NamedTuple):
    consumer: object
    attempt: int
    deadline: float | None


class _Consumer:
    __slots__ = ("held", "paused", "timeout", "window")

    def __init__(self, window: int, timeout: float | None) -> None:
        self.window = window
        self.timeout = timeout
        self.paused = False
        self.held: set[int] = set()

    @property
    def is_ready(self) -> bool:
        """Whether the consumer takes one more message."""
        return len(self.held) < self.window and not self.paused


class Group:
    """The state of one group. begin: its first offset. delay: see Delay. Not thread-safe. cursor: all
    messages before it are done. changes: those since the caller last emptied the list."""

    def __init__(self, begin: int, delay: Delay) -> None:
        self.cursor = self._next = begin
        self.changes: list[Change] = []
        self._delay = delay
        self._done = Offsets()  # after the cursor
        self._attempts: dict[int, int] = {}  # of messages that were sent and are not done
        self._held: dict[int, _Held] = {}
        self._failed: dict[int, float] = {}  # times of first failures, of messages that are not done
        self._again: list[tuple[float, int]] = []  # (due, offset), a heap
        self._deadlines: list[tuple[float, int, int]] = []  # (due, offset, attempt), a heap
        self._consumers: dict[object, _Consumer] = {}
        self._turn: deque[object] = deque()

    @property
    def held(self) -> int:
        """The number of messages that consumers hold without having acknowledged them."""
        return len(self._held)

    @property
    def waiting(self) -> int:
        """The number of messages that are to be delivered again, now or later."""
        return len(self._again)

    @property
    def consumers(self) -> int:
        """The number of consumers that have joined."""
        return len(self._consumers)

    @property
    def members(self) -> list[object]:
        """The consumers that have joined."""
        return list(self._consumers)

    def lag(self, end: int) -> int:
        """Returns the number of messages that are not done, of a topic that ends at `end`."""
        return max(0, end - self.cursor - len(self._done))

    # -- consumers ---------------------------------------------------------------------------------------

    def join(self, consumer: object, window: int, timeout: float | None = None) -> None:
        """Adds a consumer that holds at most `window` messages; joining again changes both values for later
        messages. timeout: seconds for which it may hold one; None: no limit."""
        found = self._consumers.get(consumer)
        if found is not None:
            found.window, found.timeout = window, timeout
            return
        self._consumers[consumer] = _Consumer(window, timeout)
        self._turn.append(consumer)

    def pause(self, consumer: object, paused: bool) -> None:
        """Pauses or resumes a consumer; a paused one gets nothing, whatever its window. Ignores unknown
        consumers."""
        found = self._consumers.get(consumer)
        if found is not None:
            found.paused = paused

    def leave(self, consumer: object, now: float) -> list[tuple[Delivery, DeliveryOutcome]]:
        """Removes a consumer and returns what it held: AGAIN is delivered again at once, DEAD (see `nack`)
        was sent MOST_LOST times and may be what makes consumers disconnect."""
        found = self._consumers.pop(consumer, None)
        if found is None:
            return []
        self._turn.remove(consumer)
        returned: list[tuple[Delivery, DeliveryOutcome]] = []
        for offset in sorted(found.held):
            attempt = self._held.pop(offset).attempt
            self._failed.setdefault(offset, now)
            dead = attempt >= MOST_LOST
            if not dead:
                heapq.heappush(self._again, (now, offset))
            returned.append(
                (Delivery(consumer, offset, attempt), DeliveryOutcome.DEAD if dead else DeliveryOutcome.AGAIN)
            )
        return returned

    # -- deliveries --------------------------------------------------------------------------------------

    def take(self, end: int, now: float, limit: int = 1000) -> list[Delivery]:
        """Takes up to `limit` deliveries to be sent now, of a topic that ends at `end`; their consumers hold
        them from now on."""
        if self._next >= end and not self._again:
            return []
        taken = self._take_run(end, now, limit)
        turn = self._turn
        full = 0
        while full < len(turn) and len(taken) < limit:
            name = turn[0]
            consumer = self._consumers[name]
            if consumer.paused or len(consumer.held) >= consumer.window:
                full += 1
                turn.rotate(-1)
                continue
            offset = self._next_offset(end, now)
            if offset is None:
                break
            full = 0
            turn.rotate(-1)
            attempt = self._attempts.get(offset, 0) + 1
            self._attempts[offset] = attempt
            deadline = None if consumer.timeout is None else now + consumer.timeout
            self._held[offset] = _Held(name, attempt, deadline)
            consumer.held.add(offset)
            if deadline is not None:
                self._watch(deadline, offset, attempt)
            taken.append(Delivery(name, offset, attempt))
            _add(self.changes, GroupEventKind.SENT, offset, offset + 1, attempt)
        return taken

    def _take_run(self, end: int, now: float, limit: int) -> list[Delivery]:
        """Takes deliveries in the common case at once: one consumer without time-out, and messages that were
        never sent. `take` handles the rest one by one."""
        if len(self._turn) != 1 or self._done or (self._again and self._again[0][0] <= now):
            return []
        name = self._turn[0]
        consumer = self._consumers[name]
        begin = max(self._next, self.cursor)
        count = min(limit, end - begin, consumer.window - len(consumer.held))
        if consumer.timeout is not None or consumer.paused or count <= 0:
            return []
        offsets = range(begin, begin + count)
        self._next = begin + count
        self._attempts.update(dict.fromkeys(offsets, 1))
        self._held.update(dict.fromkeys(offsets, _Held(name, 1, None)))
        consumer.held.update(offsets)
        _add(self.changes, GroupEventKind.SENT, begin, begin + count, 1)
        return [Delivery(name, offset, 1) for offset in offsets]

    def untake(self, deliveries: Sequence[Delivery], due: float) -> None:
        """Returns deliveries that were not sent; they are due again then, and their attempts do not count."""
        for _, offset, attempt in deliveries:
            if self._is_held(offset, attempt):
                self._release(offset)
                self._attempts[offset] = attempt - 1
                _add(self.changes, GroupEventKind.SENT, offset, offset + 1, attempt - 1)
                heapq.heappush(self._again, (due, offset))

    def ack_many(self, consumer: object, deliveries: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Acknowledges deliveries, (offset, attempt) each, and returns the STALE ones."""
        stale: list[tuple[int, int]] = []
        begin = end = self.cursor
        for offset, attempt in deliveries:
            held = self._held.get(offset)
            if held is None or held.attempt != attempt or held.consumer != consumer:
                self._finish(begin, end)  # this offset may be one of them
                begin = end
                if self._check_holder(consumer, offset, attempt) is DeliveryOutcome.STALE:
                    stale.append((offset, attempt))
                continue
            del self._held[offset]
            self._consumers[consumer].held.discard(offset)
            if offset != end:
                self._finish(begin, end)
                begin = offset
            end = offset + 1
        self._finish(begin, end)
        return stale

    def ack(self, consumer: object, offset: int, attempt: int) -> DeliveryOutcome:
        """Acknowledges a delivery."""
        outcome = self._check_holder(consumer, offset, attempt)
        if outcome is DeliveryOutcome.DONE:
            self._release(offset)
            self._finish(offset, offset + 1)
        return outcome

    def nack(
        self, consumer: object, offset: int, attempt: int, now: float, *, retry: bool = True
    ) -> DeliveryOutcome:
        """Refuses a delivery that the consumer could not process. retry: another attempt may succeed. DEAD:
        the caller takes over the message, makes a dead letter of it, then calls `mark_dead_lettered`."""
        outcome = self._check_holder(consumer, offset, attempt)
        if outcome is not DeliveryOutcome.DONE:
            return outcome
        self._release(offset)
        return self._schedule_retry(offset, attempt, now, retry=retry)

    def give_back(self, consumer: object, offset: int, attempt: int, now: float) -> DeliveryOutcome:
        """Returns a delivery that never reached the consumer; it is delivered again at once. DEAD as in
        `leave`."""
        outcome = self._check_holder(consumer, offset, attempt)
        if outcome is not DeliveryOutcome.DONE:
            return outcome
        self._release(offset)
        self._failed.setdefault(offset, now)
        if attempt >= MOST_LOST:
            return DeliveryOutcome.DEAD
        heapq.heappush(self._again, (now, offset))
        return DeliveryOutcome.AGAIN

    def expire(self, now: float) -> list[tuple[Delivery, DeliveryOutcome]]:
        """Returns the deliveries that were held for too long, with their outcome: AGAIN or DEAD (see
        `nack`)."""
        late: list[tuple[Delivery, DeliveryOutcome]] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            due, offset, attempt = heapq.heappop(self._deadlines)
            if not self._is_limited(due, offset, attempt):
                continue
            consumer = self._held[offset].consumer
            self._release(offset)
            late.append((Delivery(consumer, offset, attempt), self._schedule_retry(offset, attempt, now)))
        return late

    def failed_first(self, offset: int) -> float | None:
        """Returns when this message failed first, since the start."""
        return self._failed.get(offset)

    def mark_dead_lettered(self, offset: int) -> None:
        """Marks a message as done: it is a dead letter, or for other groups only. Idempotent."""
        if offset >= self.cursor and offset not in self._done:
            self._finish(offset, offset + 1)

    def purge(self, end: int) -> None:
        """Marks all messages before `end` as done, even if consumers hold them: the topic has lost them. It
        makes no change."""
        for consumer in self._consumers.values():
            consumer.held = {offset for offset in consumer.held if offset >= end}
        self._held = {offset: held for offset, held in self._held.items() if offset >= end}
        self._attempts = {offset: attempt for offset, attempt in self._attempts.items() if offset >= end}
        self._failed = {offset: when for offset, when in self._failed.items() if offset >= end}
        self._again = [one for one in self._again if one[1] >= end]
        heapq.heapify(self._again)
        self.cursor = self._done.behind(max(self.cursor, end))
        self._next = max(self._next, self.cursor)
        self._done.drop_before(self.cursor)

    def due(self) -> float | None:
        """Returns when `take` or `expire` has work without new messages. None: not before a consumer joins,
        acknowledges or gives back."""
        deadlines = self._deadlines
        while deadlines and not self._is_limited(*deadlines[0]):
            heapq.heappop(deadlines)
        times = [deadlines[0][0]] if deadlines else []
        if self._again and any(one.is_ready for one in self._consumers.values()):
            times.append(self._again[0][0])
        return min(times, default=None)

    def _next_offset(self, end: int, now: float) -> int | None:
        if self._again and self._again[0][0] <= now:
            return heapq.heappop(self._again)[1]
        begin = max(
            self._next, self.cursor
        )  # messages that were never taken may be done: they were for another group
        offset = self._done.behind(begin) if self._done else begin
        if offset >= end:
            return None
        self._next = offset + 1
        return offset

    def _watch(self, deadline: float, offset: int, attempt: int) -> None:
        heapq.heappush(self._deadlines, (deadline, offset, attempt))
        if len(self._deadlines) > 2 * len(self._held) + 64:  # most are of acknowledged deliveries
            self._deadlines = [one for one in self._deadlines if self._is_limited(*one)]
            heapq.heapify(self._deadlines)

    def _is_held(self, offset: int, attempt: int) -> bool:
        held = self._held.get(offset)
        return held is not None and held.attempt == attempt

    def _is_limited(self, due: float, offset: int, attempt: int) -> bool:
        """Returns whether this is the deadline of a held delivery; it may be that of one that was not
        sent."""
        return self._is_held(offset, attempt) and self._held[offset].deadline == due

    def _check_holder(self, consumer: object, offset: int, attempt: int) -> DeliveryOutcome:
        held = self._held.get(offset)
        if held is not None and held.consumer == consumer and held.attempt == attempt:
            return DeliveryOutcome.DONE
        done = offset < self.cursor or offset in self._done
        return DeliveryOutcome.REPEATED if done else DeliveryOutcome.STALE

    def _release(self, offset: int) -> None:
        held = self._held.pop(offset)
        self._consumers[held.consumer].held.discard(offset)

    def _schedule_retry(
        self, offset: int, attempt: int, now: float, *, retry: bool = True
    ) -> DeliveryOutcome:
        self._failed.setdefault(offset, now)
        delay = self._delay(attempt) if retry else None
        if delay is None:
            return DeliveryOutcome.DEAD
        heapq.heappush(self._again, (now + delay, offset))
        return DeliveryOutcome.AGAIN

    def _finish(self, begin: int, end: int) -> None:
        if begin < end:
            _add(self.changes, GroupEventKind.DONE, begin, end)
            self._mark_done(begin, end)

    def _mark_done(self, begin: int, end: int) -> None:
        for offset in range(begin, end):
            self._attempts.pop(offset, None)
        if self._failed:
            for offset in range(begin, end):
                self._failed.pop(offset, None)
        if begin != self.cursor:
            for offset in range(begin, end):
                self._done.add(offset)
            return
        self.cursor = end
        if self._done:
            self.cursor = self._done.behind(self.cursor)
            self._done.drop_before(self.cursor)

    # -- after a restart ---------------------------------------------------------------------------------

    def apply(self, change: Change) -> None:
        """Applies a change of before the restart, in order."""
        for offset in range(max(change.begin, self.cursor), change.end):
            if offset < self.cursor or offset in self._done:
                continue
            if change.kind is GroupEventKind.DONE:
                self._mark_done(offset, offset + 1)
            else:
                self._attempts[offset] = change.attempt

    @property
    def unfinished(self) -> list[int]:
        """The offsets that were sent and are not done, in order."""
        return sorted(self._attempts)

    def ready(self, now: float) -> None:
        """Ends the restore: all changes were applied, and messages that were in flight are delivered
        again."""
        self._next = max(self._next, self.cursor)
        self._again = [(now, offset) for offset in sorted(self._attempts)]  # sorted: a heap
        if self._attempts:
            self._next = max(self._next, self._again[-1][1] + 1)

    def summary(self) -> list[Change]:
        """Returns changes that give this state when applied to a group that begins at `cursor`."""
        changes = [Change(GroupEventKind.DONE, begin, end) for begin, end in self._done]
        for offset, attempt in sorted(self._attempts.items()):
            _add(changes, GroupEventKind.SENT, offset, offset + 1, attempt)
        return changes


def _add(changes: list[Change], kind: GroupEventKind, begin: int, end: int, attempt: int = 0) -> None:
    """Adds a change, merged into the last one if both are the same and adjacent."""
    if changes:
        last = changes[-1]
        if last.kind == kind and last.end == begin and last.attempt == attempt:
            changes[-1] = Change(kind, last.begin, end, attempt)
            return
    changes.append(Change(kind, begin, end, attempt))
