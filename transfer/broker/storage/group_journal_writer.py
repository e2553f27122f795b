"""What groups have done goes into the journal: changes at the end of each turn, summaries now and then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from transfer.broker.storage.durability import together
from transfer.transports.errors import LogFull, TransferError

if TYPE_CHECKING:
    from transfer.broker.core.groups import Change, Group
    from transfer.broker.storage.durability import Durability, OnComplete
    from transfer.broker.storage.group_journal import GroupJournal

_log = logging.getLogger("transfer.broker")

#: changes in the journal after which summaries are written
SUMMARY_AFTER = 100_000
#: ticks after which they are written all the same: what stands behind them holds the log's segments
_SUMMARY_TICKS = 60
#: seconds until what nobody waits for is written: most of it is acknowledged by then, in the same record
_LATER = 0.01
#: seconds between two tries to write what happened, when the disk is full
_FULL_PAUSE = 0.5

#: (number, cursor, summary) of all groups
Books = Callable[[], Iterable[tuple[int, int, list["Change"]]]]


class GroupJournalWriter:
    """Writes what groups have done. On the broker's loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, journal: GroupJournal, durability: Durability, books: Books
    ) -> None:
        self._loop = loop
        self._journal = journal
        self._durability = durability
        self._books = books
        self._changed: dict[int, Group] = {}
        self._on_complete: list[OnComplete] = []
        self._due: asyncio.Handle | None = None
        self._soon = False  # it is due at the end of this turn
        self._paused = False  # the disk is full
        self._since_summary = 0  # ticks
        self._closed = False

    def note(self, number: int, group: Group, on_complete: OnComplete | None) -> None:
        """The group's changes are written together with those of others. told: when they are on the disk,
        which begins at the end of this turn."""
        if group.changes:
            self._changed[number] = group
        if on_complete is not None:
            self._on_complete.append(on_complete)
        if self._paused:
            return
        if on_complete is not None:
            if not self._soon:
                self._soon = True
                self._write_at(self._loop.call_soon(self._flush))
        elif self._changed and self._due is None:
            self._write_at(self._loop.call_later(_LATER, self._flush))

    def forget(self, number: int) -> None:
        """What the group did and is not written yet is not worth writing."""
        self._changed.pop(number, None)

    def end_turn(self) -> None:
        """What somebody waits for is written now."""
        if self._soon and not self._paused:
            self._flush()

    def tick(self, *, full: bool) -> None:
        """About once a second: a summary, if one is due. full: the log is. Raises LogFull, InternalError."""
        self._since_summary += 1
        due = full or self._since_summary > _SUMMARY_TICKS
        if self._journal.grown > (0 if due else SUMMARY_AFTER):
            self._flush()
            self._summarize()

    def close(self) -> None:
        """Writes what is not written yet, and a summary. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._durability.failure is None:
            self._flush()
        if self._durability.failure is None:
            try:
                self._summarize()
            except TransferError as error:
                _log.error("groups leave no summary: %s", error)  # the journal has it all

    def _write_at(self, due: asyncio.Handle) -> None:
        if self._due is not None:
            self._due.cancel()
        self._due = due

    def _flush(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
        self._soon = self._paused = False
        changed, on_complete = self._changed, self._on_complete
        if not changed and not on_complete:
            return
        try:
            sequence = self._write(changed)
        except LogFull as error:
            _log.warning("what groups have done is not kept yet: %s", error)
            if not self._closed:
                self._paused = True
                self._write_at(self._loop.call_later(_FULL_PAUSE, self._flush))
            return
        except TransferError as error:
            self._durability.failed(error)
            self._changed, self._on_complete = {}, []
            together(on_complete)(error)
            return
        self._changed, self._on_complete = {}, []
        for group in changed.values():
            group.changes = []
        self._durability.when_kept(sequence, together(on_complete) if on_complete else None)

    def _write(self, changed: dict[int, Group]) -> int:
        try:
            return self._journal.write((number, group.changes) for number, group in changed.items())
        except LogFull:
            # State can be written as long as the disk has room, and all of it makes room in the log: the
            # journal holds old segments.
            return self._summarize()

    def _summarize(self) -> int:
        self._since_summary = 0
        return self._journal.summarize(self._books())
