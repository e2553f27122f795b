"""Rows whose columns follow from their ids, and tasks that send them, as Spark's do."""

from __future__ import annotations

import json

import numpy as np

from transfer.spark.options import WriteOptions
from transfer.spark.producer import SocketSender, TaskAttempt
from transfer.spool.client.connection import ReconnectingClient
from transfer.spool.format import rows as tables
from transfer.spool.format.protocol import CommitJob, Declare, Ended
from transfer.spool.format.rows import Layout
from transfer.spool.format.run_messages import (
    RowsFrame,
    TaskBegin,
    TaskEnd,
    Winner,
    chain,
    checksum,
    to_table,
)

SMALL = (Layout("id", "dense", "int64"),)
#: 8 KiB a row: frames of eight rows are large enough to be blobs
WIDE = (*SMALL, Layout("wide", "dense", "uint8", (8192,)))
RAGGED = (*SMALL, Layout("tokens", "ragged", "int32"), Layout("text", "string", "uint8", (), True))


def frame(first, rows, layouts=SMALL):
    """Rows with the ids from `first` on."""
    ids = np.arange(first, first + rows, dtype=np.int64)
    arrays = {"id": ids}
    if layouts == WIDE:
        arrays["wide"] = np.broadcast_to((ids % 251).astype(np.uint8)[:, None], (rows, 8192)).copy()
    if layouts == RAGGED:
        arrays["tokens"] = np.repeat(ids, ids % 5).astype(np.int32)
        arrays["tokens.offsets"] = _ends(ids % 5)
        texts = [str(one).encode() * (one % 2) for one in ids.tolist()]
        arrays["text"] = np.frombuffer(b"".join(texts), np.uint8)
        arrays["text.offsets"] = _ends([len(text) for text in texts])
        arrays["text.valid"] = ids % 2 == 1
    return arrays


def _ends(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def agrees(arrays, layouts=SMALL):
    """The ids of rows all of whose columns follow from them."""
    ids = np.asarray(arrays.get("id", ()))
    wanted = [frame(one, 1, layouts) for one in ids.tolist()]
    if wanted:
        whole = tables.join(wanted, layouts)
        assert arrays.keys() == whole.keys()
        for name, values in whole.items():
            np.testing.assert_array_equal(np.asarray(arrays[name]), values)
    return ids.tolist()


class Task:
    """The messages of one attempt, one after the other. sizes: rows of its frames."""

    def __init__(self, run, job, partition, attempt, first, sizes, layouts=SMALL):
        self.key = run, job, partition, attempt
        self.messages = [(TaskBegin(*self.key, 0, json.dumps(tables.to_json(layouts))), {})]
        crc = nbytes = 0
        self.ids = list(range(first, first + sum(sizes)))
        for sequence, rows in enumerate(sizes):
            arrays = frame(first, rows, layouts)
            message = RowsFrame(*self.key, sequence, rows, checksum(arrays))
            self.messages.append((message, arrays))
            crc = chain(crc, sequence, rows, message.crc)
            nbytes += sum(array.nbytes for array in arrays.values())
            first += rows
        self.messages.append((TaskEnd(*self.key, len(sizes), sum(sizes), crc), {}))
        self.winner = Winner(partition, attempt, len(sizes), sum(sizes), nbytes, crc)


def push(
    endpoint,
    run,
    job,
    partition,
    attempt,
    first,
    sizes,
    layouts=SMALL,
    *,
    delivery="committed",
    kind="batch",
    timeout=20.0,
    make=frame,
):
    """One task, as Spark's send: its Winner when the spool says that it is kept. None: it was done before.

    make: the arrays of so many rows from `first` on.
    """
    link = ReconnectingClient(endpoint, timeout=timeout)
    try:
        _, answer = link.ask(Declare(run=run, job=job, delivery=delivery, kind=kind))
        if answer["done"]:
            return None
        host = endpoint.rpartition(":")[0]
        sender = SocketSender(f"{host}:{answer['port']}", WriteOptions(endpoint=("",)), timeout)
        try:
            columns = json.dumps(tables.to_json(layouts))
            task = TaskAttempt(sender, run, job, partition, attempt, columns=columns, timeout=timeout)
            for rows in sizes:
                task.send(make(first, rows, layouts), rows)
                first += rows
            winner = task.finish().winner
        finally:
            sender.close()
        link.ask(Ended(run=run, job=job, partition=partition, attempt=attempt))
        return winner
    finally:
        link.close()


def commit(endpoint, run, job, winners, *, timeout=20.0):
    """As the driver does: its answer."""
    link = ReconnectingClient(endpoint, timeout=timeout)
    try:
        table = {name: np.array(column, np.int64) for name, column in to_table(winners).items()}
        return link.ask(CommitJob(run=run, job=job), table)[1]
    finally:
        link.close()


def ask(endpoint, request, arrays=None, *, timeout=20.0):
    """One request on a connection of its own: (arrays, metadata)."""
    link = ReconnectingClient(endpoint, timeout=timeout)
    try:
        return link.ask(request, arrays)
    finally:
        link.close()


def write(endpoint, run, sizes, layouts=SMALL, **options):
    """A whole run of one job, a partition for each list of frame sizes; its rows have the ids 0, 1, 2 …"""
    first, winners = 0, []
    for partition, frames in enumerate(sizes):
        winners.append(push(endpoint, run, "job", partition, partition, first, frames, layouts, **options))
        first += sum(frames)
    return commit(endpoint, run, "job", winners)


__all__ = ["RAGGED", "SMALL", "WIDE", "Task", "agrees", "ask", "commit", "frame", "push", "write"]
