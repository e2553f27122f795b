"""The demo's training side, fed from this process: it learns, and it is loud about rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="pip install tensor-transfer[demo]")
pytest.importorskip("pyarrow", reason="pip install tensor-transfer[spark]")

from pyarrow import parquet

from examples.spark_to_torch import digits, main
from examples.spark_to_torch.job import DemoResult, Epoch, Written
from examples.spark_to_torch.training import Trainer, check_rows
from tests.torch.message_source import Feed, feed_partition
from transfer.spark.columns import ColumnReader
from transfer.spark.producer import send_commit
from transfer.spark.schema import Column
from transfer.spark.session import check_java
from transfer.spool.format.run_messages import Commit
from transfer.torch import StreamDataset
from transfer.transports.errors import NotSupported, ProtocolError


@pytest.fixture(autouse=True)
def one_thread():
    """As in the demo; its reason is told there."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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


def test_java_that_hangs_is_given_up_and_ended(monkeypatch, tmp_path):
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\necho $$ > '{tmp_path}/pid'\nexec sleep 600\n")
    java.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(NotSupported, match="could not be started"):
        check_java(timeout=4.0)
    pid = (tmp_path / "pid").read_text().strip()
    assert not Path(f"/proc/{pid}").exists()


def test_no_java_is_one_clear_line(monkeypatch, capsys):
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    assert main([]) == 1
    err = capsys.readouterr().err
    assert "demo failed: Spark needs Java" in err and "openjdk-17-jre-headless" in err


def finished(accuracy):
    written = Written(1437, 8, 4, 10**6, "sealed", 2.5)
    epoch = Epoch(1, 0.5, accuracy, rows=1437, batches=45, nbytes=10**6, seconds=0.5, waited=0.1)
    return DemoResult("run://127.0.0.1:5001/digits", 1437, written, [epoch])


@pytest.mark.keeps("matplotlib holds its fonts open")
@pytest.mark.parametrize(("accuracy", "code"), [(0.949, 1), (0.951, 0)])
@pytest.mark.parametrize("json_wanted", [False, True], ids=["table", "json"])
def test_the_end_is_a_table_a_plot_and_a_verdict(monkeypatch, capsys, tmp_path, accuracy, code, json_wanted):
    monkeypatch.setattr("transfer.spark.session.check_java", lambda: 17)
    monkeypatch.setattr("examples.spark_to_torch.job.run_demo", lambda options, watcher: finished(accuracy))
    plot = tmp_path / "new" / "plot.png"
    assert main(["--output", str(plot), *["--json"][:json_wanted]]) == code
    out, err = capsys.readouterr()
    assert plot.read_bytes().startswith(b"\x89PNG")
    if json_wanted:
        assert json.loads(out)["ok"] is (code == 0)
    else:
        assert "sent: 1,437 rows" in out and "run://127.0.0.1:5001/digits, sealed" in out
        assert "2,874" in out and str(plot) in out  # rows a second
        assert ("ok: each row once" in out) is (code == 0)
    assert ("demo failed: the network recognizes 94.9%" in err) is (code == 1)


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ProtocolError("lost_rows", "3 of 4 rows were lost"), 1, "3 of 4 rows were lost"),
        (KeyboardInterrupt(), 130, "stopped by Ctrl-C"),
        (ModuleNotFoundError("no", name="sklearn"), 1, "sklearn is missing"),
    ],
)
def test_failures_are_one_clear_line(monkeypatch, capsys, error, code, text):
    def fail(options, watcher):
        raise error

    monkeypatch.setattr("transfer.spark.session.check_java", lambda: 17)
    monkeypatch.setattr("examples.spark_to_torch.job.run_demo", fail)
    assert main([]) == code
    assert text in capsys.readouterr().err
