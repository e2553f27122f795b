"""Pods as a cluster has them: each in a network namespace of its own, behind a caching name server.

One namespace has the bridge, the name servers and whoever follows; each pod has a link to the bridge, which
can be cut as a cable is: no packet tells of that.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.sockets.processes import Program

DNSMASQ = "/usr/sbin/dnsmasq"


def run(command, check=True):
    done = subprocess.run(command.split(), capture_output=True, text=True, timeout=20, check=False)
    if check and done.returncode:
        raise OSError(f"{command}: {done.stderr.strip()}")


class Inside(Program):
    """A Python program in a namespace."""

    def __init__(self, namespace, source, *arguments, **environment):
        self._enter = ["ip", "netns", "exec", namespace]
        real = subprocess.Popen

        def entered(command, **options):
            return real([*self._enter, *command], **options)

        subprocess.Popen = entered
        try:
            super().__init__(
                source, *arguments, core="native", TRANSFER_UNAUTHENTICATED="allow", TRANSFER_LOCAL="off",
                **environment,
            )  # fmt: skip
        finally:
            subprocess.Popen = real

    def ask(self, text):
        self.tell(text)
        return self.line()


class Cluster:
    """ttl: of the service's addresses, in whole seconds."""

    def __init__(self, ttl):
        if os.getuid() != 0 or shutil.which("ip") is None:
            pytest.skip("needs root and iproute2")
        if not Path(DNSMASQ).exists():
            pytest.skip("needs dnsmasq-base")
        self._name = f"td{os.getpid() % 100000}"
        self._stack = contextlib.ExitStack()
        self._settings = Path("/etc/netns", self._name)
        self._listed = set()
        try:
            self._begin(ttl)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                pytest.skip(str(error))
            raise

    def _begin(self, ttl):
        name = self._name
        self._add(name)
        for step in (f"link add {name}br type bridge", f"addr add 10.77.0.1/24 dev {name}br",
                     f"link set {name}br up"):  # fmt: skip
            run(f"ip -n {name} {step}")
        # `ip netns exec` puts it over /etc/resolv.conf, which programs there read.
        self._settings.mkdir(parents=True, exist_ok=True)
        self._stack.callback(shutil.rmtree, self._settings, ignore_errors=True)
        (self._settings / "resolv.conf").write_text("nameserver 127.0.0.1\nsearch test\noptions ndots:5\n")
        self._server = self._stack.enter_context(
            Inside(name, "from tests.discovery.nameserver import main; main()", "127.0.0.1", 5353, ttl)
        )
        assert self._server.line() == "ready"
        cache = subprocess.Popen(
            ["ip", "netns", "exec", name, DNSMASQ, "--keep-in-foreground", "--no-resolv", "--no-hosts",
             "--conf-file=/dev/null", "--pid-file=", "--user=root", "--server=127.0.0.1#5353",
             "--listen-address=127.0.0.1", "--bind-interfaces", "--port=53"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._stack.callback(cache.wait, 10)
        self._stack.callback(cache.kill)

    def _add(self, name):
        run(f"ip netns add {name}")
        self._stack.callback(run, f"ip netns del {name}", check=False)
        run(f"ip -n {name} link set lo up")

    def follower(self, source, *arguments):
        """A program where the name servers are."""
        return self._stack.enter_context(Inside(self._name, source, *arguments))

    def pod(self, number, source, *arguments):
        """A program in a namespace of its own, at 10.77.0.NUMBER."""
        name = f"{self._name}p{number}"
        self._add(name)
        run(f"ip -n {self._name} link add {name} type veth peer name eth0 netns {name}")
        run(f"ip -n {self._name} link set {name} master {self._name}br up")
        run(f"ip -n {name} addr add 10.77.0.{number}/24 dev eth0")
        run(f"ip -n {name} link set eth0 up")
        return self._stack.enter_context(Inside(name, source, *arguments))

    def cut(self, number, down=True):
        """The cable: what is sent there is gone."""
        run(f"ip -n {self._name} link set {self._name}p{number} {'down' if down else 'up'}")

    def list(self, *numbers):
        """The service has these pods from now on."""
        addresses = " ".join(f"10.77.0.{number}" for number in numbers)
        assert self._server.ask(f"pods.test {addresses}") == "done"

    def asked(self):
        """Questions for the service that the cache has passed on."""
        return int(self._server.ask("asked pods.test"))

    def close(self):
        self._stack.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()
