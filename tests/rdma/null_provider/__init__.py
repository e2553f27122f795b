"""A libibverbs without a device: it moves bytes through shared memory, for tests and benchmarks.

verbs_abi.h, shared.h, null_verbs.h   what programs see, what processes share, what the parts share
node.c, device.c, region.c            processes and what wakes them; the device and its events; memory regions
completion.c, channel.c               completion queues; their channels
queue_pair.c, states.c                queue pairs and shared receive queues; how they are connected, and fail
send.c, transmit.c, receive.c         requests in order; one request; what comes in
faults.c                              what can be made to fail, and how
checks*.c, bench.c, ends.h            tests at the level of verbs; what a call costs

One device null0 with one port, for the processes of this machine that share NULL_VERBS_NAME. A send copies
into the ring of the peer's queue pair; the peer's poll copies out of it. A READ copies from the memory of
the other process. Rights, bounds, states, errors, events are those of a reliable connection on a card,
except:

- A target that never polls sees no WRITE, and a sleeping one only when its ring is full. No card does that.
- What came in and was not polled is lost when its queue pair is destroyed, with its receive buffer, as with
  most cards.
- A SEND is complete when the peer has a buffer for it. If that is too short, or its key is wrong, the sender
  gets no error for it: its queue pair fails, and what follows is flushed.
- An idle queue pair costs nothing and notices nothing, as on a card.
- A process that sleeps for long, and has some 270 queue pairs with events, misses those of the others until
  one of them has another. No card does that.

NULL_VERBS_NAME: prefix of names in /dev/shm. NULL_VERBS_FAULT: see faults.c. NULL_VERBS_COPY=0: a READ moves
no bytes, to measure what posting and reaping cost.

    python -m tests.rdma.null_provider program.py    runs a program with it, and `-m module` a module
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

SOURCES = Path(__file__).parent
ROOT = SOURCES.parents[2]
#: a folder for the PYTHONPATH of processes that a test starts
IN_CHILDREN = SOURCES / "in_children"
BUILT = ROOT / "build" / "null_provider"
SHARED = Path("/dev/shm")
DEVICE, GID = "null0", "::ffff:127.0.0.1"
_FLAGS = ("-std=gnu11", "-O2", "-g", "-shared", "-fPIC", "-pthread", "-fvisibility=hidden")
_GIDS = ("fe80:0000:0000:0000:0000:0000:0000:0001", "0000:0000:0000:0000:0000:ffff:7f00:0001")
_KINDS = ("IB/RoCE v1", "RoCE v2")
_numbers = count()


class Missing(Exception):
    """The provider cannot be built or used here; the text says why."""


def parts() -> list[Path]:
    """The sources of the library: all but those of programs."""
    programs = ("bench", "checks")
    return sorted(path for path in SOURCES.glob("*.c") if not path.stem.startswith(programs))


def build(folder: Path = BUILT) -> Path:
    """The library, compiled unless it is there. Several processes may call at once. Raises Missing."""
    digest = hashlib.sha256(" ".join(_FLAGS).encode())
    for path in [*parts(), *sorted(SOURCES.glob("*.h"))]:
        digest.update(path.name.encode() + path.read_bytes())
    library = folder / f"libnull_verbs-{digest.hexdigest()[:16]}.so"
    if not library.exists():
        compile_c(parts(), library, _FLAGS)
    return library


def compile_c(sources: list[Path], target: Path, flags: tuple[str, ...]) -> None:
    """Compiles to a file that appears at once. Raises Missing."""
    compiler = shutil.which("gcc")
    if compiler is None:
        raise Missing("no gcc: the null provider is compiled where it is used")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        ran = subprocess.run(
            [compiler, *flags, *sources, "-o", made], capture_output=True, text=True, timeout=120, check=False
        )
        if ran.returncode:
            raise AssertionError(ran.stderr)
        os.replace(made, target)


def describe(folder: Path = BUILT) -> Path:
    """A folder as /sys/class/infiniband would be."""
    system = folder / "infiniband"
    if not system.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as made:
            port = Path(made) / "infiniband" / DEVICE / "ports" / "1"
            for name in ("gids", "gid_attrs/types", "gid_attrs/ndevs", "pkeys"):
                (port / name).mkdir(parents=True)
            for index, (gid, kind) in enumerate(zip(_GIDS, _KINDS, strict=True)):
                (port / "gids" / str(index)).write_text(gid + "\n")
                (port / "gid_attrs" / "types" / str(index)).write_text(kind + "\n")
                (port / "gid_attrs" / "ndevs" / str(index)).write_text("lo\n")
            for name, text in (
                ("pkeys/0", "0xffff"),
                ("pkeys/1", "0x8001"),
                ("state", "4: ACTIVE"),
                ("rate", "100 Gb/sec (4X EDR)"),
                ("link_layer", "Ethernet"),
            ):
                (port / name).write_text(text + "\n")
            try:
                os.rename(Path(made) / "infiniband", system)
            except OSError:  # another process was quicker
                assert system.exists()
    return system


def environment(name: str) -> dict[str, str]:
    """The variables of a process that uses it; `name` as NULL_VERBS_NAME. Raises Missing."""
    return {
        "TRANSFER_LIBIBVERBS": str(build()),
        "NULL_VERBS_NAME": name,
    }


def install() -> None:
    """In this process the devices are those of the provider, instead of the machine's."""
    from transfer.transports import probe
    from transfer.transports.rdma import device_selection, probe as rdma_probe

    system = describe()
    device_selection.look.__defaults__ = (system,)
    device_selection.choose_route.__defaults__ = (None, system)
    rdma_probe.probe.__defaults__ = (system,)
    probe.forget()


@dataclass(frozen=True)
class Entrance:
    """To be called first in a process of multiprocessing, whose server may be older than the variables.

    Can be pickled."""

    variables: dict[str, str]

    def __call__(self) -> None:
        os.environ.update(self.variables)
        install()


def uninstall() -> None:
    from transfer.transports import probe
    from transfer.transports.rdma import device_selection, probe as rdma_probe

    system = device_selection.SYSTEM
    device_selection.look.__defaults__ = (system,)
    device_selection.choose_route.__defaults__ = (None, system)
    rdma_probe.probe.__defaults__ = (system,)
    probe.forget()


class NullProvider:
    """The provider in this process. name: its NULL_VERBS_NAME."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._library = ctypes.CDLL(str(build()))
        self._library.null_verbs_count.restype = ctypes.c_uint64

    def fault(self, kind: str, after: int = 0, count: int = 1) -> None:
        """See faults.c."""
        assert not self._library.null_verbs_fault(kind.encode(), after, count), kind

    def count(self, what: str) -> int:
        """How often it happened in this process: sends, reads, writes, wakeups, kicks, waits."""
        return int(self._library.null_verbs_count(what.encode()))

    def left(self) -> list[str]:
        """Names in shared memory."""
        return sorted(path.name for path in SHARED.glob(f"{self.name}.*"))

    def remove_killed(self) -> None:
        """Removes what killed processes have left."""
        for path in SHARED.glob(f"{self.name}.*"):
            with path.open("rb") as file:  # both kinds begin with the number of their process
                pid = int.from_bytes(file.read(4), "little")
            if pid and not Path(f"/proc/{pid}").exists():
                path.unlink(missing_ok=True)


@contextmanager
def used() -> Iterator[NullProvider]:
    """The provider instead of this machine's devices, here and in processes that are started meanwhile.

    At the end nothing may be left in shared memory but what killed processes left, which is removed.
    Raises Missing: it cannot be compiled, or there is no compiled core.
    """
    from transfer.transports.errors import DeviceError
    from transfer.transports.rdma.libibverbs_driver import load_binding

    name = f"null_verbs-{os.getpid()}-{next(_numbers)}"
    wanted = environment(name)
    before = {variable: os.environ.get(variable) for variable in wanted}
    os.environ.update(wanted)
    try:
        try:
            library = load_binding()[0]
        except DeviceError as error:
            raise Missing(str(error)) from error
        library.forget()  # this machine's own, which an earlier test may have loaded
        assert library.library_file() == str(build().resolve())
        install()
        provider = NullProvider(name)
        try:
            yield provider
        finally:
            provider.fault("clear")
            uninstall()
            library.forget()
        provider.remove_killed()
        assert not provider.left(), f"left in shared memory: {provider.left()}"
    finally:
        for variable, value in before.items():
            if value is None:
                del os.environ[variable]
            else:
                os.environ[variable] = value
