"""Copies rows of many frames into the memory of one answer, with little further memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from transfer.spool.format.rows import OFFSETS, VALID, Layout

if TYPE_CHECKING:
    from transfer.spool.format.rows import Allocate, Array, Arrays

#: values of a column that are copied at a time by an index of eight bytes each
_SCATTERED = 1 << 18
#: values of a row from which on rows are copied one by one
_LONG = 64


class RowCopy:
    """Copies `count` rows: `measure_*` all of them if their lengths differ, then `allocate`, then `copy_*`
    the same rows.

    lengths_differ: a column has rows of different lengths. measured: rows whose lengths are known.
    """

    def __init__(self, layouts: Sequence[Layout], count: int) -> None:
        import numpy as np

        self.arrays: Arrays = {}
        self.measured = 0
        self._values = 0  # bytes
        self._width = sum(map(_fixed_width, layouts))
        self._layouts = layouts
        self._count = count
        self._ragged = [layout for layout in layouts if layout.kind != "dense"]
        self.lengths_differ = bool(self._ragged)
        self._offsets = {layout.name: np.zeros(count + 1, np.int64) for layout in self._ragged}

    @property
    def nbytes(self) -> int:
        """Bytes of the measured rows."""
        return self.measured * self._width + self._values

    def measure_piece(self, frame: Arrays, start: int, stop: int, place: int) -> None:
        """Measures rows start to stop of a frame, for the places from `place` on."""
        self.measured += stop - start
        for layout in self._ragged:
            ends = frame[layout.name + OFFSETS][start : stop + 1]
            self._offsets[layout.name][place + 1 : place + 1 + stop - start] = ends[1:] - ends[:-1]
            self._add(layout, int(ends[-1] - ends[0]))

    def measure_rows(self, frame: Arrays, rows: Array, places: Array) -> None:
        """Measures these rows of a frame, for these places."""
        self.measured += len(rows)
        for layout in self._ragged:
            ends = frame[layout.name + OFFSETS]
            lengths = ends[rows + 1] - ends[rows]
            self._offsets[layout.name][places + 1] = lengths
            self._add(layout, int(lengths.sum()))

    def allocate(self, sample: Arrays, allocate: Allocate) -> None:
        """Allocates memory after all rows are measured. sample: a frame with the columns."""
        import numpy as np

        for layout in self._layouts:
            like, count = sample[layout.name], self._count
            if layout.kind != "dense":
                offsets = self._offsets[layout.name]
                np.cumsum(offsets, out=offsets)
                count = int(offsets[-1])
            self.arrays[layout.name] = allocate((count, *like.shape[1:]), like.dtype)
            if layout.kind != "dense":
                self.arrays[layout.name + OFFSETS] = offsets
            if layout.nulls:
                self.arrays[layout.name + VALID] = allocate((self._count,), np.dtype(bool))

    def copy_piece(self, frame: Arrays, start: int, stop: int, place: int) -> None:
        """See `measure_piece`."""
        end = place + stop - start
        for layout in self._layouts:
            name = layout.name
            if layout.kind == "dense":
                self.arrays[name][place:end] = frame[name][start:stop]
            else:
                ends, offsets = frame[name + OFFSETS], self._offsets[name]
                values = frame[name][int(ends[start]) : int(ends[stop])]
                self.arrays[name][int(offsets[place]) : int(offsets[end])] = values
            if layout.nulls:
                self.arrays[name + VALID][place:end] = frame[name + VALID][start:stop]

    def copy_rows(self, frame: Arrays, rows: Array, places: Array) -> Iterator[None]:
        """See `measure_rows`. Yields where it may pause."""
        for layout in self._layouts:
            name = layout.name
            if layout.kind == "dense":
                self.arrays[name][places] = frame[name][rows]
            else:
                ends, offsets = frame[name + OFFSETS], self._offsets[name]
                begins = ends[rows]
                yield from _copy_values(
                    frame[name], begins, ends[rows + 1] - begins, self.arrays[name], offsets[places]
                )
            if layout.nulls:
                self.arrays[name + VALID][places] = frame[name + VALID][rows]
        yield

    def _add(self, layout: Layout, values: int) -> None:
        self._values += values * _value_width(layout)


def _value_width(layout: Layout) -> int:
    import numpy as np

    return math.prod(layout.shape) * np.dtype(layout.dtype).itemsize


def _fixed_width(layout: Layout) -> int:
    """Returns the bytes of a column that each row takes."""
    return (_value_width(layout) if layout.kind == "dense" else 8) + layout.nulls


def _copy_values(
    source: Array, begins: Array, lengths: Array, target: Array, places: Array
) -> Iterator[None]:
    """Copies runs of values: lengths[i] of them from begins[i] to places[i]."""
    import numpy as np

    rows, total = len(lengths), int(lengths.sum())
    if total > _LONG * rows:
        for begin, length, place in zip(begins.tolist(), lengths.tolist(), places.tolist(), strict=True):
            target[place : place + length] = source[begin : begin + length]
            yield
        return
    step = max(1, _SCATTERED // max(1, -(-total // max(1, rows))))
    for first in range(0, rows, step):
        some = lengths[first : first + step]
        if int(some.sum()) > 4 * _SCATTERED:  # a few very long rows among short ones
            for one in range(first, min(rows, first + step)):
                place, begin, length = int(places[one]), int(begins[one]), int(lengths[one])
                target[place : place + length] = source[begin : begin + length]
            continue
        ends = np.cumsum(some)
        within = np.arange(int(ends[-1])) - np.repeat(ends - some, some)
        target[np.repeat(places[first : first + step], some) + within] = source[
            np.repeat(begins[first : first + step], some) + within
        ]
        yield
