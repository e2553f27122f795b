"""The trainer: a separate process that takes batches of tensors, and reports when the first and the last
arrived."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

BATCH = 256
#: seconds
PATIENCE = 300
Link = Any


class Read(NamedTuple):
    """first, last: times of the first batch and of the last, by the system's monotonic clock. total: the sum
    of the first column, which shows whether every row arrived."""

    first: float
    last: float
    rows: int
    total: float


class Trainer:
    """A process that reads on request, several times in turn."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._link, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_work, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        self._link.recv()

    def start(self, source: str, argument: str) -> str:
        """Starts to read from one of `SOURCES`; returns what the writer needs (an endpoint)."""
        self._link.send((source, argument))
        return str(self._link.recv())

    def go(self) -> None:
        """Starts a reader of files, when they are complete."""
        self._link.send("go")

    def end(self) -> Read:
        if not self._link.poll(PATIENCE):
            raise AssertionError("the trainer has not ended")
        read = self._link.recv()
        if isinstance(read, Exception):
            raise read
        return Read(*read)

    def close(self) -> None:
        self._link.send(None)
        self._process.join(20)


def _work(link: Link) -> None:
    import torch

    torch.set_num_threads(1)
    link.send("ready")
    while (asked := link.recv()) is not None:
        source, argument = asked
        try:
            link.send(tuple(consume(SOURCES[source](argument, link))))
        except Exception as error:  # noqa: BLE001 - reported to the other side
            link.send(error)


def consume(batches: Iterable[Any]) -> Read:
    """Takes all batches, and reads each row of them."""
    first, rows, total = 0.0, 0, 0.0
    for batch in batches:
        if not rows:
            first = time.monotonic()
        rows += len(batch)
        total += float(batch[:, 0].double().sum())
    return Read(first, time.monotonic(), rows, total)


def _run(url: str, link: Link) -> Iterator[Any]:
    from transfer.torch import StreamDataset

    dataset = StreamDataset(url, BATCH, columns=("x",), timeout=600.0)
    link.send(url)
    link.recv()
    with dataset:
        for (x,) in dataset:
            yield x


def _eager(_: str, link: Link) -> Iterator[Any]:
    from transfer.torch import StreamDataset

    with StreamDataset(batch_size=BATCH, columns=("x",), timeout=600.0) as dataset:
        link.send(dataset.endpoint)
        link.recv()
        for (x,) in dataset:
            yield x


def _parquet(folder: str, link: Link) -> Iterator[Any]:
    """Reads as hand-written code does: Arrow reads the files in pieces, on all cores, for torch."""
    import torch
    from pyarrow import dataset

    link.send(folder)
    link.recv()
    for piece in dataset.dataset(folder, format="parquet").to_batches(columns=["x"]):
        column = piece.column(0)
        values = column.flatten().to_numpy(zero_copy_only=True).reshape(len(column), -1)
        yield from torch.from_numpy(values.copy()).split(BATCH)


SOURCES: dict[str, Callable[[str, Link], Iterator[Any]]] = {"run": _run, "eager": _eager, "parquet": _parquet}
