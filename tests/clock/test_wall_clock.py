"""The wall clock of a broker goes a day forward and back: nothing is lost, and no client waits longer for it.

A small library shifts CLOCK_REALTIME of the broker's process by what a shared file says. Waits use clocks
that only run on.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fuzz.fuzzed_broker import good_clients, serving
from transfer import cli
from transfer.broker.clients.native import BrokerClient

DAY = 86_400

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


class Wall:
    """The clock of the processes that are started with `environment`."""

    def __init__(self, folder):
        library = folder / "shift.so"
        source = Path(__file__).parent / "shim.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        self._file = folder / "shift"
        self.shift(0)
        self.environment = {"LD_PRELOAD": str(library), "SHIFT": str(self._file)}

    def shift(self, seconds):
        with self._file.open("r+b" if self._file.exists() else "w+b") as file:
            file.write(struct.pack("<q", seconds))


def rounds(good):
    """All good clients go round again, without an error."""
    good.asked()
    seen = {}
    for _ in range(400):
        for name, report in good.asked().items():
            assert not report["error"], (name, report["error"])
            seen[name] = seen.get(name, 0) + report["rounds"]
        time.sleep(0.02)
        if all(seen.values()):
            return
    pytest.fail(f"some do not go round: {seen}")


def test_the_shift_is_seen_by_the_wall_clock_alone(tmp_path):
    wall = Wall(tmp_path)
    wall.shift(DAY)
    program = "import time; print(time.time(), time.monotonic())"
    shown = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | wall.environment, capture_output=True, check=True
    )
    there, running = map(float, shown.stdout.split())
    assert there - time.time() > DAY / 2
    assert abs(running - time.monotonic()) < DAY / 2


def test_a_day_forward_and_back(tmp_path):
    wall = Wall(tmp_path)
    data = tmp_path / "data"
    with serving(data, "--retention-age", "12h", **wall.environment) as broker:
        requests = broker.places["endpoints"]["requests"]
        with good_clients(broker) as good, BrokerClient(requests, timeout=20) as client:
            held = client.consume("kept", "group", begin="old", timeout=600)
            published = 0
            for shift in (0, DAY, 0, -DAY, 0):
                wall.shift(shift)
                client.publish("kept", b"%d" % published)
                published += 1
                rounds(good)
            messages = [held.recv(20) for _ in range(published)]
            assert [int(bytes(one.data)) for one in messages] == list(range(published))
            held.ack(*messages, wait=True)
        assert broker.process.end() == 0
        assert not broker.errors()
    assert cli.run(["broker", "check", str(data)]) == 0
    assert cli.run(["audit", "verify", "--data", str(data)]) == 0
    with serving(data) as broker, BrokerClient(broker.places["endpoints"]["requests"], timeout=20) as client:
        client.publish("kept", b"%d" % published)
        again = client.consume("kept", "group", begin="old")
        assert int(bytes(again.recv(20).data)) == published
