"""How large the segments of a log are, by its options and by what it may take. Pure."""

from __future__ import annotations

from dataclasses import dataclass

#: a segment's blobs take so many times the bytes of its records at most, unless one alone takes more
_BLOBS = 16
#: a segment's records, or its blobs, take this part of what retention allows at most, unless one blob or the
#: state alone takes more: the last segment never goes
_SHARE = 8
#: a segment takes at least so many times the bytes of the state that it begins with
_STATE_SHARE = 4
#: bytes of a segment on a disk that has little room, beside the state
_SCARCE = 64 << 10


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """segment_bytes: of a segment's records. total: what the log may take, or None. largest: bytes that any
    segment has at most."""

    segment_bytes: int
    total: int | None
    largest: int

    @property
    def blobs(self) -> int:
        """Bytes of a segment's blobs, unless one alone takes more."""
        most = _BLOBS * self.segment_bytes
        return most if self.total is None else min(most, max(self.segment_bytes, self.total // _SHARE))

    def records(self, state: int, size: int) -> int:
        """Bytes of a segment that begins with so much state and has room for `size` bytes: with very many
        topics it would be nothing but state, if it were not larger then."""
        most = self.largest if self.total is None else min(self.largest, self.total // _SHARE)
        # One byte at least stays free: a file that its records fill is that of an older segment.
        return max(self.segment_bytes, state + size + 1, min(_STATE_SHARE * state, most))

    def scarce(self, state: int, size: int) -> int:
        """Bytes of a segment for state alone, on a disk that has no room for another one."""
        return min(self.segment_bytes, 2 * state + size + _SCARCE)

    def too_large(self, free: int) -> bool:
        """Whether a segment with so many free bytes is one of a larger limit of before."""
        return self.total is not None and free > max(2 * self.segment_bytes, self.total // _SHARE)
