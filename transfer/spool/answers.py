"""What a fetch brings: rows of visible frames, cut, joined or gathered as the order of the epoch says."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from transfer.rows import Layout, choose, cut, join, pick, row_bytes
from transfer.spool.entry import Entry, Seen
from transfer.spool.order import Gather, Order
from transfer.spool.protocol import AnswerTooLarge, Explain, Fetch
from transfer.spool.source import SEALED
from transfer.spool.store import Store
from transports.errors import Broken, UsageError

if TYPE_CHECKING:
    from transfer.rows import Array, Arrays
    from transports.core import Pool

#: orders that are kept; one of a shuffled epoch takes eight bytes a block
_KEPT_ORDERS = 8
#: bytes that one answer has at most
MAX_ANSWER = 1 << 30
#: rows that are explained at a time
MAX_EXPLAINED = 1 << 20


class Answers:
    """Makes the answers to fetches. For one thread. Arrays are views of the log's files, or memory of the
    pool."""

    def __init__(self, store: Store, pool: Pool) -> None:
        self._store = store
        self._pool = pool
        self._orders: OrderedDict[tuple[int, int | None, int, int], Order] = OrderedDict()

    def rows(self, entry: Entry, fetch: Fetch, seen: Seen) -> tuple[Arrays, int]:
        """(the rows, how many), of what was seen to be visible.

        Raises UsageError (no such column, for instance), AnswerTooLarge, Broken (they are not kept any more).
        """
        order = self._order(entry, fetch, entry.run.layouts or (), seen)  # whatever columns are asked for
        ranges = _ranges(fetch, seen.rows)
        count = sum(end - begin for begin, end in ranges)
        if not count:
            return {}, 0
        layouts = choose(entry.run.layouts or (), fetch.columns)
        width = row_bytes(layouts)
        if count > 1 and count * width > MAX_ANSWER:
            raise _too_large(count, MAX_ANSWER // width)
        if ranges[0][0] < entry.first:
            raise Broken(
                f"rows {ranges[0][0]:,} to {entry.first:,} of run {entry.run.name} are not kept any more",
                hint="all groups of the stream had acknowledged them; begin where your group is",
            )
        if order.shuffled:
            return self._gather(entry, layouts, order.grouped(ranges), count), count
        pieces = [
            cut(self._store.frame(entry, piece.frame), layouts, piece.start, piece.stop)
            for begin, end in ranges
            for piece in order.pieces(begin, end)
        ]
        _check_size(sum(map(_bytes, pieces)), count, count)
        return join(pieces, layouts, self._allocate), count

    def explain(self, entry: Entry, asked: Explain) -> Arrays:
        """Where the rows [begin, end) of an epoch's order come from, as columns: `job` (a number),
        `partition`, `attempt`, `sequence` of the frame, and the row in that frame, for each row."""
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

    def _order(self, entry: Entry, fetch: Fetch, layouts: tuple[Layout, ...], seen: Seen) -> Order:
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

    def _gather(self, entry: Entry, layouts: tuple[Layout, ...], groups: list[Gather], count: int) -> Arrays:
        import numpy as np

        if any(layout.kind != "dense" for layout in layouts):
            pieces, nbytes, picked = [], 0, 0
            for one in groups:
                pieces.append(pick(self._store.frame(entry, one.frame), layouts, one.rows))
                nbytes += _bytes(pieces[-1])
                picked += len(one.rows)
                _check_size(nbytes, picked, count)
            back = np.argsort(np.concatenate([one.places for one in groups]))
            return pick(join(pieces, layouts, self._allocate), layouts, back)
        result: Arrays = {}
        for layout in layouts:
            for name in layout.arrays:
                sample = self._store.frame(entry, groups[0].frame)[name]
                result[name] = self._allocate((count, *sample.shape[1:]), sample.dtype)
        for one in groups:
            frame = self._store.frame(entry, one.frame)
            for name, target in result.items():
                target[one.places] = frame[name][one.rows]
        return result

    def _allocate(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Memory of the pool: pages that are there already."""
        import numpy as np

        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if not size:
            return np.empty(shape, dtype)
        lease = memoryview(self._pool.lease(size))
        array: Array = np.ndarray(shape, dtype, lease)
        return array


def _bytes(piece: Arrays) -> int:
    return sum(array.nbytes for array in piece.values())


def _check_size(nbytes: int, rows: int, count: int) -> None:
    """Rows that are as long as each says may be more than was guessed; one is always given.

    nbytes: of the first so many rows of all that the fetch asks for.
    """
    if count > 1 and nbytes > MAX_ANSWER:
        raise _too_large(count, rows * MAX_ANSWER // (2 * nbytes))


def _too_large(count: int, most: int) -> AnswerTooLarge:
    hint = f"ask for less than {MAX_ANSWER} bytes at a time"
    return AnswerTooLarge(f"a fetch of {count:,} rows", hint=hint, most=max(1, min(most, count - 1)))


def _ranges(fetch: Fetch, visible: int) -> list[tuple[int, int]]:
    found = []
    for number in range(fetch.times):
        begin = fetch.begin + number * fetch.stride
        end = min(begin + fetch.rows, visible)
        if begin >= end:
            break
        found.append((begin, end))
    return found
