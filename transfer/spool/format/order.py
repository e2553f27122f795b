"""The order of an epoch: which row of which frame is at which position. Pure, and fixed for ever.

Without a seed the rows are in the order in which they became visible. With one they are shuffled in two
steps,
so that a piece of the order needs only a part of the run: frames are cut into blocks of about 64 KiB, all
blocks are permuted and cut into windows of 128 to 256 (or all, if there are fewer), and the rows of each
window are permuted. So any row may be anywhere. Rows that were neighbours in a block are spread over their
window, 8 to 16 MiB of rows; and 256 consecutive rows come from about 100 blocks or more, of all parts of the
run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transfer.spool.format.rows import Array

BLOCK_BYTES = 64 * 1024
#: most rows in a block, even if they are small: a window's permutation stays at a million rows
BLOCK_ROWS = 4096
#: most blocks in a window
WINDOW = 256
#: windows whose permutation is cached: readers of several ranks are at about the same place
KEPT_WINDOWS = 4

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_BITS = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows start to stop of a frame, in order. place: of the first one in the answer."""

    frame: int
    start: int
    stop: int
    place: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Gather:
    """Rows of one frame, and the place of each in the result. Both int64, of equal length, places rising."""

    frame: int
    rows: Array
    places: Array


@dataclass(frozen=True, slots=True, eq=False)
class _Window:
    """The blocks of a window, and its rows permuted. A row's number in the window counts block after block.

    rows: the row's number for each position. block: the block for each number. frames, shift: for each block
    its frame, and the difference between a number in the frame and one in the window.
    """

    rows: Array
    block: Array
    frames: Array
    shift: Array


class Order:
    """The rows of a run in the order of one epoch: positions count from 0.

    frame_rows: rows of each frame, in visible order. seed: None for that order. row_bytes: about the size of
    a row; it determines the blocks, so it must always be the same for one order. Takes memory for the blocks
    and a few windows, not for all rows. Not thread-safe.
    """

    def __init__(
        self, frame_rows: Sequence[int] | Array, seed: int | None, epoch: int, *, row_bytes: int
    ) -> None:
        import numpy as np

        self._ends: Array = np.cumsum(np.asarray(frame_rows, np.int64))
        #: rows of the run
        self.rows = int(self._ends[-1]) if len(self._ends) else 0
        self.shuffled = seed is not None
        if seed is None:
            return
        self._identity = (seed, epoch)
        self._block_rows = max(1, min(BLOCK_ROWS, BLOCK_BYTES // max(1, row_bytes)))
        blocks = -(-np.asarray(frame_rows, np.int64) // self._block_rows)
        self._block_ends = np.cumsum(blocks)
        count = int(self._block_ends[-1]) if len(blocks) else 0
        self._blocks = permutation(_key(seed, epoch, 0), count)
        windows = -(-count // WINDOW)
        # As evenly as possible, so that the last one is no shorter.
        self._cuts = np.arange(windows + 1) * count // max(1, windows)
        self._window_ends = self._ends_of_windows()
        self._windows: dict[int, _Window] = {}

    def piece(self, begin: int, end: int) -> Piece | None:
        """Returns the rows at positions [begin, end) of an unshuffled order, if one frame has them all."""
        frame = int(self._ends.searchsorted(begin, "right"))
        first = int(self._ends[frame - 1]) if frame else 0
        return Piece(frame, begin - first, end - first) if end <= self._ends[frame] else None

    def pieces(self, begin: int, end: int, place: int = 0) -> list[Piece]:
        """Returns the rows at positions [begin, end) of an unshuffled order, cut off at the last row.
        place: of the first row in the answer."""
        assert not self.shuffled, "a shuffled order has no pieces"
        begin, end = max(0, begin), min(end, self.rows)
        found: list[Piece] = []
        frame = int(self._ends.searchsorted(begin, "right"))
        while begin < end:
            stop = int(self._ends[frame])
            first = int(self._ends[frame - 1]) if frame else 0
            if stop > begin:
                stop = min(stop, end)
                found.append(Piece(frame, begin - first, stop - first, place))
                begin, place = stop, place + stop - begin
            frame += 1
        return found

    def gather(self, begin: int, end: int) -> tuple[Array, Array]:
        """Returns the frame and the row in it for each position of [begin, end), cut off at the last row."""
        import numpy as np

        parts: list[tuple[Array, Array]] = []
        begin, end = max(0, begin), min(end, self.rows)
        if not self.shuffled:
            for piece in self.pieces(begin, end):
                rows = np.arange(piece.start, piece.stop)
                parts.append((np.full(len(rows), piece.frame), rows))
        elif begin < end:
            window = int(self._window_ends.searchsorted(begin, "right"))
            while begin < end:
                first = int(self._window_ends[window - 1]) if window else 0
                stop = min(end, int(self._window_ends[window]))
                known = self._window(window)
                numbers = known.rows[begin - first : stop - first]
                block = known.block[numbers]
                parts.append((known.frames[block], numbers + known.shift[block]))
                begin, window = stop, window + 1
        none = np.zeros(0, np.int64)
        return (
            np.concatenate([none, *(part[0] for part in parts)]),
            np.concatenate([none, *(part[1] for part in parts)]),
        )

    def _ends_of_windows(self) -> Array:
        """Returns the position after the last row of each window."""
        import numpy as np

        if not len(self._blocks):
            return np.zeros(0, np.int64)
        _, _, lengths = self._locate_blocks(self._blocks)
        ends: Array = np.cumsum(np.add.reduceat(lengths, self._cuts[:-1]))
        return ends

    def _locate_blocks(self, blocks: Array) -> tuple[Array, Array, Array]:
        """Returns the frames of these blocks, their first rows in them, and how many rows they have."""
        import numpy as np

        frames = self._block_ends.searchsorted(blocks, "right")
        before = np.concatenate([np.zeros(1, np.int64), self._block_ends])[frames]
        first = (blocks - before) * self._block_rows
        rows = np.diff(self._ends, prepend=0)[frames]
        return frames, first, np.minimum(rows - first, self._block_rows)

    def _window(self, number: int) -> _Window:
        import numpy as np

        known = self._windows.get(number)
        if known is None:
            frames, first, lengths = self._locate_blocks(
                self._blocks[self._cuts[number] : self._cuts[number + 1]]
            )
            ends = np.cumsum(lengths)
            known = _Window(
                permutation(_key(*self._identity, number + 1), int(ends[-1])),
                np.repeat(np.arange(len(lengths), dtype=np.uint16), lengths),
                frames,
                first - (ends - lengths),
            )
            while len(self._windows) >= KEPT_WINDOWS:
                del self._windows[next(iter(self._windows))]
            self._windows[number] = known
        return known


def by_frame(frames: Array, rows: Array, place: int = 0) -> list[Gather]:
    """Groups rows by frame. place: of the first one in the answer."""
    import numpy as np

    names, numbers = np.unique(frames, return_inverse=True)
    # numpy sorts 16-bit numbers in linear time.
    places = np.argsort(numbers.astype(np.uint16 if len(names) <= 1 << 16 else np.int64), kind="stable")
    found, begin = [], 0
    for name, count in zip(names.tolist(), np.bincount(numbers).tolist(), strict=True):
        mine = places[begin : begin + count]
        found.append(Gather(name, rows[mine], mine + place))
        begin += count
    return found


def permutation(key: int, count: int) -> Array:
    """Returns the numbers 0 to count (int64) in an order that follows from the key.

    Each number is sorted by the output of splitmix64 for it, whose low bits are replaced by the number. So no
    two keys are equal, and any sort gives the same result.
    """
    import numpy as np

    numbers = np.arange(count, dtype=np.uint64)
    low = np.uint64((1 << max(0, count - 1).bit_length()) - 1)
    keys = (numbers + np.uint64(1)) * np.uint64(_GOLDEN) + np.uint64(key)
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(_FIRST)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(_SECOND)
    keys ^= keys >> np.uint64(31)
    keys = (keys & ~low) | numbers
    keys.sort()
    return (keys & low).astype(np.int64)


def _key(*numbers: int) -> int:
    """Mixes several numbers into one key of 64 bits; each of them changes it completely."""
    key = 0
    for number in numbers:
        key = (key + number + _GOLDEN) & _BITS
        key = ((key ^ (key >> 30)) * _FIRST) & _BITS
        key = ((key ^ (key >> 27)) * _SECOND) & _BITS
        key ^= key >> 31
    return key
