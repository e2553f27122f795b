"""Limits the messages in flight of publishers, by pipes from the receivers that do not pass the broker.

So latencies measure the broker, and not the length of a queue.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, wait

from transfer.transports.errors import Again

_COUNT = struct.Struct("<I")


class Pace:
    """A publisher's end. lines: from receivers. in_flight: messages at most; copies: receivers of each."""

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


class PacingSteps:
    """A receiver's end. lines: to each publisher, by its number. every: messages of one report."""

    def __init__(self, lines: Mapping[int, Connection], every: int) -> None:
        self._lines = lines
        self._every = every
        self._unreported = dict.fromkeys(lines, 0)

    def took(self, publisher: int) -> None:
        """Counts a received message of this publisher, and reports several together."""
        unreported = self._unreported[publisher] + 1
        if unreported < self._every:
            self._unreported[publisher] = unreported
            return
        self._unreported[publisher] = 0
        try:
            self._lines[publisher].send_bytes(_COUNT.pack(unreported))
        except OSError:
            return  # the publisher has ended
