"""The state of groups in the log: summaries, and a journal of the changes since them.

A record of the journal holds changes of several groups. The log's state holds each group's number, name and
begin, and its last summary, with the place in the journal from which changes apply to it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from transfer.broker.core.groups import Change, GroupEventKind
from transfer.transports.errors import LogDamaged

if TYPE_CHECKING:
    from transfer.log import Log

#: the log's topic that holds the changes
TOPIC = "broker/changes"
_GROUP, _SUMMARY = b"broker/group/", b"broker/summary/"
#: when a group was last in use: milliseconds since 1970
_ACTIVE = b"broker/active/"
_CHANGES = struct.Struct("<II")
_CHANGE = struct.Struct("<BIQQ")
_SUMMARY_HEAD = struct.Struct("<QQ")
_READER = "broker"


class GroupIdentity(NamedTuple):
    """The identity of a group: its number, topic, name and first offset."""

    number: int
    topic: str
    name: str
    begin: int


def encode_changes(changes: Iterable[tuple[int, list[Change]]]) -> bytes:
    """Encodes (number of a group, its changes) pairs as a record of the journal."""
    parts = []
    for number, of_group in changes:
        parts.append(_CHANGES.pack(number, len(of_group)))
        parts.extend(_CHANGE.pack(one.kind, one.attempt, one.begin, one.end) for one in of_group)
    return b"".join(parts)


def decode_changes(body: bytes | memoryview) -> Iterator[tuple[int, Change]]:
    """Yields (number of the group, change) of a record, in order. Raises LogDamaged."""
    at = 0
    try:
        while at < len(body):
            number, count = _CHANGES.unpack_from(body, at)
            at += _CHANGES.size
            for _ in range(count):
                kind, attempt, begin, end = _CHANGE.unpack_from(body, at)
                at += _CHANGE.size
                yield number, Change(GroupEventKind(kind), begin, end, attempt)
    except (struct.error, ValueError) as error:
        raise LogDamaged(f"a record of the groups' journal cannot be decoded: {error}") from error


class GroupJournal:
    """Stores the groups' state in a log. On the broker's loop."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._written = 0  # changes since the last summaries
        # The log keeps the journal until a summary acknowledges it.
        log.acknowledge(TOPIC, _READER, log.groups(TOPIC).get(_READER, 0))

    @property
    def grown(self) -> int:
        """Number of changes in the journal since the last summaries."""
        return self._written

    def groups(self) -> list[GroupIdentity]:
        """Returns all known groups."""
        found = []
        for key, value in list(self._log.state.items()):
            if key.startswith(_GROUP):
                words = json.loads(value)
                number = int.from_bytes(key[len(_GROUP) :], "big")
                found.append(GroupIdentity(number, words["topic"], words["name"], words["begin"]))
        return sorted(found)

    def add(self, group: GroupIdentity) -> int:
        """Adds a group; returns the record's sequence. A removed group may have had the same number."""
        self.reset(group.number, group.begin)
        words = {"topic": group.topic, "name": group.name, "begin": group.begin}
        return self._log.put(_GROUP + group.number.to_bytes(4, "big"), json.dumps(words).encode())

    def remove(self, number: int) -> int:
        """Removes a group; returns the record's sequence."""
        key = number.to_bytes(4, "big")
        self._log.remove(_GROUP + key)
        self._log.remove(_ACTIVE + key)
        return self._log.remove(_SUMMARY + key)

    def reset(self, number: int, cursor: int) -> int:
        """Sets a group's state: all before `cursor` is done, nothing after it.
        Returns the record's sequence."""
        _, end = self._log.range(TOPIC)
        return self._log.put(_SUMMARY + number.to_bytes(4, "big"), _SUMMARY_HEAD.pack(end, cursor))

    def active(self, number: int, unix_ms: int) -> int:
        """Records when the group was last in use; returns the record's sequence."""
        return self._log.put(_ACTIVE + number.to_bytes(4, "big"), unix_ms.to_bytes(8, "little"))

    def active_of(self, number: int) -> int | None:
        """Returns when the group was last in use; None: not recorded."""
        value = self._log.get(_ACTIVE + number.to_bytes(4, "big"))
        return int.from_bytes(value, "little") if value is not None else None

    def write(self, changes: Iterable[tuple[int, list[Change]]]) -> int:
        """Appends changes; returns the record's sequence. Raises LogFull."""
        changes = list(changes)
        sequence, _ = self._log.append(TOPIC, encode_changes(changes))
        self._written += sum(len(of_group) for _, of_group in changes)
        return sequence

    def summarize(self, summaries: Iterable[tuple[int, int, list[Change]]]) -> int:
        """Stores (number, cursor, summary) of all groups, and frees the journal so far.
        Returns the last record's sequence. Raises LogFull when the disk is full."""
        _, end = self._log.range(TOPIC)
        for number, cursor, summary in summaries:
            value = _SUMMARY_HEAD.pack(end, cursor) + encode_changes([(number, summary)])
            self._log.put(_SUMMARY + number.to_bytes(4, "big"), value)
        sequence = self._log.acknowledge(TOPIC, _READER, end)
        self._written = 0
        return sequence

    def summary(self, number: int) -> tuple[int, int, list[Change]] | None:
        """Returns (place in the journal, cursor, changes) of a group's last summary."""
        value = self._log.get(_SUMMARY + number.to_bytes(4, "big"))
        if value is None:
            return None
        place, cursor = _SUMMARY_HEAD.unpack_from(value)
        return place, cursor, [change for _, change in decode_changes(value[_SUMMARY_HEAD.size :])]

    def read(self) -> Iterator[tuple[int, int, Change]]:
        """Yields (place, group's number, change) of all changes after the oldest summary."""
        place, end = self._log.groups(TOPIC).get(_READER, 0), self._log.range(TOPIC)[1]
        while place < end:
            for record in self._log.read(TOPIC, place):
                for number, change in decode_changes(record.body):
                    self._written += 1
                    yield record.offset, number, change
                place = record.offset + 1
