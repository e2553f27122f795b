"""The demo's training side, fed from this process: it learns, and it is loud about rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="pip install tensor-transfer[demo]")
pytest.importorskip("pyarrow", reason="pip install tensor-transfer[spark]")

from pyarrow import parquet

from tests.torch.feed import Feed, feed_partition
from transfer.demo import digits, main
from transfer.demo.training import Trainer, check_rows
from transfer.runs import Commit
from transfer.spark.columns import ColumnReader
from transfer.spark.producer import send_commit
from transfer.spark.schema import Column
from transfer.torch import StreamDataset
from transports.errors import ProtocolError

COLUMNS = [Column("id", 0, "int64", 0), Column("image", 1, "float32", 1), Column("label", 2, "int64", 0)]


def feed_epoch(feed, folder, epoch):
    """The Parquet files, shuffled, as partitions of one run."""
    winners = []
    for number, path in enumerate(sorted(folder.glob("*.parquet"))):
        table = parquet.read_table(path)
        order = np.random.default_rng(epoch).permutation(len(table))
        frames = (ColumnReader(COLUMNS).read(b) for b in table.take(order).combine_chunks().to_batches(100))
        winners.append(feed_partition(feed, f"epoch {epoch}", number, number, frames, job=str(epoch)))
    send_commit(feed, Commit(f"epoch {epoch}", str(epoch)), winners, timeout=1)


def test_the_network_learns_the_digits_from_parquet(tmp_path):
    data = digits.load()
    rows = digits.write_parquet(data, tmp_path)
    assert rows == 1797 - digits.TEST_IMAGES
    feed, trainer = Feed(), Trainer(epochs=8)
    dataset = StreamDataset(source=feed, batch_size=32, columns=("id", "image", "label"))
    batches = []
    for epoch in range(8):
        feed_epoch(feed, tmp_path, epoch)
        trainer.train(dataset, rows, lambda count, loss: batches.append(count))
    assert sum(batches) == 8 * rows == sum(run.sent_rows for run in dataset.runs)
    assert trainer.accuracy(torch.from_numpy(data.test_images), torch.from_numpy(data.test_labels)) >= 0.95


def batches_of(ids):
    ids = torch.tensor(ids)
    yield ids, torch.zeros(len(ids), 64), torch.zeros(len(ids), dtype=torch.int64)


@pytest.mark.parametrize(
    ("ids", "reason", "text"),
    [
        ([0, 1, 3], "lost_rows", "1 of 4 rows were lost, the first is 2"),
        ([0, 1, 2, 3, 1], "doubled_rows", "the first is 1"),
        ([0, 1, 2, 3, 4], "doubled_rows", "never sent"),
    ],
)
def test_a_lost_or_doubled_row_is_loud(ids, reason, text):
    with pytest.raises(ProtocolError, match=text) as caught:
        Trainer(epochs=1).train(batches_of(ids), 4, lambda count, loss: None)
    assert caught.value.reason == reason


def test_each_row_once_is_silent():
    check_rows(torch.ones(5, dtype=torch.int64))


def test_bad_arguments_end_with_usage(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--epochs", "0"])
    assert end.value.code == 2
    assert "at least 1" in capsys.readouterr().err


def test_no_java_is_one_clear_line(monkeypatch, capsys):
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    assert main([]) == 1
    err = capsys.readouterr().err
    assert "demo failed: Spark needs Java" in err and "openjdk-17-jre-headless" in err
