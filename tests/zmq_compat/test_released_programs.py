"""Released programs that speak ZeroMQ, unchanged, by `transfer as-zmq`. pip fetches them once."""

from __future__ import annotations

import re

import pytest

from tests.ports import free_port
from tests.zmq_compat.released import LIMIT, ended, fetched, started

RELEASES = ("ipykernel==7.4.0", "jupyter_client==8.10.0", "zerorpc==0.6.3", "locust==2.47.0")

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


LOAD = """
from locust import User, constant, events, task

import zmq

class Visitor(User):
    wait_time = constant(0.05)

    @task
    def nothing(self):
        events.request.fire(
            request_type="no", name="nothing", response_time=1, response_length=1, exception=None, context={}
        )

print("zmq is transfer" if zmq.__transfer__ else "zmq is pyzmq", flush=True)
"""


@pytest.fixture(scope="module")
def programs():
    """The folder with the releases."""
    return fetched("released_programs", RELEASES)


@pytest.mark.parametrize("program", [KERNEL, RPC], ids=["ipykernel", "zerorpc"])
def test_a_released_program(programs, program, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(program)
    code, output = ended(started(programs, tmp_path, str(path)))
    assert code == 0 and "all is well\n" in output, output


def test_locust_on_several_processes(programs, tmp_path):
    """gevent has replaced threads and select there, after this package was imported."""
    (tmp_path / "locustfile.py").write_text(LOAD)
    port = str(free_port())
    words = ["-m", "locust", "--headless", "--users", "4", "--run-time", "3s", "--expect-workers", "2"]
    words += ["--master", "--master-bind-host", "127.0.0.1", "--master-bind-port", port, "--spawn-rate", "4"]
    master = started(programs, tmp_path, *words)
    workers = [
        started(programs, tmp_path, "-m", "locust", "--worker", "--master-port", port) for _ in range(2)
    ]
    code, output = ended(master)
    assert [ended(worker)[0] for worker in workers] == [0, 0]
    assert code == 0 and "zmq is transfer" in output, output
    requests = re.findall(r"Aggregated +(\d+) +0\(0.00%\)", output)
    assert max(map(int, requests)) > 50, output
