"""The job: one Spark run an epoch on a thread, the training loop on the caller's."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch

from transfer.demo import digits
from transfer.demo.training import Trainer
from transfer.spark import write
from transfer.spark.session import running_session
from transfer.torch import RunSummary, StreamDataset
from transports.errors import Broken, Closed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WANTED_ACCURACY = 0.95
COLUMNS = ("id", "image", "label")
#: seconds that a finished or cancelled Spark job may take to return
_END_TIMEOUT = 20.0
#: Spark takes a configuration without an appender for none, and uses its own
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


@dataclass(slots=True)
class Epoch:
    """What one epoch brought."""

    number: int
    loss: float
    accuracy: float
    run: RunSummary


@dataclass(slots=True)
class DemoResult:
    endpoint: str
    rows: int  # of the training set
    epochs: list[Epoch] = field(default_factory=list)

    @property
    def accuracy(self) -> float:
        return self.epochs[-1].accuracy if self.epochs else 0.0

    def problem(self) -> str:
        """Why this run is no success, or "". Lost and doubled rows have raised before."""
        if self.accuracy < WANTED_ACCURACY:
            return f"the network knows {self.accuracy:.1%} of the test images, wanted: {WANTED_ACCURACY:.0%}"
        return ""


class Watcher(Protocol):
    """Who is told how it goes."""

    def say(self, text: str) -> None: ...
    def begin(self, epoch: int, epochs: int, rows: int) -> None: ...
    def batch(self, rows: int, loss: float) -> None: ...
    def end(self, epoch: Epoch) -> None: ...


def run_demo(options: DemoOptions, watcher: Watcher) -> DemoResult:
    """The whole demo. Raises ProtocolError when a row is lost or doubled, Broken when Spark fails."""
    # Matrices this small gain nothing from more threads, and torch's spin while Spark needs the
    # cores: on two busy ones an epoch took thirty times as long.
    torch.set_num_threads(1)
    data = digits.load()
    test = torch.from_numpy(data.test_images), torch.from_numpy(data.test_labels)
    trainer = Trainer(options.epochs)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="transfer-demo-")))
        rows = digits.write_parquet(data, folder)
        dataset = stack.enter_context(StreamDataset(batch_size=options.batch_size, columns=COLUMNS))
        watcher.say(f"listening at {dataset.endpoint}; starting Spark with {options.workers} workers")
        spark = stack.enter_context(_session(options.workers, folder))
        frame = spark.read.parquet(str(folder / "*.parquet"))
        result = DemoResult(dataset.endpoint, rows)
        for number in range(1, options.epochs + 1):
            watcher.begin(number, options.epochs, rows)
            shuffled = _shuffled(frame, number)
            with _writing(spark, dataset, partial(write, shuffled, dataset.endpoint, columns=COLUMNS)):
                loss = trainer.train(dataset, rows, watcher.batch)
            epoch = Epoch(number, loss, trainer.accuracy(*test), dataset.runs[-1])
            result.epochs.append(epoch)
            watcher.end(epoch)
    return result


@contextmanager
def _session(workers: int, folder: Path) -> Iterator[SparkSession]:
    # Spark's own words on stderr would run through the progress bars; what fails comes as an exception.
    quiet = folder / "log4j2.properties"
    quiet.write_text(_NO_LOG)
    conf = {
        # Java's own temporary files too, so that all of them go with the folder.
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{quiet} -Djava.io.tmpdir={folder}",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder),
    }
    with running_session(workers, name="transfer demo", conf=conf) as spark:
        yield spark


def _shuffled(frame: DataFrame, seed: int) -> DataFrame:
    """The rows in another order for each epoch, and in the same for each retry, as eager delivery needs."""
    from pyspark.sql import functions

    return frame.orderBy(functions.rand(seed))


@contextmanager
def _writing(spark: SparkSession, dataset: StreamDataset, job: Callable[[], object]) -> Iterator[None]:
    """Runs the Spark job on a thread while the body reads. Either end's failure ends the other."""
    failures: list[Exception] = []

    def work() -> None:
        try:
            job()
        except Exception as error:  # noqa: BLE001 - Spark's errors have many classes; it is raised again below
            failures.append(error)
            dataset.close()  # nobody will send to it any more: wake the reader

    thread = threading.Thread(target=work, name="spark-job")
    thread.start()
    try:
        yield
        thread.join(_END_TIMEOUT)  # the commit has arrived: only Spark's own tidying is left
    except (Closed, Broken):
        thread.join(_END_TIMEOUT)  # its error is the cause, and comes below
        if not failures:
            raise
    finally:
        if thread.is_alive():
            spark.sparkContext.cancelAllJobs()
            thread.join(_END_TIMEOUT)
    if failures:
        raise Broken(f"the Spark job failed: {_cause(failures[0])}") from failures[0]


def _cause(error: Exception) -> str:
    """The line of Spark's report that says what happened: ours if there is one, else the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if line.startswith("transports.errors.")]
    return named[-1] if named else next(iter(lines), type(error).__name__)
