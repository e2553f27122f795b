"""Rows as dicts of arrays: the layout of a column, and cutting, joining and picking rows. Pure.

A column of `kind` "dense" is one array (rows, *shape). The other kinds have rows of different lengths: one
array with the values of all rows, (values, *shape), and `NAME.offsets`, int64 (rows + 1), which begins with
0. Row i is values[offsets[i]:offsets[i + 1]]. "string" is UTF-8 and "binary" bytes, both uint8. Where nulls
were filled, `NAME.valid`, bool (rows), marks the rows that had a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, get_args

from transfer.transports.arguments import sequence, text
from transfer.transports.errors import OptionError, ProtocolError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
    Arrays = dict[str, Array]
    #: (shape, dtype) -> writable memory
    Allocate = Callable[[tuple[int, ...], Any], Array]

Kind = Literal["dense", "ragged", "string", "binary"]
#: of a row or value
_MAX_DIMENSIONS, _MAX_LENGTH = 32, 1 << 40
#: characters of a type's name
_MAX_DTYPE = 1 << 16
#: rows in one dict of arrays: 64 bits count all rows of a run
_MAX_ROWS = 1 << 32
OFFSETS = ".offsets"
#: assumed bytes of a row's value whose length is unknown
_GUESS = 64
VALID = ".valid"


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of one column in a dict of arrays. shape: of a row ("dense") or of a value (else).

    nulls: whether there is a `NAME.valid`.
    """

    name: str
    kind: Kind
    dtype: str
    shape: tuple[int, ...] = ()
    nulls: bool = False

    @property
    def arrays(self) -> tuple[str, ...]:
        """The names of its arrays."""
        names = [self.name]
        if self.kind != "dense":
            names.append(self.name + OFFSETS)
        if self.nulls:
            names.append(self.name + VALID)
        return tuple(names)

    @property
    def takes_no_bytes(self) -> bool:
        """Whether rows take no memory at all, whatever their number."""
        return self.kind == "dense" and not self.nulls and 0 in self.shape


def to_json(layouts: Iterable[Layout]) -> list[dict[str, Any]]:
    """Returns the layouts in their JSON form."""
    return [asdict(layout) for layout in layouts]


def from_json(value: Any) -> tuple[Layout, ...]:
    """Parses a peer's layouts. Raises ProtocolError("run")."""
    known = {field.name for field in fields(Layout)}
    layouts = []
    for one in value if isinstance(value, list) else [None]:
        if (
            not isinstance(one, dict)
            or one.keys() != known
            or not isinstance(one["name"], str)
            or not isinstance(one["dtype"], str)
            or one["kind"] not in get_args(Kind)
            or not isinstance(one["shape"], list)
            or len(one["shape"]) > _MAX_DIMENSIONS
            or not all(type(n) is int and 0 <= n <= _MAX_LENGTH for n in one["shape"])
            or type(one["nulls"]) is not bool
            or not _is_dtype(one["dtype"])
            or (one["kind"] in ("string", "binary") and (one["dtype"], one["shape"]) != ("uint8", []))
        ):
            raise ProtocolError("run", "the description of a run's columns is misshapen")
        layouts.append(Layout(**(one | {"shape": tuple(one["shape"])})))
    names = [name for layout in layouts for name in layout.arrays]
    if len(set(names)) < len(names):
        raise ProtocolError("run", "the description of a run's columns names one twice")
    return tuple(layouts)


def _is_dtype(text: str) -> bool:
    """Whether numpy has this type, and its values are bytes."""
    import numpy as np

    try:
        dtype = np.dtype(text if len(text) <= _MAX_DTYPE else "")
    except Exception:  # noqa: BLE001 - numpy raises many kinds of errors for a peer's text
        return False
    return not dtype.hasobject and dtype.itemsize > 0


def row_bytes(layouts: Iterable[Layout]) -> int:
    """Returns about how many bytes a row has: constant for the same columns, since orders depend on it."""
    import numpy as np

    size = 0
    for layout in layouts:
        width = math.prod(layout.shape) * np.dtype(layout.dtype).itemsize
        size += width if layout.kind == "dense" else max(width, _GUESS)
    return size


def check(arrays: Mapping[str, Array], layouts: Sequence[Layout], rows: int) -> None:
    """Raises ProtocolError("run") unless these are `rows` rows of such columns."""
    if rows > _MAX_ROWS or (rows and not layouts):
        raise ProtocolError("run", f"{rows:,} rows at a time, of {len(layouts)} columns")
    names = {name for layout in layouts for name in layout.arrays}
    if arrays.keys() != names:
        wrong = sorted(arrays.keys() ^ names)[0]
        raise ProtocolError("run", f"rows with other columns than their run has: {wrong!r}")
    for layout in layouts:
        values = arrays[layout.name]
        where = f"column {layout.name!r}"
        if values.dtype != layout.dtype or values.shape[1:] != layout.shape or not values.ndim:
            got = f"{values.dtype} {list(values.shape[1:])}"
            raise ProtocolError("run", f"{where} is {got}, the run has {layout.dtype} {list(layout.shape)}")
        length = rows
        if layout.kind != "dense":
            offsets = arrays[layout.name + OFFSETS]
            if offsets.dtype != "int64" or offsets.shape != (rows + 1,):
                raise ProtocolError("run", f"{where} has no offsets for {rows} rows")
            if offsets[0] or (offsets[1:] < offsets[:-1]).any():
                raise ProtocolError("run", f"{where} has offsets that do not rise from 0")
            length = int(offsets[-1])
        if len(values) != length:
            raise ProtocolError("run", f"{where} has {len(values)} values, not {length}")
        if layout.nulls and (arrays[layout.name + VALID].shape, arrays[layout.name + VALID].dtype) != (
            (rows,),
            "bool",
        ):
            raise ProtocolError("run", f"{where} has no validity of its {rows} rows")


def column_names(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Returns the requested columns; None: all. Raises as `list_of_names`."""
    return None if columns is None else list_of_names("columns", columns)


def list_of_names(option: str, given: Sequence[str]) -> tuple[str, ...]:
    """Returns the names that an option lists. Raises OptionError for a single text, whose letters would be
    names, too, and ArgumentError."""
    if isinstance(given, (str, bytes)):
        raise OptionError(f"{option} is a list of names, not {given!r}", hint=f"One: {option}=[{given!r}].")
    return tuple(text(name, f"a name of {option}") for name in sequence(given, option, "names"))


def choose(layouts: Sequence[Layout], names: Iterable[str] | None) -> tuple[Layout, ...]:
    """Returns the columns to which these arrays belong (None: all), in the run's order. Raises OptionError
    for an array of no column."""
    if names is None:
        return tuple(layouts)
    wanted = set(names)
    unknown = wanted.difference(*(layout.arrays for layout in layouts))
    if unknown:
        raise OptionError(
            f"the run has no column {min(unknown)!r}",
            hint=f"It has: {', '.join(layout.name for layout in layouts)}.",
        )
    return tuple(layout for layout in layouts if not wanted.isdisjoint(layout.arrays))


def layouts_of(arrays: Arrays) -> tuple[Layout, ...]:
    """Returns the columns of a batch, by the names of its arrays: strings and bytes count as "ragged"."""
    found = []
    for name, values in arrays.items():
        base, dot, suffix = name.rpartition(".")
        if dot + suffix in (OFFSETS, VALID) and base in arrays:
            continue
        kind: Kind = "ragged" if name + OFFSETS in arrays else "dense"
        nulls = name + VALID in arrays
        found.append(Layout(name, kind, str(values.dtype), tuple(values.shape[1:]), nulls))
    return tuple(found)


def cut(arrays: Mapping[str, Array], layouts: Sequence[Layout], start: int, stop: int) -> Arrays:
    """Returns rows start to stop, as views, except for offsets, which begin with 0 again."""
    piece: Arrays = {}
    for layout in layouts:
        values = arrays[layout.name]
        if layout.kind == "dense":
            piece[layout.name] = values[start:stop]
        else:
            offsets = arrays[layout.name + OFFSETS][start : stop + 1]
            piece[layout.name] = values[int(offsets[0]) : int(offsets[-1])]
            piece[layout.name + OFFSETS] = offsets - offsets[0]
        if layout.nulls:
            piece[layout.name + VALID] = arrays[layout.name + VALID][start:stop]
    return piece


def join(
    pieces: Sequence[Mapping[str, Array]], layouts: Sequence[Layout], allocate: Allocate | None = None
) -> Arrays:
    """Returns the rows of all pieces, copied; a single one unchanged. allocate: makes the memory."""
    import numpy as np

    if len(pieces) == 1:
        return dict(pieces[0])
    allocate = allocate or np.empty
    whole: Arrays = {}
    for layout in layouts:
        for name in layout.arrays:
            parts = [piece[name] for piece in pieces]
            if name != layout.name + OFFSETS or layout.kind == "dense":
                shape = (sum(map(len, parts)), *parts[0].shape[1:])
                whole[name] = np.concatenate(parts, out=allocate(shape, parts[0].dtype))
                continue
            ends = np.cumsum([0] + [part[-1] for part in parts[:-1]])
            joined = [part[1:] + end for part, end in zip(parts, ends, strict=True)]
            whole[name] = np.concatenate([parts[0][:1], *joined])
    return whole


def strings(batch: Mapping[str, Any], name: str) -> list[str]:
    """Returns a "string" column of a batch (numpy or torch) as Python strings. Raises OptionError."""
    return [value.decode() for value in blobs(batch, name)]


def blobs(batch: Mapping[str, Any], name: str) -> list[bytes]:
    """Returns a "string" or "binary" column of a batch (numpy or torch) as bytes. Raises OptionError."""
    import numpy as np

    if name not in batch or name + OFFSETS not in batch:
        raise OptionError(f"{name!r} is no column of strings or bytes", hint=f"there are {sorted(batch)}")
    data = np.asarray(batch[name]).tobytes()
    ends = np.asarray(batch[name + OFFSETS]).tolist()
    return [data[start:stop] for start, stop in pairwise(ends)]
