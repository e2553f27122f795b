"""Reads all that a log's folder holds, as the next start would find it, and changes nothing there."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transfer.log.checks import lock_shared
from transfer.log.format import check as check_format
from transfer.log.recovery import recover
from transfer.log.segment import Segment
from transfer.log.segment_files import BLOBS, path_of
from transfer.log.topics import Topics
from transfer.log.verify import Verified, to_verify, verify


@dataclass(frozen=True, slots=True)
class Looked:
    """What was found. damages: in words. state: all keys and their values."""

    verified: Verified
    damages: tuple[str, ...]
    state: Mapping[bytes, bytes]


def look(folder: Path, progress: Callable[[int], object] | None = None) -> Looked:
    """Reads everything. progress: is told how many bytes were read until now, after each segment.

    Raises LogInUse: a log is open there; LogDamaged: no log can be opened there; NotSupported.
    """
    fd = lock_shared(folder)
    try:
        begun = check_format(folder)
        found = recover(folder, begun=begun, serve=True, kind=SegmentCopy)
        try:
            segments = {segment.first: segment for segment in found.segments}
            parts = to_verify(found.segments, found.sequence) if segments else []
            verified = verify(parts, segments, Topics(found).wanted, progress)
            told = [one.text for one in found.told]
            told += [text for one in found.segments if isinstance(one, SegmentCopy) for text in one.mended]
        finally:
            for segment in found.segments:
                segment.close()
    finally:
        if fd >= 0:
            os.close(fd)
    return Looked(verified, tuple(dict.fromkeys([*told, *verified.damages])), found.state)


class SegmentCopy(Segment):
    """A segment's files as they are. What is written to it stays in memory. mended: what that put right."""

    read_only = True

    def __init__(self, folder: Path, first: int, fd: int, capacity: int) -> None:
        super().__init__(folder, first, fd, capacity)
        self.mended: list[str] = []
        if capacity:
            self._map = mmap.mmap(fd, capacity, access=mmap.ACCESS_COPY)
            self.memory = memoryview(self._map)

    @classmethod
    def open(cls, folder: Path, first: int) -> SegmentCopy:
        fd = os.open(path_of(folder, first), os.O_RDONLY | os.O_CLOEXEC)
        try:
            segment = cls(folder, first, fd, os.fstat(fd).st_size)
        except BaseException:
            os.close(fd)
            raise
        segment._open_blobs()
        return segment

    def _open_blobs(self) -> None:
        try:
            self._blob_fd = os.open(path_of(self.folder, self.first, BLOBS), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        self._find_room()

    def write(self, position: int, data: Any) -> None:
        there = self.memory[position : position + len(data)]
        if there != data:
            there[:] = data
            where = f"a record at byte {position} of {self.path.name}"
            self.mended.append(f"{where} has a wrong bit, which the next start puts right")

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
