"""The receiver's side of shared memory: what a peer announced, checked before it is touched."""

from __future__ import annotations

import fcntl
import os
from typing import Any

from transports.errors import ProtocolError
from transports.local.segments import FREE, MOST_SLOTS, PAGE

#: announcements of one peer; a sender that is well needs a few dozen
MOST_MAPPED = 4096


def check_descriptor(fd: int, size: int) -> None:
    """Refuses what could shrink under a view, or is no shared memory at all. Raises ProtocolError."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise ProtocolError("descriptor", "the peer sent a descriptor that is no memfd") from error
    if not seals & fcntl.F_SEAL_SHRINK:
        raise ProtocolError("descriptor", "the peer sent shared memory that is not sealed")
    if os.fstat(fd).st_size != size:
        raise ProtocolError("descriptor", f"the peer sent shared memory that is not {size} bytes long")


def _mapped(core: Any, fd: int, size: int, *, private: bool = False) -> memoryview:
    try:
        return memoryview(core.Mapping(fd, size, private=private))
    except (OSError, ValueError, OverflowError) as error:
        raise ProtocolError("descriptor", f"{size} bytes of shared memory cannot be mapped") from error


class MappedSegment:
    """A sender's segment of slots (see segments.py), mapped here."""

    def __init__(self, core: Any, fd: int, size: int, slot_size: int) -> None:
        if slot_size < PAGE or slot_size % PAGE or not PAGE < size <= PAGE + MOST_SLOTS * slot_size:
            raise ProtocolError("descriptor", f"a segment of {size} bytes with slots of {slot_size}")
        check_descriptor(fd, size)
        self.slot_size = slot_size
        self.size = size
        self.memory = _mapped(core, fd, size)
        self._core = core
        self._pid = os.getpid()
        self._out: set[int] = set()

    def fetch(self, offset: int, length: int) -> Any:
        """The payload as a region, whose end gives the slot back. Raises ProtocolError."""
        index, rest = divmod(offset - PAGE, self.slot_size)
        if rest or index < 0 or not 0 < length <= self.slot_size or offset + length > self.size:
            raise ProtocolError("reference", f"{length} bytes at {offset} are no slot of this segment")
        if index in self._out:
            raise ProtocolError("reference", "a slot whose payload is still in use here")
        self._out.add(index)
        return self._core.Region(self.memory[offset : offset + length], lambda: self._release(index))

    def _release(self, index: int) -> None:
        # A forked child has the mapping too, and its copies of the views end some day.
        if self._pid == os.getpid():
            self._out.discard(index)
            self.memory[index] = FREE


class MappedBlock:
    """A block of a sender's pool (see blocks.py). The descriptor stays, for private mappings."""

    def __init__(self, core: Any, fd: int, size: int) -> None:
        check_descriptor(fd, size)
        self._core = core
        self.size = size
        self._fd = os.dup(fd)
        self._memory: memoryview | None = None

    def view(self, offset: int, length: int, private: bool) -> memoryview:
        """So many of the block's bytes: the sender's own, or a copy on write. Raises ProtocolError."""
        if not 0 < length <= self.size - offset:
            raise ProtocolError("reference", f"{length} bytes at {offset} of a block of {self.size}")
        if private:
            return _mapped(self._core, self._fd, self.size, private=True)[offset : offset + length]
        if self._memory is None:
            self._memory = _mapped(self._core, self._fd, self.size)
        return self._memory[offset : offset + length]

    def close(self) -> None:
        """Views that are out stay good. Idempotent."""
        fd, self._fd = self._fd, -1
        self._memory = None
        if fd >= 0:
            os.close(fd)
