"""Files for payloads of dead letters that are too large for the database. Retention does not apply to them.

A file is written and synced before its letter, and removed after the letter's row. So a crash may leave files
without a letter, which the next start removes, but no letter without its file.
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

from transfer.broker.core.message import Buffer
from transfer.broker.storage.dead_letter import PayloadFile
from transfer.log.disk import make_folder, sync_folder
from transfer.log.private import open_file
from transfer.transports.core import crc32c
from transfer.transports.errors import InternalError, LogDamaged, LogFull

_log = logging.getLogger("transfer.broker")

#: yields the pieces of a large payload; each call begins at the start. Raises LogDamaged
PayloadSource = Callable[[], Iterable[Buffer]]

#: payloads up to this size are stored in the database
INLINE = 64 << 10
#: bytes of one read or write
_PIECE = 4 << 20
#: bytes between two syncs: a sync of the whole file would delay those of other files
_SYNC_EVERY = 64 << 20
_SUFFIX = ".payload"
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


class LetterPayloads:
    """The payload files in a folder, which is made when first needed. Any thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, large: PayloadSource, nbytes: int) -> PayloadFile:
        """Writes a payload of `nbytes` bytes: it is on the disk when this returns. Lets other threads run.
        Does not copy the payload in memory. Raises LogFull, InternalError, LogDamaged."""
        name = uuid.uuid4().hex + _SUFFIX
        with _translated(self.folder):
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
        return PayloadFile(name, check)

    def remove(self, names: Iterable[str]) -> None:
        """Removes files. One that cannot be removed is left to the next start."""
        for name in names:
            try:
                self._path(name).unlink(missing_ok=True)
            except OSError as error:
                _log.warning(
                    "the payload file %s of a removed dead letter cannot be removed: %s", name, error
                )

    def sweep(self, known: Collection[str]) -> int:
        """Removes files without a letter; returns their number. Only at the start, before any write."""
        names = self._names()
        missing = [name for name in known if name not in names]
        if missing:  # a damaged row may name the wrong file: an operator may still need the right one
            _log.error("%d payloads of dead letters are missing, such as %s", len(missing), missing[0])
            return 0
        orphans = names.difference(known)
        self.remove(orphans)
        return len(orphans)

    def _names(self) -> set[str]:
        return {path.name for path in self.folder.glob(f"*{_SUFFIX}")} if self.folder.is_dir() else set()

    def begin(self, filed: PayloadFile, nbytes: int) -> bytes:
        """Returns the first bytes of a payload, unchecked.
        Raises LogDamaged if the file is missing, InternalError."""
        with self._opened(filed) as fd:
            return os.pread(fd, nbytes, 0)

    def view(self, filed: PayloadFile, nbytes: int) -> memoryview:
        """Maps a whole payload, unchecked.
        The view stays valid when the file is removed. Raises as `check`."""
        with self._opened(filed) as fd:
            self._check_size(fd, filed, nbytes)
            return memoryview(mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ))

    def check(self, filed: PayloadFile, nbytes: int) -> None:
        """Verifies a payload of `nbytes` bytes.
        Raises LogDamaged for damage, InternalError for a read error."""
        found = 0
        for piece in self.pieces(filed, nbytes):
            found = crc32c(piece, found)
        if found != filed.check:
            raise LogDamaged(f"{self.folder.name}/{filed.name} is damaged")

    def pieces(self, filed: PayloadFile, nbytes: int) -> Iterator[bytes]:
        """Yields a whole payload in pieces, unchecked. Raises as `check`."""
        with self._opened(filed) as fd:
            self._check_size(fd, filed, nbytes)
            at = 0
            while piece := os.pread(fd, _PIECE, at):
                yield piece
                at += len(piece)

    def _path(self, name: str) -> Path:
        # The name comes from a database that may be damaged: it must not lead out of the folder.
        return self.folder / (Path(name).name or _SUFFIX)

    def _check_size(self, fd: int, filed: PayloadFile, nbytes: int) -> None:
        size = os.fstat(fd).st_size
        if size != nbytes:
            raise LogDamaged(f"{self.folder.name}/{filed.name} has {size} of its {nbytes} bytes")

    @contextmanager
    def _opened(self, filed: PayloadFile) -> Iterator[int]:
        with _translated(self.folder):
            try:
                fd = open_file(self._path(filed.name), os.O_RDONLY)
            except FileNotFoundError as error:
                raise LogDamaged(f"{self.folder.name}/{filed.name} is missing") from error
            try:
                yield fd
            finally:
                os.close(fd)


def _write(fd: int, parts: Iterable[Buffer], nbytes: int) -> int:
    """Writes and syncs a payload; returns its checksum."""
    os.posix_fallocate(fd, 0, nbytes)  # detects a full disk before the first write
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
        raise LogDamaged(f"only {written} bytes of a payload of {nbytes} bytes exist")
    os.fsync(fd)
    return check


@contextmanager
def _translated(folder: Path) -> Iterator[None]:
    """Raises OSErrors as LogFull or InternalError."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise LogFull(f"no room on the disk for a dead letter in {folder}") from error
        raise InternalError(f"the dead letters in {folder} cannot be written or read: {error}") from error
