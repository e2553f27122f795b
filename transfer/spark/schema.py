"""Which columns of a DataFrame can travel as tensors, decided on the driver from the schema alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transports.errors import NotATensor, OptionError

#: Spark's type name -> numpy's
NUMERIC = {
    "byte": "int8",
    "short": "int16",
    "integer": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "boolean": "bool",
}
#: what to do about the types that people meet most
_HINTS = {
    "decimal": "Cast it: df.withColumn('{name}', F.col('{name}').cast('double')).",
    "timestamp": "Cast it to a number: F.unix_micros('{name}').",
    "timestamp_ntz": "Cast it to a number first.",
    "date": "Cast it to a number: F.unix_date('{name}').",
    "string": "Index or hash it into numbers first, or leave it out with the option 'columns'.",
    "binary": "Decode it into an array of numbers first, or leave it out with the option 'columns'.",
    "struct": "Select its fields as columns of their own: df.select('{name}.*').",
    "udt": "Turn a vector into an array: pyspark.ml.functions.vector_to_array('{name}', 'float32').",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column that travels. `index` is its place in the DataFrame; `depth` counts nested arrays."""

    name: str
    index: int
    dtype: str
    depth: int


def check_schema(schema: Any, wanted: Sequence[str] = ()) -> tuple[Column, ...]:
    """The columns to send, in the order asked for (all, when `wanted` is empty).

    `schema` is a pyspark StructType. Lengths of arrays and nulls are not in a Spark schema; they are
    checked batch by batch before anything of the batch is sent. Raises OptionError for a name that
    is not there, NotATensor for a type that cannot travel; both name the column.
    """
    names = [field.name for field in schema.fields]
    for name in names:
        if names.count(name) > 1 and (not wanted or name in wanted):
            raise OptionError(f"column {name!r} is there twice", hint="Rename one of them.")
    for name in wanted:
        if name not in names:
            raise OptionError(f"there is no column {name!r}", hint=f"There are: {', '.join(names)}.")
    chosen = list(wanted) or names
    if not chosen:
        raise OptionError("the DataFrame has no columns")
    return tuple(
        _column(name, names.index(name), schema.fields[names.index(name)].dataType) for name in chosen
    )


def _column(name: str, index: int, kind: Any) -> Column:
    depth, inner = 0, kind
    while inner.typeName() == "array":
        inner, depth = inner.elementType, depth + 1
    word = inner.typeName()
    if word not in NUMERIC:
        key = "udt" if hasattr(inner, "sqlType") else word
        hint = _HINTS.get(key, "Only numbers, booleans and arrays of them of one length can travel.")
        raise NotATensor(
            f"column {name!r} is {kind.simpleString()}, which is no tensor", hint=hint.format(name=name)
        )
    return Column(name, index, NUMERIC[word], depth)
