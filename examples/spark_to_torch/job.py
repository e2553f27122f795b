"""The job: Spark writes the digits into a spool once, and the training loop reads them for several epochs."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch

from examples.spark_to_torch import digits
from examples.spark_to_torch.training import Trainer
from transfer.spark import write
from transfer.spark.session import running_session
from transfer.spool.client.admin import SpoolAdmin
from transfer.spool.server.server import Spool
from transfer.torch import RunDataset
from transfer.transports.errors import Broken, TransferError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WANTED_ACCURACY = 0.95
COLUMNS = ("id", "image", "label")
RUN = "digits"
#: seed of the shuffle
_SEED = 7
#: without an appender Spark would use its default configuration
_NO_LOG = """\
rootLogger.level = off
rootLogger.appenderRef.err.ref = err
logger.repl.name = org.apache.spark.repl.Main
logger.repl.level = off
appender.err.type = Console
appender.err.name = err
appender.err.target = SYSTEM_ERR
"""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    epochs: int = 8
    workers: int = 2
    batch_size: int = 32


@dataclass(frozen=True, slots=True)
class Written:
    """The rows that Spark wrote, by the spool's count. seconds: of Spark's job."""

    rows: int
    frames: int
    partitions: int
    nbytes: int
    state: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Epoch:
    """The counts of one epoch. waited: seconds of `seconds` in which the training loop had no rows."""

    number: int
    loss: float
    accuracy: float
    rows: int
    batches: int
    nbytes: int
    seconds: float
    waited: float


@dataclass(slots=True)
class DemoResult:
    url: str
    rows: int  # of the training set
    written: Written
    epochs: list[Epoch] = field(default_factory=list)

    @property
    def accuracy(self) -> float:
        return self.epochs[-1].accuracy if self.epochs else 0.0

    def problem(self) -> str:
        """Why this run failed, or "". Lost and doubled rows have raised before."""
        if self.accuracy < WANTED_ACCURACY:
            return f"the network recognizes {self.accuracy:.1%} of the images, wanted: {WANTED_ACCURACY:.0%}"
        return ""


class Watcher(Protocol):
    """Receives the progress of the demo."""

    def say(self, text: str) -> None: ...
    def begin(self, epoch: int, epochs: int, rows: int) -> None: ...
    def batch(self, rows: int, loss: float) -> None: ...
    def end(self, epoch: Epoch) -> None: ...


def run_demo(options: DemoOptions, watcher: Watcher) -> DemoResult:
    """Runs the whole demo. Raises ProtocolError when a row is lost or doubled, Broken when Spark fails."""
    # Matrices this small gain nothing from more threads, and torch's threads spin while others need the
    # cores: on two busy cores an epoch took thirty times as long.
    torch.set_num_threads(1)
    data = digits.load()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="transfer-demo-")))
        (folder / "digits").mkdir()
        rows = digits.write_parquet(data, folder / "digits")
        spool = stack.enter_context(Spool(folder / "spool"))
        url = spool.url(RUN)
        watcher.say(f"a spool at {spool.url()}; starting Spark with {options.workers} workers")
        written = _write(options.workers, folder, url, watcher)
        watcher.say(f"Spark wrote {written.rows:,} rows in {written.seconds:.1f} s, and has ended")
        result = DemoResult(url, rows, written)
        dataset = RunDataset(
            url, options.batch_size, columns=COLUMNS, epochs=options.epochs, shuffle=_SEED, group="demo"
        )
        with dataset:
            for epoch in _train(dataset, data, rows, options.epochs, watcher):
                result.epochs.append(epoch)
                watcher.end(epoch)
    return result


def _write(workers: int, folder: Path, url: str, watcher: Watcher) -> Written:
    """Runs one Spark job. Its rows become visible together, at the commit."""
    with _session(workers, folder) as spark:
        frame = spark.read.parquet(str(folder / "digits" / "*.parquet"))
        watcher.say(f"Spark writes to {url}")
        began = time.monotonic()
        try:
            write(frame.repartition(2 * workers), url, columns=COLUMNS)
        except TransferError:
            raise
        except Exception as error:
            raise Broken(f"the Spark job failed: {_cause(error)}") from error
        seconds = time.monotonic() - began
    with SpoolAdmin(url) as spool:
        run = spool.inspect(RUN)
    return Written(run["rows"], run["frames"], run["partitions"], run["bytes"], run["state"], seconds)


def _train(
    dataset: RunDataset[tuple[torch.Tensor, ...]],
    data: digits.Digits,
    rows: int,
    epochs: int,
    watcher: Watcher,
) -> Iterator[Epoch]:
    """Trains epoch by epoch, each with all rows in another order, and acknowledges each epoch."""
    trainer = Trainer(epochs)
    test = torch.from_numpy(data.test_images), torch.from_numpy(data.test_labels)
    stream = dataset.stream
    for number in range(1, epochs + 1):
        watcher.begin(number, epochs, rows)
        before = stream.rows, stream.batches, stream.bytes, time.monotonic(), stream.waited_seconds
        loss = trainer.train(dataset.one_epoch(), rows, watcher.batch)
        after = stream.rows, stream.batches, stream.bytes, time.monotonic(), stream.waited_seconds
        dataset.acknowledge()  # a real training saves its checkpoint before this call
        counts = (late - early for early, late in zip(before, after, strict=True))
        yield Epoch(number, loss, trainer.accuracy(*test), *counts)  # type: ignore[arg-type]


@contextmanager
def _session(workers: int, folder: Path) -> Iterator[SparkSession]:
    # Spark's messages on stderr would disturb the progress bars; failures are reported as exceptions.
    quiet = folder / "log4j2.properties"
    quiet.write_text(_NO_LOG)
    conf = {
        # Java's temporary files, too, so that all of them are removed with the folder.
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{quiet} -Djava.io.tmpdir={folder}",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder),
    }
    with running_session(workers, name="transfer demo", conf=conf) as spark:
        yield spark


def _cause(error: Exception) -> str:
    """Returns the line of Spark's report with the cause: one of `transfer` if possible, else the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if line.startswith("transfer.transports.errors.")]
    return named[-1] if named else next(iter(lines), type(error).__name__)
