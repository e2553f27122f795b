"""A context for each test, on the compiled core and on its twin; the checks of tests/conftest.py see what is left open."""

from __future__ import annotations

import importlib
import os

import pytest

import transfer


def core_module(name: str):
    if name == "twin":
        return importlib.import_module("transports.twin")
    try:
        native = importlib.import_module("transports.native")
        _ = native.SocketBase
    except (ImportError, AttributeError) as error:
        pytest.skip(f"the compiled core is not built: {error}")
    return native


@pytest.fixture(params=["twin", "native"])
def core(request):
    return core_module(request.param)


@pytest.fixture
def context(core):
    made = transfer.Context(core=core)
    yield made
    made.destroy(0)


@pytest.fixture(params=["tcp", "ipc", "inproc"])
def endpoint(request, tmp_path):
    """An endpoint to bind, of each transport."""
    return {
        "tcp": "tcp://127.0.0.1:0",
        "ipc": f"ipc://{tmp_path}/s",
        "inproc": f"inproc://{os.path.basename(tmp_path)}",
    }[request.param]


def pair_of(context, bound_type, connected_type, endpoint="tcp://127.0.0.1:0", **options):
    """(bound, connected) sockets with their connection made."""
    bound = context.socket(bound_type, **options)
    connected = context.socket(connected_type, **options)
    bound.bind(endpoint)
    connected.connect(bound.last_endpoint)
    if connected_type is transfer.SUB:
        connected.subscribe(b"")
    connected.wait_for_peers(1, 10)
    bound.wait_for_peers(1, 10)
    return bound, connected
