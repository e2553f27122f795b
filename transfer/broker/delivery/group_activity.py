"""When each group was last in use, kept over restarts: groups without consumers may expire."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from transfer.steady_clock import unix_ms

if TYPE_CHECKING:
    from transfer.broker.delivery.group_contract import Served
    from transfer.broker.storage.group_journal import GroupJournal

#: delay of the written times, in seconds, and at most as a share of the groups' expiry
_BEHIND, _SHARE = 600.0, 0.1
#: groups whose times are written in one tick
_AT_ONCE = 500


class GroupActivity:
    """Tracks when groups are in use, on the broker's loop. A group is in use while it has a consumer, and
    when one acknowledges. expire: seconds after which a group that is not in use expires; None: never."""

    def __init__(
        self, journal: GroupJournal, expire: float | None, clock: Callable[[], int] = unix_ms
    ) -> None:
        self._journal = journal
        self._expire = expire
        self._clock = clock
        self._used: dict[int, int] = {}  # unix milliseconds, by the group's number
        self._noted: dict[int, int] = {}
        behind = _BEHIND if expire is None else min(_BEHIND, expire * _SHARE)
        self._behind_ms = int(behind * 1000)

    def used(self, number: int) -> None:
        """Marks the group as in use now."""
        self._used[number] = self._clock()

    def forget(self, number: int) -> None:
        """Forgets a removed group."""
        self._used.pop(number, None)
        self._noted.pop(number, None)

    def idle(self, served: Served) -> float:
        """Returns the seconds for which the group has not been in use."""
        if served.group.consumers:
            return 0.0
        return max(0, self._clock() - self._last(served.named.number)) / 1000

    def tick(self, groups: Iterable[Served]) -> list[tuple[Served, float]]:
        """Writes when groups were in use. Called about once a second. Returns the expired groups, with their
        age in seconds. Raises LogFull when the disk is full."""
        now, expired, noted = self._clock(), [], 0
        for served in groups:
            number = served.named.number
            last = self._last(number)
            if served.group.consumers:
                last = self._used[number] = now
            elif self._expire is not None and now - last > self._expire * 1000:
                expired.append((served, (now - last) / 1000))
            behind = last - self._noted.get(number, 0)
            # A group's age begins when its last consumer leaves: that time is written exactly.
            due = behind > self._behind_ms or (behind > 1500 and not served.group.consumers)
            if due and noted < _AT_ONCE:
                self._journal.active(number, last)
                self._noted[number] = last
                noted += 1
        return expired

    def _last(self, number: int) -> int:
        last = self._used.get(number)
        if last is None:
            known = self._journal.active_of(number)
            if known is not None:
                self._noted[number] = known
            last = self._used[number] = self._clock() if known is None else known
        return last
