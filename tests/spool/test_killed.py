"""Spools that are killed, again and again, while rows come and go."""

from __future__ import annotations

import random
import threading
import time

import pytest

from transfer.spool.client.run_client import RunClient
from transfer.spool.format.protocol import Declare, Fetch
from transfer.spool.format.row_source import SEALED
from transfer.transports.errors import TransferError

from .processes import SpoolProcess
from .task_sender import WIDE, agrees, ask, commit, push

PARTITIONS = 16
FRAMES = [8, 16, 8]
ROWS = sum(FRAMES)
KILLS = 3


class Writer(threading.Thread):
    """Sends one partition after the other, as Spark does: what fails is tried again by another attempt."""

    def __init__(self, endpoint, delivery, partitions=PARTITIONS):
        super().__init__(daemon=True)
        self.endpoint = endpoint
        self.delivery = delivery
        self.partitions = partitions
        self.winners = []
        self.attempts = 0
        self.more = threading.Condition()
        self.over = False

    def run(self):
        for partition in range(self.partitions):
            winner = None
            while winner is None:
                self.attempts += 1
                try:
                    winner = push(
                        self.endpoint, "run", "job", partition, self.attempts, partition * ROWS, FRAMES, WIDE,
                        delivery=self.delivery, timeout=1.0,
                    )  # fmt: skip
                except TransferError:
                    continue
            with self.more:
                self.winners.append(winner)
                self.more.notify_all()

    def wait(self, count):
        """Until so many partitions are told to be kept."""
        with self.more:
            assert self.more.wait_for(lambda: len(self.winners) >= count, 50.0)


@pytest.fixture
def spools(tmp_path):
    """Kills the spool there is, and begins another one at the same place."""
    made = []

    def again():
        endpoint = "tcp://127.0.0.1:0"
        if made:
            endpoint = made[-1].endpoint
            made[-1].kill()
        made.append(SpoolProcess(tmp_path / "spool", endpoint))
        return made[-1]

    yield again
    made[-1].kill()


def kill_while(writer, spools, seed):
    """At moments that are spread over sending, ending and being told."""
    chance = random.Random(seed)
    for kill in range(KILLS):
        writer.wait(min(writer.partitions, kill * writer.partitions // KILLS + chance.randrange(3)))
        threading.Event().wait(chance.random() * 0.05)  # nobody knows where in an attempt this is
        spools()
    writer.wait(writer.partitions)
    writer.join()


def read(url, rows, *, group="check"):
    """All rows of a run, by a reader of its own."""
    client = RunClient(url, timeout=20.0)
    client.open(group)
    client.request(Fetch(epoch=0, seed=None, begin=0, rows=rows + 1, stride=0, times=1, need=rows))
    found = client.collect(20.0)
    client.close()
    return agrees(found.arrays, WIDE), found.state


def test_what_was_told_to_be_kept_is_there(spools):
    """Whole, though the spool was killed at many moments; and a commit afterwards makes it visible."""
    endpoint = spools().endpoint
    url = f"run://{endpoint.removeprefix('tcp://')}/run"
    writer = Writer(endpoint, "committed")
    writer.start()
    kill_while(writer, spools, 1)
    assert read(url, 0)[0] == []  # not before the commit
    spools()
    told = []
    driver = threading.Thread(target=lambda: told.append(commit(endpoint, "run", "job", writer.winners)))
    driver.start()  # it asks until it is answered, whoever that is
    spools()
    driver.join()
    assert told[0]["rows"] == PARTITIONS * ROWS
    spools()
    assert read(url, PARTITIONS * ROWS) == (list(range(PARTITIONS * ROWS)), SEALED)
    assert commit(endpoint, "run", "job", writer.winners) == {
        "id": 1, "rows": PARTITIONS * ROWS, "done": True,
    }  # fmt: skip


def test_a_reader_has_every_row_once_and_in_order(spools):
    """With several fetches on their way, over all ends of the spool, while the run still grows."""
    endpoint = spools().endpoint
    url = f"run://{endpoint.removeprefix('tcp://')}/run"
    ask(endpoint, Declare(run="run", job="job", delivery="partition", kind="batch"))
    last = push(endpoint, "run", "job", PARTITIONS, 0, PARTITIONS * ROWS, FRAMES, WIDE, delivery="partition")
    found, failed = [], []
    client = RunClient(url, timeout=30.0)
    client.open("group")

    def fetch(number):
        begin, end = number * 13, (number + 1) * 13
        client.request(Fetch(epoch=0, seed=None, begin=begin, rows=13, stride=0, times=1, need=end))

    def work():
        try:
            asked = 0
            while True:
                while asked < 8 + len(found):
                    fetch(asked)
                    asked += 1
                rows = client.collect(30.0)
                found.append(agrees(rows.arrays, WIDE) if rows.count else [])
                if rows.state == SEALED and rows.count < 13:
                    return
                if not len(found) % 5:
                    client.acknowledge(0, len(found) * 13, [[len(found), 1]])
        except BaseException as error:  # noqa: BLE001 - the test's thread looks
            failed.append(error)

    reader = threading.Thread(target=work)
    reader.start()
    writer = Writer(endpoint, "partition")
    writer.start()
    kill_while(writer, spools, 2)
    commit(endpoint, "run", "job", [*writer.winners, last])
    for _ in range(2):
        spools()
    reader.join()
    client.close()
    assert not failed
    ids = [one for rows in found for one in rows]
    assert ids == read(url, (PARTITIONS + 1) * ROWS)[0]
    assert sorted(ids) == list(range((PARTITIONS + 1) * ROWS))
    assert all(ids[at : at + ROWS] == list(range(ids[at], ids[at] + ROWS)) for at in range(0, len(ids), ROWS))


def test_a_sealed_run_is_read_while_its_spool_is_killed(spools, record_property):
    """Of a shuffled epoch too, each position as it stands there. How long a reader waits is told."""
    endpoint = spools().endpoint
    url = f"run://{endpoint.removeprefix('tcp://')}/run"
    writer = Writer(endpoint, "committed", 4)
    writer.run()
    commit(endpoint, "run", "job", writer.winners)
    total = 4 * ROWS
    epochs = []
    with_kills = RunClient(url, timeout=30.0)
    with_kills.open("group")
    for kill in (False, True):
        ids = []
        for begin in range(0, total, 8):
            with_kills.request(Fetch(epoch=2, seed=7, begin=begin, rows=8, stride=0, times=1, need=0))
        for number in range(total // 8):
            begin = time.monotonic()
            if kill and number in (1, 2, 9):
                spools()
            ids += agrees(with_kills.collect(30.0).arrays, WIDE)
            if kill and number in (1, 2, 9):
                record_property("seconds from a kill to the next rows", time.monotonic() - begin)
        epochs.append(ids)
    with_kills.close()
    assert epochs[0] == epochs[1] != sorted(epochs[0])
    assert sorted(epochs[0]) == list(range(total))
