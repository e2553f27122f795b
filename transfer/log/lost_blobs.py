"""Finds messages whose blobs are missing: their file is missing or truncated."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

from transfer.log.damage import Damage
from transfer.log.index import LogTopic
from transfer.log.ranges import consecutive
from transfer.log.record import BLOB, RecordFlag, decode
from transfer.log.segment import Segment
from transfer.log.segment_files import BLOBS

_log = logging.getLogger("transfer.log")

#: most damages that are logged; the log's `damage` has all of them
_MAX_LOGGED = 10


def lost_blobs(segments: Sequence[Segment], topics: Mapping[int, LogTopic]) -> list[Damage]:
    """Returns the lost blobs. Reads records only if an index shows that a blob file is too short."""
    sizes = {segment.first: segment.blob_size for segment in segments}
    short: dict[int, set[int]] = {}  # by topic: the segments whose messages have such blobs
    for segment in segments:
        for (first, number), use in segment.uses.items():
            if first in sizes and use.nbytes > sizes[first] and number in topics:
                short.setdefault(number, set()).add(segment.first)
    by_first = {segment.first: segment for segment in segments}
    found = []
    for number, its in short.items():
        topic = topics[number]
        lost = dict(_lost(topic, {first: by_first[first] for first in its}, sizes))
        for begin, end in consecutive(lost):
            name = by_first[lost[begin]].path.with_suffix(BLOBS).name
            which = f"the blobs of messages {begin} to {end - 1} of topic {topic.name!r}"
            found.append(Damage(f"{which} are lost: {name} lacks them", topic.name, begin, end))
    for damage in found[:_MAX_LOGGED]:
        _log.error("%s", damage.text)
    return found


def _lost(
    topic: LogTopic, segments: Mapping[int, Segment], sizes: Mapping[int, int]
) -> Iterator[tuple[int, int]]:
    """Yields (offset, segment of the blob) of a topic's lost blobs, by offset."""
    for run in topic.runs:
        if run.segment not in segments:
            continue
        memory = segments[run.segment].memory
        for offset, position in enumerate(run.positions, run.first):
            record = decode(memory, position, verify=False)
            if record is None or not record.flags & RecordFlag.HAS_BLOB or offset in topic.discarded:
                continue
            first, begin, nbytes, _ = BLOB.unpack_from(record.body)
            if nbytes and begin + nbytes > sizes.get(first, begin + nbytes):
                yield offset, first
