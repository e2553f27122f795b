"""A flag that a selector can wait for."""

from __future__ import annotations

import os

from transfer.transports.descriptors import descriptor_error


class Wake:
    """Readable while set. An eventfd on Linux, elsewhere a pipe. Not thread-safe: its owner locks."""

    __slots__ = ("_read", "_write", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._read = self._write = -1
        try:
            self._open()
        except OSError as error:
            raise descriptor_error(error, "no descriptors left for a socket") from error

    def _open(self) -> None:
        if hasattr(os, "eventfd"):
            self._read = self._write = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        else:
            self._read, self._write = os.pipe()
            os.set_blocking(self._read, False)
            os.set_blocking(self._write, False)

    def fileno(self) -> int:
        return self._read

    def set(self) -> None:
        """Idempotent; nothing after `close`."""
        if not self.is_set and self._write >= 0:
            self.is_set = True
            os.write(self._write, b"\1\0\0\0\0\0\0\0")  # an eventfd takes just eight bytes

    def clear(self) -> None:
        """Idempotent; nothing after `close`."""
        if self.is_set and self._read >= 0:
            self.is_set = False
            os.read(self._read, 8)

    def close(self) -> None:
        """Idempotent."""
        for fd in {self._read, self._write} - {-1}:
            os.close(fd)
        self._read = self._write = -1
