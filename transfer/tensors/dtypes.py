"""Element types: their numbers on the wire, and their names in numpy, torch and safetensors.

Numbers 1 to 9 are those of the original protocol. Number 0 means that a text describes the type (numpy's
description as JSON: structured types, dates, fixed strings, another byte order).
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from typing import Any, Final

from transfer.transports.errors import NotATensor, ProtocolError, missing_library

TEXT: Final = 0
#: a longer description is refused; it would not fit into an extended header anyway
MAX_TEXT: Final = 3072
#: nesting depth of structured types; limits the recursion that a hostile description can cause
_MAX_NESTING: Final = 8
#: the type strings that numpy makes: byte order, kind and size, and the unit of a date
_PLAIN: Final = re.compile(
    r"[<>|](?:[biufcSUV][0-9]{1,10}|[mM]8(?:\[(?:[1-9][0-9]{0,9})?(?:[YMWDhms]|[munpfa]s)\])?)"
)


@dataclass(frozen=True, slots=True)
class ElementType:
    """One row of the table.

    `numpy` is numpy's little-endian type string, or "" for a type that only `ml_dtypes` has; `view` is the
    numpy type of the same size as which such an array travels.
    """

    code: int
    name: str
    itemsize: int
    numpy: str
    safetensors: str = ""
    view: str = ""


TABLE: Final = (
    ElementType(1, "float16", 2, "<f2", "F16"),
    ElementType(2, "float32", 4, "<f4", "F32"),
    ElementType(3, "float64", 8, "<f8", "F64"),
    ElementType(4, "int8", 1, "|i1", "I8"),
    ElementType(5, "int16", 2, "<i2", "I16"),
    ElementType(6, "int32", 4, "<i4", "I32"),
    ElementType(7, "int64", 8, "<i8", "I64"),
    ElementType(8, "uint8", 1, "|u1", "U8"),
    ElementType(9, "bool", 1, "|b1", "BOOL"),
    ElementType(16, "uint16", 2, "<u2", "U16"),
    ElementType(17, "uint32", 4, "<u4", "U32"),
    ElementType(18, "uint64", 8, "<u8", "U64"),
    ElementType(19, "complex64", 8, "<c8", "C64"),
    ElementType(20, "complex128", 16, "<c16"),
    ElementType(21, "bfloat16", 2, "", "BF16", "<u2"),
    ElementType(22, "float8_e4m3fn", 1, "", "F8_E4M3", "|u1"),
    ElementType(23, "float8_e5m2", 1, "", "F8_E5M2", "|u1"),
    ElementType(24, "float8_e4m3fnuz", 1, "", "", "|u1"),
    ElementType(25, "float8_e5m2fnuz", 1, "", "", "|u1"),
    ElementType(26, "float8_e8m0fnu", 1, "", "F8_E8M0", "|u1"),
)

#: types that memoryview can flatten: those whose format is one character
EXPORTABLE: Final = frozenset(row.code for row in TABLE if row.numpy and "complex" not in row.name)

#: the highest number of the original protocol; a tensor with a higher one needs the extended header
LAST_SEED_CODE: Final = 9

BY_CODE: Final = {row.code: row for row in TABLE}
BY_NAME: Final = {row.name: row for row in TABLE}
_BY_NUMPY: Final = {row.numpy: row for row in TABLE if row.numpy}
BY_SAFETENSORS: Final = {row.safetensors: row for row in TABLE if row.safetensors}


# --- numpy ------------------------------------------------------------------------------------


def describe_numpy(dtype: Any) -> tuple[int, str, int]:
    """Returns (code, text, item size) of a numpy dtype. Raises NotATensor for types that hold objects."""
    if dtype.hasobject:
        raise NotATensor(
            f"an array of {dtype} holds Python objects and cannot travel",
            hint="convert it to a numeric dtype; pickle is never used",
        )
    if dtype.itemsize == 0:
        raise NotATensor(f"elements of {dtype} have no bytes")
    row = _BY_NUMPY.get(dtype.str) if dtype.names is None and dtype.subdtype is None else None
    if dtype.type.__module__ == "ml_dtypes":
        row = BY_NAME.get(dtype.name)
        if row is None:
            raise NotATensor(f"dtype {dtype} cannot travel", hint=f"known are {', '.join(BY_NAME)}")
    if row is not None:
        return row.code, "", row.itemsize
    import numpy

    try:
        text = json.dumps(numpy.lib.format.dtype_to_descr(dtype), separators=(",", ":"))
        same = bool(_numpy_from_text(text) == dtype)
    except (ProtocolError, TypeError, ValueError, UserWarning) as error:
        raise NotATensor(f"dtype {dtype} cannot be described") from error
    if not same:
        raise NotATensor(f"dtype {dtype} cannot be described without losing something")
    if len(text) > MAX_TEXT:
        raise NotATensor(f"the description of a dtype with {len(dtype.names or ())} fields is too long")
    return TEXT, text, dtype.itemsize


def numpy_dtype(code: int, text: str, itemsize: int) -> Any:
    """Returns the numpy dtype of a received tensor.

    Raises NotSupported if `ml_dtypes` is needed and missing, ProtocolError("dtype") if the description is
    not valid.
    """
    import numpy

    if code == TEXT:
        dtype = _numpy_from_text(text)
        if dtype.itemsize != itemsize:
            raise ProtocolError("dtype", f"{dtype} has items of {dtype.itemsize} bytes, not {itemsize}")
        return dtype
    row = BY_CODE[code]
    if row.numpy:
        return numpy.dtype(row.numpy)
    try:
        import ml_dtypes
    except ImportError as error:
        raise missing_library(f"{row.name} in numpy", error, "numpy", "receive with like=torch") from error
    return numpy.dtype(getattr(ml_dtypes, row.name))


def _numpy_from_text(text: str) -> Any:
    import numpy

    try:
        dtype = numpy.lib.format.descr_to_dtype(_checked(json.loads(text), 0))
    except (ValueError, TypeError, SyntaxError, RecursionError, OverflowError, MemoryError) as error:
        raise ProtocolError("dtype", f"no dtype: {text[:80]!r}") from error
    # An array of sub-arrays has more dimensions than its header states; numpy itself never makes one.
    if dtype.hasobject or dtype.itemsize == 0 or dtype.subdtype is not None:
        raise ProtocolError("dtype", f"a dtype that cannot travel: {text[:80]!r}")
    return dtype


def _checked(described: Any, depth: int) -> Any:
    """Converts the parsed JSON of a description, with tuples where numpy needs them; rejects all else."""
    if isinstance(described, str):
        # numpy would also accept "O", "f4,f4" or "(3,)f4", and ends the process for "M8[s/0]"
        if not _PLAIN.fullmatch(described):
            raise ValueError("no plain type string")
        return described
    if depth >= _MAX_NESTING or not isinstance(described, list):
        raise ValueError("no description of fields")
    if len(described) == 2 and isinstance(described[1], list) and _all_ints(described[1]):
        return _checked(described[0], depth + 1), tuple(described[1])
    return [_field(field, depth) for field in described]


def _field(field: Any, depth: int) -> tuple[Any, ...]:
    if not isinstance(field, list) or len(field) not in (2, 3):
        raise ValueError("a field is [name, type] or [name, type, shape]")
    name = tuple(field[0]) if isinstance(field[0], list) else field[0]
    kind = _checked(field[1], depth + 1)
    if len(field) == 2:
        return name, kind
    if not isinstance(field[2], list) or not _all_ints(field[2]):
        raise ValueError("the shape of a field is a list of numbers")
    return name, kind, tuple(field[2])


def _all_ints(values: list[Any]) -> bool:
    return bool(values) and all(type(value) is int and 0 < value < 1 << 31 for value in values)


# --- torch ------------------------------------------------------------------------------------


#: torch types that numpy has, too, by size: the views of all other types
TORCH_VIEWS: Final = {1: "uint8", 2: "int16"}


def describe_torch(dtype: Any) -> ElementType:
    """Returns the row of a torch dtype. Raises NotATensor (quantized types, bits, int4 ...)."""
    row = BY_NAME.get(str(dtype).removeprefix("torch."))
    if row is None:
        raise NotATensor(f"{dtype} cannot travel", hint=f"known are {', '.join(BY_NAME)}")
    return row


def torch_dtype(code: int) -> Any:
    """Returns the torch dtype of a number, or None if this release of torch has none."""
    row = BY_CODE.get(code)
    torch = sys.modules.get("torch")
    return getattr(torch, row.name, None) if row is not None and torch is not None else None
