"""A context for each test, on the compiled core and on its twin."""

from __future__ import annotations

import importlib
import os

import pytest

import transfer


def core_module(name: str):
    if name == "pure":
        return importlib.import_module("transfer.transports.core.pure")
    try:
        native = importlib.import_module("transfer.transports.core.native")
        _ = native.SocketBase
    except (ImportError, AttributeError) as error:
        pytest.skip(f"the compiled core is not built: {error}")
    return native


@pytest.fixture(params=["pure", "native"])
def core(request):
    return core_module(request.param)


class KeepingContext(transfer.Context):
    """Holds its sockets, so that a test need not close each of them."""

    def socket(self, socket_type, **options):
        made = super().socket(socket_type, **options)
        self.__dict__.setdefault("kept", []).append(made)
        return made


@pytest.fixture
def context(core):
    made = KeepingContext(core=core)
    yield made
    made.destroy(0)


@pytest.fixture
def by_tcp(core):
    """For what waits in the kernel's buffers: over shared memory large payloads go another way."""
    with KeepingContext(core=core, protocol="tcp") as made:
        yield made


@pytest.fixture(params=["tcp", "ipc", "inproc"])
def endpoint(request, tmp_path):
    """An endpoint to bind, of each transport."""
    return {
        "tcp": "tcp://127.0.0.1:0",
        "ipc": f"ipc://{tmp_path}/s",
        "inproc": f"inproc://{os.path.basename(tmp_path)}",
    }[request.param]
