"""Runs tests on real verbs: a small virtual machine whose kernel has Soft-RoCE (rdma_rxe).

    python -m tests.rdma.vm                         the suite (`make test-rdma`)
    python -m tests.rdma.vm -- tests/rdma -k fork   what pytest is told instead
    python -m tests.rdma.vm --command 'ibv_devinfo' anything else, with the device there

The machine sees this file system read-only, as it is, and writes to one directory for results. Times in
it are never those of RDMA; ratios in one machine are fair. Hardware virtualization is used where it works
(TRANSFER_TEST_VM_KVM=on or off decides it), else QEMU's emulation.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.rdma import suites_plugin

ROOT = Path(__file__).resolve().parents[2]
_OVER = ("-m", "not slow", "-p", "tests.rdma.suites_plugin")
#: what pytest runs in the machine unless it is told otherwise: streams and their faults on real verbs,
#: then the suites of sockets over rdma
STREAMS = (
    *("tests/rdma/test_stream.py", "tests/rdma/test_faults.py", "tests/rdma/test_sockets.py"),
    "tests/rdma/test_device_events.py",
)
SUITE = (*(*STREAMS, "tests/rdma/in_vm", *(f"tests/{name}.py" for name in suites_plugin.SUITES), *_OVER),)
#: what `make test-slow` runs there besides
MORE = (*(f"tests/{name}.py" for name in suites_plugin.MORE), *_OVER)
#: seconds from start to end; it boots in half a minute on a quiet machine
TIMEOUT = 900
#: how many times slower the emulated processor is, for tests that count turns
PACE = 10
#: in which a kernel without a disk has to give up on /dev/kvm
KVM_TIMEOUT = 8
MEMORY = "2G"
PACKAGES = (
    "qemu-system-x86 linux-image-amd64 rdma-core ibverbs-utils ibverbs-providers iproute2 busybox-static file"
)
PACKAGES_HERE = sysconfig.get_path("purelib")
_PYVERBS = Path("/usr/lib/python3/dist-packages/pyverbs")
_PACKED = (
    *("pytest", "pytest-*", "_pytest", "pytest_timeout*", "pytest_asyncio*", "pluggy*", "iniconfig*"),
    *("packaging*", "pygments", "psutil", "numpy", "numpy.libs", "ml_dtypes", "prometheus_client"),
    *("lz4", "typing_extensions.py", "py.py", "cffi", "_cffi_backend*", "pycparser"),
)
_LEFT_OUT = {
    *("test", "tests", "idlelib", "tkinter", "lib2to3"),
    *("ensurepip", "site-packages", "turtledemo", "pydoc_data"),
}
_PROJECT = (
    *("bench", "patterns", "pyproject.toml", "pyspark_transfer", "tensor_transfer.py", "tests"),
    *("transfer", "transports"),
)
_RXE = "kernel/drivers/infiniband/sw/rxe"
#: packets of 4096 bytes need a little more than that on the wire
NETWORK = """\
ip link add veth0 mtu 4200 type veth peer name veth1 mtu 4200
ip addr add 10.77.0.1/24 dev veth0
ip link set veth0 up
ip link set veth1 up
rdma link add rxe0 type rxe netdev veth0 || exit 97
"""
_PRELUDE = """\
at() {{ read -r up rest </proc/uptime; echo "$1 after $up s"; }}
at booted
modprobe rdma_rxe && modprobe ib_uverbs || exit 97
ip link set lo up
{network}mkdir /tmp/fast && tar -xf {bundle} -C /tmp/fast || exit 97
export PATH=/tmp/fast/python/bin:$PATH PYTHONHOME=/tmp/fast/python PYTHONPATH=/tmp/fast/site HOME=/tmp
export PYTHONDONTWRITEBYTECODE=1 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 HOST_SITE={packages}
export TRANSFER_TEST_VM=yes RESULTS={results}
cd /tmp/fast/project || exit 97
at ready
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """status: of the command, or None if it did not end in time, or never began. output: what it wrote.
    counts: of junit.xml, if there is one: tests, failures, errors, skipped. seconds: from its start to
    the command's end."""

    status: int | None
    output: str
    console: str
    counts: dict[str, int]
    seconds: float


@dataclass(frozen=True, slots=True)
class Tools:
    """What is needed, as found on this machine."""

    vng: str
    kernel: Path


@dataclass(frozen=True, slots=True)
class Begun:
    """A machine that runs, as any process can wait for it: its folder, its process, and when it began."""

    folder: str
    pid: int
    began: float

    def told(self) -> dict[str, str | int | float]:
        """What `Begun(**told)` is made of, for JSON."""
        return dataclasses.asdict(self)

    def wait(self, timeout: float) -> Ran:
        """Until it ends, at most so many seconds; it is not this one that ends it."""
        deadline = time.monotonic() + timeout
        while not self.has_ended():
            if time.monotonic() > deadline:
                return self.ran(f"\nthe virtual machine did not end within {timeout:.0f} s")
            time.sleep(0.2)
        return self.ran()

    def has_ended(self) -> bool:
        """Not there, or a zombie: whoever began it asks for its status later."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    def ran(self, ended: str = "") -> Ran:
        results = Path(self.folder)
        status = results / "status"
        return Ran(
            _status(results), _read(results / "output"), _read(results / "console") + ended,
            _counts(results / "junit.xml"),
            (status.stat().st_mtime if status.exists() else time.time()) - self.began,
        )  # fmt: skip


class Missing(Exception):
    """Something is not installed; the text says what, in one line."""


def find_tools() -> Tools:
    """Raises Missing."""
    if not shutil.which("qemu-system-x86_64"):
        raise Missing("QEMU is not installed: apt-get install " + PACKAGES)
    beside = Path(sys.executable).with_name("vng")
    vng = str(beside) if beside.exists() else shutil.which("vng")
    if not vng:
        raise Missing("virtme-ng is not installed: pip install virtme-ng")
    for command in ("ip", "rdma", "script", "file"):
        if not shutil.which(command, path=os.environ.get("PATH", "") + ":/sbin:/usr/sbin"):
            raise Missing(f"the command {command} is not there: apt-get install iproute2 bsdutils file")
    return Tools(vng, find_kernel())


def find_kernel(boot: Path = Path("/boot"), modules: Path = Path("/lib/modules")) -> Path:
    """The newest installed kernel that has Soft-RoCE. Raises Missing."""
    found = [
        path
        for path in boot.glob("vmlinuz-*")
        if list((modules / _version(path) / _RXE).glob("rdma_rxe.ko*"))
    ]
    if not found:
        raise Missing("no kernel with rdma_rxe is installed: apt-get install linux-image-amd64")
    return max(
        found,
        key=lambda path: [
            int(part) if part.isdecimal() else 0 for part in _version(path).replace("-", ".").split(".")
        ],
    )


def has_pyverbs() -> bool:
    """Whether the system's pyverbs is for this Python: then a peer by pyverbs is tested, too."""
    tag = sysconfig.get_config_var("SOABI") or ""
    return any(_PYVERBS.glob(f"device.{tag.rsplit('-linux', 1)[0]}*.so"))


def _version(kernel: Path) -> str:
    return kernel.name.removeprefix("vmlinuz-")


def run(command: str, *, timeout: float = TIMEOUT, memory: str = MEMORY, tools: Tools | None = None) -> Ran:
    """Boots, runs the command with bash in the project's directory, and shuts down.

    What the command writes to $RESULTS/junit.xml is counted. Raises Missing.
    """
    with Machine(command, memory=memory, tools=tools) as machine:
        return machine.wait(timeout)


class Machine:
    """A virtual machine that runs one command; ended with its with-statement. Raises Missing.

    network: shell commands that bring up the network and the device. options: more of vng's.
    """

    def __init__(
        self, command: str, *, memory: str = MEMORY, tools: Tools | None = None, network: str = NETWORK,
        options: Sequence[str] = (),
    ) -> None:  # fmt: skip
        tools = tools or find_tools()
        self._folder = tempfile.TemporaryDirectory(prefix="transfer-rdma-")
        folder = self._folder.name
        results = Path(folder)
        bundle = pack(results / "bundle.tar")
        prelude = _PRELUDE.format(
            network=network, bundle=bundle, results=shlex.quote(folder), packages=PACKAGES_HERE
        )
        (results / "inside.sh").write_text(
            f"({prelude}{command}\n) > {folder}/output 2>&1\necho $? > {folder}/status.new\n"
            f"mv {folder}/status.new {folder}/status\nsync\n"
        )
        # vng wants a terminal.
        boot = ["nice", "-n", "5", "script", "-qec", _boot(tools, results, memory, options), "/dev/null"]
        if shutil.which("setpriv"):  # nor shall a machine outlive a test run that is killed
            boot = ["setpriv", "--pdeathsig", "KILL", *boot]
        environment = {**os.environ, "PATH": f"{Path(tools.vng).parent}:{os.environ.get('PATH', '')}"}
        # Not a pipe: nobody reads while other tests run beside it.
        with (results / "console").open("wb") as console:
            self._process = subprocess.Popen(
                boot, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT,
                env=environment, start_new_session=True,
            )  # fmt: skip
        self.begun = Begun(folder, self._process.pid, time.time())

    def wait(self, timeout: float) -> Ran:
        """Until it ends, at most so many seconds; then it is ended."""
        ran = self.begun.wait(timeout)
        self._end()
        return ran

    def _end(self) -> None:
        if self._process.poll() is None:
            # Without its terminal the whole machine ends: vng, and QEMU.
            os.killpg(self._process.pid, 9)
            self._process.wait()

    def close(self) -> None:
        self._end()
        self._folder.cleanup()

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def pack(target: Path) -> Path:
    """An archive of this Python, of the project and of the modules that its tests import. Importing them
    file by file through the shared file system takes minutes on a busy host; $HOST_SITE has all others."""
    library, packages = Path(sysconfig.get_path("stdlib")), Path(PACKAGES_HERE)
    with tarfile.open(target, "w") as archive:
        archive.add(Path(sys.executable).resolve(), "python/bin/python")
        archive.add(library, f"python/lib/{library.name}", filter=_wanted)
        for name in _PACKED:
            for path in packages.glob(name):
                archive.add(path, f"site/{path.name}", filter=_wanted)
        if has_pyverbs():
            archive.add(_PYVERBS, "site/pyverbs", filter=_wanted)
        for name in _PROJECT:
            archive.add(ROOT / name, f"project/{name}", filter=_in_project)
    return target


def _wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    parts = entry.name.split("/")
    left_out = any(part in _LEFT_OUT or part.startswith("config-3") for part in parts)
    return None if left_out or ".opt-" in entry.name or entry.name.endswith(".a") else entry


def _in_project(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    # Cython's translations are large, and nobody imports them.
    return None if entry.name.endswith((".c", ".html")) else entry


def _boot(tools: Tools, results: Path, memory: str, options: Sequence[str]) -> str:
    parts = [tools.vng, "--run", str(tools.kernel), "--user", "root", "--memory", memory, "--cpus", "2"]
    if not has_kvm(tools.kernel):
        parts.append("--disable-kvm")
    # virtiofsd is here and there, and of two kinds. Without page table isolation an emulated system
    # call costs a fraction.
    parts += ["--force-9p", "--append", "mitigations=off", "--append", "no5lvl", f"--rwdir={results}"]
    # The guest's /tmp is empty: an interpreter that lies there on the host is passed in by name.
    parts += [f"--rodir={path}" for path in _shown()]
    return shlex.join([*parts, *options, "--", "bash", str(results / "inside.sh")])


@functools.cache
def has_kvm(kernel: Path) -> bool:
    """Whether a guest really runs on /dev/kvm: inside of another virtual machine it may hang although the
    device answers. A kernel without a disk panics and reboots, which ends QEMU, in two seconds or never."""
    asked = os.environ.get("TRANSFER_TEST_VM_KVM", "auto")
    if asked in ("on", "off"):
        return asked == "on"
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return False
    words = ["qemu-system-x86_64", "-accel", "kvm", "-cpu", "host", "-m", "256M", "-nographic", "-no-reboot"]
    words += ["-nodefaults", "-serial", "stdio", "-kernel", str(kernel), "-append", "console=ttyS0 panic=-1"]
    try:
        tried = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=KVM_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return tried.returncode == 0 and b"Kernel panic" in tried.stdout


def _shown() -> list[str]:
    wanted = {Path(sys.prefix), Path(sys.base_prefix)}
    outer = [
        path for path in wanted if not any(path != other and path.is_relative_to(other) for other in wanted)
    ]
    return sorted({str(path) for path in outer if path.is_relative_to("/tmp") or path.is_relative_to("/run")})


def pytest_command(arguments: Sequence[str] = SUITE) -> str:
    """One interpreter for all tests: the first import of numpy takes half a minute in there."""
    words = [
        "python",
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "pytest_timeout",
        "-p",
        "pytest_asyncio.plugin",
    ]
    words += arguments
    return f'TRANSFER_TEST_PACE={PACE} {shlex.join(words)} --junitxml="$RESULTS/junit.xml"'


def _status(results: Path) -> int | None:
    text = _read(results / "status").strip()
    return int(text) if text else None


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _counts(path: Path) -> dict[str, int]:
    if not path.exists():
        return {}
    counts: dict[str, int] = {}
    for suite in ElementTree.parse(path).getroot().iter("testsuite"):
        for name in ("tests", "failures", "errors", "skipped"):
            counts[name] = counts.get(name, 0) + int(suite.get(name, 0))
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rdma.vm", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--command", help="a shell command to run instead of pytest")
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT, help="seconds for all (default %(default)s)"
    )
    parser.add_argument("--memory", default=MEMORY, help="of the machine (default %(default)s)")
    parser.add_argument("--check", action="store_true", help="only say whether all that is needed is there")
    parser.add_argument("arguments", nargs="*", help="for pytest, behind --")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        tools = find_tools()
        if asked.check:
            print(f"ready: {tools.kernel.name}, {tools.vng}")
            return 0
        command = asked.command or pytest_command(asked.arguments or SUITE)
        ran = run(command, timeout=asked.timeout, memory=asked.memory, tools=tools)
    except Missing as error:
        print(f"the rdma tests cannot run here: {error}", file=sys.stderr)
        return 3
    print(ran.output, end="")
    if ran.status is None:
        print("the command did not end:\n" + ran.console[-3000:], file=sys.stderr)
        return 4
    if ran.counts:
        print("on real verbs:", ", ".join(f"{count} {name}" for name, count in ran.counts.items()))
    return ran.status


if __name__ == "__main__":
    sys.exit(main())
