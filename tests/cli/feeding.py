"""Writes a run into a spool as Spark's tasks do, without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np

from transfer import rows as row_layouts
from transfer.rows import Layout
from transfer.runs import to_table
from transfer.spark.options import parse_options
from transfer.spark.producer import Attempt, Receipt, SocketSender
from transfer.spool.address import parse
from transfer.spool.link import Link
from transfer.spool.protocol import CommitJob, Declare, Ended

LAYOUTS = (Layout("id", "dense", "int64"), Layout("x", "dense", "float32", (2,)))


def arrays_of(ids: Sequence[int]) -> dict[str, np.ndarray]:
    values = np.array(ids, np.int64)
    return {"id": values, "x": np.stack([values, -values], axis=1).astype(np.float32)}


def send_run(
    url: str,
    partitions: Sequence[Sequence[int]],
    *,
    frame: int = 10,
    commit: bool = True,
    layouts: Sequence[Layout] = LAYOUTS,
    make: Callable[[Sequence[int]], dict[str, np.ndarray]] = arrays_of,
) -> None:
    """A job with one task a partition, whose rows are these ids; committed, or left in the middle.

    make: the arrays of rows with these ids, as `layouts` say.
    """
    address = parse(url)
    link = Link(address.endpoint, timeout=20.0)
    receipts = []
    try:
        declaration = Declare(run=address.run, job="job", delivery="committed", kind="batch")
        _, answer = link.ask(declaration)
        assert not answer["done"]
        endpoint = f"{address.endpoint.rpartition(':')[0]}:{answer['port']}"
        for number, ids in enumerate(partitions):
            receipts.append(_send_partition(endpoint, address.run, number, ids, frame, layouts, make))
            link.ask(Ended(run=address.run, job="job", partition=number, attempt=number))
        if commit:
            table = to_table([receipt.winner for receipt in receipts])
            winners = {name: np.array(column, np.int64) for name, column in table.items()}
            _, answer = link.ask(CommitJob(run=address.run, job="job"), winners)
            assert answer["rows"] == sum(map(len, partitions))
    finally:
        link.close()


def _send_partition(endpoint, run, number, ids, frame, layouts, make) -> Receipt:
    options = parse_options({"endpoint": endpoint, "delivery": "eager"})
    sender = SocketSender(endpoint, options)
    try:
        columns = json.dumps(row_layouts.to_json(layouts))
        attempt = Attempt(sender, run, "job", number, number, columns=columns, timeout=20.0)
        for begin in range(0, len(ids), frame):
            part = ids[begin : begin + frame]
            attempt.send(make(part), len(part))
        return attempt.finish()
    finally:
        sender.close()
