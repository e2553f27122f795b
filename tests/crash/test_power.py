"""Power cuts of a disk in a virtual machine, and a disk whose writes fail. See `power.py`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.rdma import vm

#: cuts of each file system
CUTS = {"ext4": 50, "xfs": 20}
_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
_BYTES = 600 << 20


def in_the_machine(disk: Path, *words: str, timeout: float) -> str:
    """What `power.py` prints in a virtual machine with this disk."""
    kind = words[0]
    for command in ("dmsetup", "blockdev", "umount", f"mkfs.{kind}"):
        if not shutil.which(command, path=_PATH):
            pytest.skip(f"{command} is not there: apt-get install dmsetup util-linux e2fsprogs xfsprogs")
    try:
        tools = vm.find_tools()
    except vm.Missing as missing:
        pytest.skip(str(missing))
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
