"""Writes which training step consumed which rows as a Parquet file, for Spark and others."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from transfer.transports.errors import comes_with

if TYPE_CHECKING:
    import numpy as np

    Table = Mapping[str, np.ndarray[Any, Any]]


def write_lineage(tables: Iterable[Table], path: str | os.PathLike[str]) -> int:
    """Writes tables of `SpoolAdmin.explain`, each as a row group; returns the number of rows.

    The file appears when it is complete. Raises NotSupported without pyarrow, OSError.
    """
    with comes_with("spark", "Parquet"):
        import pyarrow
        from pyarrow import parquet
    types = {"run_id": pyarrow.string(), "job": pyarrow.string()}
    names = ("step", "rank", "epoch", "position", "run_id", "job", "partition", "attempt", "sequence", "row")
    schema = pyarrow.schema([(name, types.get(name, pyarrow.int64())) for name in names])
    partial = f"{os.fspath(path)}.partial"
    rows = 0
    try:
        with parquet.ParquetWriter(partial, schema) as writer:
            for table in tables:
                arrays = [pyarrow.array(table[name], schema.field(name).type) for name in names]
                writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))
                rows += len(arrays[0])
        os.replace(partial, path)
    except BaseException:
        if os.path.exists(partial):
            os.unlink(partial)
        raise
    return rows
