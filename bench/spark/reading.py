"""The speed of reading a run from the spool: `python -m bench.spark.reading`; needs no Spark.

Rows of 64 float32, dense and ragged (32 to 96 of them), in order and shuffled, in batches of 256 that are not
read. CPU is that of the reader and of the spool. `TRANSFER_LOCAL=off` reads over TCP.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from bench.spark.cpu import used
from bench.spark.service import Service
from bench.spark.steady import BATCH, FRAME, WIDTH, send
from transfer.spool import RowStream
from transfer.spool.client.run_client import RunClient
from transfer.spool.format.rows import OFFSETS, Layout

KINDS = ("dense", "ragged")


def frame(kind: str) -> dict[str, np.ndarray]:
    chance = np.random.default_rng(0)
    if kind == "dense":
        return {"x": chance.random((FRAME, WIDTH), np.float32)}
    ends = np.concatenate([[0], np.cumsum(chance.integers(WIDTH // 2, WIDTH * 3 // 2, FRAME))])
    return {"x": chance.random(int(ends[-1]), np.float32), "x" + OFFSETS: ends.astype(np.int64)}


def read(url: str, seed: int | None) -> tuple[float, float]:
    """Returns the seconds, and seconds of processor time, of an epoch."""
    client = RunClient(url)
    cpu, begin, rows = used(), time.monotonic(), 0
    with RowStream(client, BATCH, epochs=1, shuffle=seed, group=f"{seed} {begin}") as stream:
        for batch in stream:
            rows += len(batch["x"]) if "x" + OFFSETS not in batch else len(batch["x" + OFFSETS]) - 1
    assert rows, "no rows arrived"
    return time.monotonic() - begin, used() - cpu


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.spark.reading", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path, help="all samples, as a file")
    arguments = parser.parse_args()
    samples: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="transfer-bench-") as name:
        service = Service(Path(name) / "spool")
        for kind in KINDS:
            layout = Layout("x", kind, "float32", (WIDTH,) if kind == "dense" else ())
            send(f"{service.url}/{kind}", layout, frame(kind), arguments.rows)
        for number in range(arguments.repeat + 1):  # the first one warms up
            for kind in KINDS:
                for order, seed in (("in order", None), ("shuffled", 7)):
                    took = read(f"{service.url}/{kind}", seed)
                    samples.setdefault(f"{kind}, {order}", []).extend([took] if number else [])
        service.close()
    print(f"{arguments.rows:,} rows, local: {os.environ.get('TRANSFER_LOCAL', 'on')}")
    for case, found in samples.items():
        rates = sorted(arguments.rows / seconds / 1e6 for seconds, _ in found)
        spread, cpu = f"{rates[0]:.2f}–{rates[-1]:.2f}", statistics.median(seconds for _, seconds in found)
        print(f"{case:18} {statistics.median(rates):6.2f} M rows/s ({spread})  CPU {cpu:.2f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps(samples))
    return 0


if __name__ == "__main__":
    sys.exit(main())
