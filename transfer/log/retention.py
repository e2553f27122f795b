"""Chooses the segments that retention removes: the oldest ones, without messages that a group still needs.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transfer.transports.arguments import whole
from transfer.transports.errors import OptionError

if TYPE_CHECKING:
    from transfer.log.segment import Segment

NANOSECONDS = 1_000_000_000
#: bytes of a segment, if its log has no limit, or a large one
SEGMENT_BYTES = 64 << 20
#: a segment takes this part of the log's limit, so that retention frees room in small steps
_PARTS = 16
#: smallest limit of a log in bytes
SMALLEST_LOG = 1 << 20


@dataclass(frozen=True, slots=True)
class Retention:
    """When old messages are removed; without any limit none is. Whole segments are removed, the oldest first.

    bytes: most bytes that the log takes. age: seconds that a message is kept. acknowledged: removes messages
    that all groups of their topic have acknowledged; messages of topics without groups stay.
    No limit removes a message that a group has not acknowledged. A dropped topic keeps no messages.
    """

    bytes: int | None = None
    age: float | None = None
    acknowledged: bool = False

    def too_old(self, newest: int, now: int) -> bool:
        """Whether messages up to time `newest` are too old at time `now`; both in nanoseconds."""
        return self.age is not None and now - newest > self.age * NANOSECONDS


def segment_size(limit: int | None) -> int:
    """Returns the segment size for a log's limit in bytes; None: no limit. Raises OptionError: too small."""
    if limit is None:
        return SEGMENT_BYTES
    whole(limit, "the limit of bytes")
    if limit < SMALLEST_LOG:
        raise OptionError(
            f"a log of at most {limit} bytes is too small",
            hint=f"the limit is at least {SMALLEST_LOG} bytes (1 MiB)",
        )
    return min(SEGMENT_BYTES, limit // _PARTS)


def removable(
    segments: Sequence[Segment],
    retention: Retention,
    now: int,
    acknowledged: Callable[[int], int | None],
    *,
    wanted: int = 0,
) -> int:
    """Returns how many of the oldest segments can be removed; never the last one.

    acknowledged: returns the offset before which all groups of a topic have acknowledged; None: no group.
    now: nanoseconds. wanted: bytes that should be free below the limit.
    """
    total = sum(segment.disk_bytes for segment in segments) + wanted
    count = 0
    for number, segment in enumerate(segments[:-1]):
        over = retention.bytes is not None and total > retention.bytes
        old = retention.too_old(segment.newest, now)
        if segment.pins or not (over or old or retention.acknowledged):
            break  # before checking its topics, which may be very many
        open_ = (
            (done := acknowledged(topic)) is not None and done < end for topic, end in segment.ends.items()
        )
        if any(open_):
            break
        if not (over or old or all(acknowledged(topic) is not None for topic in segment.ends)):
            break
        total -= segment.disk_bytes
        count = number + 1
    return count
