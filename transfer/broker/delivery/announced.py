"""Bytes of payloads that were announced and have not arrived: how many there may be. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from transfer.transports.errors import LogFull

#: payloads up to so many bytes are not counted: a connection has one of them, which takes no room yet
UNCOUNTED = 1 << 20


@dataclass(frozen=True, slots=True)
class AnnouncedLimits:
    """Bytes that were announced, are to be kept, and have not arrived. per_connection: of one connection, or
    of one program that uses the broker's own protocol. total: of all."""

    per_connection: int = 64 << 30
    total: int = 256 << 30


class Announced:
    """What all publishers have announced. nbytes: of it, what has not arrived."""

    def __init__(self, limits: AnnouncedLimits) -> None:
        self.nbytes = 0
        self._limits = limits
        self._by_source: Counter[object] = Counter()

    def fits(self, nbytes: int) -> bool:
        """Whether so many more are within the limit of all."""
        return self.nbytes + nbytes <= self._limits.total

    def add(self, source: object, nbytes: int) -> Announcement:
        """A payload that a connection announces. Raises LogFull, which says whose limit it is."""
        if self._by_source[source] + nbytes > self._limits.per_connection:
            raise LogFull(
                f"{nbytes} bytes are announced, where {self._by_source[source]} are missing already",
                hint="send what was announced first, or raise publish.announced_per_connection",
            )
        if not self.fits(nbytes):
            raise LogFull(
                f"{nbytes} bytes are announced, where all publishers together owe {self.nbytes} already",
                hint="try again, or raise publish.announced_total",
            )
        return Announcement(self, source, nbytes)

    def change(self, source: object, nbytes: int) -> None:
        """So many bytes more are missing, or fewer."""
        self.nbytes += nbytes
        self._by_source[source] += nbytes
        if not self._by_source[source]:
            del self._by_source[source]


class Announcement:
    """One payload, until its last byte has arrived."""

    def __init__(self, announced: Announced, source: object, nbytes: int) -> None:
        self._announced = announced
        self._source = source
        self._missing = nbytes
        announced.change(source, nbytes)

    def arrived(self, nbytes: int) -> None:
        """The next bytes."""
        self._missing -= nbytes
        self._announced.change(self._source, -nbytes)

    def end(self) -> None:
        """The rest will not come. Idempotent."""
        self.arrived(self._missing)
