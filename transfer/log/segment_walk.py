"""Walks the records of a segment's file and the damage in it; repairs one wrong bit of a short record."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from transfer.log.damage import Gap, Known, repair_bit, walk
from transfer.log.disk import disk_errors
from transfer.log.record import Record, decode
from transfer.log.segment import Segment

_log = logging.getLogger("transfer.log")


def walk_repaired(segment: Segment, known: Known) -> Iterator[Record | Gap]:
    """Walks a segment as `walk` does; repairs one wrong bit of a short record, in the file too."""
    for found in walk(segment.memory, segment.find, segment.first, known):
        if isinstance(found, Gap) and found.following == found.sequence + 1:
            whole = repair_bit(bytes(segment.memory[found.position : found.end]), found.sequence)
            if whole is not None:
                with disk_errors():
                    segment.write(found.position, whole)
                _log.error("record %d of %s had a wrong bit, which is repaired", found.sequence, segment.path)
                record = decode(segment.memory, found.position)
                if record is not None:
                    yield record
                    continue
        if isinstance(found, Gap):
            _log.error("%s", describe(found, segment))
        yield found


def describe(gap: Gap, segment: Segment) -> str:
    """Returns a text about damaged records."""
    many = f"records {gap.sequence} to {gap.following - 1}"
    one = f"record {gap.sequence}"
    return (
        f"{one if gap.following == gap.sequence + 1 else many} of {segment.path.name} damaged at byte "
        f"{gap.position}, though synced" + (": that message is lost" if gap.header is not None else "")
    )
