"""Ctrl-C in the demo, on a real terminal: it ends soon, says so in one line, and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pip install tensor-transfer[demo]")
pytest.importorskip("sklearn", reason="pip install tensor-transfer[demo]")
pytest.importorskip("torch", reason="pip install tensor-transfer[demo]")

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
#: seconds to a moment: many times what it takes, for machines that are busy with much else
START_PATIENCE = 500.0
#: seconds from Ctrl-C to the end
PATIENCE = 120.0
#: seconds for the kernel to remove what has ended
GRACE = 3.0


class Demo:
    """`make demo` as the foreground program of a terminal of its own, with a temp folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.temp = folder / "temp"
        self.temp.mkdir()
        self.terminal, inner = os.openpty()
        environment = os.environ | {
            "TMPDIR": str(self.temp),
            "TERM": "xterm",
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"),  # torch's, kept from run to run
        }
        # The demo itself is the leader: setsid makes the session and the terminal's, and becomes it.
        self.process = subprocess.Popen(
            ["setsid", "--ctty", sys.executable, "-m", "examples.spark_to_torch", "--epochs", "9999",
             "--output", str(folder / "plot.png")],
            cwd=ROOT, env=environment, stdin=inner, stdout=inner, stderr=subprocess.PIPE,
        )  # fmt: skip
        os.close(inner)
        self.shown = self.said = b""
        assert self.process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read, args=(self.terminal, "shown"), daemon=True),
            threading.Thread(target=self._read, args=(self.process.stderr.fileno(), "said"), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, fd: int, name: str) -> None:
        try:
            while data := os.read(fd, 65536):
                setattr(self, name, getattr(self, name) + data)
        except OSError:
            return  # so a terminal ends

    def wait_until(self, what: str, true) -> None:
        deadline = time.monotonic() + START_PATIENCE
        while not true():
            assert self.process.poll() is None, f"it ended before {what}: {self.said.decode()}"
            assert time.monotonic() < deadline, f"never came to {what}: {self.said.decode()}"
            time.sleep(0.02)

    def processes(self) -> dict[int, str]:
        """All of its session, whoever is their parent now, zombies too."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if entry.name.isdigit() and int(fields[3]) == self.process.pid:
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return found

    def end(self) -> int:
        """Its exit status, after which all that it said is there."""
        code = self.process.wait(PATIENCE)
        deadline = time.monotonic() + GRACE
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.02)
        return code

    def close(self) -> None:
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        self.process.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        os.close(self.terminal)
        assert self.process.stderr is not None
        self.process.stderr.close()


@pytest.fixture
def demo(tmp_path):
    from transfer.spark.session import check_java
    from transfer.transports.errors import NotSupported

    try:
        check_java()
    except NotSupported as error:
        pytest.skip(str(error))
    running = Demo(tmp_path)
    yield running
    running.close()


#: each is a moment; what is true from then on
MOMENTS = {
    "java starts": lambda demo: any("deploy.SparkSubmit" in line for line in demo.processes().values()),
    "spark starts": lambda demo: any(demo.temp.glob("transfer-demo-*/blockmgr-*")),
    # the driver waits for Spark's job
    "spark writes": lambda demo: b"Spark writes to" in demo.shown,
    "training runs": lambda demo: b"loss " in demo.shown.partition(b"epoch 2/")[2],
}


@pytest.mark.parametrize(
    ("moment", "whom"),
    [
        ("java starts", "terminal"),
        ("spark starts", "leader"),
        ("spark writes", "terminal"),
        # Each costs a start of Spark: the other combinations only with all that is slow.
        pytest.param("java starts", "leader", marks=pytest.mark.slow),
        pytest.param("spark starts", "terminal", marks=pytest.mark.slow),
        pytest.param("spark writes", "leader", marks=pytest.mark.slow),
        pytest.param("training runs", "terminal", marks=pytest.mark.slow),
        pytest.param("training runs", "leader", marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_ends_the_demo_and_all_that_it_started(demo, moment, whom):
    demo.wait_until(moment, lambda: MOMENTS[moment](demo))
    if whom == "terminal":
        os.write(demo.terminal, b"\x03")  # the key: to all of the foreground group
    else:
        os.kill(demo.process.pid, signal.SIGINT)
    assert demo.end() == 130, demo.said.decode()
    assert demo.processes() == {}
    assert list(demo.temp.iterdir()) == []
    said = demo.said.decode()
    assert said.splitlines()[-1] == "demo failed: stopped by Ctrl-C", said
    assert "Traceback" not in said and "Exception" not in said and "\tat " not in said, said
    assert demo.shown.rindex(b"\x1b[?25h") > demo.shown.rindex(b"\x1b[?25l"), "the cursor stays hidden"
