"""Shared memory is only taken where there is some: the kernel itself would kill somebody instead."""

from __future__ import annotations

import fcntl
import os

import pytest

from tests.conftest import descriptors
from transfer.transports.errors import InternalError
from transfer.transports.shm import memory
from transfer.transports.shm.blocks import Blocks
from transfer.transports.shm.memory import available_memory, make_memfd
from transfer.transports.shm.segments import PAGE, Arena


@pytest.fixture
def never_asked(monkeypatch):
    """What is too much must be refused before the kernel is asked for it."""

    def asked(*arguments):
        raise AssertionError("the kernel was asked")

    monkeypatch.setattr(os, "posix_fallocate", asked)


@pytest.mark.parametrize("nbytes", [1 << 45, 1 << 62])
def test_more_than_there_is_is_refused(never_asked, core, nbytes):
    with pytest.raises(InternalError, match="shared memory"):
        make_memfd(nbytes)
    blocks = Blocks(core)
    with pytest.raises(InternalError, match="memory limit"):
        blocks.allocate(nbytes)
    assert blocks.nbytes == 0
    blocks.close()
    assert "/memfd:transfer" not in str(descriptors())


def test_an_arena_leaves_the_last_memory_to_others(never_asked, monkeypatch, core):
    monkeypatch.setattr(memory, "available_memory", lambda: 65 << 20)
    arena = Arena(core, 1 << 30)
    assert arena.take(8 << 20) == "no_memory"
    arena.close()


def test_memory_is_sealed_zero_and_there():
    fd = make_memfd(PAGE * 3)
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        assert seals == fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        assert os.fstat(fd).st_blocks * 512 == PAGE * 3
        assert os.pread(fd, PAGE * 4, 0) == bytes(PAGE * 3)
        assert not os.get_inheritable(fd)
        with pytest.raises(OSError):
            os.ftruncate(fd, PAGE)
    finally:
        os.close(fd)


def groups(tmp_path, monkeypatch, *, path, meminfo=1000, **limits):
    """A system whose control groups are those in `limits`: name -> (max, current, inactive_file)."""
    (tmp_path / "meminfo").write_text(f"MemTotal: 5000 kB\nMemAvailable:  {meminfo} kB\n")
    (tmp_path / "cgroup").write_text(f"1:cpu:/x\n0::{path}\n")
    for name, (most, used, cache) in limits.items():
        group = tmp_path / "fs" / name.replace("__", "/").replace("root", "")
        group.mkdir(parents=True, exist_ok=True)
        (group / "memory.max").write_text(f"{most}\n")
        (group / "memory.current").write_text(f"{used}\n")
        (group / "memory.stat").write_text(f"anon 5\ninactive_file {cache}\n")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path / "fs")
    return available_memory()


@pytest.mark.parametrize(
    ("path", "limits", "expected"),
    [
        ("/", {}, 1000 << 10),
        ("/", {"root": ("max", 5, 5)}, 1000 << 10),
        ("/", {"root": (5000, 4000, 500)}, 1500),
        ("/a/b", {"a__b": ("max", 0, 0), "a": (9000, 8000, 0)}, 1000),
        ("/a/b", {"a__b": (700, 100, 0), "a": (9000, 8000, 0)}, 600),
        ("/a/b", {"a": ("rubbish", 1, 1)}, 1000 << 10),
    ],
)
def test_the_tightest_limit_counts(tmp_path, monkeypatch, path, limits, expected):
    assert groups(tmp_path, monkeypatch, path=path, **limits) == expected


def test_a_system_that_does_not_tell(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "nothing")
    assert available_memory() == 1 << 40
