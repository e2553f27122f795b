"""Released programs that speak ZeroMQ, unchanged, by `transfer as-zmq`. pip fetches them once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "build/released_programs"
RELEASES = ("ipykernel==7.4.0", "jupyter_client==8.10.0", "zerorpc==0.6.3")
LIMIT = 120

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT + 300)]

KERNEL = """
import sys
from jupyter_client import KernelManager
from jupyter_client.kernelspec import KernelSpec

import zmq
assert zmq.__transfer__

class Manager(KernelManager):
    kernel_spec = KernelSpec(
        argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], language="python"
    )

if __name__ == "__main__":
    manager = Manager()
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    texts = []
    keep = lambda message: texts.append(message["content"])
    client.execute_interactive(
        "import zmq; print(zmq.__transfer__)", timeout=60, output_hook=keep
    )
    for number in range(50):
        client.execute_interactive(f"print({number})", timeout=60, output_hook=keep)
    printed = "".join(text["text"] for text in texts if "text" in text)
    assert printed.split() == ["True", *map(str, range(50))], printed
    client.stop_channels()
    manager.shutdown_kernel()
    print("all is well")
"""

RPC = """
import gevent
import zerorpc

import zmq
assert zmq.__transfer__

class Service:
    def add(self, a, b):
        return a + b

    def fail(self):
        raise ValueError("as it should")

    @zerorpc.stream
    def count(self, most):
        yield from range(most)

server = zerorpc.Server(Service())
server.bind("tcp://127.0.0.1:0")
running = gevent.spawn(server.run)
client = zerorpc.Client(server._events._socket.last_endpoint.decode())
assert [client.add(number, 1) for number in range(200)] == list(range(1, 201))
assert list(client.count(500)) == list(range(500))
try:
    client.fail()
except zerorpc.RemoteError as error:
    assert error.name == "ValueError"
client.close()
server.stop()
running.join(10)
print("all is well")
"""


@pytest.fixture(scope="module")
def programs():
    """The folder with the releases."""
    if not (PLACE / "done").exists():
        command = ["-m", "pip", "--disable-pip-version-check", "-q", "install", "--target", PLACE, *RELEASES]
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, timeout=240, check=False
        )
        if done.returncode:
            pytest.skip(f"pip cannot fetch them: {done.stderr[-300:]}")
        (PLACE / "done").touch()
    return PLACE


@pytest.mark.parametrize("program", [KERNEL, RPC], ids=["ipykernel", "zerorpc"])
def test_a_released_program(programs, program, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "transfer", "as-zmq", str(path)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, programs)))},
        cwd=tmp_path,
    )
    assert done.returncode == 0 and done.stdout.endswith("all is well\n"), done.stdout + done.stderr
