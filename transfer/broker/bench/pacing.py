"""How publishers keep step with their receivers, by pipes beside the broker.

A publisher has so many messages on their way at most, so that latencies say how long the broker takes, not
how long a queue has become.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, wait

from transfer.transports.errors import Again

_COUNT = struct.Struct("<I")


class Pace:
    """The publisher's end. lines: from each receiver. in_flight: messages; copies: receivers of each."""

    def __init__(self, lines: Sequence[Connection], in_flight: int, copies: int) -> None:
        self._lines = list(lines)
        self._room = in_flight * copies
        self._copies = copies

    def take(self, patience: float) -> None:
        """Waits for room for one more message. Raises Again after `patience` seconds."""
        while self._room < self._copies:
            ready = wait(self._lines, patience)
            if not ready:
                raise Again(f"receivers took nothing for {patience:g} s")
            for line in ready:
                assert isinstance(line, Connection)
                try:
                    self._room += _COUNT.unpack(line.recv_bytes())[0]
                except EOFError:
                    self._lines.remove(line)
        self._room -= self._copies


class Steps:
    """A receiver's end. lines: to each publisher, by its number. every: messages that are told together."""

    def __init__(self, lines: Mapping[int, Connection], every: int) -> None:
        self._lines = lines
        self._every = every
        self._untold = dict.fromkeys(lines, 0)

    def took(self, publisher: int) -> None:
        """One message of this publisher came."""
        untold = self._untold[publisher] + 1
        if untold < self._every:
            self._untold[publisher] = untold
            return
        self._untold[publisher] = 0
        try:
            self._lines[publisher].send_bytes(_COUNT.pack(untold))
        except OSError:
            return  # it has ended


class Duration:
    """Until when a publisher goes on."""

    def __init__(self, seconds: float) -> None:
        self.begun = time.monotonic()
        self._until = self.begun + seconds

    @property
    def over(self) -> bool:
        """It is time to stop."""
        return time.monotonic() >= self._until
