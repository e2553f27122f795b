"""Writes a run whose rows have given ids into a spool, as Spark's tasks do, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tests.spool.task_sender import commit, push
from transfer.spool.format.address import parse
from transfer.spool.format.rows import Layout

LAYOUTS = (Layout("id", "dense", "int64"), Layout("x", "dense", "float32", (2,)))


def arrays_of(ids: Sequence[int]) -> dict[str, np.ndarray]:
    values = np.array(ids, np.int64)
    return {"id": values, "x": np.stack([values, -values], axis=1).astype(np.float32)}


def send_run(
    url: str,
    partitions: Sequence[Sequence[int]],
    *,
    frame: int = 10,
    done: bool = True,
    layouts: Sequence[Layout] = LAYOUTS,
    make: Callable[[Sequence[int]], dict[str, np.ndarray]] = arrays_of,
) -> None:
    """A job with one task a partition, whose rows are these ids; committed if `done`, or left in the middle.

    make: the arrays of rows with these ids, as `layouts` say.
    """
    endpoint, run = parse(url)
    winners = []
    for number, ids in enumerate(partitions):
        sizes = [min(frame, len(ids) - begin) for begin in range(0, len(ids), frame)]

        def rows_of(first: int, rows: int, _: object, ids: Sequence[int] = ids) -> dict[str, np.ndarray]:
            return make(ids[first : first + rows])

        winners.append(push(endpoint, run, "job", number, number, 0, sizes, layouts, make=rows_of))
    if done:
        assert commit(endpoint, run, "job", winners)["rows"] == sum(map(len, partitions))
