"""The programs of the document that `ZmqInterface` is built to, word for word. Only imports and addresses
change; what a program leaves undefined comes from the test."""

from __future__ import annotations

import queue
import re
from collections import Counter
from pathlib import Path

import pytest
import torch

from tests.ports import free_port
from transfer import ZmqInterface

pytestmark = pytest.mark.timeout(60)

BLOCKS = Path(__file__).parent / "blocks"


def program(name, **addresses):
    """A program of the document, where each "host:port" has become another."""
    words = (BLOCKS / f"communicator_{name}.txt").read_text()
    # So that the test can shut it down: the programs leave that to their end.
    words = words.replace("from mooncake_transfer import ZmqInterface\n", "")
    for there, here in addresses.items():
        host, port = there.rsplit("_", 1)
        pattern = rf"//{re.escape(host)}:{port}\b"
        assert re.search(pattern, words), there
        words = re.sub(pattern, f"//127.0.0.1:{here}", words)
    return compile(words, name, "exec")


@pytest.fixture
def run():
    """run(program, names) -> the names when it has ended; its interfaces are shut down after the test."""
    made = []

    def new():
        made.append(ZmqInterface())
        return made[-1]

    def run_it(code, **names):
        space = {"ZmqInterface": new, "torch": torch, **names}
        exec(code, space)
        return space

    yield run_it
    for one in made:
        one.shutdown()


class Model:
    def __init__(self):
        self.weights = {"layer": torch.zeros(2, 3), "bias": torch.ones(70_000)}

    def apply_gradient(self, gradient):
        self.weights["layer"] += gradient

    def get_weights(self):
        return self.weights


def test_an_asynchronous_request(run, capsys):
    port = free_port()
    with ZmqInterface() as server:
        rep = server.create_socket("REP")
        server.bind(rep, f"tcp://127.0.0.1:{port}")
        server.set_receive_callback(rep, lambda message: server.reply(rep, message["data"] + b", world"))
        run(program("asyncio", **{"192.168.1.10_5555": port}))
    assert capsys.readouterr().out == "Response: b'Hello, world'\n"


def test_a_parameter_server(run):
    gradient = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    code = program("parameter_server", **{"192.168.1.10_5555": free_port()})
    after = run(code, model=Model(), compute_gradient=lambda: gradient)
    weights = after["weights"]
    assert torch.equal(torch.as_tensor(weights["layer"]), gradient)
    assert torch.equal(torch.as_tensor(weights["bias"]), torch.ones(70_000))


def test_logs(run):
    stored, port = queue.Queue(), free_port()
    code = program("logs", **{"0.0.0.0_5556": port, "logger_5556": port})
    after = run(code, store_to_database=lambda topic, data: stored.put((topic, data)))
    # Whoever subscribes later has missed what the program published: PUB keeps nothing.
    publisher, number = after["pub"], 1
    while stored.empty():
        publisher.publish(number, "log.error", b"Error: connection lost")
        publisher.publish(number, "metric.load", b"0.5")
    assert stored.get(timeout=10) == ("log.error", b"Error: connection lost")
    assert all(topic == "log.error" for topic, _ in stored.queue)


def test_tasks(run):
    done, ports = queue.Queue(), [free_port() for _ in range(3)]
    others = [ZmqInterface() for _ in ports[1:]]

    class Task:
        def __init__(self, number):
            self.number = number

        def serialize(self):
            return b"%d" % self.number

        @classmethod
        def deserialize(cls, data):
            return cls(int(data))

        def execute(self):
            done.put(("the program's", self.number))

    try:
        for other, port in zip(others, ports[1:], strict=True):
            pull = other.create_socket("PULL")
            other.bind(pull, f"tcp://127.0.0.1:{port}")
            other.set_pull_callback(pull, lambda message, port=port: done.put((port, int(message["data"]))))
        addresses = {f"worker{n}_5557": port for n, port in enumerate(ports, 1)}
        code = program("tasks", **addresses, **{"0.0.0.0_5557": ports[0]})
        after = run(code, Task=Task, tasks=map(Task, range(9)))
        first = [done.get(timeout=10) for _ in range(9)]  # to the workers that were connected by then
        push = after["push"]
        push._of(1)._socket.wait_for_peers(3, 10)
        for number in range(9):
            push.push(1, Task(number).serialize())
        then = [done.get(timeout=10) for _ in range(9)]
    finally:
        for other in others:
            other.shutdown()
    for got in (first, then):
        assert sorted(number for _, number in got) == list(range(9))
    assert sorted(Counter(worker for worker, _ in then).values()) == [3, 3, 3]
