"""Limits on the bytes of payloads that publishers have announced and not sent yet. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from transfer.transports.errors import LogFull

#: payloads up to this size are not counted: a connection has at most one of them, and it takes no room yet
UNCOUNTED = 1 << 20


@dataclass(frozen=True, slots=True)
class AnnouncedLimits:
    """Limits on announced bytes that are to be kept and have not arrived. per_connection: of one connection,
    or of one program that uses the native protocol. total: of all publishers."""

    per_connection: int = 64 << 30
    total: int = 256 << 30


class Announced:
    """Counts the bytes that all publishers have announced. nbytes: those of them that have not arrived."""

    def __init__(self, limits: AnnouncedLimits) -> None:
        self.nbytes = 0
        self._limits = limits
        self._by_source: Counter[object] = Counter()

    def fits(self, nbytes: int) -> bool:
        """Returns whether another `nbytes` bytes are within the total limit."""
        return self.nbytes + nbytes <= self._limits.total

    def add(self, source: object, nbytes: int) -> Announcement:
        """Counts a payload that a connection announces. Raises LogFull, which names the limit that it
        exceeds."""
        if self._by_source[source] + nbytes > self._limits.per_connection:
            raise LogFull(
                f"{nbytes} bytes are announced, while {self._by_source[source]} are still missing",
                hint="send what was announced first, or raise publish.max_announced_per_connection",
            )
        if not self.fits(nbytes):
            raise LogFull(
                f"{nbytes} bytes are announced, while all publishers together owe {self.nbytes} already",
                hint="try again, or raise publish.max_announced",
            )
        return Announcement(self, source, nbytes)

    def change(self, source: object, nbytes: int) -> None:
        """Adds to the missing bytes, or subtracts from them."""
        self.nbytes += nbytes
        self._by_source[source] += nbytes
        if not self._by_source[source]:
            del self._by_source[source]


class Announcement:
    """One announced payload, until its last byte has arrived."""

    def __init__(self, announced: Announced, source: object, nbytes: int) -> None:
        self._announced = announced
        self._source = source
        self._missing = nbytes
        announced.change(source, nbytes)

    def arrived(self, nbytes: int) -> None:
        """Counts the next bytes as arrived."""
        self._missing -= nbytes
        self._announced.change(self._source, -nbytes)

    def end(self) -> None:
        """Gives up the missing bytes: they will not arrive. Idempotent."""
        self.arrived(self._missing)
