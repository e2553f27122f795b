"""Over HTTP, and over several processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

import transfer
from transfer.metrics import prometheus as metrics
from transfer.transports.errors import AddressInUse, OptionError

ROOT = Path(__file__).parents[2]


def scrape(port: int) -> dict[str, float]:
    """name{labels} -> value, as Prometheus would read it."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    return {
        name: float(value)
        for name, value in (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    }


def test_a_context_serves_its_own_numbers():
    with transfer.Context(metrics_port="127.0.0.1:0") as context:
        publisher = context.socket(transfer.PUB)
        publisher.bind("tcp://127.0.0.1:0")
        publisher.send(b"x")
        numbers = scrape(context._transfer_metrics.port)
        assert numbers['transfer_drops_total{reason="no_peer",socket="PUB"}'] == 1
        port = context._transfer_metrics.port
        publisher.close()
    with pytest.raises(OSError, match="refused"):
        scrape(port)


def test_the_port_that_was_taken_is_known(caplog):
    caplog.set_level("INFO", "transfer")
    with transfer.Context(metrics_port=0) as context:
        port = context.metrics_port
        assert port == context._transfer_metrics.port > 0
        assert [record.getMessage() for record in caplog.records] == [
            f"serving metrics at port {port} of 127.0.0.1"
        ]
    with transfer.Context() as context:
        assert context.metrics_port is None


def test_a_port_in_use_is_a_clear_error():
    with transfer.Context(metrics_port="127.0.0.1:0") as context:
        with pytest.raises(AddressInUse, match="metrics_port"):
            transfer.Context(metrics_port=f"127.0.0.1:{context._transfer_metrics.port}")


@pytest.mark.parametrize("port", ["", "host:", "127.0.0.1:many", "127.0.0.1:70000", 70000, -1, 1.5, True])
def test_what_a_port_cannot_be(port):
    with pytest.raises(OptionError, match="metrics_port cannot be"):
        transfer.Context(metrics_port=port)


def test_the_default_registry_serves_too():
    with transfer.Context() as context:
        metrics.register(context)
        try:
            with context.socket(transfer.PULL):
                assert REGISTRY.get_sample_value("transfer_sockets", {"socket": "PULL"}) == 1
        finally:
            metrics.unregister(context)
    # Another registration afterwards finds the collector that is there already.
    with transfer.Context() as context:
        metrics.register(context)
        metrics.unregister(context)


WORKER = """
import sys
import transfer
port = sys.argv[1]
context = transfer.Context(metrics_port=None if port == "none" else port)
if port == "none":
    from transfer import metrics
    metrics.register(context)
pull = context.socket(transfer.PULL)
push = context.socket(transfer.PUSH)
req, rep = context.socket(transfer.REQ), context.socket(transfer.REP)
for one, other, name in ((pull, push, "a"), (rep, req, "b")):
    one.rcvtimeo = other.sndtimeo = 20000
    one.bind(f"inproc://{name}")
    other.connect(f"inproc://{name}")
for _ in range(int(sys.argv[2])):
    push.send(b"1234")
    pull.recv()
req.send(b"?"); rep.recv(); rep.send(b"!"); req.recv()
from transfer import metrics
from transfer.metrics import prometheus
prometheus._process_files.publish()
print(context._transfer_metrics.port if context._transfer_metrics else "-", flush=True)
sys.stdin.readline()
for socket in (pull, push, req, rep):
    socket.close(0)
context.destroy(0)
if port == "none":
    metrics.unregister(context)
print("ended", flush=True)
sys.stdin.readline()
"""


class Worker:
    """A process that sends `messages` to itself, reports them, and waits."""

    def __init__(self, folder: Path, port: str, messages: int) -> None:
        environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(folder)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, port, str(messages)],
            cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        line = self.line()
        self.port = int(line) if line.isdigit() else None

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.line()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=20)


def test_several_processes_are_summed(tmp_path):
    sent = 'transfer_messages_sent_total{socket="PUSH"}'
    sockets = 'transfer_sockets{socket="PUSH"}'
    trips = "transfer_request_seconds_count"
    first = Worker(tmp_path, "127.0.0.1:0", 10)
    others = [Worker(tmp_path, "none", 5), Worker(tmp_path, "none", 7)]
    try:
        assert first.port is not None
        numbers = scrape(first.port)
        assert numbers[sent] == 22
        assert numbers[sockets] == 3
        assert numbers[trips] == 3
        assert numbers['transfer_request_seconds_bucket{le="+Inf"}'] == 3

        others[0].kill()  # what it counted stays, what it held is gone
        numbers = scrape(first.port)
        assert numbers[sent] == 22
        assert numbers[sockets] == 2

        assert others[1].go_on() == "ended"  # it lives on, and its context has ended
        numbers = scrape(first.port)
        assert numbers[sent] == 22
        assert numbers[sockets] == 1
    finally:
        for worker in (first, *others):
            worker.kill()


def test_a_forked_child_counts_for_itself(tmp_path):
    """A pre-forking server: the master has counted before, and its children count on."""
    code = """
import os, sys
import transfer
from transfer import metrics
from transfer.metrics import prometheus

def publish(count):
    context = transfer.Context()
    metrics.register(context)
    publisher = context.socket(transfer.PUB)
    for _ in range(count):
        publisher.send(b"x")
    prometheus._process_files.publish()
    return context, publisher

master = publish(3)
child = os.fork()
if child == 0:
    kept = publish(4)
    assert prometheus._process_files._thread.is_alive()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
os._exit(0)
"""
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=50, check=False,
        env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert _dropped(tmp_path) == 7


def test_a_process_writes_without_being_asked(tmp_path):
    """The thread that publishes runs by itself: nobody scrapes the worker here."""
    code = """
import sys, time
import transfer
from transfer import metrics
from transfer.metrics import prometheus
metrics.PUBLISH_INTERVAL = 0.05
context = transfer.Context()
metrics.register(context)
publisher = context.socket(transfer.PUB)
publisher.send(b"x")
print("sent", flush=True)
sys.stdin.readline()
"""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "sent\n"
        deadline = time.monotonic() + 20
        while not _dropped(tmp_path):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.kill()
        process.communicate(timeout=20)


def _dropped(folder: Path) -> float:
    from prometheus_client import CollectorRegistry
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(folder))
    labels = {"reason": "no_peer", "socket": "PUB"}
    return registry.get_sample_value("transfer_drops_total", labels) or 0.0


NONSENSE = {
    "no words": b"GET\r\n\r\n",
    "binary": b"\x00\xff\x01\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(200) + b"\n",
    "many words": b"GET / HTTP/1.1 x y\r\n\r\n",
    "another version": b"GET / HTTP/x\r\n\r\n",
}


def said(port: int, data: bytes) -> bytes:
    """All that is answered."""
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        connection.sendall(data)
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize("case", NONSENSE)
def test_what_is_no_request_is_answered_400_and_not_logged(case, capfd, caplog):
    with transfer.Context(metrics_port="127.0.0.1:0") as context:
        assert said(context._transfer_metrics.port, NONSENSE[case]).startswith(b"HTTP/1.0 400 ")
        scrape(context._transfer_metrics.port)
    assert capfd.readouterr().err == ""
    assert not caplog.records


def test_an_accept_that_cannot_be_read_is_left_out(capfd, caplog):
    with transfer.Context(metrics_port="127.0.0.1:0") as context:
        asked = b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text; version=x\r\n\r\n"
        answer = said(context._transfer_metrics.port, asked)
    assert answer.startswith(b"HTTP/1.0 200 ")
    assert b"transfer_messages_sent" in answer
    assert capfd.readouterr().err == ""
    assert not caplog.records


def test_numbers_that_cannot_be_read_are_an_error_that_is_logged_once(capfd, caplog, monkeypatch):
    def fails(environ, start):
        raise KeyError("nobody thought of it")

    monkeypatch.setattr(metrics, "make_wsgi_app", lambda registry: fails)
    with transfer.Context(metrics_port="127.0.0.1:0") as context:
        for _ in range(3):
            assert said(context._transfer_metrics.port, b"GET / HTTP/1.1\r\n\r\n").startswith(
                b"HTTP/1.0 500 "
            )
    assert capfd.readouterr().err == ""
    assert [record.exc_info is not None for record in caplog.records] == [True]
