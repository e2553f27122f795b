"""Writes groups' changes to the journal at the end of each loop iteration, and summaries periodically."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from transfer.broker.storage.durability import complete_all
from transfer.transports.errors import LogFull, TransferError

if TYPE_CHECKING:
    from transfer.broker.core.groups import Change, Group
    from transfer.broker.storage.durability import Durability, OnComplete
    from transfer.broker.storage.group_journal import GroupJournal

_log = logging.getLogger("transfer.broker")

#: changes in the journal after which summaries are written
SUMMARY_AFTER = 100_000
#: ticks after which summaries are written anyway: the changes after the last ones hold the log's segments
_SUMMARY_TICKS = 60
#: seconds until changes without a waiting caller are written: most are acknowledged by then, in one record
_LATER = 0.01
#: seconds between two tries to write changes when the disk is full
_FULL_PAUSE = 0.5

#: returns (number, cursor, summary) of all groups
Summaries = Callable[[], Iterable[tuple[int, int, list["Change"]]]]


class GroupJournalWriter:
    """Writes groups' changes to the journal. On the broker's loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        journal: GroupJournal,
        durability: Durability,
        summaries: Summaries,
    ) -> None:
        self._loop = loop
        self._journal = journal
        self._durability = durability
        self._summaries = summaries
        self._changed: dict[int, Group] = {}
        self._on_complete: list[OnComplete] = []
        self._due: asyncio.Handle | None = None
        self._soon = False  # a write is due at the end of this loop iteration
        self._paused = False  # the disk is full
        self._since_summary = 0  # ticks
        self._closed = False

    def note(self, number: int, group: Group, on_complete: OnComplete | None) -> None:
        """Queues the group's changes, which are written together with those of other groups.

        on_complete: called when they are on the disk; the write then begins at the end of this loop
        iteration.
        """
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
        """Drops the group's changes that are not written yet."""
        self._changed.pop(number, None)

    def end_turn(self) -> None:
        """Ends a loop iteration: writes the changes whose callers wait."""
        if self._soon and not self._paused:
            self._flush()

    def tick(self, *, full: bool) -> None:
        """Writes summaries if they are due. Called about once a second.
        full: the log is full, so they are due now. Raises LogFull, InternalError."""
        self._since_summary += 1
        due = full or self._since_summary > _SUMMARY_TICKS
        if self._journal.grown > (0 if due else SUMMARY_AFTER):
            self._flush()
            self._summarize()

    def close(self) -> None:
        """Writes the remaining changes, and summaries. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._durability.failure is None:
            self._flush()
        if self._durability.failure is None:
            try:
                self._summarize()
            except TransferError as error:
                _log.error("groups' summaries are not written: %s", error)  # the journal has all changes

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
            _log.warning("the groups' changes cannot be written yet: %s", error)
            if not self._closed:
                self._paused = True
                self._write_at(self._loop.call_later(_FULL_PAUSE, self._flush))
            return
        except TransferError as error:
            self._durability.failed(error)
            self._changed, self._on_complete = {}, []
            complete_all(on_complete)(error)
            return
        self._changed, self._on_complete = {}, []
        for group in changed.values():
            group.changes = []
        self._durability.when_kept(sequence, complete_all(on_complete) if on_complete else None)

    def _write(self, changed: dict[int, Group]) -> int:
        try:
            return self._journal.write((number, group.changes) for number, group in changed.items())
        except LogFull:
            # Summaries can be written while the disk has room, and free room in the log: the journal holds
            # old segments.
            return self._summarize()

    def _summarize(self) -> int:
        self._since_summary = 0
        return self._journal.summarize(self._summaries())
