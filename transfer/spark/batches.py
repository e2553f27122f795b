"""Converts a run's rows to Arrow record batches, for Spark to read: the reverse of `columns.py`.

Arrays of numbers become Arrow's buffers without a copy. Only small parts are new: offsets, which Spark needs
as int32; booleans as bits, which are bytes in a tensor; and validity bits for nulls.
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

#: values of a column in a batch, limited by Spark's offsets of 32 bits
_MAX_VALUES = (1 << 31) - 1

#: numpy's type -> Spark's name of it, and Arrow's
_WORDS = {dtype: word for word, dtype in NUMERIC.items()}
_ARROW = {"bool": "bool_"} | {dtype: dtype for dtype in _WORDS if dtype != "bool"}


def schema_of(layouts: Sequence[Layout]) -> StructType:
    """Returns the Spark schema of a run's columns. A column can be null only if it has a `NAME.valid` array.

    Raises NotATensor, with the column's name, for numbers without a Spark type.
    """
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(one.name, _spark_type(one), one.nulls) for one in layouts])


def check_fit(schema: StructType, layouts: Sequence[Layout]) -> None:
    """Checks that a user's schema can read these columns: some or all, in any order, with their types.

    Raises OptionError, with the column's name.
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
                hint="Read it with that type and cast it then; without .schema(…) Spark uses the run's.",
            )
        if layout.nulls and not field.nullable:
            raise OptionError(f"column {field.name!r} of the run may be null, but not in the schema")


def batches(
    arrays: Arrays, layouts: Sequence[Layout], schema: StructType, rows: int, most: int = _MAX_VALUES
) -> Iterator[RecordBatch]:
    """Yields these rows with the schema's columns, in batches of at most `most` values of a column."""
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
            f"column {layout.name!r} is {layout.dtype}, for which Spark has no type",
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
    """Whether the types are equal, apart from nullability."""
    if one.typeName() == other.typeName() == "array":
        return _same(one.elementType, other.elementType)
    same: bool = one == other
    return same


def _arrow_type(kind: Any) -> Any:
    """Returns the Arrow type exactly as Spark builds it, since Spark compares."""
    import pyarrow as pa

    word = kind.typeName()
    if word == "array":
        return pa.list_(pa.field("element", _arrow_type(kind.elementType), kind.containsNull))
    return getattr(pa, _ARROW[NUMERIC[word]] if word in NUMERIC else word)()


# --- columns ------------------------------------------------------------------------------------


def _values(arrays: Arrays, layout: Layout) -> int:
    """Returns the largest value that an offset of this column can have."""
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
    """Converts an array (rows, …) to lists of lists; all but the innermost have equal lengths."""
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
    """Wraps the array's memory, and keeps it alive as long as Arrow uses it."""
    import numpy as np
    import pyarrow as pa

    return pa.py_buffer(np.ascontiguousarray(array))
