"""The output of the demo: progress while it runs; a table, a plot file or JSON at the end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rich import progress as rich_progress
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from types import TracebackType

    from examples.spark_to_torch.job import DemoResult, Epoch


_CAPTION = "received: each row once an epoch. waited: time without rows"


class Progress:
    """A progress bar for each epoch. Use it as a context manager."""

    def __init__(self, *, to_stderr: bool = False) -> None:
        self._bars = rich_progress.Progress(
            rich_progress.TextColumn("{task.description}"),
            rich_progress.BarColumn(),
            rich_progress.MofNCompleteColumn(),
            rich_progress.TextColumn("{task.fields[note]}"),
            rich_progress.TimeElapsedColumn(),
            console=Console(stderr=to_stderr),
        )
        self._task: rich_progress.TaskID | None = None

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        self._bars.console.print(text, highlight=False)

    def begin(self, epoch: int, epochs: int, rows: int) -> None:
        self._task = self._bars.add_task(f"epoch {epoch}/{epochs}", total=rows, note="")

    def batch(self, rows: int, loss: float) -> None:
        assert self._task is not None
        self._bars.update(self._task, advance=rows, note=f"loss {loss:.3f}")

    def end(self, epoch: Epoch) -> None:
        assert self._task is not None
        self._bars.update(self._task, note=f"loss {epoch.loss:.3f}, accuracy {epoch.accuracy:.1%}")


def as_dict(result: DemoResult) -> dict[str, Any]:
    """Returns the result for programs; sizes in bytes, times in seconds, accuracy 0 to 1."""
    written = result.written
    return {
        "url": result.url,
        "rows_sent": written.rows,
        "rows_received": sum(epoch.rows for epoch in result.epochs),
        "batches": sum(epoch.batches for epoch in result.epochs),
        "bytes": sum(epoch.nbytes for epoch in result.epochs),
        "accuracy": result.accuracy,
        "ok": not result.problem(),
        "run": {
            "rows": written.rows,
            "frames": written.frames,
            "partitions": written.partitions,
            "bytes": written.nbytes,
            "state": written.state,
            "seconds": written.seconds,
        },
        "epochs": [
            {
                "epoch": epoch.number,
                "rows_received": epoch.rows,
                "batches": epoch.batches,
                "bytes": epoch.nbytes,
                "seconds": epoch.seconds,
                "waited_seconds": epoch.waited,
                "loss": epoch.loss,
                "accuracy": epoch.accuracy,
            }
            for epoch in result.epochs
        ],
    }


def print_tables(result: DemoResult) -> None:
    """Prints what Spark wrote, and the table of epochs with their sum. Fits 80 columns."""
    console = Console()
    run = result.written
    console.print(
        f"sent: {run.rows:,} rows, {run.nbytes / 1e6:.2f} MB, in {run.frames} frames of {run.partitions} "
        f"partitions, by one Spark job of {run.seconds:.1f} s;\nkept as {result.url}, {run.state}",
        highlight=False,
        soft_wrap=True,
    )
    table = Table(title="Spark -> spool -> PyTorch", caption=_CAPTION)
    for name in ("epoch", "received", "batches", "MB", "rows/s", "waited", "loss", "accuracy"):
        table.add_column(name, justify="right", no_wrap=True)
    for epoch in result.epochs:
        table.add_row(
            str(epoch.number),
            f"{epoch.rows:,}",
            f"{epoch.batches:,}",
            f"{epoch.nbytes / 1e6:.2f}",
            f"{epoch.rows / max(epoch.seconds, 1e-9):,.0f}",
            f"{epoch.waited * 1000:.0f} ms",
            f"{epoch.loss:.3f}",
            f"{epoch.accuracy:.1%}",
        )
    total = as_dict(result)
    table.add_section()
    counts = (f"{total['rows_received']:,}", f"{total['batches']:,}", f"{total['bytes'] / 1e6:.2f}")
    table.add_row("all", *counts, "", "", "", f"{result.accuracy:.1%}")
    console.print(table)


def plot(result: DemoResult, path: Path) -> None:
    """Plots the accuracy of each epoch, and the rate of rows, to an image file."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import MaxNLocator

    numbers = [epoch.number for epoch in result.epochs]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    left.plot(numbers, [100 * epoch.accuracy for epoch in result.epochs], marker="o", label="accuracy, %")
    left.axhline(95, color="grey", linestyle=":", label="wanted")
    left.set(xlabel="epoch", ylabel="test accuracy, %", title="Digits from Spark")
    left.legend()
    right.bar(numbers, [epoch.rows / max(epoch.seconds, 1e-9) for epoch in result.epochs])
    right.set(xlabel="epoch", ylabel="rows a second", title="from the spool, training included")
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
