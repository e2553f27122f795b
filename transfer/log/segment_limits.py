"""The sizes of a log's segments, from its options and its limit of bytes."""

from __future__ import annotations

from dataclasses import dataclass

#: a segment's blobs take at most this many times the bytes of its records, unless a single blob takes more
_BLOBS = 16
#: a segment's records, or its blobs, take at most this part of retention's bytes, unless a single blob or the
#: state takes more: retention never removes the last segment
_SHARE = 8
#: a segment takes at least this many times the bytes of the state that it begins with
_STATE_SHARE = 4
#: bytes of a segment on an almost full disk, in addition to the state
_SCARCE = 64 << 10


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """Computes segments' sizes.

    segment_bytes: bytes of a segment's records. total: the log's limit of bytes, or None. largest: the most
    bytes of any segment.
    """

    segment_bytes: int
    total: int | None
    largest: int

    @property
    def blobs(self) -> int:
        """Most bytes of a segment's blobs, unless a single one takes more."""
        most = _BLOBS * self.segment_bytes
        return most if self.total is None else min(most, max(self.segment_bytes, self.total // _SHARE))

    def records(self, state: int, size: int) -> int:
        """Returns the size of a segment that begins with `state` bytes and has room for `size` bytes.
        Much state makes it larger: with very many topics it would otherwise hold only state."""
        most = self.largest if self.total is None else min(self.largest, self.total // _SHARE)
        # At least one byte stays free: a file without free room is that of a sealed segment.
        return max(self.segment_bytes, state + size + 1, min(_STATE_SHARE * state, most))

    def scarce(self, state: int, size: int) -> int:
        """Returns the size of a segment for state only, on a disk without room for a full-size one."""
        return min(self.segment_bytes, 2 * state + size + _SCARCE)

    def too_large(self, free: int) -> bool:
        """Whether a segment with this many free bytes was made under an earlier, larger limit."""
        return self.total is not None and free > max(2 * self.segment_bytes, self.total // _SHARE)
