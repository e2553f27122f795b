"""Spools for the tests of the sink, in processes that can be killed; and what a reader finds in them.

`python -m tests.spark.spools FOLDER ENDPOINT HARM` is such a process.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from transfer.spool import Spool
from transfer.spool.client.connection import ReconnectingClient
from transfer.spool.client.run_client import RunClient
from transfer.spool.format.protocol import Fetch, InspectRun, ListRuns
from transfer.spool.format.rows import Layout

ROOT = Path(__file__).parents[2]
#: the columns of `frame_of`
LAYOUTS = (
    Layout("id", "dense", "int64"),
    Layout("x", "dense", "float32", (2,)),
    Layout("s", "string", "uint8"),
    Layout("r", "ragged", "int64"),
)


def frame_of(spark, rows, partitions=3):
    """A DataFrame whose rows are known by their ids: see `expected`. Needs `ragged=r`."""
    return spark.range(0, rows, 1, partitions).selectExpr(
        "id", "array(float(id), float(id * 2)) as x", "concat('row ', id) as s", "sequence(0, id % 3) as r"
    )


def expected(ids):
    """The rows with these ids as `rows_in` counts them, without Spark."""
    found = Counter()
    for number in ids:
        values = {
            "id": np.int64(number).tobytes(),
            "x": np.array([number, 2 * number], np.float32).tobytes(),
            "s": f"row {number}".encode(),
            "r": np.arange(number % 3 + 1, dtype=np.int64).tobytes(),
        }
        found[_digest(values)] += 1
    return found


def counted(arrays, layouts, rows):
    """How often each row is there, by its digest."""
    found = Counter()
    for row in range(rows):
        values = {}
        for layout in layouts:
            column = arrays[layout.name]
            if layout.kind == "dense":
                values[layout.name] = column[row].tobytes()
            else:
                start, stop = arrays[layout.name + ".offsets"][row : row + 2]
                values[layout.name] = column[start:stop].tobytes()
            if layout.nulls:
                values[layout.name + ".valid"] = arrays[layout.name + ".valid"][row].tobytes()
        found[_digest(values)] += 1
    return found


def _digest(values):
    whole = b"".join(
        b"%s %d %s" % (name.encode(), len(values[name]), values[name]) for name in sorted(values)
    )
    return hashlib.blake2b(whole, digest_size=16).digest()


def read(url, timeout=20.0):
    """(state, arrays, rows) of all that a reader sees now."""
    client = RunClient(url, timeout=timeout)
    try:
        info = client.open("test")
        client.request(Fetch(epoch=0, seed=None, begin=0, rows=info.visible, stride=0, times=1, need=0))
        rows = client.collect(timeout)
        arrays = {name: np.array(array) for name, array in rows.arrays.items()}
        return info.state, arrays, rows.count
    finally:
        client.close()


def rows_in(url):
    """(state, how often each row of `frame_of` is visible)."""
    state, arrays, rows = read(url)
    return state, counted(arrays, LAYOUTS, rows) if rows else Counter()


def ids_in(url):
    """(state, the sorted ids of the visible rows)."""
    state, arrays, rows = read(url)
    return state, sorted(arrays["id"].tolist()) if rows else []


def ask(spool, request):
    link = ReconnectingClient(spool.endpoint, timeout=20.0)
    try:
        return link.ask(request)[1]
    finally:
        link.close()


def inspected(spool, run):
    return ask(spool, InspectRun(run=run))


def runs_of(spool):
    return {run["name"]: run for run in ask(spool, ListRuns())["runs"]}


class SpoolProcess:
    """A spool in a process of its own, at one address as often as it is started. harm: see `main`.

    The address is of this test's own: no other program takes its port while the process is gone.
    """

    def __init__(self, folder, harm=""):
        self.folder = folder
        self.endpoint = "tcp://127.{}.{}.1:0".format(*os.urandom(2))
        self.start(harm)

    def start(self, harm=""):
        command = [sys.executable, "-m", "tests.spark.spools", str(self.folder), self.endpoint, harm]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.endpoint = self.process.stdout.readline().strip()
        assert self.endpoint, "the spool did not start"

    def url(self, run=""):
        return f"run://{self.endpoint.removeprefix('tcp://')}/{run}"

    def kill(self):
        self.process.kill()
        self._reap()

    def _reap(self, patience=30):
        self.process.wait(patience)
        self.process.stdout.close()

    @contextmanager
    def comes_back(self, *, empty=False, harm=""):
        """Within, the next end of the process is followed by a start. empty: its folder is gone then."""

        def work():
            self._reap(120)  # a first job takes long
            if empty:
                shutil.rmtree(self.folder)
            self.start(harm)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        except BaseException:
            self.process.kill()
            raise
        finally:
            thread.join(140)
        assert not thread.is_alive()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.kill()


def _die():
    os.kill(os.getpid(), signal.SIGKILL)


def main(folder, endpoint, harm):
    """harm: "commit" (dies when a commit is on the disk, before it answers), "frame:N", "begin:N", "end:N"
    (dies when the Nth of them came, before it is kept)."""
    spool = Spool(folder, endpoint)
    kind, _, count = harm.partition(":")
    left = int(count or 1)
    answer, receive = spool._handler._responder._answer, spool.store.receive

    def answer_or_die(identity, arrays, meta):
        if kind == "commit" and "done" in meta and "rows" in meta:
            _die()
        answer(identity, arrays, meta)

    def receive_or_die(message, arrays):
        nonlocal left
        if message.kind == {"frame": "rows"}.get(kind, kind):
            left -= 1
            if not left:
                _die()
        return receive(message, arrays)

    spool._handler._responder._answer = answer_or_die
    spool.store.receive = receive_or_die
    print(spool.endpoint, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
