"""What the demo shows: progress while it runs; a table, a plot file or JSON at the end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rich import progress as rich_progress
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from types import TracebackType

    from transfer.demo.job import DemoResult, Epoch


_CAPTION = (
    "again: rows that a retry sent twice, dropped. MB/s: first row to commit, Spark and training included"
)


class Progress:
    """A bar for each epoch. Use as a context manager."""

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
        self._task = self._bars.add_task(f"epoch {epoch}/{epochs}", total=rows, note="Spark is working")

    def batch(self, rows: int, loss: float) -> None:
        assert self._task is not None
        self._bars.update(self._task, advance=rows, note=f"loss {loss:.3f}")

    def end(self, epoch: Epoch) -> None:
        assert self._task is not None
        self._bars.update(self._task, note=f"loss {epoch.loss:.3f}, accuracy {epoch.accuracy:.1%}")


def as_dict(result: DemoResult) -> dict[str, Any]:
    """The result for programs; sizes in bytes, times in seconds, accuracy 0 to 1."""
    return {
        "endpoint": result.endpoint,
        "rows_sent": sum(epoch.run.sent_rows for epoch in result.epochs),
        "rows_received": sum(epoch.run.rows for epoch in result.epochs),
        "rows_duplicated_and_dropped": sum(epoch.run.duplicate_rows for epoch in result.epochs),
        "batches": sum(epoch.run.batches for epoch in result.epochs),
        "accuracy": result.accuracy,
        "ok": not result.problem(),
        "epochs": [
            {
                "epoch": epoch.number,
                "run": epoch.run.run,
                "rows_sent": epoch.run.sent_rows,
                "rows_received": epoch.run.rows,
                "frames": epoch.run.frames,
                "batches": epoch.run.batches,
                "partitions": epoch.run.partitions,
                "attempts": epoch.run.attempts,
                "bytes": epoch.run.nbytes,
                "seconds": epoch.run.seconds,
                "transport": epoch.run.transports,
                "peers": epoch.run.peers,
                "loss": epoch.loss,
                "accuracy": epoch.accuracy,
            }
            for epoch in result.epochs
        ],
    }


def print_tables(result: DemoResult) -> None:
    """The table of epochs with their sum, and whom the rows came from. Fits 80 columns."""
    console = Console()
    table = Table(title="Spark -> PUSH/PULL -> PyTorch", caption=_CAPTION)
    for name in ("epoch", "sent", "received", "again", "batches", "MB", "MB/s", "loss", "accuracy"):
        table.add_column(name, justify="right", no_wrap=True)
    for epoch in result.epochs:
        run = epoch.run
        counts = (epoch.number, run.sent_rows, run.rows, run.duplicate_rows, run.batches)
        speed = run.nbytes / 1e6 / max(run.seconds, 1e-9)
        table.add_row(
            *(f"{count:,}" for count in counts),
            *(f"{run.nbytes / 1e6:.2f}", f"{speed:.1f}", f"{epoch.loss:.3f}", f"{epoch.accuracy:.1%}"),
        )
    total = as_dict(result)
    table.add_section()
    table.add_row(
        "all",
        *(
            f"{total[name]:,}"
            for name in ("rows_sent", "rows_received", "rows_duplicated_and_dropped", "batches")
        ),
        *(f"{sum(epoch.run.nbytes for epoch in result.epochs) / 1e6:.2f}", "", "", f"{result.accuracy:.1%}"),
    )
    console.print(table)
    peers = Table(title=f"peers of {result.endpoint}, one for each task")
    for name in ("epoch", "transport", "peer"):
        peers.add_column(name)
    for epoch in result.epochs:
        for transport in sorted(set(epoch.run.peers.values())):
            found = [address for address, used in epoch.run.peers.items() if used == transport]
            peers.add_row(str(epoch.number), transport, _addresses(found))
    console.print(peers)


def _addresses(addresses: list[str]) -> str:
    """`127.0.0.1:5 :6 :7`: the host once for all its ports."""
    ports: dict[str, list[str]] = {}
    for address in addresses:
        host, _, port = address.rpartition(":")
        ports.setdefault(host, []).append(f":{port}")
    return "  ".join(host + " ".join(found) for host, found in ports.items())


def plot(result: DemoResult, path: Path) -> None:
    """Accuracy and loss by epoch, and how fast the rows came, as an image file."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import MaxNLocator

    numbers = [epoch.number for epoch in result.epochs]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    left.plot(numbers, [100 * epoch.accuracy for epoch in result.epochs], marker="o", label="accuracy, %")
    left.axhline(95, color="grey", linestyle=":", label="wanted")
    left.set(xlabel="epoch (one Spark run each)", ylabel="test accuracy, %", title="Digits from Spark")
    left.legend()
    right.bar(numbers, [epoch.run.rows / max(epoch.run.seconds, 1e-9) for epoch in result.epochs])
    right.set(xlabel="epoch", ylabel="rows a second", title="first row to commit, training included")
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
