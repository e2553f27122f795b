"""A reactor for the tests of transports."""

from __future__ import annotations

import pytest

from transfer.transports.reactor import Reactor


@pytest.fixture
def reactor():
    reactor = Reactor()
    yield reactor
    reactor.close()
