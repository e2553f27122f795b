"""The audit: an append-only chain of events on the disk. Each event holds the hash of the one before.

Damage is reported, and the next event names it: nothing is changed but a partial line that a crash left. A
hash chain detects changes; it does not prevent them. A user who can write all files can write
another chain: keep the head, or exports, elsewhere.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from transfer.broker.storage.audit_chain import (
    ALL,
    DAMAGED,
    GENESIS,
    Action,
    AuditEvent,
    AuditWindow,
    Chain,
    encode,
    export_begin,
    export_end,
    time_text,
)
from transfer.broker.storage.audit_verification import (
    HEAD,
    AuditHead,
    AuditProblem,
    AuditVerdict,
    examine,
    name_of,
    readable,
)
from transfer.log.disk import disk_errors, make_folder, sync_folder
from transfer.log.private import open_file
from transfer.transports.errors import Closed, LogInUse

_log = logging.getLogger("transfer.broker")
#: upper bound for the bytes of one event
_LONGEST = 1 << 20
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT
#: the actor of events that no operator caused
BROKER = "broker"


class Audit:
    """The audit in a folder. Thread-safe; one process at a time. Makes the folder if it is missing.

    found: the result of the last complete read: at opening, by `verify`, or when the file was not as the last
    event left it. Problems are logged too. A partial line that a crash left at the end is removed: its event
    was never acknowledged. begun: this folder had an audit before, so an empty one is damage.
    Raises LogInUse, LogFull, InternalError. Call `close` at the end; it is idempotent.
    """

    def __init__(self, folder: Path | str, now_ms: int, *, begun: bool = False) -> None:
        self.folder = Path(folder)
        self._lock = threading.Lock()
        self._fd = self._head_fd = -1
        self._head = AuditHead(1)
        self._time = ""
        self._settled = False
        with disk_errors():
            make_folder(self.folder)
            self._head_fd = _locked(self.folder / HEAD)
        try:
            self.found = self._settle(now_ms, begun=begun)
        except BaseException:
            self.close()
            raise

    # -- writing -----------------------------------------------------------------------------------------

    def append(self, action: Action, now_ms: int) -> AuditEvent:
        """Writes an event: it is on the disk when this returns. now_ms: unix milliseconds.

        Raises UsageError for values that JSON cannot hold, LogFull, Closed, InternalError; nothing is kept.
        """
        with self._lock:
            if self._fd < 0:
                raise Closed("the audit was closed")
            if not self._is_unchanged():
                self.found = self._settle(now_ms)
            return self._write(action, now_ms)

    @property
    def head(self) -> AuditHead:
        """The last event written."""
        return self._head

    def _write(self, action: Action, now_ms: int) -> AuditEvent:
        head = self._head
        time = max(self._time, time_text(now_ms))  # never back
        event, line = encode(head.sequence + 1, time, action, head.hash)
        new = AuditHead(head.segment, event.sequence, head.nbytes + len(line), event.hash)
        with disk_errors():
            try:
                _put(self._fd, line)
                self._put_head(new)
            except OSError:
                os.ftruncate(self._fd, head.nbytes)  # no reader may find it later
                raise
        self._head, self._time = new, time
        return event

    def _is_unchanged(self) -> bool:
        """Whether the file is the same one, with the same length, as after the last event."""
        mine = os.fstat(self._fd)
        try:
            there = os.stat(self.folder / name_of(self._head.segment))
        except FileNotFoundError:
            return False
        as_left = (mine.st_ino, mine.st_dev, self._head.nbytes)
        return self._settled and (there.st_ino, there.st_dev, there.st_size) == as_left

    # -- existing files ----------------------------------------------------------------------------------

    def _settle(self, now_ms: int, *, begun: bool = False) -> AuditVerdict:
        """Reads the folder, and continues at its end."""
        self._settled = False
        verdict = examine(self.folder, begun=begun)
        for problem in verdict.problems:
            _log.warning("audit in %s: %s", self.folder, problem)
        self._head, self._time = verdict.head, verdict.latest
        file = self.folder / name_of(self._head.segment)
        with disk_errors():
            if os.fstat(self._head_fd).st_size == 0:
                self._put_head(self._head)  # before the file: a missing head is damage
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = open_file(file, _FLAGS)
            sync_folder(self.folder)
            _write_again(file)
            _write_again(self.folder / HEAD)
            if verdict.torn:
                _log.warning("audit in %s: removes %d bytes of a partial event", self.folder, verdict.torn)
                os.ftruncate(self._fd, self._head.nbytes)
                os.fsync(self._fd)
            elif verdict.unended:
                _put(self._fd, b"\n")
                self._head = replace(self._head, nbytes=self._head.nbytes + 1)
            self._put_head(self._head)
        if verdict.unnamed:
            self._write(_damage(verdict.unnamed), now_ms)
        self._settled = True
        return verdict

    def _put_head(self, head: AuditHead) -> None:
        size = os.fstat(self._head_fd).st_size
        torn = size and os.pread(self._head_fd, 1, size - 1) != b"\n"
        _put(self._head_fd, b"\n" * torn + head.encode())

    # -- reading -----------------------------------------------------------------------------------------

    def verify(self) -> AuditVerdict:
        """Reads all of the audit again. Other threads may append meanwhile."""
        verdict = examine(self.folder)
        self.found = verdict
        return verdict

    def events(self, window: AuditWindow = ALL, *, limit: int | None = None) -> Iterator[AuditEvent]:
        """Yields the matching events, the oldest first. Leaves out events whose line is damaged."""
        found = (event for _, event in readable(self.folder) if event is not None and window.has(event))
        return islice(found, limit)

    def export(self, start_ms: int | None = None, end_ms: int | None = None) -> Generator[bytes, None, None]:
        """Yields the lines of a time span unchanged, damaged ones too; end_ms is exclusive.
        A first and a last line enclose them, so that `check_export` detects missing lines."""
        return export(self.folder, start_ms, end_ms)

    def close(self) -> None:
        """Closes the files. Idempotent."""
        with self._lock:
            for fd in (self._fd, self._head_fd):
                if fd >= 0:
                    os.close(fd)
            self._fd = self._head_fd = -1

    def __enter__(self) -> Audit:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def export(
    folder: Path, start_ms: int | None = None, end_ms: int | None = None
) -> Generator[bytes, None, None]:
    """Exports a folder's audit, as `Audit.export` does, without opening the audit."""
    window = AuditWindow(start=start_ms, end=end_ms)
    before, count, inside = (0, GENESIS), 0, start_ms is None
    chain = Chain(None, None)
    for line, event in readable(folder):
        if event is not None:
            inside = window.has(event)
        if not inside:
            if event is not None and not count:
                before = (event.sequence, event.hash)
            continue
        if not count:
            yield export_begin(*before)
        count += 1
        chain.sequence, chain.hash = (event.sequence, event.hash) if event is not None else (None, None)
        yield line
    if not count:
        yield export_begin(*before)
        chain = Chain(*before)
    yield export_end(chain, count)


def _damage(problems: Sequence[AuditProblem]) -> Action:
    reason = "; ".join(map(str, problems[:3]))
    return Action(BROKER, DAMAGED, (), reason, {"problems": [problem.as_json() for problem in problems]})


def _locked(path: Path) -> int:
    fd = open_file(path, _FLAGS)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise LogInUse(f"the audit in {path.parent} is open elsewhere") from error
    return fd


def _write_again(path: Path) -> None:
    """Writes the end of a file again, and syncs.
    After a failed sync the system regards the pages as written, so a later sync would not write them."""
    fd = open_file(path, os.O_RDWR)
    try:
        begin = max(0, os.fstat(fd).st_size - _LONGEST)
        data = os.pread(fd, _LONGEST, begin)
        if os.pwrite(fd, data, begin) != len(data):
            raise OSError(errno.ENOSPC, "the end of the audit cannot be written again")
        os.fsync(fd)
    finally:
        os.close(fd)


def _put(fd: int, data: bytes) -> None:
    """Appends all of the data and syncs."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.fsync(fd)
