"""Which segments of a log may go: the oldest ones, and none with a message that a group has not acknowledged.

Pure: no files, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from transfer.transports.arguments import whole
from transfer.transports.errors import OptionError

NANOSECONDS = 1_000_000_000
#: bytes of a segment, if its log has no limit, or a large one
SEGMENT_BYTES = 64 << 20
#: a segment takes this part of what the log may take, so that what is not needed goes in small steps
_PARTS = 16
#: bytes that a log may take at least
SMALLEST_LOG = 1 << 20


@dataclass(frozen=True, slots=True)
class Retention:
    """When old messages go; without any of these nothing does. Whole segments go, the oldest first.

    bytes: what the log takes at most. age: seconds that a message is kept. acknowledged: all groups of its
    topic have acknowledged it (a topic without groups keeps its messages for the others' sake).
    A message that a group has not acknowledged stays, whatever the limits say. A topic that was dropped keeps
    nothing.
    """

    bytes: int | None = None
    age: float | None = None
    acknowledged: bool = False

    def too_old(self, newest: int, now: int) -> bool:
        """Whether messages go of which the newest one is of this time; both are nanoseconds."""
        return self.age is not None and now - newest > self.age * NANOSECONDS


def segment_size(limit: int | None) -> int:
    """Bytes of a segment of a log that may take so many; None: any number. Raises OptionError: too few."""
    if limit is None:
        return SEGMENT_BYTES
    whole(limit, "the limit of bytes")
    if limit < SMALLEST_LOG:
        raise OptionError(
            f"a log that may take {limit} bytes is too small",
            hint=f"retention needs {SMALLEST_LOG} at least (1 MiB)",
        )
    return min(SEGMENT_BYTES, limit // _PARTS)


class Facts(Protocol):
    """What is asked of a segment; see `segment.Segment`."""

    first: int
    newest: int
    pins: int

    @property
    def ends(self) -> Mapping[int, int]: ...

    @property
    def disk_bytes(self) -> int: ...


def removable(
    segments: Sequence[Facts],
    retention: Retention,
    now: int,
    acknowledged: Callable[[int], int | None],
    *,
    wanted: int = 0,
) -> int:
    """How many of the oldest segments may go; never the last one.

    acknowledged(topic): the offset before which all of its groups have acknowledged; None: it has no group.
    now: nanoseconds. wanted: bytes that have to be free beneath the limit.
    """
    total = sum(segment.disk_bytes for segment in segments) + wanted
    count = 0
    for number, segment in enumerate(segments[:-1]):
        over = retention.bytes is not None and total > retention.bytes
        old = retention.too_old(segment.newest, now)
        if segment.pins or not (over or old or retention.acknowledged):
            break  # before its topics are asked for, which may be very many
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
