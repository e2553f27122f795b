"""Arrow record batches as numpy arrays, without a copy where Arrow's layout allows it.

A column of numbers is one buffer already. An array column is one buffer of values beside offsets, and
is a matrix when all offsets have the same distance: that is checked here, before anything is sent.
Booleans are bits in Arrow and bytes in a tensor, so they are unpacked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from transfer.spark.schema import Column
from transports.errors import NotATensor

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Array = np.ndarray[Any, Any]


class ColumnReader:
    """Turns the batches of one task into dicts of arrays, and holds arrays to one length throughout."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._shapes: dict[str, tuple[int, ...]] = {}

    def read(self, batch: pa.RecordBatch) -> dict[str, Array]:
        """The batch's columns, each (rows, …), read-only views of Arrow's memory where possible.

        Raises NotATensor, naming the column, for nulls and for arrays of different lengths.
        """
        arrays = {}
        for column in self._columns:
            array = _to_numpy(batch.column(column.index), column)
            shape = self._shapes.setdefault(column.name, array.shape[1:])
            if array.shape[1:] != shape:
                raise _ragged(column, f"{_lengths(shape)} before and {_lengths(array.shape[1:])} now")
            arrays[column.name] = array
        return arrays


def split(batch: pa.RecordBatch, rows: int) -> Iterator[pa.RecordBatch]:
    """The batch in slices of at most `rows` rows (0: whole); none of an empty batch."""
    step = rows or batch.num_rows
    for start in range(0, batch.num_rows, max(step, 1)):
        yield batch.slice(start, step)


def _to_numpy(values: Any, column: Column) -> Array:
    shape = [len(values)]
    for _ in range(column.depth):
        _refuse_nulls(values, column)
        values, length = _flatten(values, column)
        shape.append(length)
    _refuse_nulls(values, column)
    array: Array = values.to_numpy(zero_copy_only=column.dtype != "bool")
    return array.reshape(shape)


def _flatten(values: Any, column: Column) -> tuple[Any, int]:
    """The values of all lists in one array, and the length that each list has."""
    import numpy as np

    # `flatten` and `offsets` both honour the array's own offset, `values` would not: a sliced batch
    # shares its buffers with the whole one.
    flat = values.flatten()
    if not len(values):
        return flat, 0
    if hasattr(values, "offsets"):
        lengths = np.diff(values.offsets.to_numpy())
        if lengths.min() != lengths.max():
            raise _ragged(column, f"{lengths.min()} to {lengths.max()} values in one batch")
    return flat, len(flat) // len(values)


def _refuse_nulls(values: Any, column: Column) -> None:
    if values.null_count:
        raise NotATensor(
            f"column {column.name!r} has {values.null_count} null value(s) in a batch of its rows",
            hint=f"Drop or fill them: df.na.drop(subset=[{column.name!r}]).",
        )


def _ragged(column: Column, detail: str) -> NotATensor:
    return NotATensor(
        f"column {column.name!r} has arrays of different lengths: {detail}",
        hint="A tensor needs one length for all rows: pad or cut the arrays first.",
    )


def _lengths(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
