"""Waiting, memory and recovery. `python -m bench.spark.steady`; needs no Spark.

| what | how |
|---|---|
| waiting | share of a training loop's time in which it waited; steps of 10 ms, a source that keeps up |
| memory | of a trainer that reads epoch after epoch, and of a spool whose reader is slow, early and late |
| recovery | from the kill of a trainer, of the spool, to the next good batch |
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.spark.service import Service
from transfer.spark.options import parse_options
from transfer.spark.producer import SocketSender, TaskAttempt
from transfer.spool.client.connection import ReconnectingClient
from transfer.spool.format import rows as row_layouts
from transfer.spool.format.address import parse
from transfer.spool.format.protocol import CommitJob, Declare, Ended
from transfer.spool.format.rows import Layout
from transfer.spool.format.run_messages import to_table

WIDTH, FRAME, BATCH = 64, 10_000, 256
STEP = 0.01


def fill(url: str, rows: int) -> None:
    """Writes a run of random rows."""
    values = np.random.default_rng(0).random((FRAME, WIDTH), np.float32)
    send(url, Layout("x", "dense", "float32", (WIDTH,)), {"x": values}, rows)


def send(url: str, layout: Layout, frame: dict[str, np.ndarray], rows: int) -> None:
    """Sends a run of so many rows, one frame again and again, as a task does."""
    address = parse(url)
    link = ReconnectingClient(address.endpoint)
    names = {"run": address.run, "job": "job"}
    _, declared = link.ask(Declare(**names, delivery="committed", kind="batch"))
    endpoint = f"{address.endpoint.rpartition(':')[0]}:{declared['port']}"
    sender = SocketSender(endpoint, parse_options({"endpoint": endpoint, "delivery": "eager"}))
    layouts = json.dumps(row_layouts.to_json([layout]))
    attempt = TaskAttempt(sender, address.run, "job", 0, 0, columns=layouts)
    for _ in range(rows // FRAME):
        attempt.send(frame, FRAME)
    receipt = attempt.finish()
    link.ask(Ended(**names, partition=0, attempt=0))
    table = {name: np.array(column, np.int64) for name, column in to_table([receipt.winner]).items()}
    link.ask(CommitJob(**names), table)
    sender.close()
    link.close()


def resident(pid: int) -> float:
    """Returns the private MiB of a process, without pages of files, which the kernel can reclaim."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return 0.0


def waiting(url: str, steps: int) -> dict[str, Any]:
    from transfer.torch import StreamDataset

    found = {}
    for name, seed in (("in order", None), ("shuffled", 7)):
        group = f"waiting {name}"
        with StreamDataset(url, BATCH, epochs=None, shuffle=seed, columns=("x",), group=group) as dataset:
            batches = iter(dataset)
            next(batches)
            before, begin = dataset.stream.waited_seconds, time.monotonic()
            for _ in range(steps):
                (x,) = next(batches)
                until = time.monotonic() + STEP
                while time.monotonic() < until:  # a step that computes
                    x.sum()
            share = (dataset.stream.waited_seconds - before) / (time.monotonic() - begin)
        found[name] = f"{100 * share:.2f} %"
    return found


def memory(url: str, service: Service, seconds: float) -> dict[str, Any]:
    from transfer.torch import StreamDataset

    found = {}
    with StreamDataset(url, BATCH, epochs=None, shuffle=7, columns=("x",), group="memory") as dataset:
        begin, early, rows = time.monotonic(), 0.0, 0
        for (x,) in dataset:
            rows += len(x)
            if not early and time.monotonic() - begin > seconds / 4:
                early = resident(os.getpid())
            if time.monotonic() - begin > seconds:
                break
        late = resident(os.getpid())
        found["trainer"] = f"{early:.0f} MiB after a quarter, {late:.0f} MiB after {rows:,} rows"
    with StreamDataset(url, BATCH, epochs=None, group="slow") as dataset:
        batches = iter(dataset)
        next(batches)
        early, end = resident(service.pid), time.monotonic() + seconds / 2
        while time.monotonic() < end:
            time.sleep(0.2)
            next(batches)
        found["spool, slow reader"] = f"{early:.0f} MiB, then {resident(service.pid):.0f} MiB"
    return found


def _read_for_ever(url: str, link: Any) -> None:
    import torch  # noqa: F401 - a trainer has it

    from transfer.torch import StreamDataset

    link.send(time.monotonic())
    dataset = StreamDataset(url, BATCH, epochs=None, columns=("x",), group="recovery", timeout=60)
    for step, _ in enumerate(dataset):
        if step == 0:
            link.send((time.monotonic(), dataset.stream.redelivered_rows))
        if step == 20:
            dataset.acknowledge()
            link.send("acknowledged")
        time.sleep(0.001)


def recovery(url: str, folder: Path, service: Service) -> tuple[dict[str, Any], Service]:
    from transfer.torch import StreamDataset

    spawn = multiprocessing.get_context("spawn")
    found: dict[str, Any] = {}
    for number in range(2):
        link, theirs = spawn.Pipe()
        trainer = spawn.Process(target=_read_for_ever, args=(url, theirs), daemon=True)
        trainer.start()
        started = link.recv()
        first, again = link.recv()
        if number:
            found["trainer"] = f"{first - started:.2f} s beyond its start, {again:,} rows again"
        link.recv()
        time.sleep(0.5)
        assert trainer.pid is not None
        os.kill(trainer.pid, signal.SIGKILL)
        trainer.join()
    options = {"columns": ("x",), "group": "spool", "timeout": 60, "prefetch_bytes": 1}
    with StreamDataset(url, BATCH, epochs=None, **options) as dataset:
        batches = iter(dataset)
        for _ in range(100):
            next(batches)
        endpoint, rows = service.endpoint, service.rows_endpoint
        os.kill(service.pid, signal.SIGKILL)
        begin = time.monotonic()
        service = Service(folder, endpoint, rows)
        up = time.monotonic()
        waited = dataset.stream.waited_seconds
        for _ in range(200):  # beyond what was fetched ahead
            next(batches)
        found["spool"] = (
            f"up {up - begin:.2f} s after the kill, Python's start included; its reader then waited "
            f"{dataset.stream.waited_seconds - waited:.2f} s"
        )
    return found, service


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.spark.steady", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=1000, help="of 10 ms, for the share of waiting (1000)")
    parser.add_argument("--seconds", type=float, default=30, help="for memory (30)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="transfer-bench-") as name:
        folder = Path(name) / "spool"
        service = Service(folder)
        url = f"{service.url}/steady"
        fill(url, arguments.rows)
        print("waiting:", waiting(url, arguments.steps), flush=True)
        print("memory:", memory(url, service, arguments.seconds), flush=True)
        found, service = recovery(url, folder, service)
        print("recovery:", found, flush=True)
        service.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
