"""Makes the answer to a fetch: rows of visible frames, cut or copied in the order of the epoch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from transfer.spool.format.order import Gather, Order, Piece, by_frame
from transfer.spool.format.protocol import (
    MAX_ANSWER,
    MAX_EXPLAINED,
    MAX_ROWS,
    MIN_ROW_BYTES,
    AnswerTooLarge,
    Explain,
    Fetch,
)
from transfer.spool.format.row_source import SEALED
from transfer.spool.format.rows import Layout, choose, cut, row_bytes
from transfer.spool.server.row_copy import RowCopy
from transfer.spool.server.run_record import RunRecord, VisibleState
from transfer.spool.server.store import SpoolStore
from transfer.transports.errors import Broken, TransferError, UsageError

if TYPE_CHECKING:
    from transfer.spool.format.rows import Array, Arrays
    from transfer.spool.server.answer_queue import Slices
    from transfer.transports.core import Pool

#: cached orders; one of a shuffled epoch takes eight bytes for each block
_KEPT_ORDERS = 8
#: rows, and bytes of them, that are gathered at a time: a row takes about 80 bytes of memory meanwhile
_UNIT_ROWS, _UNIT_BYTES = 1 << 18, 16 << 20


class Answers:
    """Makes the answers to fetches. For one thread. Arrays are views of the log's files, or memory of the
    pool."""

    def __init__(self, store: SpoolStore, pool: Pool) -> None:
        self._store = store
        self._pool = pool
        self._orders: OrderedDict[tuple[int, int | None, int, int], Order] = OrderedDict()

    def rows(self, entry: RunRecord, fetch: Fetch, seen: VisibleState) -> Slices:
        """Returns (the rows, their number) among the visible ones, made in slices.

        Raises UsageError (no such column, for instance), AnswerTooLarge, Broken (the rows are deleted).
        """
        order = self._order(entry, fetch, entry.run.layouts or (), seen)  # for all columns
        count = sum(end - begin for begin, end in _ranges(fetch, seen.rows))
        if not count:
            return {}, 0
        layouts = choose(entry.run.layouts or (), fetch.columns)
        width = max(row_bytes(layouts), MIN_ROW_BYTES)
        if count > MAX_ROWS or (count > 1 and count * width > MAX_ANSWER):
            raise _too_large(count, min(MAX_ROWS, MAX_ANSWER // width))
        self._check_kept(entry, fetch)
        end = min(fetch.begin + fetch.rows, seen.rows)  # of the first range
        alone = not order.shuffled and count == end - fetch.begin
        piece = order.piece(fetch.begin, end) if alone else None
        if piece is not None:
            arrays = cut(self._frame(entry, fetch, piece.frame), layouts, piece.start, piece.stop)
            _check_size(sum(array.nbytes for array in arrays.values()), count, count)
            return arrays, count
        yield count * width
        copy = RowCopy(layouts, count)
        unit = max(1, min(_UNIT_ROWS, _UNIT_BYTES // width))
        each = _gathers if order.shuffled else _pieces
        if copy.lengths_differ:
            for one in each(order, fetch, seen.rows, unit):
                if isinstance(one, Piece):
                    copy.measure_piece(self._frame(entry, fetch, one.frame), one.start, one.stop, one.place)
                elif one is not None:
                    copy.measure_rows(self._frame(entry, fetch, one.frame), one.rows, one.places)
                _check_size(copy.nbytes, copy.measured, count)
                yield 0
        for one in each(order, fetch, seen.rows, unit):
            if one is not None:
                frame = self._frame(entry, fetch, one.frame)
                if not copy.arrays:
                    copy.allocate(frame, self._allocate)
                if isinstance(one, Piece):
                    copy.copy_piece(frame, one.start, one.stop, one.place)
                else:
                    for _ in copy.copy_rows(frame, one.rows, one.places):
                        yield 0
            yield 0
        return copy.arrays, count

    def _frame(self, entry: RunRecord, fetch: Fetch, number: int) -> Arrays:
        """Returns a frame. Other clients may have acknowledged or deleted it since the last slice."""
        try:
            return self._store.frame(entry, number)
        except TransferError:
            self._check_kept(entry, fetch)
            if self._store.entries.get(entry.run.name) is not entry:
                raise Broken(f"run {entry.run.name} was deleted") from None
            raise

    @staticmethod
    def _check_kept(entry: RunRecord, fetch: Fetch) -> None:
        if fetch.begin < entry.first:
            raise Broken(
                f"rows {fetch.begin:,} to {entry.first:,} of run {entry.run.name} are not kept any more",
                hint="all groups of the stream have acknowledged them; begin at your group's position",
            )

    def explain(self, entry: RunRecord, asked: Explain) -> Arrays:
        """Returns the origin of each of the rows [begin, end) of an epoch's order, as columns: `job` (a
        number), `partition`, `attempt`, `sequence` of the frame, and the row in that frame."""
        import numpy as np

        fetch = Fetch(
            epoch=asked.epoch, seed=asked.seed, begin=asked.begin, rows=0, stride=0, times=1, need=0
        )
        seen = entry.seen
        order = self._order(entry, fetch, entry.run.layouts or (), seen)
        if asked.end - asked.begin > MAX_EXPLAINED:
            raise UsageError(f"more than {MAX_EXPLAINED:,} rows at a time")
        frames, rows = order.gather(asked.begin, min(asked.end, seen.rows))
        visible = entry.run.visible
        named = {
            "job": visible.jobs,
            "partition": visible.partitions,
            "attempt": visible.attempts,
            "sequence": visible.sequences,
        }
        with self._store.lock:  # another thread appends to them
            arrays = {name: np.array(column, np.int64)[frames] for name, column in named.items()}
        return arrays | {"row": rows}

    def _order(
        self, entry: RunRecord, fetch: Fetch, layouts: tuple[Layout, ...], seen: VisibleState
    ) -> Order:
        import numpy as np

        if fetch.seed is not None and seen.state != SEALED:
            raise UsageError(
                f"run {entry.run.name} is {seen.state} and cannot be shuffled",
                hint="a shuffle is of all rows: wait until the run is sealed, or read it without shuffle",
            )
        epoch = fetch.epoch if fetch.seed is not None else 0
        frames = len(entry.run.visible.ends)
        key = entry.number, fetch.seed, epoch, frames
        order = self._orders.get(key)
        if order is None:
            with self._store.lock:  # another thread appends to them
                lengths = np.diff(np.array(entry.run.visible.ends, np.int64), prepend=0)
            order = Order(lengths, fetch.seed, epoch, row_bytes=row_bytes(layouts))
            self._orders[key] = order
            while len(self._orders) > _KEPT_ORDERS:
                self._orders.popitem(last=False)
        self._orders.move_to_end(key)
        return order

    def _allocate(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Allocates memory of the pool, whose pages exist already."""
        import numpy as np

        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if not size:
            return np.empty(shape, dtype)
        lease = memoryview(self._pool.lease(size))
        array: Array = np.ndarray(shape, dtype, lease)
        return array


def _check_size(nbytes: int, rows: int, count: int) -> None:
    """Raises AnswerTooLarge if rows of variable length are larger than estimated. One row is always allowed.

    nbytes: of the first `rows` rows of all that the fetch requests.
    """
    if count > 1 and nbytes > MAX_ANSWER:
        raise _too_large(count, rows * MAX_ANSWER // (2 * nbytes))


def _too_large(count: int, most: int) -> AnswerTooLarge:
    hint = f"ask for at most {MAX_ANSWER:,} bytes and {MAX_ROWS:,} rows at a time"
    return AnswerTooLarge(f"a fetch of {count:,} rows", hint=hint, most=max(1, min(most, count - 1)))


def _ranges(fetch: Fetch, visible: int) -> Iterator[tuple[int, int]]:
    for number in range(fetch.times):
        begin = fetch.begin + number * fetch.stride
        end = min(begin + fetch.rows, visible)
        if begin >= end:
            break
        yield begin, end


def _pieces(order: Order, fetch: Fetch, visible: int, unit: int) -> Iterator[Piece | None]:
    """Yields the rows of all ranges in an unshuffled order, each with its place in the answer."""
    place = 0
    for begin, end in _ranges(fetch, visible):
        for first in range(begin, end, unit):
            for piece in order.pieces(first, min(end, first + unit), place):
                yield piece
                place += piece.stop - piece.start


def _gathers(order: Order, fetch: Fetch, visible: int, unit: int) -> Iterator[Gather | None]:
    """As `_pieces` for a shuffled order, about `unit` rows at a time. None: it may pause."""
    import numpy as np

    place = rows = 0
    parts: list[tuple[Array, Array]] = []

    def grouped() -> list[Gather]:
        frames, numbers = (np.concatenate([part[n] for part in parts]) for n in (0, 1))
        return by_frame(frames, numbers, place)

    for begin, end in _ranges(fetch, visible):
        for first in range(begin, end, unit):
            last = min(end, first + unit)
            parts.append(order.gather(first, last))
            rows += last - first
            yield None
            if rows >= unit:
                yield from grouped()
                place, rows = place + rows, 0
                parts.clear()
    if parts:
        yield from grouped()
