"""The programs of `test_chaos.py`, and who of a running job is killed when.

`python -m tests.spark.chaos driver JSON` writes a run, `… trainer JSON` reads it, from its checkpoint on.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

from transfer.spark.processes import _descendants, _read

ROWS = 2400
PARTITIONS = 6
#: what is killed, and how often at most in one run
VICTIMS = {"executor": 2, "worker": 3, "driver": 1, "spool": 2, "trainer": 3}


class Killer(threading.Thread):
    """Kills by a schedule that the seed decides, until `stop` is set. processes: kind -> the present ids."""

    def __init__(self, seed, processes):
        super().__init__(name="killer", daemon=True)
        self._random = random.Random(seed)
        self._processes = processes
        self._left = dict(VICTIMS)
        self.stop = threading.Event()
        self.killed = []

    def run(self):
        while not self.stop.is_set() and sum(self._left.values()) and not self._processes("worker"):
            self.stop.wait(0.05)  # Spark starts
        for _ in range(self._random.randint(3, 7)):
            kind = self._random.choice([kind for kind, left in self._left.items() for _ in range(left)])
            if self.stop.wait(self._random.uniform(0.05, 2.0)):
                return
            victims = self._processes(kind)
            if victims:
                self._left[kind] -= 1
                self.killed.append(kind)
                kill(self._random.choice(sorted(victims)))


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def below(roots, word):
    """The processes that these have started, with this word in their command."""
    found = {pid for root in roots for pid in _descendants(root)}
    return {pid for pid in found if word.encode() in _read(Path(f"/proc/{pid}/cmdline"))}


def driver(settings, url, delivery, pause):
    from pyspark.sql import SparkSession

    from tests.spark.faulty_source import FaultySource, fault
    from tests.spark.spools import frame_of

    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(FaultySource)
    writer = frame_of(spark, ROWS, PARTITIONS).write.format("transfer_faulty").mode("append")
    slow = fault("/tmp", kind="slow", frame=pause)
    writer.options(endpoint=url, ragged="r", delivery=delivery, if_complete="skip", **slow).save()
    spark.stop()


def trainer(url, checkpoint, options):
    """Notes the ids of each epoch with the state behind them, in one file. Its process may end anywhere."""
    from tests.spark.spools import LAYOUTS, counted, expected
    from transfer.spool import RowStream
    from transfer.transports.errors import TransferError, UsageError

    file = Path(checkpoint)
    deadline = time.monotonic() + 150
    while True:
        known = json.loads(file.read_text()) if file.exists() else {"state": None, "ids": {}}
        try:
            with RowStream(url, timeout=20.0, **options) as stream:
                if known["state"] is not None:
                    stream.load_state_dict(known["state"])
                for batch in stream:
                    ids = batch["id"].tolist()
                    assert counted(batch, LAYOUTS, len(ids)) == expected(ids)
                    known["ids"].setdefault(str(stream.epoch), []).extend(ids)
                    known["state"] = stream.state_dict()
                    partial = file.with_suffix(".partial")
                    partial.write_text(json.dumps(known))
                    os.replace(partial, file)
                    if len(known["ids"][str(stream.epoch)]) % 5 == 0:
                        stream.acknowledge()
                    time.sleep(0.01)
                return
        except (
            TransferError,
            UsageError,
        ) as error:  # a job that failed, a spool that is away, a shuffle too early
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


if __name__ == "__main__":
    {"driver": driver, "trainer": trainer}[sys.argv[1]](**json.loads(sys.argv[2]))
