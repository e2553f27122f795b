"""The compared ways from a DataFrame to a trainer. Each delivers all rows once, and returns its times."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.spark import cpu
from bench.spark.trainer import BATCH, Read, Trainer, consume


class WayTimes(NamedTuple):
    """Seconds: processor time of all processes, without the trainer; until the first and the last batch."""

    cpu: float
    sink: float
    first: float
    last: float


class Scene:
    """The common parts: Spark with a DataFrame in its memory, a spool in a separate process, a trainer."""

    def __init__(self, spark: Any, frame: Any, rows: int, spool: str, folder: Path) -> None:
        self.spark = spark
        self.frame = frame
        self.rows = rows
        self.spool = spool
        self.folder = folder
        self.trainer = Trainer()

    def read(self, source: str, argument: str, write: Callable[[str], object], *, early: bool) -> WayTimes:
        """Lets the trainer read what `write(endpoint)` writes. early: from the beginning, else after the
        end."""
        endpoint = self.trainer.start(source, argument)
        before, begin = self._used(), time.monotonic()
        if early:
            self.trainer.go()
        write(endpoint)
        if not early:
            self.trainer.go()
        read = self.trainer.end()
        self.check(read)
        used, trainer = (now - then for now, then in zip(self._used(), before, strict=True))
        return WayTimes(used, used - trainer, read.first - begin, read.last - begin)

    def check(self, read: Read) -> None:
        """Checks that every row arrived once: the first value of each is its number."""
        wanted = self.rows, self.rows * (self.rows - 1) / 2
        if (read.rows, read.total) != wanted:
            raise AssertionError(f"{read.rows:,} rows with the sum {read.total:,}, not {wanted}")

    def _used(self) -> tuple[float, float]:
        """Returns the seconds of all processes, and of the trainer."""
        return cpu.used(), cpu.used_by(self.trainer.pid)

    def close(self) -> None:
        self.trainer.close()


def by_spool(scene: Scene, delivery: str) -> WayTimes:
    from transfer.spark import write

    url = f"{scene.spool}/{uuid.uuid4().hex}"
    try:
        return scene.read("run", url, lambda url: write(scene.frame, url, delivery=delivery), early=True)
    finally:
        _delete(url)


def eager(scene: Scene) -> WayTimes:
    from transfer.spark import write

    return scene.read("eager", "", lambda at: write(scene.frame, at, delivery="eager"), early=True)


def parquet(scene: Scene) -> WayTimes:
    folder = scene.folder / "parquet"
    try:
        return scene.read("parquet", str(folder), scene.frame.write.parquet, early=False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def null_sink(scene: Scene) -> WayTimes:
    """An Arrow writer that drops its batches: Spark's own cost of handing them to Python."""
    return _alone(lambda: scene.frame.write.format("bench_null").mode("append").save())


def sink_alone(scene: Scene, delivery: str) -> WayTimes:
    """The spool's sink without a reader: as `by_spool`, without the trainer."""
    from transfer.spark import write

    url = f"{scene.spool}/{uuid.uuid4().hex}"
    try:
        return _alone(lambda: write(scene.frame, url, delivery=delivery))
    finally:
        _delete(url)


def to_arrow(scene: Scene) -> WayTimes:
    """Collects all rows on the driver as Arrow, and converts them to tensors in this process."""

    def batches() -> Iterator[Any]:
        import torch

        for piece in scene.frame.toArrow().column("x").chunks:
            values = piece.flatten().to_numpy(zero_copy_only=True).reshape(len(piece), -1)
            yield from torch.from_numpy(values.copy()).split(BATCH)

    return _alone(lambda: scene.check(consume(batches())))


def to_pandas(scene: Scene) -> WayTimes:
    """As `to_arrow` with pandas, whose columns of arrays are objects: stacked to a matrix."""

    def batches() -> Iterator[Any]:
        import numpy as np
        import torch

        yield from torch.from_numpy(np.stack(scene.frame.toPandas()["x"].to_numpy())).split(BATCH)

    return _alone(lambda: scene.check(consume(batches())))


def _alone(work: Callable[[], object]) -> WayTimes:
    before, begin = cpu.used(), time.monotonic()
    work()
    last = time.monotonic() - begin
    used = cpu.used() - before
    return WayTimes(used, used, last, last)


def _delete(url: str) -> None:
    from transfer.spool.client.connection import ReconnectingClient
    from transfer.spool.format.address import parse
    from transfer.spool.format.protocol import DeleteRun

    address = parse(url)
    link = ReconnectingClient(address.endpoint)
    try:
        link.ask(DeleteRun(run=address.run, force=True))
    finally:
        link.close()


WAYS: dict[str, Callable[[Scene], WayTimes]] = {
    "committed": lambda scene: by_spool(scene, "committed"),
    "partition": lambda scene: by_spool(scene, "partition"),
    "eager": eager,
    "parquet": parquet,
    "toArrow": to_arrow,
    "toPandas": to_pandas,
    "null writer": null_sink,
    "committed, sink": lambda scene: sink_alone(scene, "committed"),
}
