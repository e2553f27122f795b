"""Reads a log's folder as the next start would find it, without changing it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from transfer.log.checks import LOCK, lock_shared
from transfer.log.damage import Damage
from transfer.log.format import NAME as FORMAT, check as check_format
from transfer.log.journal import Journal
from transfer.log.log import Log
from transfer.log.recovery import recover
from transfer.log.segment import Segment
from transfer.log.topics import Topics
from transfer.log.verify import VerifyResult


@dataclass(frozen=True, slots=True)
class LogReport:
    """The result of `inspect`. damages: texts. state: all keys and their values."""

    verified: VerifyResult
    damages: tuple[str, ...]
    state: Mapping[bytes, bytes]


def inspect(folder: Path, progress: Callable[[int], object] | None = None) -> LogReport:
    """Verifies a log's folder. progress: called after each segment with the bytes read so far.
    Raises LogInUse (a log is open in the folder), LogDamaged (no log can be opened in it), NotSupported."""
    with LogCopy(folder) as log:
        verified = log.verify(progress)
        texts = [*(one.text for one in log.damage), *verified.damages]
        return LogReport(verified, tuple(dict.fromkeys(texts)), log.state)


def is_log(folder: Path) -> bool:
    """Whether a log was made in the folder."""
    return any((folder / name).is_file() for name in (LOCK, FORMAT))


class LogCopy(Log):
    """A read-only log, as the next start would find it, even with missing messages.

    Changes no file: records that the reader's recovery appends or discards stay in memory. damage: includes
    the bits that a start would repair. Several processes can read at a time. Raises LogInUse, LogDamaged,
    NotSupported.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock_fd = lock_shared(folder)
        try:
            begun = check_format(folder)
            found = recover(folder, begun=begun, serve=True, kind=_SegmentCopy)
        except BaseException:
            self._unlock()
            raise
        repairs = [text for one in found.segments if isinstance(one, _SegmentCopy) for text in one.repairs]
        self.damage = (*found.all_damage, *map(Damage, repairs))
        self._topics = Topics(found)
        self._journal = self._topics.journal = _ReadOnlyJournal(found.segments, found.sequence)

    def append(self, topic: str, body: Any = b"", *, blob: Any = None) -> tuple[int, int]:
        return self._journal.written, self.range(topic)[1]

    def put(self, key: bytes, value: bytes) -> int:
        return self._journal.written

    def discard(self, topic: str, begin: int, end: int) -> None:
        if (found := self._topics.named.get(topic)) is not None:
            found.discard(begin, end)

    def drop(self, topic: str) -> None:
        pass

    def close(self) -> None:
        self._journal.close()
        self._unlock()

    def _unlock(self) -> None:
        fd, self._lock_fd = self._lock_fd, -1
        if fd >= 0:
            os.close(fd)


class _ReadOnlyJournal(Journal):
    """A journal to which nothing is appended."""

    def __init__(self, segments: list[Segment], sequence: int) -> None:
        self.segments = segments
        self._written = sequence

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def is_kept(self, place: tuple[int, int]) -> bool:
        return True

    def close(self) -> None:
        for segment in self.segments:
            segment.close()


class _SegmentCopy(Segment):
    """A segment whose files stay unchanged: writes stay in memory. repairs: texts about bits they repair."""

    read_only = True

    def __init__(self, folder: Path, first: int, fd: int, capacity: int) -> None:
        super().__init__(folder, first, fd, capacity)
        self.repairs: list[str] = []
        if capacity:
            self._map = mmap.mmap(fd, capacity, access=mmap.ACCESS_COPY)
            self.memory = memoryview(self._map)

    def write(self, position: int, data: Any) -> None:
        existing = self.memory[position : position + len(data)]
        if existing != data:
            existing[:] = data
            where = f"a record at byte {position} of {self.path.name}"
            self.repairs.append(f"{where} has a wrong bit, which the next start repairs")

    def cut(self, end: int) -> None:
        self.end = end

    def seal(self) -> None:
        self.capacity = self.end
        self.memory = self.memory[: self.end]

    def trim_blobs(self) -> None:
        pass

    def cut_blobs(self, end: int) -> None:
        self.blob_end = end

    def sync(self) -> None:
        pass

    def sync_blobs(self) -> None:
        pass

    def write_blob(self, position: int, parts: Sequence[memoryview]) -> None:
        pass

    @contextmanager
    def punching(self) -> Iterator[tuple[int, set[int]]]:
        yield -1, set()
