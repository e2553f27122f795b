"""A program that ends without closing anything ends at once, and in silence."""

from __future__ import annotations

import importlib
import os
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


#: with the thread's own state dies what a context variable has: after the modules
LAST = """
import contextvars, importlib, os
import transfer

core = importlib.import_module("transfer.transports.core.{name}")
kept = contextvars.ContextVar("kept")
with transfer.Context(core=core) as context:
    array = context.empty((1000,), "float32")
memory = os.memfd_create("transfer-test")
os.truncate(memory, 1 << 16)
slots = core.Slots(core.Mapping(memory, 1 << 16), 4096, 4096, 2)
kept.set([array, slots.lend(0, 100)])
del array, slots
print("end")
"""


@pytest.mark.parametrize("program", [PROGRAM, LAST], ids=["nothing closed", "an array that dies last"])
@pytest.mark.parametrize("name", ["pure", "native"])
def test_the_interpreter_exits_cleanly(name, program):
    """`Error in sys.excepthook` was printed when an array of `context.empty` died after the modules."""
    try:
        _ = importlib.import_module(f"transfer.transports.core.{name}").SocketBase
    except (ImportError, AttributeError) as error:
        pytest.skip(f"the {name} core is not built: {error}")
    done = subprocess.run(
        [sys.executable, "-c", program.format(name=name)],
        capture_output=True, text=True, timeout=30, check=False, env=os.environ | {"TRANSFER_LOCAL": "on"},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
