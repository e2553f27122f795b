"""The limits for messages: retention, and the disk's last room, which is reserved for state."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from transfer.log.retention import Retention
from transfer.transports.errors import LogFull

#: most bytes of the disk that are reserved for state, so that acknowledgements work when the disk is full
_SPARE = 4 << 20


class Room:
    """Checks the room for messages. Use it with the journal's lock.

    full: set when a message is refused. lacking: bytes that did not fit into retention. starved: the disk had
    no room for it.
    """

    def __init__(self, folder: Path, retention: Retention, segment_bytes: int) -> None:
        self.full = threading.Event()
        self.lacking = 0
        self.starved = False
        self._folder = folder
        self.retention = retention
        self._spare = min(_SPARE, segment_bytes)

    def is_within_retention(self, nbytes: int, taken: int) -> bool:
        """Whether retention allows `nbytes` more than the `taken` bytes of the log."""
        limit = self.retention.bytes
        return limit is None or not nbytes or taken + nbytes <= limit

    def check_retention(self, nbytes: int, taken: int) -> None:
        """Raises LogFull if retention does not allow `nbytes` more bytes."""
        if not self.is_within_retention(nbytes, taken):
            self.lacking = max(self.lacking, nbytes)
            self.full.set()
            raise LogFull(
                f"the log takes {taken} bytes of {self.retention.bytes}, and needs {nbytes} more",
                hint="let consumers acknowledge, or raise the bytes of retention",
            )

    def is_on_disk(self, nbytes: int) -> bool:
        """Whether the disk has room for `nbytes` more bytes, apart from the room for state."""
        if not nbytes:
            return True
        found = os.statvfs(self._folder)
        return found.f_bavail * found.f_frsize >= nbytes + self._spare

    def check_disk(self, nbytes: int) -> None:
        """Raises LogFull if the disk has no room for `nbytes` more bytes."""
        if not self.is_on_disk(nbytes):
            self.starved = True
            self.full.set()
            raise LogFull(
                f"no room on the disk for {nbytes} more bytes",
                hint="free disk space, or let consumers acknowledge: some room is reserved for that",
            )
