"""Converts Arrow record batches to numpy arrays, without a copy where Arrow's layout allows it.

A column of numbers is one buffer already. An array column is one buffer of values plus offsets; it is a
matrix if all offsets have the same distance, which is checked before anything is sent. Ragged arrays and
strings keep
their offsets, which are copied: they begin with 0 and are int64. Booleans are bits in Arrow and bytes in a
tensor, so they are unpacked. A column whose nulls are filled is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from transfer.spark.schema import Column
from transfer.spool.format.rows import OFFSETS, VALID, Layout
from transfer.transports.errors import NotATensor

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Array = np.ndarray[Any, Any]
    Shape = tuple[int, ...]

#: in the `type` of a vector's struct; 0 means sparse
_DENSE_VECTOR = 1


class _Refused(Exception):
    """A value that cannot travel. row: the first row of the batch with such a value, if known."""

    def __init__(self, detail: str, hint: str, row: int | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.hint = hint
        self.row = row


@contextmanager
def _rows_of(row_of: Callable[[int], int]) -> Iterator[None]:
    """A context for checks of values: `row_of` maps a value to its row."""
    try:
        yield
    except _Refused as error:
        if error.row is not None:
            error.row = row_of(error.row)
        raise


class ColumnReader:
    """Converts the batches of one task to dicts of arrays, and checks that arrays keep one length.

    partition: the task's, for errors. Not thread-safe.
    """

    def __init__(self, columns: Sequence[Column], partition: int | None = None) -> None:
        self._columns = columns
        self._partition = partition
        self._rows = 0  # of earlier batches
        self._shapes: dict[str, Shape] = {c.name: c.shape for c in columns if c.shape is not None}

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The layouts of the columns with a known shape, in order; after one batch all have one."""
        return tuple(c.layout(self._shapes[c.name]) for c in self._columns if c.name in self._shapes)

    def read(self, batch: pa.RecordBatch) -> dict[str, Array]:
        """Returns the batch's columns in the form of `rows`, read-only views of Arrow's memory if possible.

        Raises NotATensor, with the column and the place, for nulls that the policy refuses, for arrays of
        different lengths, and for sparse vectors.
        """
        try:
            arrays = self._read(batch)
        except _Refused as error:
            place = self._place(error.row, batch.num_rows)
            raise NotATensor(f"{error.detail}, {place}", hint=error.hint) from None
        self._rows += batch.num_rows
        return arrays

    def _place(self, row: int | None, rows: int) -> str:
        """Describes where a wrong value is, as precisely as possible."""
        where = "" if self._partition is None else f" of partition {self._partition}"
        if row is not None:
            return f"first in row {self._rows + row:,}{where}"
        return f"in rows {self._rows:,} to {self._rows + max(rows - 1, 0):,}{where}"

    def _read(self, batch: pa.RecordBatch) -> dict[str, Array]:
        arrays: dict[str, Array] = {}
        for column in self._columns:
            values = batch.column(column.index)
            if column.kind in ("string", "binary"):
                array, arrays[column.name + OFFSETS] = _bytes(values, column)
            elif column.kind == "ragged":
                array, arrays[column.name + OFFSETS] = _ragged(values, column, self._shapes.get(column.name))
            elif column.kind == "bytes":
                array = _dense_bytes(values, column, self._shapes.get(column.name))
            else:
                array = _dense(values, column, column.depth, self._shapes.get(column.name))
            arrays[column.name] = self._checked(array, column, len(values))
            if column.nulls == "mask":
                arrays[column.name + VALID] = _valid(values)
        return arrays

    def _checked(self, array: Array, column: Column, rows: int) -> Array:
        known, shape = self._shapes.get(column.name), array.shape[1:]
        if not rows:
            # All its values are null: later batches may have another shape.
            return array.reshape((0, *(known or shape)))
        if known is None:
            self._shapes[column.name] = shape
        elif shape != known:
            raise _unequal(column, f"{_lengths(known)} before and {_lengths(shape)} now")
        return array


def split(batch: pa.RecordBatch, rows: int) -> Iterator[pa.RecordBatch]:
    """Yields slices of at most `rows` rows (0: the whole batch); none for an empty batch."""
    step = rows or batch.num_rows
    for start in range(0, batch.num_rows, max(step, 1)):
        yield batch.slice(start, step)


# --- columns ----------------------------------------------------------------------------------


def _dense(values: Any, column: Column, depth: int, known: Shape | None) -> Array:
    """Returns an array of shape (rows, …) with `depth` more dimensions; `known`: those, if known."""
    inside = depth < column.depth
    if values.null_count:
        _refuse_nulls(values, column, inside)
        return _filled(values, column, depth, known)
    if not depth:
        return _numbers(values, column)
    if column.kind == "vector":
        values = _vectors(values, column)
    flat, length = _flatten(values, column)
    with _rows_of(lambda value: value // length):
        below = _dense(flat, column, depth - 1, known[1:] if known else None)
    return below.reshape((len(values), length, *below.shape[1:]))


def _numbers(values: Any, column: Column) -> Array:
    """Returns numbers without nulls, as a view if they are numbers already."""
    import numpy as np
    import pyarrow as pa

    if not column.source:
        numbers: Array = values.to_numpy(zero_copy_only=column.dtype != "bool")
        return numbers
    if column.source == "timestamp":
        return values.cast(pa.timestamp("us", values.type.tz)).view("int64").to_numpy()  # type: ignore[no-any-return]
    if column.source == "date":
        return values.view("int32").to_numpy()  # type: ignore[no-any-return]
    if column.dtype == "float64":
        return values.cast("float64").to_numpy()  # type: ignore[no-any-return]
    # Decimals are 128 bits, the low half first: they fit if the high half is only the sign.
    halves = np.frombuffer(values.buffers()[1], "<i8", 2 * len(values), 16 * values.offset).reshape(-1, 2)
    large = halves[:, 1] != halves[:, 0] >> 63
    if large.any():
        raise _Refused(
            f"column {column.name!r} has {large.sum()} decimal(s) whose digits do not fit int64",
            "Use the option decimals='float64', or cast the column to a decimal of 18 digits.",
            int(large.argmax()),
        )
    return np.ascontiguousarray(halves[:, 0])


def _dense_bytes(values: Any, column: Column, known: Shape | None) -> Array:
    """Returns bytes of one length in all rows, a view: (rows, *shape). A null becomes zeros."""
    import numpy as np

    if values.null_count:
        _refuse_nulls(values, column, inside=False)
    valid = _valid(values)
    data, offsets = _bytes(values, column)
    lengths = np.diff(offsets)
    kept = lengths[valid]
    if known is None and not len(kept):
        if len(values):
            raise _unknown(column, f"all {len(values)} values are null")
        return np.empty((0, 0), np.uint8)
    shape = (int(kept[0]),) if known is None else known
    size = int(np.prod(shape, dtype=np.int64))
    other = valid & (lengths != size)
    if other.any():
        raise _Refused(
            f"column {column.name!r} has {other.sum()} value(s) of other than {_lengths(shape)} bytes, "
            f"{kept.min()} to {kept.max()}",
            "Remove it from the option 'dense'; then it is sent as bytes with offsets.",
            int(other.argmax()),
        )
    if valid.all():
        return data.reshape((len(values), *shape))
    whole = np.zeros((len(values), *shape), np.uint8)
    whole[valid] = data.reshape((len(kept), *shape))
    return whole


def _filled(values: Any, column: Column, depth: int, known: Shape | None) -> Array:
    """As `_dense` for values with nulls, which become zeros, False or NaN."""
    import numpy as np

    fill = {"f": float("nan"), "b": False}.get(column.dtype[0], 0)
    if not depth:
        if column.source:
            whole = np.full(len(values), fill, column.dtype)
            with _rows_of(lambda row: int(np.flatnonzero(_valid(values))[row])):
                whole[_valid(values)] = _numbers(values.drop_null(), column)
            return whole
        numbers: Array = values.fill_null(fill).to_numpy(zero_copy_only=column.dtype != "bool")
        return numbers
    kept = values.drop_null()
    if len(kept):
        with _rows_of(lambda row: int(np.flatnonzero(_valid(values))[row])):
            there = _dense(kept, column, depth, known)
        known = there.shape[1:]
    elif known is None:
        raise _unknown(column, f"all {len(values)} arrays are null")
    array = np.full((len(values), *known), fill, column.dtype)
    if len(kept):
        array[_valid(values)] = there
    return array


def _ragged(values: Any, column: Column, known: Shape | None) -> tuple[Array, Array]:
    """Returns the values of all rows and the offset of each row. A null has no values."""
    import numpy as np

    if values.null_count:
        _refuse_nulls(values, column, inside=False)
        # Values behind a null array are undefined; `flatten` leaves them out.
        lengths = np.where(_valid(values), values.value_lengths().fill_null(0).to_numpy(), 0)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    elif hasattr(values, "offsets"):
        offsets = _from_zero(values.offsets.to_numpy())
    else:
        offsets = np.arange(len(values) + 1, dtype=np.int64) * values.type.list_size
    flat = values.flatten()
    if len(flat):
        with _rows_of(lambda value: int(np.searchsorted(offsets, value, "right")) - 1):
            return _dense(flat, column, column.depth - 1, known), offsets
    if known is None and len(values):
        raise _unknown(column, f"all {len(values)} arrays are empty")
    shape = (0,) * (column.depth - 1) if known is None else known
    return np.empty((0, *shape), column.dtype), offsets


def _bytes(values: Any, column: Column) -> tuple[Array, Array]:
    """Returns the bytes of all rows, a view, and the offset of each row. A null has no bytes."""
    import numpy as np

    values = _with_offsets(values)
    if not len(values):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    ends = _ends(values)
    if values.null_count:
        _refuse_nulls(values, column, inside=False)
        if np.diff(ends)[~_valid(values)].any():  # there are bytes behind a null
            values = values.fill_null("" if column.kind == "string" else b"")
            ends = _ends(values)
    begin, end = int(ends[0]), int(ends[-1])
    if begin == end:  # Arrow may omit an empty buffer
        return np.empty(0, np.uint8), _from_zero(ends)
    return np.frombuffer(values.buffers()[2], np.uint8, end - begin, begin), _from_zero(ends)


def _with_offsets(values: Any) -> Any:
    """Returns strings and bytes as one buffer with offsets; other layouts are copied."""
    word = str(values.type)
    if word in ("string", "binary", "large_string", "large_binary"):
        return values
    return values.cast("large_string" if "string" in word else "large_binary")


def _ends(values: Any) -> Array:
    """Returns the offsets of strings or bytes, a view."""
    import numpy as np

    size = 8 if str(values.type).startswith("large_") else 4
    return np.frombuffer(values.buffers()[1], f"i{size}", len(values) + 1, values.offset * size)


def _vectors(values: Any, column: Column) -> Any:
    """Returns the arrays in MLlib's struct<type, size, indices, values>, which has no nulls any more."""
    sparse = values.field("type").to_numpy(zero_copy_only=False) != _DENSE_VECTOR
    if sparse.any():
        raise _Refused(
            f"column {column.name!r} has {sparse.sum()} sparse vector(s)",
            "Make dense arrays of them first: df.withColumn"
            f"({column.name!r}, pyspark.ml.functions.vector_to_array({column.name!r})).",
            int(sparse.argmax()),
        )
    return values.field("values")


def _flatten(values: Any, column: Column) -> tuple[Any, int]:
    """Returns the values of all lists in one array, and the length of each list."""
    import numpy as np

    # `flatten` and `offsets` both respect the array's offset, `values` would not: a sliced batch shares its
    # buffers with the whole one.
    flat = values.flatten()
    if not len(values):
        return flat, 0
    if hasattr(values, "offsets"):
        lengths = np.diff(values.offsets.to_numpy())
        other = lengths != lengths[0]
        if other.any():
            detail = f"{lengths.min()} to {lengths.max()} values, {other.sum()} unlike the first"
            raise _unequal(column, detail, int(other.argmax()))
    return flat, len(flat) // len(values)


def _from_zero(offsets: Array) -> Array:
    import numpy as np

    copy: Array = np.subtract(offsets, offsets[0], dtype=np.int64)
    return copy


def _valid(values: Any) -> Array:
    valid: Array = values.is_valid().to_numpy(zero_copy_only=False)
    return valid


# --- errors -----------------------------------------------------------------------------------


def _refuse_nulls(values: Any, column: Column, inside: bool) -> None:
    """Raises an error unless the column's policy fills such nulls."""
    if column.nulls == "fill" or (column.nulls == "mask" and not inside):
        return
    where, name = "", column.name
    row = int(_valid(values).argmin())
    hint = f"Drop or fill them: df.na.drop(subset=[{name!r}]), or the option nulls='fill' or 'mask'."
    if inside:
        where = " inside its arrays"
        hint = "Take them out of the arrays first (F.filter, F.transform), or use the option nulls='fill'."
    raise _Refused(f"column {name!r} has {values.null_count} null value(s){where}", hint, row)


def _unequal(column: Column, detail: str, row: int | None = None) -> _Refused:
    if column.kind == "ragged":
        return _Refused(
            f"column {column.name!r} has inner arrays of different lengths: {detail}",
            "Only the outermost array may be ragged: pad or cut the inner ones first.",
            row,
        )
    hint = "A tensor needs one length for all rows: pad or cut the arrays first"
    also = "." if column.kind == "vector" else ", or name the column in the option 'ragged'."
    kind = "vectors" if column.kind == "vector" else "arrays"
    return _Refused(f"column {column.name!r} has {kind} of different lengths: {detail}", hint + also, row)


def _unknown(column: Column, detail: str) -> _Refused:
    return _Refused(
        f"column {column.name!r} has no array in a task's first rows that determines its length: {detail}",
        "Larger batches may have one (option 'frame_rows', spark.sql.execution.arrow."
        "maxRecordsPerBatch); else fill them before: F.coalesce.",
    )


def _lengths(shape: Shape) -> str:
    return "x".join(map(str, shape))
