"""Processes that are killed while they append, and disks that are full."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from transfer.log import Log
from transfer.transports.errors import LogFull

KILLS = int(os.environ.get("TRANSFER_TEST_KILLS", "5"))
pytestmark = pytest.mark.timeout(60 + 10 * KILLS)

WRITER = """
import sys
from transfer.log import Log
folder, begin = sys.argv[1], int(sys.argv[2])
with Log(folder, segment_bytes=1 << 16) as log:
    number = begin
    while True:
        for _ in range(1 + number % 7):
            blob = number.to_bytes(4, "little") * 20_000 if number % 5 == 0 else None
            sequence, offset = log.append("t", b"%d" % number, blob=blob)
            number += 1
        log.put(b"number", b"%d" % number)
        sequence = log.acknowledge("t", "g", max(0, offset - 10))
        log.commit(sequence)
        print(number, flush=True)
"""


def test_what_was_acknowledged_survives_kill_9(tmp_path):
    """And of what was not, a prefix."""
    chance = random.Random(4)
    there = 0
    for _ in range(KILLS):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "log"), str(there)],
            stdout=subprocess.PIPE, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        timer = threading.Timer(40, writer.kill)
        timer.start()
        told = there
        try:
            for _ in range(chance.randrange(1, 60)):
                told = int(writer.stdout.readline())
        finally:
            writer.kill()
            rest = writer.stdout.read().split()
            writer.wait(20)
            writer.stdout.close()
            timer.cancel()
            timer.join()
        told = int(rest[-1]) if rest else told
        with Log(tmp_path / "log") as log:
            begin, end = log.range("t")
            assert begin == 0 and told <= end <= told + 8
            at = max(0, there - 3)
            while messages := log.read("t", at):
                for message in messages:
                    assert bytes(message.body) == b"%d" % message.offset
                    blob = message.offset.to_bytes(4, "little") * 20_000 if message.offset % 5 == 0 else None
                    assert message.blob == blob
                at = messages[-1].offset + 1
            assert at == end
            assert told <= int(log.get(b"number")) <= end
            assert told - 12 <= log.groups("t")["g"] <= end
            there = end
    assert there > 0


DISCARDER = """
import sys
from transfer.log import Log
folder, begin = sys.argv[1], int(sys.argv[2])
with Log(folder, segment_bytes=1 << 16, fsync=sys.argv[3]) as log:
    number = begin
    while True:
        for _ in range(1 + number % 5):
            parts = [b"%d;" % number * 2000, b"%d." % number * 3000]
            log.append("t", b"%d" % number, blob=parts)
            log.append("dropped", b"", blob=bytes(100_000))
            number += 1
        log.discard("t", max(0, number - 25), number - number % 10)
        log.commit(log.drop("dropped"))
        print(number, flush=True)
"""


@pytest.mark.parametrize("fsync", ["always", "never"])
def test_after_kill_9_a_blob_is_whole_or_discarded(tmp_path, fsync):
    chance = random.Random(7)
    there = 0
    for _ in range(KILLS):
        writer = subprocess.Popen(
            [sys.executable, "-c", DISCARDER, str(tmp_path / "log"), str(there), fsync],
            stdout=subprocess.PIPE, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        timer = threading.Timer(40, writer.kill)
        timer.start()
        try:
            for _ in range(chance.randrange(1, 40)):
                assert writer.stdout.readline()
        finally:
            writer.kill()
            rest = writer.stdout.read().split()
            writer.wait(20)
            writer.stdout.close()
            timer.cancel()
            timer.join()
        with Log(tmp_path / "log", segment_bytes=1 << 16) as log:
            end = log.range("t")[1]
            assert not rest or int(rest[-1]) <= end
            at = 0
            while messages := log.read("t", at, nbytes=1 << 24):
                for message in messages:
                    number = message.offset
                    assert bytes(message.body) == b"%d" % number
                    if message.discarded:
                        assert number < end - end % 10
                    else:
                        assert message.blob == b"%d;" % number * 2000 + b"%d." % number * 3000
                        assert number >= end - 40
                at = messages[-1].offset + 1
            assert at == end > there
            log.commit(log.drop("dropped"))
            there = end
    assert there > 0


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)],
        check=False,
        capture_output=True,
        timeout=20,
    )
    if made.returncode:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True, timeout=20)


@pytest.mark.parametrize("blobs", [False, True])
def test_a_full_disk_pushes_back_and_nothing_is_lost(small_disk, blobs):
    body, blob = (b"%05d", b"x" * 50_000) if blobs else (b"%05d" * 40, None)
    kept = 0
    with Log(small_disk, segment_bytes=1 << 16) as log:
        values = lambda number: body % ((number,) * body.count(b"%"))  # noqa: E731
        with pytest.raises(LogFull) as full:
            while True:
                log.commit(log.append("t", values(kept), blob=blob)[0])
                kept += 1
        assert full.value.hint and kept >= 10
        with pytest.raises(LogFull):
            log.append("t", bytes(1 << 19), blob=blob)
        log.commit()
        messages = log.read("t", 0, limit=100_000, nbytes=1 << 30)
        assert [bytes(one.body) for one in messages] == [values(number) for number in range(kept)]
        assert all(one.blob == blob for one in messages)
        del messages
    with Log(small_disk, segment_bytes=1 << 16) as log:
        assert log.range("t") == (0, kept)


@pytest.mark.parametrize("blobs", [False, True])
def test_a_full_disk_takes_acknowledgements_and_gives_its_room_back(small_disk, blobs):
    """Messages leave the last room to state. The last segment ends, too, if it is what fills the disk."""
    blob = b"x" * 20_000 if blobs else None
    with Log(small_disk, segment_bytes=1 << 18) as log:
        log.acknowledge("t", "g", 0)
        with pytest.raises(LogFull):
            while True:
                log.append("t", bytes(1000), blob=blob)
        for number in range(2000):  # more than the last segment has room for
            log.put(b"key", b"%050d" % number)
        with pytest.raises(LogFull):
            log.append("t", bytes(1000), blob=bytes(200_000))
        end = log.range("t")[1]
        log.commit(log.acknowledge("t", "g", end))
        assert log.full.is_set() and log.compact() > 0
        offset = log.append("t", b"another", blob=blob)[1]
        log.commit()
        assert offset == end
    with Log(small_disk, segment_bytes=1 << 18) as log:
        assert bytes(log.read("t", end)[0].body) == b"another"
        assert log.groups("t") == {"g": end} and log.get(b"key") == b"%050d" % 1999


COMPACTOR = """
import sys
from transfer.log import Log
folder, begin = sys.argv[1], int(sys.argv[2])
with Log(folder, segment_bytes=1 << 14, fsync=sys.argv[3]) as log:
    number = begin
    for topic in ("slow", "fast"):
        log.acknowledge(topic, "g", log.groups(topic).get("g", 0))
    while True:
        sequence, offset = log.append_many("fast", [b"%d" % number * 20] * 30)
        log.acknowledge("fast", "g", offset + 25)
        writer = log.blob("slow", 9000)
        for piece in range(3):
            writer.write(b"%06d" % number * 500)
        if number % 4:
            writer.commit(b"%d" % number)
            number += 1
        else:
            writer.abandon()
            log.append("slow", b"%d" % number)
            number += 1
        log.acknowledge("slow", "g", max(log.groups("slow")["g"], number - 12))
        log.commit()
        log.compact(0.7)
        print(number, flush=True)
"""


@pytest.mark.parametrize("fsync", ["always", "never"])
def test_after_kill_9_in_a_compaction_what_is_needed_is_there_once(tmp_path, fsync):
    chance = random.Random(11)
    there = 0
    for _ in range(KILLS):
        writer = subprocess.Popen(
            [sys.executable, "-c", COMPACTOR, str(tmp_path / "log"), str(there), fsync],
            stdout=subprocess.PIPE, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        timer = threading.Timer(40, writer.kill)
        timer.start()
        try:
            for _ in range(chance.randrange(1, 40)):
                assert writer.stdout.readline()
        finally:
            writer.kill()
            rest = writer.stdout.read().split()
            writer.wait(20)
            writer.stdout.close()
            timer.cancel()
            timer.join()
        with Log(tmp_path / "log", segment_bytes=1 << 14) as log:
            begin, end = log.range("slow")
            assert begin <= log.groups("slow")["g"] and end >= there
            assert not rest or int(rest[-1]) <= end
            found = [one for at in range(begin, end) for one in log.read("slow", at, limit=1)]
            assert [one.offset for one in found] == list(range(begin, end))
            for one in found:
                assert bytes(one.body) == b"%d" % one.offset
                assert one.blob == (b"%06d" % one.offset * 1500 if one.offset % 4 else None)
            verified = log.verify()
            assert verified.whole and verified.records > 0
            assert len(list(tmp_path.glob("log/*.log"))) < 12
            there = end
    assert there > 0
