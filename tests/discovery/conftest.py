"""A context for each test, and a name server whose answers the test decides."""

from __future__ import annotations

from functools import partial

import pytest

from tests.discovery.nameserver import NameServer
from tests.sockets.conftest import KeepingContext, core_module
from transfer.sockets.connections import directory_connector
from transfer.transports.core import IMPLEMENTATION
from transfer.transports.discovery.membership import Polling


@pytest.fixture
def core(request):
    """The one that is in use, or that a test names: `parametrize("core", [...], indirect=True)`."""
    return core_module(getattr(request, "param", IMPLEMENTATION))


@pytest.fixture
def context(core, names):  # ends first, while its questions are answered
    made = KeepingContext(core=core)
    yield made
    made.destroy(0)


@pytest.fixture
def names(monkeypatch):
    """The name server that `dns://` asks in this test; it says "do not keep that"."""
    with NameServer(ttl=0, negative=0) as server:
        monkeypatch.setenv("TRANSFER_DNS", f"127.0.0.1:{server.port}")
        yield server


@pytest.fixture
def quick(monkeypatch):
    """Looks ten times as often, so that a test need not wait for it. What is decided stays the same."""
    monkeypatch.setattr(directory_connector, "Polling", partial(Polling, shortest=0.05, idle=0.05))
    monkeypatch.setattr(directory_connector, "PULSE", 0.05)
