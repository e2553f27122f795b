"""Whole runs on a cluster, with speculation, while everything is killed that can be: each row once.

`TRANSFER_TEST_SPARK_SEEDS=0,17,23` runs these seeds; by default 30.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from contextlib import ExitStack

import pytest

pytest.importorskip("numpy")
pytest.importorskip("pyspark.sql.datasource", reason="pip install tensor-transfer[spark]")

from tests.spark.chaos import ROWS, Killer, below
from tests.spark.spools import ROOT, SpoolProcess, expected, rows_in
from tests.spark.test_executors import cluster, settings_for  # noqa: F401 - a fixture

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(800)]

_GIVEN = os.environ.get("TRANSFER_TEST_SPARK_SEEDS", "")
SEEDS = [int(seed) for seed in _GIVEN.split(",") if seed] or range(30)
_TRIES = 6


class Program:
    """A program of `chaos.py` that is started again until it ends well, on a thread of its own."""

    def __init__(self, name, log, **arguments):
        self._command = [sys.executable, "-m", "tests.spark.chaos", name, json.dumps(arguments)]
        self._log = log
        self._process = None
        self._closing = False
        self.ended = []
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    @property
    def pids(self):
        process = self._process
        return {process.pid} if process is not None and process.poll() is None else set()

    def _run(self):
        environment = os.environ | {
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
        }
        while not self._closing and len(self.ended) < _TRIES and 0 not in self.ended:
            with open(self._log, "a") as log:
                self._process = subprocess.Popen(
                    self._command, cwd=ROOT, env=environment, stdout=log, stderr=log
                )
            self.ended.append(self._process.wait(300))

    def finish(self, seconds):
        self._thread.join(seconds)
        assert 0 in self.ended, (self.ended, self._log.read_text()[-4000:])

    def close(self):
        self._closing = True
        for _ in range(20):
            if self._process is not None and self._process.poll() is None:
                self._process.kill()
            self._thread.join(1)
            if not self._thread.is_alive():
                return


class Spools:
    """A spool that comes back whenever it is killed."""

    def __init__(self, folder):
        self.spool = SpoolProcess(folder)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spool")
        self._thread.start()

    @property
    def pids(self):
        return {self.spool.process.pid} if self.spool.process.poll() is None else set()

    def _run(self):
        while not self._closing.wait(0.1):
            if self.spool.process.poll() is None:
                continue
            self.spool._reap()
            endpoint = self.spool.endpoint
            try:
                self.spool.start()
            except AssertionError:  # killed before it was there
                self.spool.endpoint = endpoint

    def close(self):
        self._closing.set()
        self._thread.join(60)
        self.spool.kill()


@pytest.mark.parametrize("seed", SEEDS)
def test_each_row_once_whatever_is_killed(cluster, tmp_path, seed):  # noqa: F811
    chance = random.Random(seed)
    delivery = chance.choice(["committed", "partition"])
    shuffle = chance.choice([None, seed])
    options = {"batch_size": chance.choice([16, 50, 333]), "epochs": 2, "shuffle": shuffle, "group": "g"}
    with ExitStack() as stack:
        spools = Spools(tmp_path / "spool")
        stack.callback(spools.close)
        url = spools.spool.url("run")
        settings = settings_for(cluster, speculation=True) | {"spark.task.maxFailures": "8"}
        pause = chance.choice([50, 150])
        driver = Program(
            "driver", tmp_path / "driver", settings=settings, url=url, delivery=delivery, pause=pause
        )
        stack.callback(driver.close)
        trainer = Program(
            "trainer", tmp_path / "trainer", url=url, checkpoint=str(tmp_path / "ids"), options=options
        )
        stack.callback(trainer.close)

        def processes(kind):
            if kind in ("executor", "worker"):
                return below({os.getpid()}, "CoarseGrained" if kind == "executor" else "pyspark.daemon")
            return {"driver": driver, "trainer": trainer, "spool": spools}[kind].pids

        killer = Killer(seed, processes)
        stack.callback(killer.join, 30)
        stack.callback(killer.stop.set)
        killer.start()
        driver.finish(400)
        assert rows_in(url) == ("sealed", expected(range(ROWS))), killer.killed
        trainer.finish(150)
        seen = json.loads((tmp_path / "ids").read_text())["ids"]
        assert {epoch: sorted(ids) for epoch, ids in seen.items()} == {key: [*range(ROWS)] for key in "01"}, (
            killer.killed
        )
        print(f"seed {seed}: {delivery}, shuffle {shuffle}, killed {killer.killed}")
