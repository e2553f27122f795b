"""`helm test` as its pods would run it: their commands, environment and secrets, in real processes.

Only what a cluster brings is made up: the other pod's name is 127.0.0.1, and ports are free ones.
"""

from __future__ import annotations

import base64
import http.client
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from tests.chart.rendering import CASES, ROOT, Object, Rendered, Values, case, render
from tests.ports import free_ports

PEER_PORTS = ("5591", "5592", "7590")


class Machine:
    """A folder that stands for a pod's file system, and the ports that stand for those of the pods."""

    def __init__(self, folder: Path, rendered: Rendered) -> None:
        self.rendered = rendered
        self._folder = folder
        named = (*PEER_PORTS, "5580", "5581", "5582", "5570", "5571", "9180")
        self._ports = dict(zip(named, map(str, free_ports(len(named))), strict=True))
        self._made: list[subprocess.Popen[str]] = []
        (folder / "bin").mkdir()
        for name, module in (("transfer", "-m transfer"), ("python", "")):
            program = folder / "bin" / name
            program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
            program.chmod(0o755)
        for place, kind in (("tls", "-tls"), ("token", "-token")):
            (folder / place).mkdir()
            for secret in rendered.of("Secret"):
                if secret["metadata"]["name"].endswith(kind):
                    for key, value in secret["data"].items():
                        (folder / place / key).write_bytes(base64.b64decode(value))
        self.data = folder / "data"

    def here(self, text: str) -> str:
        """What stands in the chart, on this machine."""
        text = text.replace("0.0.0.0", "127.0.0.1").replace("/etc/transfer/broker", str(self._folder))
        text = text.replace("/etc/transfer", str(self._folder)).replace('"/data"', f'"{self.data}"')
        for host in ("demo-transfer-peer", "demo-transfer"):
            text = text.replace(f"//{host}:", "//127.0.0.1:")
        if text == "demo-transfer-peer":
            text = "127.0.0.1"
        for port, free in self._ports.items():
            text = text.replace(f":{port}", f":{free}").replace(f'"{port}"', f'"{free}"')
        return text

    def write(self, name: str, text: str) -> None:
        (self._folder / name).write_text(self.here(text))

    def start(self, container: Object) -> subprocess.Popen[str]:
        """As the kubelet would: the command with its arguments, and no other environment."""
        environment = {one["name"]: self.here(one["value"]) for one in container["env"] if "value" in one}
        environment |= {"PATH": f"{self._folder}/bin:/usr/bin:/bin", "HOME": str(self._folder)}
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        environment |= {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
        environment |= {"TRANSFER_LOCAL": "off"}  # two pods are two network namespaces
        if "TRANSFER_CORE" in os.environ:
            environment["TRANSFER_CORE"] = os.environ["TRANSFER_CORE"]
        process = subprocess.Popen(
            [self.here(text) for text in (*container["command"], *container.get("args", ()))],
            env=environment, cwd=self._folder, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._made.append(process)
        return process

    def run(self, container: Object, timeout: float = 50.0) -> tuple[int, str]:
        process = self.start(container)
        output, _ = process.communicate(timeout=timeout)
        return process.returncode, output

    def close(self) -> None:
        for process in self._made:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@contextmanager
def machine(folder: Path, rendered: Rendered) -> Iterator[Machine]:
    made = Machine(folder, rendered)
    try:
        yield made
    finally:
        made.close()


def container_of(rendered: Rendered, ending: str) -> Object:
    (found,) = (one for whose, one in rendered.containers() if whose.rpartition("/")[0].endswith(ending))
    return found


#: short measurements, and no device: the environment's words are what is looked at
QUICK: Values = {"tests": {"seconds": 0.05, "timeoutSeconds": 30, "minGbps": 0.01}}


def test_all_of_it_passes_where_tcp_is_what_was_wished_for(tmp_path: Path) -> None:
    with machine(tmp_path, render(QUICK)) as here:
        here.start(container_of(here.rendered, "-peer"))
        for name in ("req-rep", "push-pull", "doctor"):
            status, output = here.run(container_of(here.rendered, f"-test-{name}"))
            assert status == 0, f"{name}: {output}"
        assert "✓ auto (tcp)" in output
        # A network that is too slow fails the doctor.
        slow = render({"tests": {**QUICK["tests"], "minGbps": 100000}})
        status, output = here.run(container_of(slow, "-test-doctor"))
        assert status == 1 and "less than 100000 Gbit/s" in output


def without(container: Object, word: str) -> Object:
    """Without the variables that have this word in their names, and with little patience."""
    command = [
        "1" if before == "--timeout" else text for before, text in pairwise(["", *container["command"]])
    ]
    return {
        **container,
        "command": command,
        "env": [one for one in container["env"] if word not in one["name"]],
    }


def test_unauthenticated_clients_are_refused(tmp_path: Path) -> None:
    """The pods of the chart ask for a certificate and the token; the page has the words of the refusal."""
    page = (ROOT / "docs/deploy.md").read_text()
    with machine(tmp_path, render(QUICK)) as here:
        here.start(container_of(here.rendered, "-peer"))
        asking = container_of(here.rendered, "-test-req-rep")
        assert here.run(asking)[0] == 0
        for word, output in (
            ("_TLS_", "the connection ended in the handshake"),
            ("_TOKEN_", "token: the peer refused: this side has no token, the peer has one"),
        ):
            status, words = here.run(without(asking, word))
            assert status in (1, 3) and output in words, words
            assert output in page


def ask(port: str, path: str, context: ssl.SSLContext, name: str = "", token: str = "") -> tuple[int, str]:
    """Status and body, by HTTPS."""
    with socket.create_connection(("127.0.0.1", int(port)), timeout=10) as plain:
        with context.wrap_socket(plain, server_hostname=name or None) as connection:
            said = f"Authorization: Bearer {token}\r\n" if token else ""
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\n{said}Connection: close\r\n\r\n".encode())
            answer = http.client.HTTPResponse(connection)  # type: ignore[arg-type]
            answer.begin()
            return answer.status, answer.read().decode()


def test_the_broker_of_the_chart_works_and_is_reached_by_its_cluster(tmp_path: Path) -> None:
    """By its own test, the kubelet's probes, and Prometheus with the ServiceMonitor; by nobody else."""
    pytest.importorskip("aiohttp")
    with machine(tmp_path, render({**CASES["monitored"], **QUICK})) as here:
        rendered = here.rendered
        here.write("broker.toml", rendered.named("ConfigMap", "demo-transfer-broker")["data"]["broker.toml"])
        container = container_of(rendered, "transfer-broker")
        broker = here.start(container)
        status, output = here.run(container_of(rendered, "-test-broker"))
        assert status == 0 and "was kept" in output, output

        port = here.here(":9180").removeprefix(":")
        kubelet = ssl.create_default_context()
        kubelet.check_hostname, kubelet.verify_mode = (
            False,
            ssl.CERT_NONE,
        )  # which has no certificates of ours
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container[kind]["httpGet"]["scheme"] == "HTTPS"
            assert ask(port, container[kind]["httpGet"]["path"], kubelet)[0] == 200, kind

        (monitor,) = rendered.of("ServiceMonitor")
        (end,) = monitor["spec"]["endpoints"]
        token = (tmp_path / "token" / end["authorization"]["credentials"]["key"]).read_text()
        for shows in (True, False):  # a certificate, or the token alone
            authority = tmp_path / "tls" / end["tlsConfig"]["ca"]["secret"]["key"]
            prometheus = ssl.create_default_context(cafile=str(authority))
            if shows:
                prometheus.load_cert_chain(tmp_path / "tls/tls.crt", tmp_path / "tls/tls.key")
            status, text = ask(
                port, end["path"], prometheus, end["tlsConfig"]["serverName"], "" if shows else token
            )
            assert status == 200 and "transfer_broker_ready 1" in text
        assert ask(port, "/metrics", kubelet)[0] in (401, 403)
        assert ask(port, "/api/overview", kubelet)[0] in (401, 403)

        broker.send_signal(signal.SIGTERM)  # as the kubelet does after preStop
        output, _ = broker.communicate(timeout=40)
        assert broker.returncode == 0, output
        assert (here.data / "state.db").exists()


def test_a_fall_to_tcp_fails_every_test_of_a_profile_with_rdma(tmp_path: Path) -> None:
    """This machine has no device, which is the case to be seen: the pods are those of the profile."""
    # Told at once: whoever waited for the time-out of these tests would be killed by ours.
    values = {"profile": "rdma-shared", "tests": {**QUICK["tests"], "timeoutSeconds": 300}}
    with machine(tmp_path, render(values)) as here:
        here.start(container_of(here.rendered, "-peer"))
        for name in ("req-rep", "push-pull", "doctor"):
            status, output = here.run(container_of(here.rendered, f"-test-{name}"))
            assert status == 1, f"{name}: {output}"
            assert "rdma was requested by" in output and "(MC_RPC_PROTOCOL)" in output
            assert "this machine has no RDMA device" in output


def test_a_peer_that_does_not_come_fails_within_its_time(tmp_path: Path) -> None:
    values = {"tests": {**QUICK["tests"], "timeoutSeconds": 1}}
    with machine(tmp_path, render(values)) as here:
        status, output = here.run(container_of(here.rendered, "-test-req-rep"))
        assert status == 3, output


def test_kubernetes_leaves_the_scripts_as_they_are() -> None:
    """It puts variables into the place of $(NAME), and makes $$ one dollar."""
    for name in CASES:
        for whose, container in case(name).containers():
            variables = {one["name"] for one in container.get("env", ())}
            for text in (*container.get("command", ()), *container.get("args", ())):
                assert "$$" not in text, whose
                assert not [one for one in variables if f"$({one})" in text], whose
