"""Power cuts of a disk in a virtual machine and a disk whose writes fail (`power.py`); kills of the machine
itself, whose disk then loses what was not flushed (`killed_machine.py`, `nbd.py`)."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.crash.nbd import SECTOR, CachedDisk, Server
from tests.rdma import vm

#: cuts of each file system
CUTS = {"ext4": 50, "xfs": 20}
#: kills of the machine, of each file system: each is a start
KILLS = {"ext4": 5, "xfs": 3}
#: of the unflushed sectors that a kill keeps
_KEPT = (0.0, 0.2, 0.5, 0.9)
#: notes of one start before the machine is killed, at most: the first ones are those of the check
_MOST_NOTES = 1200
_START_TIMEOUT = 400.0
_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
_BYTES = 600 << 20


def tools_for(kind: str, *commands: str) -> vm.Tools:
    """Skips the test where something is missing."""
    for command in (*commands, f"mkfs.{kind}"):
        if not shutil.which(command, path=_PATH):
            pytest.skip(f"{command} is not there: apt-get install dmsetup util-linux e2fsprogs xfsprogs")
    try:
        return vm.find_tools()
    except vm.Missing as missing:
        pytest.skip(str(missing))


def in_the_machine(disk: Path, *words: str, timeout: float) -> str:
    """What `power.py` prints in a virtual machine with this disk."""
    kind = words[0]
    tools = tools_for(kind, "dmsetup", "blockdev", "umount")
    with disk.open("wb") as file:
        file.truncate(_BYTES)
    command = (
        f"modprobe -a dm-flakey {kind} || exit 96\nexport PATH=$PATH:{_PATH}\n"
        f"python -m tests.crash.power {' '.join(words)} /dev/vda"
    )
    options = ("--disk", str(disk))
    with vm.Machine(command, network="", options=options, tools=tools) as machine:
        ran = machine.wait(timeout)
    assert ran.status == 0, ran.output[-6000:] + ran.console[-2000:]
    return ran.output


@pytest.mark.slow
@pytest.mark.timeout(2500)
@pytest.mark.parametrize("kind", CUTS)
def test_power_cuts(tmp_path, kind) -> None:
    said = in_the_machine(tmp_path / "disk", kind, str(CUTS[kind]), timeout=2400)
    assert f"{CUTS[kind]} cuts on {kind}" in said and "none lost" in said
    print(said.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.parametrize("kind", CUTS)
def test_a_sync_fails_and_the_power_is_cut_behind_the_restart(tmp_path, kind) -> None:
    """Linux drops what it could not write: a later sync succeeds without it."""
    said = in_the_machine(tmp_path / "disk", kind, "errors", timeout=600)
    assert "as it should" in said and "all is there" in said


# -- the machine is killed -----------------------------------------------------------------------------------


def start(kind: str, number: int, folder: Path, tools: vm.Tools, last: str = "") -> vm.Machine:
    """A machine that runs `killed_machine.py` on the served disk."""
    notes = folder / "notes"
    command = (
        f"modprobe {kind} || exit 96\nexport PATH=$PATH:{_PATH}\n"
        f"python -m tests.crash.killed_machine {kind} /dev/vda {number} {notes} {last}"
    )
    drive = f"-drive file=nbd+unix:///?socket={folder / 'socket'},format=raw,if=virtio"
    return vm.Machine(
        command, network="", options=(f"--rwdir={notes}", f"--qemu-opts={drive}"), tools=tools, memory="1G"
    )


def wait_for_notes(machine: vm.Machine, notes: Path, number: int, count: int) -> None:
    """Returns when this start has noted so much."""
    deadline = time.monotonic() + _START_TIMEOUT
    while sum(path.read_bytes().count(b"\n") for path in notes.glob(f"*.{number}")) < count:
        if machine.begun.has_ended() or time.monotonic() > deadline:
            ran = machine.begun.ran()
            pytest.fail(
                f"start {number} did not get to note {count}: {ran.output[-6000:]}{ran.console[-2000:]}"
            )
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", KILLS)
def test_the_machine_is_killed_and_its_disk_loses_what_was_not_flushed(tmp_path, kind) -> None:
    """Each start checks what the one before had acknowledged, and goes on until it is killed."""
    tools = tools_for(kind)
    chance, notes, lost = random.Random(kind), tmp_path / "notes", 0
    notes.mkdir()
    disk = CachedDisk(tmp_path / "disk", _BYTES)
    with Server(disk, tmp_path / "socket") as server:
        for number in range(KILLS[kind]):
            with start(kind, number, tmp_path, tools) as machine:
                wait_for_notes(machine, notes, number, chance.randrange(1, _MOST_NOTES))
                server.stall(chance.randrange(1, 4))
                client = server.client()
                assert client is not None
                os.kill(client, signal.SIGKILL)
                server.wait_idle()

            gone = disk.cut(chance, chance.choice(_KEPT))
            lost += gone
            print(f"kill {number + 1} of {KILLS[kind]} on {kind}: {gone} sectors lost", flush=True)
        with start(kind, KILLS[kind], tmp_path, tools, "last") as machine:
            ran = machine.wait(_START_TIMEOUT)
    disk.close()
    assert ran.status == 0 and "all is there" in ran.output, ran.output[-6000:] + ran.console[-2000:]
    assert lost, "nothing was lost in any kill: they show nothing"


def test_what_was_not_flushed_is_lost_by_a_cut(tmp_path) -> None:
    first, second, third = (bytes([number]) * SECTOR for number in (1, 2, 3))
    disk = CachedDisk(tmp_path / "disk", 8 * SECTOR)
    disk.write(0, first)
    disk.flush()
    disk.write(0, second + second)
    assert disk.read(0, 3 * SECTOR) == second + second + bytes(SECTOR)
    assert disk.cut(random.Random(1), kept=0.0) == 2
    assert disk.read(0, 2 * SECTOR) == first + bytes(SECTOR)
    found = set()
    for seed in range(20):
        disk.write(0, first)
        disk.flush()
        disk.write(0, second)
        disk.write(0, third)
        disk.cut(random.Random(seed), kept=0.5)
        found.add(disk.read(0, SECTOR))
    assert found == {first, second, third}
    disk.close()
