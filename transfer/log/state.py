"""The log's internal state: topics, offsets of groups, discarded blobs.

Its keys begin with a zero; users' keys do not.
"""

from __future__ import annotations

from transfer.log.index import LogTopic
from transfer.log.record import Record, RecordFlag, state_of
from transfer.transports.errors import LogDamaged

#: topics by number, offsets of groups by number and name, ends of ranges of offsets whose blobs were
#: discarded by number and begin
TOPIC, _GROUP, _DISCARDED = b"\0t", b"\0g", b"\0d"
_REMOVED = int(RecordFlag.REMOVED)  # members of an enumeration are slow, and there may be millions of records
#: the highest number of any topic, as of the last drop
HIGHEST = b"\0n"


def topic_key(number: int) -> bytes:
    """Returns the key of a topic's state."""
    return TOPIC + number.to_bytes(4, "little")


def topic_value(topic: LogTopic) -> bytes:
    """Returns the value of a topic's state: the next offset and the name."""
    return topic.end.to_bytes(8, "little") + topic.name.encode()


def group_key(number: int, group: str) -> bytes:
    """Returns the key of a group's offset in a topic."""
    return _GROUP + number.to_bytes(4, "little") + group.encode()


def discarded_key(number: int, begin: int) -> bytes:
    """Returns the key of a range of a topic's discarded blobs; its value is the end of the range."""
    return _DISCARDED + number.to_bytes(4, "little") + begin.to_bytes(8, "little")


def forget_topic(state: dict[bytes, bytes], number: int) -> None:
    """Removes the groups and discarded ranges of a dropped topic from the state, without further records."""
    number_bytes = number.to_bytes(4, "little")
    for key in [key for key in state if key[:2] in (_GROUP, _DISCARDED) and key[2:6] == number_bytes]:
        del state[key]


def number_of(key: bytes) -> int:
    """Returns the topic number in one of the log's internal keys."""
    return int.from_bytes(key[2:6], "little")


def discard_of(record: Record) -> tuple[int, int, int] | None:
    """Returns (topic, begin, end) of the blobs that a record of state discards; None: it discards none."""
    key, value = state_of(record.body)
    if record.flags & RecordFlag.REMOVED:
        return (number_of(key), 0, 1 << 64) if key.startswith(TOPIC) else None
    if not key.startswith(_DISCARDED):
        return None
    return number_of(key), int.from_bytes(key[6:], "little"), int.from_bytes(value, "little")


def take_state(record: Record, state: dict[bytes, bytes], topics: dict[int, LogTopic]) -> None:
    """Applies a record to the state and the topics during recovery. Raises LogDamaged."""
    key, value = state_of(record.body)
    removed = record.flags & _REMOVED
    if key.startswith(TOPIC):
        number, end = number_of(key), int.from_bytes(value[:8], "little")
        if removed:
            forget_topic(state, number)
            topics.pop(number, None)
        else:
            topic = topics.get(number)
            if topic is None:
                topic = topics[number] = LogTopic(value[8:].decode(), number)
            topic.end = max(topic.end, end)
        return
    if removed:
        state.pop(key, None)
    else:
        state[key] = value
    if key.startswith(_GROUP):
        group = key[6:].decode()
        groups = _topic_of(key, topics, f"group {group!r}").groups
        if removed:
            groups.pop(group, None)
        else:
            groups[group] = int.from_bytes(value, "little")


def _topic_of(key: bytes, topics: dict[int, LogTopic], what: str) -> LogTopic:
    topic = topics.get(number_of(key))
    if topic is None:
        raise LogDamaged(
            f"the record of topic number {number_of(key)} is lost, but not that of its {what}",
            hint="restore the file; opening with repair=True cuts it off before the first damaged record",
        )
    return topic


def take_discarded(state: dict[bytes, bytes], topics: dict[int, LogTopic]) -> None:
    """Merges the ranges of discarded blobs: a crash may have left ranges within others. Raises LogDamaged."""
    ranges = {key: value for key, value in state.items() if key.startswith(_DISCARDED)}
    for key, value in ranges.items():
        del state[key]
        topic = _topic_of(key, topics, "discarded blobs")
        begin, end = int.from_bytes(key[6:], "little"), int.from_bytes(value, "little")
        topic.discarded = topic.discarded.joined(begin, min(end, topic.end))
    for topic in topics.values():
        for begin, end in topic.discarded:
            state[discarded_key(topic.number, begin)] = end.to_bytes(8, "little")
