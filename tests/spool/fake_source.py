"""Runs in this process and sources that read them as a spool would; a run in a file for other processes."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from pathlib import Path

import numpy as np

from transfer.spool.format import rows as tables
from transfer.spool.format.order import Order
from transfer.spool.format.row_source import FAILED, OPEN, SEALED, Rows, RunInfo, check_opening
from transfer.spool.format.rows import Layout
from transfer.transports.errors import Again, Closed, UsageError

LAYOUTS = (Layout("id", "dense", "int64"), Layout("x", "dense", "float32", (2,)))
RAGGED = (*LAYOUTS, Layout("tokens", "ragged", "int32"), Layout("label", "dense", "int64", (), True))


def pick(arrays, layouts, rows):
    """The rows with these numbers, in that order, copied."""
    picked = {}
    for layout in layouts:
        values = arrays[layout.name]
        if layout.kind == "dense":
            picked[layout.name] = values[rows]
        else:
            offsets = arrays[layout.name + tables.OFFSETS]
            lengths = offsets[rows + 1] - offsets[rows]
            ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
            # The index of each value: that of its row's first one, plus its distance from it.
            places = np.repeat(offsets[rows] - ends[:-1], lengths) + np.arange(ends[-1])
            picked[layout.name] = values[places]
            picked[layout.name + tables.OFFSETS] = ends
        if layout.nulls:
            picked[layout.name + tables.VALID] = arrays[layout.name + tables.VALID][rows]
    return picked


def frame(first: int, rows: int, layouts=LAYOUTS):
    """Ids from `first` on, and columns that follow from them: id % 4 tokens, each the id."""
    ids = np.arange(first, first + rows)
    arrays = {"id": ids, "x": np.stack([ids, -ids], axis=1).astype(np.float32)}
    if layouts is RAGGED:
        arrays["tokens"] = np.repeat(ids, ids % 4).astype(np.int32)
        arrays["tokens.offsets"] = np.concatenate([[0], np.cumsum(ids % 4)]).astype(np.int64)
        arrays["label"], arrays["label.valid"] = ids * 3, ids % 2 == 0
    return arrays


def agrees(batch):
    """Whether all columns of a batch follow from its ids."""
    ids = np.asarray(batch["id"])
    same = np.array_equal(np.asarray(batch["x"]), np.stack([ids, -ids], axis=1).astype(np.float32))
    if "tokens" in batch:
        offsets = np.asarray(batch["tokens.offsets"])
        same &= np.array_equal(np.diff(offsets), ids % 4) and offsets[0] == 0
        same &= np.array_equal(np.asarray(batch["tokens"]), np.repeat(ids, ids % 4))
        same &= np.array_equal(np.asarray(batch["label.valid"]), ids % 2 == 0)
        same &= np.array_equal(np.asarray(batch["label"]), ids * 3)
    return bool(same)


class Run:
    """A run whose rows have the ids 0, 1, 2 …, in frames of these lengths. Thread-safe."""

    def __init__(self, *frame_rows: int, state=SEALED, layouts=LAYOUTS, name="run", run_id="5a" * 16):
        self.name = name
        self.run_id = run_id
        self.layouts = layouts
        self.state = state
        self.frames = []
        self.changed = threading.Condition()
        self.acknowledged = None
        self.delivered = None
        self.steps = []  # lineage records
        self.leases = set()
        self.fetches = []
        self.add(*frame_rows)

    @property
    def visible(self):
        return sum(len(one["id"]) for one in self.frames)

    def add(self, *frame_rows, state=None):
        """More rows, and then maybe the end."""
        with self.changed:
            for rows in frame_rows:
                self.frames.append(frame(self.visible, rows, self.layouts))
            self.state = state or self.state
            self.changed.notify_all()

    def rows(self, fetch):
        """The arrays of a fetch, and how many rows."""
        order = Order([len(one["id"]) for one in self.frames], fetch.seed, fetch.epoch, row_bytes=8192)
        picked = []
        for i in range(fetch.times):
            begin = fetch.begin + i * fetch.stride
            ids = [order.gather(begin, begin + fetch.rows)]
            picked += [
                pick(self.frames[f], self.layouts, np.array([r])) for f, r in zip(*ids[0], strict=True)
            ]
        if not picked:
            return frame(0, 0, self.layouts), 0
        arrays = tables.join(picked, self.layouts)
        return {name: np.array(values) for name, values in arrays.items()}, len(picked)


class Source:
    """A `RowSource` that reads a `Run`. `closed` tells whether it was closed."""

    def __init__(self, run: Run):
        self.run = run
        self.asked = deque()
        self.closed = False
        self.lease = None
        self.error = None  # raised by the next collect

    def open(self, group, shard=0, shards=1, *, columns=None, shuffled=False):
        run = self.run
        with run.changed:
            layouts = run.layouts if run.frames else ()
            check_opening(run.name, run.state, layouts, columns, shuffled=shuffled)
            if (group, shard) in run.leases:
                raise UsageError("another reader has the lease")
            self.lease = (group, shard)
            run.leases.add(self.lease)
            positions = run.acknowledged, run.delivered
            return RunInfo(run.name, run.state, run.visible, layouts, *positions, run.run_id)

    def request(self, fetch):
        assert self.lease is not None
        with self.run.changed:
            self.run.fetches.append(fetch)
        self.asked.append(fetch)

    def collect(self, timeout):
        run, fetch = self.run, self.asked[0]
        with run.changed:
            run.changed.wait_for(
                lambda: self.closed or self.error or run.visible >= fetch.need or run.state != OPEN, timeout
            )
            if self.closed:
                raise Closed("closed")
            if self.error:
                raise self.error
            if run.visible < fetch.need and run.state == OPEN:
                raise Again("not visible yet")
            self.asked.popleft()
            arrays, count = run.rows(fetch)
            end = fetch.begin + (fetch.times - 1) * fetch.stride + fetch.rows
            run.delivered = max(run.delivered or (0, 0), (fetch.epoch, min(end, run.visible)))
            return Rows(arrays, count, run.visible, run.state)

    def acknowledge(self, epoch, row, steps):
        with self.run.changed:
            self.run.acknowledged = (epoch, row)
            self.run.steps += steps

    def acknowledge_for(self, lease, epoch, row, steps):
        self.acknowledge(epoch, row, steps)

    def close(self, used=None):
        with self.run.changed:
            self.closed = True
            self.run.leases.discard(self.lease)
            self.run.changed.notify_all()


class FileSource(Source):
    """A source in another process: the run is told by a file, and leases are files. A class of its module,
    so that it can be pickled before it is opened."""

    def __init__(self, folder: Path):
        self.folder = folder
        about = json.loads((folder / "run.json").read_text())
        super().__init__(Run(*about["frames"], name=about["name"], run_id=about["run_id"]))
        if about["acknowledged"]:
            self.run.acknowledged = tuple(about["acknowledged"])

    def open(self, group, shard=0, shards=1, **wishes):
        (self.folder / f"opened-{os.getpid()}-{shard}-of-{shards}").touch()
        (self.folder / f"lease-{group}-{shard}").touch(exist_ok=False)
        return super().open(group, shard, shards, **wishes)

    def acknowledge(self, epoch, row, steps):
        about = json.loads((self.folder / "run.json").read_text())
        about["acknowledged"] = [epoch, row]
        about["steps"] += steps
        (self.folder / "run.json").write_text(json.dumps(about))

    def close(self, used=None):
        if self.lease is not None and not self.closed:
            (self.folder / "lease-{}-{}".format(*self.lease)).unlink()
        super().close(used)


class InFolder:
    """Makes a `FileSource`, in whatever process it is called. Can be pickled."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __call__(self):
        return FileSource(self.folder)


def run_in_folder(folder: Path, *frame_rows: int, run_id="5a" * 16):
    """A sealed run in a file, and how to open it."""
    about = {"name": "run", "run_id": run_id, "frames": frame_rows, "acknowledged": None, "steps": []}
    (folder / "run.json").write_text(json.dumps(about))
    return InFolder(folder)


__all__ = ["FAILED", "LAYOUTS", "OPEN", "RAGGED", "SEALED", "Run", "Source", "agrees", "run_in_folder"]
