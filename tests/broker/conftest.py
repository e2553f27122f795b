"""What many tests of the broker share: certificates, a broker, programs that are connected to it."""

from __future__ import annotations

import pytest

from tests.broker.in_process_broker import running
from tests.broker.native_programs import program
from tests.broker.secure_peers import Identities
from transfer.broker.clients.native import BrokerClient


@pytest.fixture(scope="session")
def identities(tmp_path_factory):
    return Identities(tmp_path_factory.mktemp("identities"))


@pytest.fixture
def broker(tmp_path):
    with running(tmp_path) as broker:
        yield broker


@pytest.fixture
def client(broker):
    with BrokerClient(broker.endpoints["requests"], timeout=20) as client:
        yield client


@pytest.fixture
def raw(broker):
    """A plain socket that speaks the broker's own protocol."""
    with program(broker.endpoints["requests"]) as raw:
        yield raw
