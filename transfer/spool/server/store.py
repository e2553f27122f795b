"""The spool's runs on its log: events are stored first, then recorded, and readers see what is on the disk.

Each run is a topic of the log. Its messages are the events of `ledger.py` in their order, with the rows as
blobs, so that a restart recovers the state by reading them. When a run is sealed, its index is stored as one
message, and a restart reads only that.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from transfer import steady_clock
from transfer.log import Log, Retention
from transfer.log.checks import check_key
from transfer.spool.format import rows as row_layouts
from transfer.spool.format.protocol import Delivery, IfComplete, Kind
from transfer.spool.format.row_source import SEALED
from transfer.spool.format.run_messages import Abort, Commit, RowsFrame, TaskBegin, TaskEnd, Winner, to_table
from transfer.spool.server.group import ReaderGroup, group_to_json
from transfer.spool.server.ledger import Attempt, Run
from transfer.spool.server.recovery import recover
from transfer.spool.server.replay import keep_attempt, layouts_of
from transfer.spool.server.run_log import RunLog, integer_columns
from transfer.spool.server.run_record import PendingState, RunRecord, VisibleState, group_key, run_key
from transfer.transports.errors import Broken, LogFull, OptionError, ProtocolError, UsageError

if TYPE_CHECKING:
    from transfer.spool.format.rows import Array, Arrays

_log = logging.getLogger("transfer.spool")

#: the name that holds a run's messages in the log until the run is deleted
HOLD = "spool"
#: limits of what clients can make a spool store: runs, and for each run its open jobs and its groups
MAX_RUNS, MAX_JOBS, MAX_GROUPS = 100_000, 10_000, 10_000


class SpoolStore:
    """All runs of a spool's folder. Thread-safe; only one thread may receive frames.

    Methods that change something return the sequence to wait for: when the log has committed it, `kept` makes
    visible what was recorded up to there. Later records may be lost in a crash.

    where: a folder, or a log that has another owner, who closes it.
    """

    def __init__(self, where: Path | Log, *, retention_bytes: int | None = None) -> None:
        self.lock = threading.RLock()
        self._owns_log = isinstance(where, Path)
        if isinstance(where, Path):
            retention = Retention(bytes=retention_bytes, acknowledged=True)
            self.log = Log(where, retention=retention, damaged="serve")
        else:
            self.log = where
        self._runs = RunLog(self.log, self.lock)
        self._pending_states: deque[PendingState] = deque()
        #: the time of day, from a clock that no program sets
        self.now: Callable[[], float] = lambda: steady_clock.unix_ns() / 1e9
        try:
            self.entries = recover(self._runs, self.now)
        except BaseException:
            self.close()
            raise
        self._number = max((entry.number for entry in self.entries.values()), default=0)

    def close(self) -> None:
        self._runs.close()
        if self._owns_log:
            self.log.close()

    def entry(self, run: str, run_id: str = "") -> RunRecord:
        """Returns a run. Raises OptionError: there is none; Broken: it has another id."""
        found = self.entries.get(run)
        if run_id and (found is None or found.run_id != run_id):
            raise _gone(run, run_id, found)
        if found is None:
            names = ", ".join(sorted(self.entries)[:5]) or "none"
            raise OptionError(f"there is no run {run!r}", hint=f"there are: {names}")
        return found

    def gone(self, entry: RunRecord) -> Broken:
        """Returns the error for readers of a deleted run."""
        return _gone(entry.run.name, entry.run_id, self.entries.get(entry.run.name))

    # -- jobs --------------------------------------------------------------------------------------------

    def declare(
        self, run: str, job: str, delivery: Delivery, kind: Kind, if_complete: IfComplete = "refuse"
    ) -> bool:
        """As `Run.declare`; makes the run if needed."""
        with self.lock:
            entry = self.entries.get(run)
            if entry is None:
                if len(self.entries) >= MAX_RUNS:
                    raise UsageError(f"there are {MAX_RUNS} runs", hint="delete some: transfer runs delete")
                self._number = max(self._number + 1, time.time_ns())
                run_id = secrets.token_hex(16)
                entry = RunRecord(
                    Run(run, delivery, kind), self._number, self.now(), run_id, touched=self.now()
                )
                self.log.acknowledge(entry.topic, HOLD, 0)
                self._runs.put(entry)
                self.entries[run] = entry
            entry.check_whole()
            jobs = entry.run.jobs
            if len(jobs) >= MAX_JOBS and job not in jobs:
                raise UsageError(
                    f"{MAX_JOBS} jobs write to run {run}, and none of them has ended", hint="delete the run"
                )
            wanted = entry.run.declare(job, delivery, kind, if_complete)
            if wanted:
                entry.expired.pop(job, None)
                new = job not in entry.active
                entry.active[job] = self.now()
                if new or job in entry.aborted:
                    entry.aborted = [one for one in entry.aborted if one != job]
                    self._runs.put(entry)
                self._record(entry, self._pending_states[-1].sequence if self._pending_states else None)
            entry.touched = self.now()
            return wanted

    def receive(self, message: TaskBegin | RowsFrame | TaskEnd, arrays: Mapping[str, Array]) -> int | None:
        """Stores a task's message. Returns the sequence to wait for before its end counts; None: it is
        dropped.

        Raises LogFull (nothing has changed; try again), ProtocolError, NotATensor.
        """
        with self.lock:
            entry = self.entries.get(message.run)
            if entry is None or entry.damage:
                return None
            run = entry.run
            if message.job in run.jobs:
                entry.touched = entry.active[message.job] = self.now()
            if isinstance(message, TaskBegin):
                layouts = layouts_of(message)
                if not run.check_begin(message, layouts):
                    return None
                sequence = self._runs.append(entry, message)  # before it is recorded: it may be tried again
                run.begin(message, layouts)
                return sequence
            if isinstance(message, TaskEnd):
                return self._receive_end(entry, message)
            if not run.wants(message):
                return None
            layouts = run.layouts_of(message)
        row_layouts.check(arrays, layouts, message.rows)
        # Without the lock: it takes as long as the disk needs.
        nbytes = sum(array.nbytes for array in arrays.values())
        sequence, offset = self._runs.append_rows(entry, message, arrays)
        with self.lock:
            if self.entries.get(message.run) is not entry:
                self.log.drop(entry.topic)  # the run was deleted, and this made its topic again
                return None
            if not run.rows(message, offset, nbytes):
                self._runs.discard(entry, [offset])
                return None
        return sequence

    def _receive_end(self, entry: RunRecord, message: TaskEnd) -> int | None:
        if not entry.run.check_end(message):
            return None
        sequence = self._runs.append(entry, message)
        self._runs.discard(entry, entry.run.end(message))
        self._record(entry, sequence)
        return sequence

    def commit(
        self, run: str, job: str, winners: Sequence[Winner], if_complete: IfComplete = "refuse"
    ) -> tuple[int, bool]:
        """Commits a job. Returns (the sequence to wait for, whether it was committed before, possibly not on
        the disk yet)."""
        with self.lock:
            entry = self.entries.get(run)
            if entry is None:
                raise ProtocolError(
                    "lost_rows",
                    f"run {run} does not exist, and {sum(winner.rows for winner in winners):,} of its rows "
                    "were acknowledged",
                    hint="was it deleted, or the spool's folder deleted or changed? Nothing became visible; "
                    "write the run again",
                )
            entry.check_whole()
            entry.check_job(job)
            if not entry.run.check_commit(job, winners, if_complete):
                return entry.sequence, True
            sequence = self._runs.append(entry, Commit(run, job), integer_columns(to_table(winners)))
            unneeded = entry.run.commit(job, winners)
            entry.touched = self.now()
            entry.active = {name: last for name, last in entry.active.items() if name in entry.run.jobs}
            if entry.run.state == SEALED:
                entry.tidy = not unneeded
                try:
                    self._runs.keep_index(entry)
                    sequence = self._runs.put(entry)
                except LogFull:
                    pass  # it is committed; without an index a restart reads all of its events
            entry.sequence = sequence
            self._record(entry, sequence, unneeded)
            return sequence, False

    def abort(self, run: str, job: str) -> int | None:
        """Aborts a job. Returns the sequence to wait for; None: nothing of that job is stored."""
        with self.lock:
            entry = self.entries.get(run)
            if entry is None or job not in entry.run.jobs:
                return None
            try:
                sequence = self._runs.append(entry, Abort(run, job))
            except LogFull:  # the job's rows must be deleted to make room
                entry.aborted.append(job)
                sequence = self._runs.put(entry)
            entry.active.pop(job, None)
            self._runs.discard(entry, entry.run.abort(job))
            self._record(entry, sequence)
            return sequence

    def expire(self, entry: RunRecord, job: str, age: float) -> None:
        """Aborts a job that was silent for so long. Its later messages are refused."""
        with self.lock:
            entry.expire(job, age)
            self.abort(entry.run.name, job)
            self._runs.put(entry)

    def mark(self) -> int:
        """Appends an empty record and returns its sequence, to wait for all records before it."""
        return self.log.put(b"room", b"")

    def _record(self, entry: RunRecord, sequence: int | None, unneeded: Sequence[int] = ()) -> None:
        """Makes the recorded state visible when this record is on the disk; None: at once."""
        pending = PendingState(sequence or 0, entry, entry.run.visible.rows, entry.run.state, unneeded)
        if sequence is None:
            self._show(pending)
        else:
            self._pending_states.append(pending)

    def kept(self, sequence: int) -> None:
        """Makes visible what was recorded up to this record, which is on the disk."""
        with self.lock:
            while self._pending_states and self._pending_states[0].sequence <= sequence:
                self._show(self._pending_states.popleft())

    def _show(self, pending: PendingState) -> None:
        entry = pending.entry
        entry.seen = VisibleState(pending.rows, pending.state)
        if pending.unneeded and self.entries.get(entry.run.name) is entry:
            with suppress(LogFull):  # else the next start frees the space
                self._runs.discard(entry, pending.unneeded)
                if entry.state == SEALED:
                    entry.tidy = True
                    self._runs.put(entry)

    def attempt(self, run: str, job: str, partition: int, attempt: int) -> Attempt | None:
        """Returns an attempt; None: it is unknown, or its job is over."""
        with self.lock:
            entry = self.entries.get(run)
            found = entry.run.jobs.get(job) if entry is not None else None
            return found.attempts.get((partition, attempt)) if found is not None else None

    def attempt_kept(self, message: TaskEnd) -> None:
        """Records that all of an attempt is on the disk."""
        with self.lock:
            entry = self.entries.get(message.run)
            if entry is not None:
                keep_attempt(entry.run, message)

    def delete(self, run: str) -> tuple[int, int]:
        """Deletes the run; returns its rows and bytes. Raises OptionError."""
        with self.lock:
            entry = self.entry(run)
            del self.entries[run]
            self._runs.forget_frames(entry)
            for group in entry.groups:
                self.log.remove(group_key(entry, group))
            self.log.remove(run_key(entry))
            self.log.drop(entry.lineage)
            entry.sequence = self.log.drop(entry.topic) or entry.sequence
            return entry.rows, entry.nbytes

    # -- readers -----------------------------------------------------------------------------------------

    def acknowledge(
        self,
        run: str,
        group: str,
        position: tuple[int, int],
        steps: list[list[int]],
        lease: tuple[int, int, int] = (0, 1, 1),
    ) -> int:
        """Acknowledges a position for the group, by the process with the shards of this lease (first, count,
        total). Returns the sequence to wait for."""
        with self.lock:
            entry = self.entry(run)
            found = self.group(entry, group)
            if steps:
                body = json.dumps({"group": group, "steps": steps}).encode()
                try:
                    self.log.append(entry.lineage, body)
                except LogFull:  # an acknowledgement frees space, and must not wait for it
                    _log.warning("the disk is full: the lineage of group %s, run %s, has a gap", group, run)
            entry.touched = found.used = self.now()
            found.given_up = False
            found.acknowledge(position, *lease, kept=(0, entry.first))
            if found.delivered is None or found.delivered < position:
                found.delivered = position
            sequence = self.note(entry, group)
            if entry.run.kind == "stream":
                self.trim(entry)
            return sequence

    def group(self, entry: RunRecord, name: str) -> ReaderGroup:
        """Returns the group, and makes it if needed. Raises UsageError: there are too many."""
        group = entry.groups.get(name)
        if group is None:
            if len(entry.groups) >= MAX_GROUPS:
                raise UsageError(f"run {entry.run.name} has {MAX_GROUPS} groups")
            check_key(group_key(entry, name))
            group = entry.groups[name] = ReaderGroup(
                (0, entry.first) if entry.first else None, used=self.now()
            )
        return group

    def note(self, entry: RunRecord, group: str) -> int:
        """Stores the group's positions with the next record."""
        found = entry.groups[group]
        found.used_noted = found.used
        return self.log.put(group_key(entry, group), group_to_json(found))

    def forget(self, entry: RunRecord, group: str) -> int:
        """Deletes the group's positions; no rows are kept for it. Returns the sequence to wait for."""
        with self.lock:
            del entry.groups[group]
            sequence = self.log.remove(group_key(entry, group))
            if entry.run.kind == "stream":
                self.trim(entry)
            return sequence

    def note_activity(self, entry: RunRecord, coarse: float) -> None:
        """Stores when the run, its jobs and its groups were active, if the stored times are so much older."""
        touched, active = entry.noted
        late = any(last - active.get(job, 0.0) > coarse for job, last in entry.active.items())
        if late or entry.touched - touched > coarse or entry.active.keys() != active.keys():
            self._runs.put(entry)
        for name, group in entry.groups.items():
            if group.used - group.used_noted > coarse:
                self.note(entry, name)

    def lineage(self, entry: RunRecord, group: str) -> list[list[int]]:
        """Returns the recorded steps of a group, the oldest first."""
        steps: list[list[int]] = []
        for message in self._runs.messages(entry.lineage):
            value = json.loads(bytes(message.body))
            if value["group"] == group:
                steps += value["steps"]
        return steps

    def frame(self, entry: RunRecord, number: int) -> Arrays:
        """Returns the arrays of a visible frame: read-only views of the log's files. Raises LogDamaged."""
        return self._runs.frame(entry, number)

    def trim(self, entry: RunRecord) -> None:
        """Deletes a stream's frames that all groups have acknowledged."""
        live = [group for group in entry.groups.values() if not group.given_up]
        if live:
            self.trim_to(entry, min(group.acknowledged[1] if group.acknowledged else 0 for group in live))

    def trim_to(self, entry: RunRecord, rows: int) -> None:
        """Deletes a stream's frames that end before this row."""
        visible = entry.run.visible
        low = bisect_right(visible.ends, entry.first)
        high = bisect_right(visible.ends, min(rows, entry.rows))
        if low < high:
            entry.first = visible.ends[high - 1]
            self._runs.put(entry)
            self._runs.discard(entry, visible.offsets[low:high])


def _gone(run: str, run_id: str, found: RunRecord | None) -> Broken:
    """Makes the error of a deleted run. found: the run that has the name now."""
    now = f"{run} is {found.run_id} now" if found is not None else "no run has that name now"
    return Broken(
        f"run {run}, {run_id}, was deleted: {now}",
        hint="a run that was written again has other rows: read it from its first row, without a saved state",
    )
