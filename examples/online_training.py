"""Structured streaming into an online training loop, with its metrics: a spool, a Spark query and a trainer.

    python examples/online_training.py --seconds 20

A Spark query makes rows without end and writes them with `writeStream.format("transfer")`. Each of its
batches becomes visible, whole, when Spark commits it. The training loop in this process takes the rows as
they come and acknowledges them at each checkpoint; what all groups have acknowledged is removed from the
spool, so its disk stays flat. In the end it tells what came, and how far the trainer was behind.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from transfer.spark.session import running_session
from transfer.spool import Spool, SpoolAdmin
from transfer.torch import StreamDataset

BATCH = 128


def query(spark: Any, url: str, folder: Path, rows_per_second: int) -> Any:
    """Rows (x, y) with y = 2 a - 3 b + 1 and the time at which Spark made them."""
    return (
        spark.readStream.format("rate")
        .option("rowsPerSecond", rows_per_second)
        .load()
        .selectExpr(
            "array(float(value % 13 / 13), float(value % 17 / 17)) as x",
            "float(2 * (value % 13) / 13 - 3 * (value % 17) / 17 + 1) as y",
            "unix_micros(timestamp) as made",
        )
        .writeStream.format("transfer")
        .option("endpoint", url)
        .option("checkpointLocation", str(folder / "query"))
        .start()
    )


def train(dataset: StreamDataset[Any], seconds: float, on_checkpoint: Any) -> dict[str, float]:
    """Takes what comes, for so long from the first row on. What it learned, and how far it was behind."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows, behind, loss = 0, 0.0, torch.zeros(1)
    end = 0.0
    for x, y, made in dataset:
        end = end or time.monotonic() + seconds
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x).squeeze(1), y)
        loss.backward()
        optimizer.step()
        rows += len(x)
        behind = time.time() - made[-1].item() / 1e6
        if rows % (20 * BATCH) == 0:
            on_checkpoint()  # a real one saves the model and `dataset.state_dict()` together first
            print(f"{rows:,} rows, loss {loss.item():.4f}, {behind:.1f} s behind", flush=True)
        if time.monotonic() >= end:
            break
    on_checkpoint()
    return {"rows": rows, "loss": loss.item(), "behind": behind}


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rows-per-second", type=int, default=2000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        quiet = {"spark.log.level": "OFF"}
        with Spool(folder / "spool") as spool, running_session(2, name="online", conf=quiet) as spark:
            url = spool.url("clicks")
            running = query(spark, url, folder, arguments.rows_per_second)
            try:
                columns = ("x", "y", "made")
                with StreamDataset(url, BATCH, columns=columns, group="online", timeout=120) as dataset:
                    result = train(dataset, arguments.seconds, dataset.acknowledge)
                    waited = dataset.stream.waited_seconds
            finally:
                running.stop()
            with SpoolAdmin(url) as admin:
                run = admin.inspect("clicks")
            print(
                f"ok: {result['rows']:,} rows of {run['rows']:,} trained, loss {result['loss']:.4f}, "
                f"waited {waited:.1f} s for rows, {result['behind']:.1f} s behind at the end"
            )


if __name__ == "__main__":
    main()
