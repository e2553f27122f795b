"""The receiver's side of shared memory: the peer's announcements, checked before use."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import Any

from transfer.transports.descriptors import descriptor_error
from transfer.transports.errors import ProtocolError
from transfer.transports.shm.segments import MOST_SLOTS, PAGE

#: segments that one peer may have announced at a time; a correct sender needs a few dozen
MOST_SEGMENTS = 1024
#: the same for blocks. Each costs a descriptor, so the sender gives up the oldest ones before
MOST_BLOCKS = 64


def check_descriptor(fd: int, size: int) -> None:
    """Refuses memory that could shrink under a view, or is no shared memory. Raises ProtocolError."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise ProtocolError("descriptor", "the peer sent a descriptor that is no memfd") from error
    if not seals & fcntl.F_SEAL_SHRINK:
        raise ProtocolError("descriptor", "the peer sent shared memory that is not sealed")
    if os.fstat(fd).st_size != size:
        raise ProtocolError("descriptor", f"the peer sent shared memory that is not {size} bytes long")


def _mapped(core: Any, fd: int, size: int, *, private: bool = False) -> Any:
    try:
        return core.Mapping(fd, size, private=private)
    except (OSError, ValueError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno == errno.EMFILE:  # Python's own mmap copies it
            raise descriptor_error(error, "shared memory of a peer cannot be mapped") from error
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            hint = "does a memory limit apply?"
            text = f"{size} bytes of a peer's shared memory cannot be mapped"
            raise ProtocolError("no_memory", text, hint=hint) from error
        raise ProtocolError("descriptor", f"{size} bytes of shared memory cannot be mapped") from error


class MappedSegment:
    """A sender's segment of slots (see segments.py), mapped here."""

    def __init__(self, core: Any, fd: int, size: int, slot: int) -> None:
        count, rest = divmod(size - PAGE, slot) if slot else (0, 0)
        if slot % PAGE or rest or not 1 <= count <= MOST_SLOTS:
            raise ProtocolError("descriptor", f"a segment of {size} bytes with slots of {slot}")
        check_descriptor(fd, size)
        self.slot = slot
        self._slots = core.Slots(_mapped(core, fd, size), PAGE, slot, count)

    def fetch(self, offset: int, length: int) -> Any:
        """The payload as a region, whose end frees the slot. Raises ProtocolError."""
        index, rest = divmod(offset - PAGE, self.slot)
        if rest or not 0 <= index < self._slots.count or not 0 < length <= self.slot:
            raise ProtocolError("reference", f"{length} bytes at {offset} are no slot of this segment")
        # `map`: a signal handler that raised after the call would drop the region, and free the slot.
        [region] = map(self._slots.lend, (index,), (length,))
        if region is None:
            raise ProtocolError("reference", "a slot whose payload is still in use here")
        return region


class MappedBlock:
    """A block of a sender's pool (see blocks.py). The descriptor stays open, for private mappings; if there
    is no room for it, private views are copies."""

    def __init__(self, core: Any, fd: int, size: int) -> None:
        if size < PAGE or size % PAGE:
            raise ProtocolError("descriptor", f"a block of {size} bytes")
        check_descriptor(fd, size)
        self._core = core
        self.size = size
        self._memory: memoryview | None = None
        try:
            self._fd = os.dup(fd)
        except OSError:
            self._fd = -1
            self._memory = memoryview(_mapped(core, fd, size))

    def view(self, offset: int, length: int, private: bool) -> memoryview:
        """`length` bytes of the block: the sender's own memory, or a copy on write. Raises ProtocolError."""
        if not 0 < length <= self.size - offset:
            raise ProtocolError("reference", f"{length} bytes at {offset} of a block of {self.size}")
        if private and self._fd < 0 and self._memory is not None:
            return memoryview(bytearray(self._memory[offset : offset + length]))
        if private:
            mapping = memoryview(_mapped(self._core, self._fd, self.size, private=True))
            return mapping[offset : offset + length]
        if self._memory is None:
            self._memory = memoryview(_mapped(self._core, self._fd, self.size))
        return self._memory[offset : offset + length]

    def close(self) -> None:
        """Existing views stay valid. Idempotent."""
        fd, self._fd = self._fd, -1
        self._memory = None
        if fd >= 0:
            os.close(fd)
