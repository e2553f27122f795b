"""A run's rows as Arrow record batches, for Spark to read: the way back of `columns.py`.

The arrays of numbers become Arrow's buffers as they are. What is made new is small: offsets, which Spark
wants as int32; bits for booleans, which are bytes in a tensor; and bits that tell nulls.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from transfer.spark.schema import NUMERIC
from transfer.spool.format.rows import OFFSETS, VALID, Layout, cut
from transfer.transports.errors import NotATensor, OptionError

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

    from transfer.spool.format.rows import Array, Arrays

#: values of a column in a batch, by Spark's offsets of 32 bits
MAX_VALUES = (1 << 31) - 1

#: numpy's type -> Spark's name for it, and Arrow's
_WORDS = {dtype: word for word, dtype in NUMERIC.items()}
_ARROW = {"bool": "bool_"} | {dtype: dtype for dtype in _WORDS if dtype != "bool"}


def schema_of(layouts: Sequence[Layout]) -> StructType:
    """What Spark reads a run's columns as. A column can be null only where nulls were told (`NAME.valid`).

    Raises NotATensor, naming the column, for numbers that Spark has no type for.
    """
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(one.name, _spark_type(one), one.nulls) for one in layouts])


def check_fit(schema: StructType, layouts: Sequence[Layout]) -> None:
    """Whether such columns can be read by a user's schema: some or all of them, in any order, of their types.

    Raises OptionError, naming the column.
    """
    known = {layout.name: layout for layout in layouts}
    for field in schema.fields:
        layout = known.get(field.name)
        if layout is None:
            raise OptionError(
                f"the schema has a column {field.name!r}, and the run has none",
                hint=f"The run has: {', '.join(known)}.",
            )
        ours = _spark_type(layout)
        if not _same(field.dataType, ours):
            raise OptionError(
                f"column {field.name!r} of the run is {ours.simpleString()}, and the schema has "
                f"{field.dataType.simpleString()}",
                hint="Read it as it is, and cast it then; without .schema(…) Spark takes the run's own.",
            )
        if layout.nulls and not field.nullable:
            raise OptionError(f"column {field.name!r} of the run may be null, and by the schema it may not")


def batches(
    arrays: Arrays, layouts: Sequence[Layout], schema: StructType, rows: int, most: int = MAX_VALUES
) -> Iterator[RecordBatch]:
    """These rows, with the columns of the schema: several batches if a column has more than `most` values."""
    import pyarrow as pa

    if rows > 1 and any(_values(arrays, layout) > most for layout in layouts):
        for start, stop in ((0, rows // 2), (rows // 2, rows)):
            yield from batches(cut(arrays, layouts, start, stop), layouts, schema, stop - start, most)
        return
    known = {layout.name: layout for layout in layouts}
    fields = [pa.field(one.name, _arrow_type(one.dataType), one.nullable) for one in schema.fields]
    columns = [_column(arrays, known[field.name], field.type, rows) for field in fields]
    yield pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


# --- types --------------------------------------------------------------------------------------


def _spark_type(layout: Layout) -> Any:
    from pyspark.sql import types

    if layout.kind == "string":
        return types.StringType()
    if layout.kind == "binary" or _is_bytes(layout):
        return types.BinaryType()
    word = _WORDS.get(layout.dtype)
    if word is None:
        raise NotATensor(
            f"column {layout.name!r} is {layout.dtype}, which Spark has no type for",
            hint="Leave it out: read with .schema(…), naming the other columns.",
        )
    kind = getattr(types, f"{word.capitalize()}Type")()
    for _ in range(len(layout.shape) + (layout.kind == "ragged")):
        kind = types.ArrayType(kind, containsNull=False)
    return kind


def _is_bytes(layout: Layout) -> bool:
    """Whether a row is a block of bytes, such as an image."""
    return layout.kind == "dense" and layout.dtype == "uint8" and bool(layout.shape)


def _same(one: Any, other: Any) -> bool:
    """Whether they differ in nothing but what may be null."""
    if one.typeName() == other.typeName() == "array":
        return _same(one.elementType, other.elementType)
    same: bool = one == other
    return same


def _arrow_type(kind: Any) -> Any:
    """As Spark has it: it compares."""
    import pyarrow as pa

    word = kind.typeName()
    if word == "array":
        return pa.list_(pa.field("element", _arrow_type(kind.elementType), kind.containsNull))
    return getattr(pa, _ARROW[NUMERIC[word]] if word in NUMERIC else word)()


# --- one column ---------------------------------------------------------------------------------


def _values(arrays: Arrays, layout: Layout) -> int:
    """The most that an offset of this column has to count."""
    values: int = arrays[layout.name].size if layout.shape or layout.kind != "dense" else 0
    return values


def _column(arrays: Arrays, layout: Layout, kind: Any, rows: int) -> Any:
    import numpy as np
    import pyarrow as pa

    values = arrays[layout.name]
    valid = _bits(arrays[layout.name + VALID]) if layout.nulls else None
    if _is_bytes(layout):
        ends = np.arange(rows + 1, dtype=np.int32) * np.int32(math.prod(layout.shape))
        return pa.Array.from_buffers(kind, rows, [valid, _buffer(ends), _buffer(values)])
    if layout.kind == "dense":
        return _nested(values, kind, valid)
    offsets = _buffer(arrays[layout.name + OFFSETS].astype("int32"))
    if layout.kind == "ragged":
        inside = _nested(values, kind.value_type, None)
        return pa.Array.from_buffers(kind, rows, [valid, offsets], children=[inside])
    return pa.Array.from_buffers(kind, rows, [valid, offsets, _buffer(values)])


def _nested(values: Array, kind: Any, valid: Any) -> Any:
    """An array (rows, …) as lists of lists, all but the innermost of equal lengths."""
    import numpy as np
    import pyarrow as pa

    rows = len(values)
    if values.ndim == 1:
        buffer = _bits(values) if values.dtype == bool else _buffer(values)
        return pa.Array.from_buffers(kind, rows, [valid, buffer])
    length = values.shape[1]
    inside = _nested(values.reshape((rows * length, *values.shape[2:])), kind.value_type, None)
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(length)
    return pa.Array.from_buffers(kind, rows, [valid, _buffer(offsets)], children=[inside])


def _bits(flags: Array) -> Any:
    import numpy as np

    return _buffer(np.packbits(flags, bitorder="little"))


def _buffer(array: Array) -> Any:
    """The array's own memory, which lives as long as Arrow needs it."""
    import numpy as np
    import pyarrow as pa

    return pa.py_buffer(np.ascontiguousarray(array))
