"""A program that ends without closing anything ends at once, and in silence."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

PROGRAM = """
import socket, sys, threading
import transfer.transports.core.{name} as core

flusher, pool = core.Flusher(), core.Pool()
near, far = socket.socketpair()
near.setblocking(False)
stream = core.Stream(near.detach(), 4, flusher, pool, credits=True)
sender = core.SocketBase(4, 1, 1, flusher, pool)
sender._attach(stream, True, True)
for _ in range(50):
    sender.send(b"x" * 1000)
stream.send([(0, 0, None, None, bytearray(8 << 20))], hold=True)  # the kernel is full for ever
sys.kept = [pool.lease(100), pool.lease(1 << 20)]  # dies with the last modules
view = memoryview(pool.lease(5000))
kept = core.HeldBuffer(bytearray(10))
waiting = threading.Thread(target=sender.recv, daemon=True)
waiting.start()
print("end")
"""


@pytest.mark.parametrize("name", ["pure", "native"])
def test_the_interpreter_exits_cleanly(name):
    try:
        _ = importlib.import_module(f"transfer.transports.core.{name}").SocketBase
    except (ImportError, AttributeError) as error:
        pytest.skip(f"the {name} core is not built: {error}")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(name=name)],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
