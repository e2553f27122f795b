"""Payloads of dead letters that are too large for the database: files, which no retention takes.

A file is written and synced before its letter is, and removed when the letter's row is gone. So after a crash
there may be files without a letter, which the next start removes, but no letter without its file.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from transfer.broker.delivery.message import Buffer
from transfer.broker.storage.dead_letter import Filed
from transfer.log.disk import make_folder, sync_folder
from transfer.log.private import open_file
from transfer.transports.core import crc32c
from transfer.transports.errors import InternalError, LogDamaged, LogFull

_log = logging.getLogger("transfer.broker")

#: gives a large payload piece by piece, from the beginning whenever it is called. Raises LogDamaged where it
#: is not what it was
Large = Callable[[], Iterable[Buffer]]

#: payloads up to so many bytes lie in the database
INLINE = 64 << 10
#: bytes that are written or read at one time
_PIECE = 4 << 20
#: bytes after which what was written is brought to the disk: others sync there too, and would wait for all
_SYNC_EVERY = 64 << 20
_SUFFIX = ".payload"
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


class Payloads:
    """The files in a folder, which is made when it is needed. Any thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, large: Large, nbytes: int) -> Filed:
        """Keeps a payload of so many bytes: it is on the disk when this returns. Takes no memory of its own,
        and lets others run meanwhile. Raises LogFull, InternalError, LogDamaged."""
        name = uuid.uuid4().hex + _SUFFIX
        with _told(self.folder):
            if not self.folder.is_dir():
                make_folder(self.folder)
            fd = open_file(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                check = _write(fd, large(), nbytes)
                sync_folder(self.folder)
            except BaseException:
                self.remove([name])
                raise
            finally:
                os.close(fd)
        return Filed(name, check)

    def remove(self, names: Iterable[str]) -> None:
        """These files are not needed any more. One that cannot be removed is left to the next start."""
        for name in names:
            try:
                self._path(name).unlink(missing_ok=True)
            except OSError as error:
                _log.warning("%s of a dead letter that is gone is still there: %s", name, error)

    def sweep(self, known: Collection[str]) -> int:
        """Removes files that no letter has: how many. At the start, while nobody writes."""
        names = self._names()
        missing = [name for name in known if name not in names]
        if missing:  # of a damaged row it cannot be told which file is its own: an operator may want it
            _log.error("%d payloads of dead letters are missing, such as %s", len(missing), missing[0])
            return 0
        strangers = names.difference(known)
        self.remove(strangers)
        return len(strangers)

    def _names(self) -> set[str]:
        return {path.name for path in self.folder.glob(f"*{_SUFFIX}")} if self.folder.is_dir() else set()

    def begin(self, filed: Filed, nbytes: int) -> bytes:
        """The first bytes of a payload, unchecked. Raises LogDamaged when the file is gone, InternalError."""
        with self._opened(filed) as fd:
            return os.pread(fd, nbytes, 0)

    def view(self, filed: Filed, nbytes: int) -> memoryview:
        """All of a payload, unchecked; it stays good when the file is removed. Raises as `check`."""
        with self._opened(filed) as fd:
            self._check_size(fd, filed, nbytes)
            return memoryview(mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ))

    def check(self, filed: Filed, nbytes: int) -> None:
        """Reads a payload of so many bytes. Raises LogDamaged when it is not what was written, InternalError
        when it cannot be read."""
        found = 0
        for piece in self.pieces(filed, nbytes):
            found = crc32c(piece, found)
        if found != filed.check:
            raise LogDamaged(f"{self.folder.name}/{filed.name} is not what was written")

    def pieces(self, filed: Filed, nbytes: int) -> Iterator[bytes]:
        """All of a payload, unchecked, one piece after the other. Raises as `check`."""
        with self._opened(filed) as fd:
            self._check_size(fd, filed, nbytes)
            at = 0
            while piece := os.pread(fd, _PIECE, at):
                yield piece
                at += len(piece)

    def _path(self, name: str) -> Path:
        # It stands in a database where a bit may have changed: it must not lead elsewhere.
        return self.folder / (Path(name).name or _SUFFIX)

    def _check_size(self, fd: int, filed: Filed, nbytes: int) -> None:
        size = os.fstat(fd).st_size
        if size != nbytes:
            raise LogDamaged(f"{self.folder.name}/{filed.name} has {size} bytes, of {nbytes} that it should")

    @contextmanager
    def _opened(self, filed: Filed) -> Iterator[int]:
        with _told(self.folder):
            try:
                fd = open_file(self._path(filed.name), os.O_RDONLY)
            except FileNotFoundError as error:
                raise LogDamaged(f"{self.folder.name}/{filed.name} is gone") from error
            try:
                yield fd
            finally:
                os.close(fd)


def _write(fd: int, parts: Iterable[Buffer], nbytes: int) -> int:
    """All of it, and synced: its checksum."""
    os.posix_fallocate(fd, 0, nbytes)  # a full disk is found before, not in the middle
    check = written = synced = 0
    for part in parts:
        view = memoryview(part)
        while view:
            piece = view[: os.write(fd, view[:_PIECE])]
            check = crc32c(piece, check)
            view = view[len(piece) :]
            written += len(piece)
            if written - synced >= _SYNC_EVERY:
                os.fdatasync(fd)
                synced = written
    if written != nbytes:
        raise LogDamaged(f"a payload of {nbytes} bytes, of which {written} are there")
    os.fsync(fd)
    return check


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    """The system's errors in our words."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise LogFull(f"no room on the disk for a dead letter in {folder}") from error
        raise InternalError(f"the dead letters in {folder} cannot be written or read: {error}") from error
