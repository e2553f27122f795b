"""Arrow record batches as numpy arrays, without a copy where Arrow's layout allows it.

A column of numbers is one buffer already. An array column is one buffer of values beside offsets, and
is a matrix when all offsets have the same distance: that is checked here, before anything is sent. Ragged
arrays and strings keep their offsets, which are copied: they begin with 0 and are int64. Booleans are bits in
Arrow and bytes in a tensor, so they are unpacked. Where nulls are filled, the column is copied.
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

#: in the `type` of a vector's struct; 0 is a sparse one
_DENSE_VECTOR = 1


class _Refused(Exception):
    """A value that cannot travel. row: of the batch, the first one with such a value, if it is known."""

    def __init__(self, detail: str, hint: str, row: int | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.hint = hint
        self.row = row


@contextmanager
def _rows_of(row_of: Callable[[int], int]) -> Iterator[None]:
    """Within, values of rows are looked at: `row_of` is the row that a value belongs to."""
    try:
        yield
    except _Refused as error:
        if error.row is not None:
            error.row = row_of(error.row)
        raise


class ColumnReader:
    """Turns the batches of one task into dicts of arrays, and holds arrays to one length throughout.

    partition: the task's, for its errors. Not thread-safe.
    """

    def __init__(self, columns: Sequence[Column], partition: int | None = None) -> None:
        self._columns = columns
        self._partition = partition
        self._rows = 0  # of the batches before
        self._shapes: dict[str, Shape] = {c.name: c.shape for c in columns if c.shape is not None}

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """How the columns lie, in their order: those whose shape is known, which all are after a batch."""
        return tuple(c.layout(self._shapes[c.name]) for c in self._columns if c.name in self._shapes)

    def read(self, batch: pa.RecordBatch) -> dict[str, Array]:
        """The batch's columns as `rows` has them, read-only views of Arrow's memory where possible.

        Raises NotATensor, naming the column and the place, for nulls that its policy refuses, for arrays of
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
        """Where a wrong value is, as precisely as it is known."""
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
            # Its lengths are those of no array: later batches need not have them.
            return array.reshape((0, *(known or shape)))
        if known is None:
            self._shapes[column.name] = shape
        elif shape != known:
            raise _unequal(column, f"{_lengths(known)} before and {_lengths(shape)} now")
        return array


def split(batch: pa.RecordBatch, rows: int) -> Iterator[pa.RecordBatch]:
    """The batch in slices of at most `rows` rows (0: whole); none of an empty batch."""
    step = rows or batch.num_rows
    for start in range(0, batch.num_rows, max(step, 1)):
        yield batch.slice(start, step)


# --- one column -------------------------------------------------------------------------------


def _dense(values: Any, column: Column, depth: int, known: Shape | None) -> Array:
    """An array of shape (rows, …) of `depth` more dimensions; `known`: those, if they are known."""
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
    """Numbers without nulls, a view where they are numbers already."""
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
    # Decimals are 128 bits, the low half first: they fit if the high half is but the sign.
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
    """Bytes of one length in all rows, a view: (rows, *shape). A null is zeros."""
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
            "Leave it out of the option 'dense': it travels as bytes with offsets then.",
            int(other.argmax()),
        )
    if valid.all():
        return data.reshape((len(values), *shape))
    whole = np.zeros((len(values), *shape), np.uint8)
    whole[valid] = data.reshape((len(kept), *shape))
    return whole


def _filled(values: Any, column: Column, depth: int, known: Shape | None) -> Array:
    """The same where some values are null: those become zeros, False or NaN throughout."""
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
    """The values of all rows and where each row's begin. A null has none."""
    import numpy as np

    if values.null_count:
        _refuse_nulls(values, column, inside=False)
        # What lies behind a null array is anything; `flatten` leaves it out.
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
    """The bytes of all rows, a view, and where each row's begin. A null has none."""
    import numpy as np

    values = _with_offsets(values)
    if not len(values):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    ends = _ends(values)
    if values.null_count:
        _refuse_nulls(values, column, inside=False)
        if np.diff(ends)[~_valid(values)].any():  # something lies behind a null
            values = values.fill_null("" if column.kind == "string" else b"")
            ends = _ends(values)
    begin, end = int(ends[0]), int(ends[-1])
    if begin == end:  # Arrow may leave out a buffer of nothing
        return np.empty(0, np.uint8), _from_zero(ends)
    return np.frombuffer(values.buffers()[2], np.uint8, end - begin, begin), _from_zero(ends)


def _with_offsets(values: Any) -> Any:
    """Strings and bytes that lie as one buffer beside offsets; those that do not are copied."""
    word = str(values.type)
    if word in ("string", "binary", "large_string", "large_binary"):
        return values
    return values.cast("large_string" if "string" in word else "large_binary")


def _ends(values: Any) -> Array:
    """The offsets of strings or bytes, a view."""
    import numpy as np

    size = 8 if str(values.type).startswith("large_") else 4
    return np.frombuffer(values.buffers()[1], f"i{size}", len(values) + 1, values.offset * size)


def _vectors(values: Any, column: Column) -> Any:
    """The arrays in MLlib's struct<type, size, indices, values>; nulls are gone already."""
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
    """The values of all lists in one array, and the length that each list has."""
    import numpy as np

    # `flatten` and `offsets` both honour the array's own offset, `values` would not: a sliced batch
    # shares its buffers with the whole one.
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


# --- what is refused --------------------------------------------------------------------------


def _refuse_nulls(values: Any, column: Column, inside: bool) -> None:
    """Returns if the column's policy fills such nulls."""
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
        f"column {column.name!r} has no array in a task's first rows that tells its length: {detail}",
        "Larger batches may have one (option 'frame_rows', spark.sql.execution.arrow."
        "maxRecordsPerBatch); else fill them before: F.coalesce.",
    )


def _lengths(shape: Shape) -> str:
    return "x".join(map(str, shape))
