"""Records what this process does to the files of a folder; see `recorder.c`, which has to be preloaded.

`build` compiles it; a process that runs with it in LD_PRELOAD uses `Recorder`.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

SOURCE = Path(__file__).with_name("recorder.c")
#: the environment variable that says where the compiled recorder is
LIBRARY = "TRANSFER_TEST_CRASH_RECORDER"
_RECORD = struct.Struct("=IIQQQQ")
#: a mark with this number names the place in the code that syncs next
_SITE = (1 << 64) - 1
_PRODUCT = str(Path(__file__).resolve().parents[2] / "transfer") + os.sep


class Kind(IntEnum):
    """What an operation does; the numbers stand in `recorder.c`."""

    WRITE = 1
    TRUNCATE = 2
    ALLOCATE = 3
    PUNCH = 4
    SYNC_BEGIN = 5
    SYNC_END = 6
    CREATE = 7
    MKDIR = 8
    RENAME = 9
    UNLINK = 10
    MARK = 11
    OPEN = 12
    REFUSED = 13


class Operation(NamedTuple):
    """One operation. data: bytes that were written, or a path, or two with a zero between. site: of a sync,
    the functions of transfer that called for it, the innermost first."""

    kind: Kind
    thread: int
    inode: int
    a: int
    b: int
    data: bytes
    site: str = ""


class Trace(NamedTuple):
    """What happened in a folder. before: its names and inodes when the recording began. marks: what the
    program noted, by the number in its MARK operations."""

    root: str
    before: dict[str, int]
    operations: list[Operation]
    marks: list[Any]


def build(folder: Path) -> Path | None:
    """Compiles the recorder into a folder; None: there is no gcc, or it cannot."""
    target = folder / "recorder.so"
    if not shutil.which("gcc"):
        return None
    words = ["gcc", "-O1", "-shared", "-fPIC", str(SOURCE), "-o", str(target), "-ldl", "-lpthread"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return target if done.returncode == 0 else None


class Recorder:
    """Of this process, one at a time."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(os.environ[LIBRARY])
        self._library.crash_begin.argtypes = [ctypes.c_char_p, ctypes.c_uint]
        self._library.crash_know.argtypes = [ctypes.c_uint64]
        self._library.crash_mark.argtypes = [ctypes.c_uint64, ctypes.c_char_p]
        self._library.crash_end.restype = ctypes.c_size_t
        self._marks: list[Any] = []

    def mark(self, what: Any) -> None:
        """Notes what the program tries, or what it was answered. Any thread."""
        self._marks.append(what)
        self._library.crash_mark(len(self._marks) - 1, b"")

    def site(self, text: str) -> None:
        """The next sync of this thread is made for this place in the code."""
        self._library.crash_mark(_SITE, text.encode())

    @contextmanager
    def recording(self, root: Path, *, delay: int = 0) -> Iterator[list[Trace]]:
        """Records what the block does in a folder; the list has the trace behind it. delay: microseconds that
        a sync takes."""
        found: list[Trace] = []
        before = {str(path): path.stat().st_ino for path in (root, *root.rglob("*"))}
        self._marks = []
        self._library.crash_begin(str(root).encode(), delay)
        for inode in before.values():
            self._library.crash_know(inode)
        with _named_syncs(self):
            try:
                yield found
            finally:
                data = ctypes.c_void_p()
                size = self._library.crash_end(ctypes.byref(data))
                raw = ctypes.string_at(data.value, size) if size else b""
                found.append(Trace(str(root), before, list(_decoded(raw)), self._marks))


def _decoded(raw: bytes) -> Iterator[Operation]:
    at = 0
    sites: dict[int, str] = {}
    while at < len(raw):
        kind, thread, inode, a, b, size = _RECORD.unpack_from(raw, at)
        at += _RECORD.size
        data = raw[at : at + size]
        at += size
        if kind == Kind.MARK and a == _SITE:
            sites[thread] = data.decode()
            continue
        site = ""
        if kind == Kind.SYNC_BEGIN:
            site = sites.get(thread, "sqlite")
        elif kind == Kind.SYNC_END:
            site = sites.pop(thread, "sqlite")
        yield Operation(Kind(kind), thread, inode, a, b, data, site)


@contextmanager
def _named_syncs(recorder: Recorder) -> Iterator[None]:
    """Python's syncs say which functions of transfer called for them; SQLite's cannot."""
    real = os.fsync, os.fdatasync

    def named(sync: Any) -> Any:
        def call(fd: int) -> None:
            recorder.site(_caller())
            sync(fd)

        return call

    os.fsync, os.fdatasync = named(real[0]), named(real[1])
    try:
        yield
    finally:
        os.fsync, os.fdatasync = real


def _caller() -> str:
    """The functions of transfer on the way to a sync, from the innermost out: three of them."""
    frame = sys._getframe(2)
    found: list[str] = []
    while frame is not None and len(found) < 3:
        path = frame.f_code.co_filename
        if path.startswith(_PRODUCT):
            found.append(f"{Path(path).stem}.{frame.f_code.co_qualname}")
        frame = frame.f_back  # type: ignore[assignment]
    return "<".join(found)
