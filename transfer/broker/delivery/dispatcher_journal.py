"""The journal of direct delivery: its events in the log, written and read again after a restart."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from transfer.broker.core.dispatcher_events import DispatcherState, Event, decode, encode
from transfer.transports.errors import LogDamaged

if TYPE_CHECKING:
    from transfer.log import Log

#: the log's topic that holds the events
TOPIC = "broker/direct"
_SNAPSHOT = b"broker/direct"
_READER = "broker"
_LENGTH = struct.Struct("<I")
_PLACE = struct.Struct("<Q")


def pack(events: Iterable[Event]) -> bytes:
    """Packs events into one record."""
    return b"".join(_LENGTH.pack(len(one)) + one for one in map(encode, events))


def unpack(data: bytes | memoryview) -> Iterator[Event]:
    """Yields the events of a record. Raises LogDamaged."""
    at = 0
    while at < len(data):
        if at + _LENGTH.size > len(data):
            raise LogDamaged("a record of direct delivery is cut short")
        (size,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size + size
        yield decode(data[at - size : at])


class DispatcherJournal:
    """Writes and reads the journal, on the broker's loop. grown: events since the last snapshot."""

    def __init__(self, log: Log) -> None:
        self.grown = 0
        self._log = log
        log.acknowledge(
            TOPIC, _READER, log.groups(TOPIC).get(_READER, 0)
        )  # retention removes nothing before a snapshot

    def write(self, events: list[Event]) -> int:
        """Appends events and returns the record's sequence. Raises LogFull."""
        sequence, _ = self._log.append(TOPIC, pack(events))
        self.grown += len(events)
        return sequence

    def snapshot(self, state: DispatcherState) -> int:
        """Writes a snapshot, after which earlier events are not needed. Returns the last record's sequence.
        Raises LogFull."""
        _, end = self._log.range(TOPIC)
        self._log.put(_SNAPSHOT, _PLACE.pack(end) + pack(state.snapshot()))
        sequence = self._log.acknowledge(TOPIC, _READER, end)
        self.grown = 0
        return sequence

    def load(self) -> DispatcherState:
        """Reads the state of before the restart. Raises LogDamaged."""
        state, place = DispatcherState(), 0
        value = self._log.get(_SNAPSHOT)
        if value is not None:
            (place,) = _PLACE.unpack_from(value)
            for event in unpack(value[_PLACE.size :]):
                state.apply(event)
        _, end = self._log.range(TOPIC)
        while place < end:
            for record in self._log.read(TOPIC, place):
                for event in unpack(record.body):
                    state.apply(event)
                    self.grown += 1
                place = record.offset + 1
        return state
