"""`as_zmq.install` names this package `zmq`. Each program runs in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTALL = "from transfer.zmq import as_zmq\nzmq = as_zmq.install()\n"


def run(program, *options):
    done = subprocess.run(
        [sys.executable, *options, "-c", program],
        cwd=ROOT, capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_names_are_those_of_this_package():
    run(
        INSTALL
        + """
import sys, transfer.zmq
import zmq.asyncio, zmq.decorators
from zmq.backend import strerror
from zmq.sugar import version
from zmq.sugar.socket import Socket
from zmq.utils import jsonapi, monitor, z85
assert Socket is zmq.Socket is zmq.sugar.Socket is transfer.zmq.Socket
assert zmq.asyncio is sys.modules["transfer.zmq.asyncio"]
assert zmq.error.ZMQError is transfer.zmq.ZMQError
assert zmq.__version__ == version.pyzmq_version()
assert jsonapi.__name__ == "transfer.zmq.utils.jsonapi"
assert as_zmq.install() is zmq
assert transfer.zmq.__name__ == transfer.zmq.__spec__.name == "transfer.zmq"
assert not hasattr(transfer.zmq, "sugar")
"""
    )


@pytest.mark.parametrize("name", ["backend.cffi", "backend.cython"])
def test_what_needs_libzmq_is_refused(name):
    run(
        INSTALL
        + f"""
try:
    import zmq.{name}
except ModuleNotFoundError as error:
    assert "libzmq" in str(error), error
else:
    raise AssertionError("imported")
"""
    )


def test_pure_modules_of_pyzmq_run_over_our_sockets():
    pytest.importorskip("zmq")
    run(
        INSTALL
        + """
from zmq.devices import ThreadDevice, monitored_queue
from zmq.log.handlers import PUBHandler
from zmq.utils.interop import cast_int_addr
device = ThreadDevice(zmq.QUEUE, zmq.PULL, zmq.PUSH)
device.bind_in("inproc://in")
device.bind_out("inproc://out")
device.context_factory = lambda: context
with zmq.Context() as context, context.socket(zmq.PUSH) as push, context.socket(zmq.PULL) as pull:
    device.start()
    push.connect("inproc://in")
    pull.connect("inproc://out")
    push.send(b"through")
    assert pull.recv() == b"through"
    context.destroy(0)
    device.join(10)
"""
    )


def test_without_pyzmq_its_modules_are_named():
    run(
        """
import importlib.machinery
importlib.machinery.PathFinder.find_spec = lambda *args, find=importlib.machinery.PathFinder.find_spec: (
    None if args[0] == "zmq" else find(*args)
)
"""
        + INSTALL
        + """
import zmq.utils.z85
try:
    import zmq.green
except ModuleNotFoundError as error:
    assert error.name == "zmq.green" and "where pyzmq is installed" in str(error)
else:
    raise AssertionError("imported")
"""
    )


def test_not_after_pyzmq():
    pytest.importorskip("zmq")
    run(
        """
import zmq
from transfer.errors import UsageError
from transfer.zmq import as_zmq
try:
    as_zmq.install()
except UsageError:
    pass
else:
    raise AssertionError("installed")
"""
    )
