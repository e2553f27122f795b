"""What messages may take: within retention, and all but the disk's last room, which is for state."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from transfer.log.retention import Retention
from transfer.transports.errors import LogFull

#: bytes of the disk that messages leave to state at most: acknowledgements go on when it is full
_SPARE = 4 << 20


class Room:
    """To be used with the journal's lock. full: is set when a message was refused. lacking: bytes that were
    wanted then beyond retention. starved: the disk had no room for it."""

    def __init__(self, folder: Path, retention: Retention, segment_bytes: int) -> None:
        self.full = threading.Event()
        self.lacking = 0
        self.starved = False
        self._folder = folder
        self.retention = retention
        self._spare = min(_SPARE, segment_bytes)

    def is_within_retention(self, nbytes: int, taken: int) -> bool:
        """Whether retention allows so many bytes more than those that the log takes."""
        limit = self.retention.bytes
        return limit is None or not nbytes or taken + nbytes <= limit

    def check_retention(self, nbytes: int, taken: int) -> None:
        """Raises LogFull if it does not."""
        if not self.is_within_retention(nbytes, taken):
            self.lacking = max(self.lacking, nbytes)
            self.full.set()
            raise LogFull(
                f"the log takes {taken} bytes of {self.retention.bytes}, and {nbytes} more are wanted",
                hint="consumers have to acknowledge, or the retention's bytes have to be more",
            )

    def is_on_disk(self, nbytes: int) -> bool:
        """Whether so many bytes more leave the disk's last room."""
        if not nbytes:
            return True
        found = os.statvfs(self._folder)
        return found.f_bavail * found.f_frsize >= nbytes + self._spare

    def check_disk(self, nbytes: int) -> None:
        """Raises LogFull if they do not."""
        if not self.is_on_disk(nbytes):
            self.starved = True
            self.full.set()
            raise LogFull(
                f"no room on the disk for {nbytes} bytes more",
                hint="free some, or let consumers acknowledge: the last room is kept for that",
            )
