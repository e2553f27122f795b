"""Cuts the power of a disk, as root in a virtual machine: `python -m tests.crash.power ext4 50 /dev/vda`.

The disk lies under a device of dm-flakey. A cut switches that to dropping all writes: what the kernel had not
written then is lost, as when the machine's power fails. The file system is unmounted, which writes into the
void, its caches go, and it is mounted from what the disk has. Answers that a program got before the cut are
noted in memory. What a disk loses that has a cache of its own is not modelled here, but by `disk_model.py`.

With `errors` in the place of the number, writes to the log's file fail. The program is begun again on a disk
that works, as an operator would do it, and then the power is cut.
"""

from __future__ import annotations

import ast
import gc
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.crash.log_programs import Lane, LogProgram, payload
from transfer.log import Log
from transfer.transports.errors import InternalError

NAME = "transfer-power"
DEVICE = f"/dev/mapper/{NAME}"
#: cuts after which the program begins with an empty folder
_CUTS = 2
_FIBMAP = 1


def call(*words: str, text: str = "") -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True, input=text or None).stdout


class Disk:
    """A file system on a disk whose writes can be dropped, or made to fail."""

    def __init__(self, kind: str, disk: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self._disk = disk
        self._sectors = int(call("blockdev", "--getsz", disk))
        folder.mkdir()
        call("dmsetup", "create", NAME, "--table", self._linear())
        call(f"mkfs.{kind}", *(["-q", "-F"] if kind == "ext4" else ["-q", "-f"]), DEVICE)
        self.mount()

    def mount(self) -> None:
        call("mount", "-t", self.kind, DEVICE, str(self.folder))

    def cut(self) -> None:
        """From now on nothing is written."""
        self._switch(f"0 {self._sectors} flakey {self._disk} 0 0 100000 1 drop_writes")

    def fail(self, path: Path) -> None:
        """Writes to the first blocks of this file fail, and to nothing else."""
        import fcntl

        size = os.statvfs(self.folder).f_bsize // 512
        with path.open("rb") as file:
            number = int.from_bytes(fcntl.ioctl(file, _FIBMAP, (0).to_bytes(4, "little")), "little")
        begin, count = number * size, 2 * size
        rows = [
            f"0 {begin} linear {self._disk} 0",
            f"{begin} {count} flakey {self._disk} {begin} 0 100000 1 error_writes",
            f"{begin + count} {self._sectors - begin - count} linear {self._disk} {begin + count}",
        ]
        self._switch("\n".join(rows))

    def repair(self) -> None:
        self._switch(self._linear())

    def restart(self) -> None:
        """The machine starts again, on what the disk has."""
        self.unmount()
        Path("/proc/sys/vm/drop_caches").write_text("3")
        self.repair()
        self.mount()

    def unmount(self) -> None:
        gc.collect()  # of messages that were looked at
        for _ in range(50):
            if subprocess.run(["umount", str(self.folder)], capture_output=True, check=False).returncode == 0:
                return
            time.sleep(0.1)
        call("umount", str(self.folder))

    def _linear(self) -> str:
        return f"0 {self._sectors} linear {self._disk} 0"

    def _switch(self, table: str) -> None:
        call("dmsetup", "suspend", "--nolockfs", "--noflush", NAME)
        call("dmsetup", "load", NAME, text=table)
        call("dmsetup", "resume", NAME)


def steps(log: Log, mark: Any, chance: random.Random) -> None:
    """Appends, blobs, state, groups, discards, for ever."""
    lane = Lane(log, mark, "main/")
    number = chance.randrange(1 << 30)
    while True:
        number += 1
        end = log.range("main/t")[1]
        kind = chance.randrange(12)
        if kind < 5:
            lane.append("t", number % 1000)
        elif kind < 8:
            lane.append("t", number % 1000, chance.randrange(1, 20_000))
        elif kind == 8:
            lane.do("put", b"main/key", b"%d" % number)
        elif kind == 9 and end:
            lane.do("acknowledge", "t", "g", chance.randrange(end + 1))
        elif kind == 10 and end > 3:
            begin = chance.randrange(end - 2)
            lane.do("discard", "t", begin, begin + 2)
        elif kind == 11:
            lane.append_many("t", range(number % 1000, number % 1000 + 3))
        if chance.random() < 0.4:
            lane.commit()


def cuts(disk: Disk, count: int, seed: int) -> int:
    """So many cuts: messages that were acknowledged in all."""
    chance = random.Random(seed)
    program, marks, folder, total = LogProgram("power", lambda *_: None), [], disk.folder, 0
    notes = Path("/tmp/notes")
    for number in range(count):
        if number % _CUTS == 0:
            folder, marks = disk.folder / str(number), []
            (folder / "log").mkdir(parents=True)
            call("sync")
        notes.write_bytes(b"")
        child = os.fork()
        if not child:
            _write(program, folder, notes, chance.randrange(1 << 30))
        time.sleep(chance.uniform(0.5, 2.5))
        before = len(read_notes(notes))
        disk.cut()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        noted = read_notes(notes)
        marks += noted[:before] + [one for one in noted[before:] if one[0] == "try"]
        total += sum(one[0] == "ack" for one in noted[:before])
        disk.restart()
        program.check(folder, marks, marks.append)
        print(f"cut {number + 1} of {count} on {disk.kind}: {len(noted)} notes, all is there", flush=True)
    return total


def _write(program: LogProgram, folder: Path, notes: Path, seed: int) -> None:
    """In a child, until it is killed. Nothing outlives it but what it notes."""
    try:
        fd = os.open(notes, os.O_WRONLY | os.O_APPEND)
        with program.open(folder) as log:
            steps(log, lambda what: os.write(fd, repr(what).encode() + b"\n"), random.Random(seed))
    except BaseException as error:  # noqa: BLE001 - a child of fork ends here
        print(f"the program failed: {error!r}", flush=True)
    finally:
        os._exit(1)


def read_notes(notes: Path) -> list[Any]:
    return [
        ast.literal_eval(line) for line in notes.read_text().splitlines(keepends=True) if line.endswith("\n")
    ]


def errors(disk: Disk) -> None:
    """A sync fails; the program is begun again, goes on, and the power is cut."""
    program, marks = LogProgram("power", lambda *_: None), []
    folder = disk.folder / "errors"
    (folder / "log").mkdir(parents=True)
    log = program.open(folder)
    lane = Lane(log, marks.append, "main/")
    for number in range(5):
        lane.append("t", number)
    lane.commit()
    call("sync")
    disk.fail(next((folder / "log").glob("*.log")))
    failed = False
    try:
        # More than the blocks that fail: what comes later does not write them again.
        for number in range(5, 9):
            lane.do("append", "t", payload(number, 4000), None)
        lane.commit()
    except InternalError as error:
        failed = True
        print(f"as it should: {error}", flush=True)
    assert failed, "the sync did not fail"
    try:
        log.close()
    except InternalError:
        pass
    disk.repair()
    with program.open(folder) as log:
        lane = Lane(log, marks.append, "main/")
        there = log.range("main/t")[1]
        print(f"{there} messages are there when it is opened again", flush=True)
        assert there >= 5
        marks.append(("seen", "main/", there))
        for number in range(10, 20):
            lane.append("t", number)
            lane.commit()
        disk.cut()
    disk.restart()
    program.check(folder, marks, marks.append)
    print(f"a failed sync on {disk.kind}: all is there", flush=True)


def main() -> int:
    kind, count, device, *seed = sys.argv[1:]
    disk = Disk(kind, device, Path("/tmp/disk"))
    if count == "errors":
        errors(disk)
    else:
        total = cuts(disk, int(count), int(*seed or [1]))
        print(f"{count} cuts on {kind}, {total} acknowledgements, none lost", flush=True)
    disk.unmount()
    call("dmsetup", "remove", NAME)
    return 0


if __name__ == "__main__":
    sys.exit(main())
