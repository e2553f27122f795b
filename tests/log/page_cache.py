"""What is on the disk, beside what the system has in memory: a sync may fail, and the power be cut."""

from __future__ import annotations

import errno
import os
from pathlib import Path

PAGE = 4096


class PageCache:
    """Takes the place of the writes and syncs of Linux: pages of a sync that failed count as
    written. Names are on the disk at once. fails: the next sync of a file fails."""

    def __init__(self, monkeypatch) -> None:
        self.fails = False
        self._disk: dict[int, bytearray] = {}
        self._dirty: dict[int, set[int]] = {}
        self._real = {
            name: getattr(os, name) for name in ("pwrite", "pwritev", "write", "fsync", "fdatasync")
        }
        monkeypatch.setattr(os, "pwrite", self._pwrite)
        monkeypatch.setattr(os, "pwritev", self._pwritev)
        monkeypatch.setattr(os, "write", self._write)
        monkeypatch.setattr(os, "fsync", self._sync)
        monkeypatch.setattr(os, "fdatasync", self._sync)

    def _touch(self, fd, begin, nbytes):
        pages = range(begin // PAGE, -(-(begin + nbytes) // PAGE))
        self._dirty.setdefault(os.fstat(fd).st_ino, set()).update(pages)
        return nbytes

    def _pwrite(self, fd, data, position):
        return self._touch(fd, position, self._real["pwrite"](fd, data, position))

    def _pwritev(self, fd, parts, position):
        return self._touch(fd, position, self._real["pwritev"](fd, parts, position))

    def _write(self, fd, data):
        written = self._real["write"](fd, data)
        return self._touch(fd, os.lseek(fd, 0, os.SEEK_CUR) - written, written)

    def _sync(self, fd):
        if not os.path.isfile(f"/proc/self/fd/{fd}"):
            return
        number = os.fstat(fd).st_ino
        pages = self._dirty.pop(number, set())
        if self.fails:
            self.fails = False
            raise OSError(errno.EIO, "Input/output error")
        disk = self._disk.setdefault(number, bytearray())
        size = os.fstat(fd).st_size
        disk.extend(bytes(max(0, size - len(disk))))
        del disk[size:]
        with open(f"/proc/self/fd/{fd}", "rb") as file:
            for page in pages:
                file.seek(page * PAGE)
                data = file.read(PAGE)
                disk[page * PAGE : page * PAGE + len(data)] = data

    def cut_power(self, folder: Path) -> None:
        """The files have what is on the disk."""
        for path in folder.rglob("*"):
            if path.is_file():
                path.write_bytes(self._disk.get(path.stat().st_ino, b""))
