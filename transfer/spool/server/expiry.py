"""Removes unused data by its age: staged rows, groups, runs, rows of streams."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from transfer.spool.format.row_source import FAILED, OPEN, SEALED
from transfer.spool.server.group import ReaderGroup
from transfer.spool.server.max_ages import Ages
from transfer.spool.server.run_record import RunRecord
from transfer.spool.server.store import SpoolStore

_log = logging.getLogger("transfer.spool")

#: seconds between two checks of all runs, at most
_EVERY = 60.0
#: called for each removal with a reason of one word, and bytes
Removed = Callable[[str, int], None]


class Expiry:
    """Checks all runs periodically. For one thread.

    Activity is recorded in the log, so that a restart does not reset all ages. Removals are logged.
    """

    def __init__(self, store: SpoolStore, ages: Ages, removed: Removed = lambda reason, nbytes: None) -> None:
        self._store = store
        self._ages = ages
        self._removed = removed
        self._started = self._due = store.now()
        self._removals = 0

    def check(self, reading: Collection[tuple[int, str]]) -> int | None:
        """Returns the sequence to wait for before the removals are final; None: nothing was removed.

        reading: numbers of runs with the groups for which they are being read.
        """
        now = self._store.now()
        if now < self._due:
            return None
        self._due = now + min(_EVERY, self._ages.coarse)
        before = self._removals
        with self._store.lock:
            for entry in [*self._store.entries.values()]:
                if entry.damage:
                    continue  # an operator decides about it
                self._check_run(entry, {group for number, group in reading if number == entry.number}, now)
        return self._store.mark() if self._removals > before else None

    def _check_run(self, entry: RunRecord, reading: set[str], now: float) -> None:
        if reading:
            entry.touched = now
        for name, group in entry.groups.items():
            if name in reading:
                group.used = now
            self._check_group(entry, name, group, now)
        for job, last in [*entry.active.items()]:
            found, age = entry.run.jobs.get(job), self._ages.staged
            if age is not None and found is not None and found.attempts and self._is_over(age, last, now):
                text = f"job {job} of run {entry.run.name} has sent nothing since then: its staged rows"
                self._remove("staged", text, found.nbytes, last, now)
                self._store.expire(entry, job, age)
        reason = self._reason(entry, reading, now)
        if reason:
            nbytes = entry.bytes_from(0) + entry.run.staged_bytes
            text = f"run {entry.run.name}, {entry.state}, {entry.rows:,} rows"
            self._remove(reason, text, nbytes, entry.touched, now)
            self._store.delete(entry.run.name)
            return
        if entry.run.kind == "stream":
            self._release(entry, now)
        self._store.note_activity(entry, self._ages.coarse)

    def _check_group(self, entry: RunRecord, name: str, group: ReaderGroup, now: float) -> None:
        if group.given_up or not self._is_over(self._ages.group, group.used, now):
            return
        group.given_up = True
        self._store.note(entry, name)
        before = entry.bytes_from(0)
        if entry.run.kind == "stream":
            self._store.trim(entry)
        text = f"group {name!r} of run {entry.run.name} holds no rows any more"
        self._remove("group", text, before - entry.bytes_from(0), group.used, now)

    def _reason(self, entry: RunRecord, reading: set[str], now: float) -> str:
        """Returns why the run is removed; "": it stays."""
        ages, live = self._ages, [group for group in entry.groups.values() if not group.given_up]
        if reading:
            return ""
        if entry.state == FAILED:
            return "failed" if self._is_over(ages.failed, entry.touched, now) else ""
        if entry.state == SEALED and entry.groups:
            done = all((group.acknowledged or (0, -1)) >= (0, entry.rows) for group in live)
            return "read" if done and self._is_over(ages.retention, entry.touched, now) else ""
        writing = entry.state == OPEN and any(job.attempts for job in entry.run.jobs.values())
        # A stream that a reader has opened stays, with its groups' positions: `_release` removes only rows.
        opened = bool(entry.groups) if entry.run.kind == "stream" else bool(live)
        unread = not opened and not writing and self._is_over(ages.unread, entry.touched, now)
        return "unread" if unread else ""

    def _release(self, entry: RunRecord, now: float) -> None:
        """Removes rows of a stream without groups, after the time in which a group may still appear."""
        if any(not group.given_up for group in entry.groups.values()) or entry.rows <= entry.first:
            entry.released = None
            return
        age = self._ages.group if entry.groups else self._ages.unread
        if entry.released is None:
            entry.released = now, entry.rows
            self._store.note_activity(entry, 0.0)
        elif self._is_over(age, entry.released[0], now):
            before = entry.bytes_from(0)
            since, rows = entry.released
            entry.released = now, entry.rows
            self._store.trim_to(entry, rows)
            text = f"rows up to {rows:,} of run {entry.run.name}, which no group reads"
            self._remove("unread", text, before - entry.bytes_from(0), since, now)

    def _is_over(self, age: float | None, since: float, now: float) -> bool:
        if age is None or now < self._started + self._ages.grace(age):
            return False
        return since + age + self._ages.coarse < now

    def _remove(self, reason: str, what: str, nbytes: int, since: float, now: float) -> None:
        _log.warning("removed (%s, after %.0f s): %s, %d bytes", reason, now - since, what, nbytes)
        self._removals += 1
        self._removed(reason, nbytes)
