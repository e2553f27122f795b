"""Decides on the driver, from the schema alone, which columns of a DataFrame can travel, and how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from transfer.spool.format.rows import Layout
from transfer.tensors.bundle import MAX_NAME, MAX_TENSORS
from transfer.transports.errors import NotATensor, OptionError

Kind = Literal["dense", "ragged", "string", "binary", "vector", "bytes"]
Source = Literal["", "timestamp", "date", "decimal"]
#: policies for nulls; the first one is the default
NULLS = ("refuse", "fill", "mask")
#: means all array columns in the option `ragged`
_ALL = "*"

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
_BYTES: dict[str, Kind] = {"string": "string", "char": "string", "varchar": "string", "binary": "binary"}
#: dense and sparse vectors have one type, so sparse ones are found only in the data
_VECTORS = ("pyspark.ml.linalg", "pyspark.mllib.linalg")
_INTERVAL = "Take numbers out of it, for instance F.expr('extract(day from `{name}`)')."
#: hints for the most frequent types
_HINTS = {
    "decimal": "Use the option decimals='float64' or 'int64', or cast it: F.col('{name}').cast('double').",
    "timestamp": "Use the option timestamps='micros', or cast it to a number: F.unix_micros('{name}').",
    "timestamp_ntz": "Use the option timestamps='micros', or cast it to a number first.",
    "date": "Use the option dates='days', or cast it to a number: F.unix_date('{name}').",
    "interval": _INTERVAL,
    "daytimeinterval": _INTERVAL,
    "yearmonthinterval": _INTERVAL,
    "struct": "Select its fields as separate columns: df.select('{name}.*').",
    "map": "Make arrays of it: F.map_keys('{name}') and F.map_values('{name}').",
    "array of string": "Join them into one string: F.array_join('{name}', ' '), or index them into numbers.",
    "array of vector": "Make a row of each: df.withColumn('{name}', F.explode('{name}')).",
}
_HINT = "Only numbers, booleans, strings, bytes, dense vectors and arrays of numbers or booleans can travel."


#: conversions of types that are numbers inside; the first one is the default
TIMESTAMPS = ("refuse", "micros")
DATES = ("refuse", "days")
DECIMALS = ("refuse", "float64", "int64")


@dataclass(frozen=True, slots=True)
class Conversions:
    """Conversions of columns that are no numbers for Spark. dense: binary columns with the shape of a row, ()
    for as many bytes as the rows have."""

    timestamps: str = TIMESTAMPS[0]
    dates: str = DATES[0]
    decimals: str = DECIMALS[0]
    dense: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def number(self, word: str) -> tuple[Source, str] | None:
        """Returns (the source, numpy's type) of a Spark type that travels as a number."""
        if word in ("timestamp", "timestamp_ntz") and self.timestamps != TIMESTAMPS[0]:
            return "timestamp", "int64"
        if word == "date" and self.dates != DATES[0]:
            return "date", "int32"
        if word == "decimal" and self.decimals != DECIMALS[0]:
            return "decimal", self.decimals
        return None


#: no conversions
_PLAIN = Conversions()


@dataclass(frozen=True, slots=True)
class Column:
    """A column to send. `index` is its place in the DataFrame; `depth` counts nested arrays.

    kind: as in `Layout`; "vector" (MLlib's, depth 1) and "bytes" (binary of one length) travel as "dense".
    nulls: the policy for this column, one of NULLS; "mask" only if the schema lets the column be null.
    source: Arrow's kind of value if it is not a number of `dtype` yet. dense: the shape of "bytes", () if
    their length determines it.
    """

    name: str
    index: int
    dtype: str
    depth: int
    kind: Kind = "dense"
    nulls: str = NULLS[0]
    source: Source = ""
    dense: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of a row, or of a value of a ragged one, if the schema determines it."""
        if self.kind == "bytes":
            return self.dense or None
        return None if self.depth - (self.kind == "ragged") else ()

    def layout(self, shape: tuple[int, ...]) -> Layout:
        """Returns the layout, once that shape is known."""
        kind = "dense" if self.kind == "vector" or self.kind == "bytes" else self.kind
        return Layout(self.name, kind, self.dtype, shape, nulls=self.nulls == "mask")


def check_schema(
    schema: Any,
    wanted: Sequence[str] = (),
    *,
    ragged: Sequence[str] = (),
    nulls: str = NULLS[0],
    conversions: Conversions = _PLAIN,
) -> tuple[Column, ...]:
    """Returns the columns to send, in the order of `wanted` (empty: all).

    `schema` is a pyspark StructType. `ragged` names array columns whose rows have different lengths ("*":
    all). A Spark schema has no lengths of arrays, nulls or sparse vectors; they are checked for each batch
    before it is sent. Raises OptionError for an unknown name, a name that is no array or that another
    column's arrays have; NotATensor for a type that cannot travel. Both name the column.
    """
    if nulls not in NULLS:
        raise OptionError(f"nulls is one of {', '.join(NULLS)}, not {nulls!r}")
    places = {field.name: place for place, field in enumerate(schema.fields)}
    for name, times in Counter(field.name for field in schema.fields).items():
        if times > 1 and (not wanted or name in wanted):
            raise OptionError(f"column {name!r} is there twice", hint="Rename one of them.")
    for name in wanted:
        if name not in places:
            raise OptionError(f"there is no column {name!r}", hint=f"There are: {', '.join(places)}.")
    chosen = tuple(wanted) or tuple(places)
    if not chosen:
        raise OptionError("the DataFrame has no columns")
    _check_ragged(schema, {name: places[name] for name in chosen}, ragged)
    _check_dense(schema, {name: places[name] for name in chosen}, conversions)
    loose = frozenset(ragged)
    columns = tuple(
        _column(schema.fields[places[name]], places[name], loose, nulls, conversions) for name in chosen
    )
    _check_names(columns)
    return columns


def _check_ragged(schema: Any, places: dict[str, int], ragged: Sequence[str]) -> None:
    for name in ragged:
        if name == _ALL:
            continue
        if name not in places:
            raise OptionError(
                f"option 'ragged' names {name!r}, and no such column is sent",
                hint=f"Sent are: {', '.join(places)}.",
            )
        kind = schema.fields[places[name]].dataType
        if kind.typeName() != "array":
            raise OptionError(
                f"option 'ragged' names {name!r}, which is {kind.simpleString()} and no array",
                hint="Take it out of the option. Strings and bytes may always have different lengths.",
            )


def _check_dense(schema: Any, places: dict[str, int], conversions: Conversions) -> None:
    for name, _ in conversions.dense:
        if name not in places:
            raise OptionError(
                f"option 'dense' names {name!r}, and no such column is sent",
                hint=f"Sent are: {', '.join(places)}.",
            )
        kind = schema.fields[places[name]].dataType
        if kind.typeName() != "binary":
            raise OptionError(
                f"option 'dense' names {name!r}, which is {kind.simpleString()} and not binary",
                hint="Take it out of the option. Arrays of one length are dense anyway.",
            )


def _column(field: Any, index: int, ragged: frozenset[str], nulls: str, conversions: Conversions) -> Column:
    name, depth, inner = field.name, 0, field.dataType
    while inner.typeName() == "array":
        inner, depth = inner.elementType, depth + 1
    if nulls == "mask" and not field.nullable:
        nulls = NULLS[0]
    word = "vector" if _is_vector(inner) else inner.typeName()
    found: tuple[Source, str] | None = ("", NUMERIC[word]) if word in NUMERIC else conversions.number(word)
    if found is not None:
        kind: Kind = "ragged" if depth and (name in ragged or _ALL in ragged) else "dense"
        return Column(name, index, found[1], depth, kind, nulls, found[0])
    shape = dict(conversions.dense).get(name)
    if shape is not None:
        return Column(name, index, "uint8", 0, "bytes", nulls, dense=shape)
    if not depth and word == "vector":
        return Column(name, index, "float64", 1, "vector", nulls)
    if not depth and word in _BYTES:
        return Column(name, index, "uint8", 0, _BYTES[word], nulls)
    hint = _HINTS.get(f"array of {_BYTES.get(word, word)}" if depth else word, _HINTS.get(word, _HINT))
    raise NotATensor(
        f"column {name!r} is {field.dataType.simpleString()}, which is no tensor", hint=hint.format(name=name)
    )


def _is_vector(kind: Any) -> bool:
    return type(kind).__name__ == "VectorUDT" and type(kind).module() in _VECTORS


def _check_names(columns: Sequence[Column]) -> None:
    """Refuses names that one message of all these arrays could not carry."""
    owners: dict[str, str] = {}
    for column in columns:
        for name in column.layout(()).arrays:
            if name in owners:
                raise OptionError(
                    f"columns {owners[name]!r} and {column.name!r} would both travel as {name!r}",
                    hint="Rename one of them, or leave it out with the option 'columns'.",
                )
            if len(name.encode(errors="replace")) > MAX_NAME:
                raise OptionError(f"column {column.name!r} has a name of more than {MAX_NAME} bytes")
            owners[name] = column.name
    if len(owners) > MAX_TENSORS:
        raise OptionError(
            f"{len(columns)} columns are {len(owners)} tensors; at most {MAX_TENSORS} can travel, so "
            f"{list(owners.values())[MAX_TENSORS]!r} and those behind it cannot",
            hint="Put columns of one type into an array: df.select(F.array(…)), or choose with 'columns'.",
        )
