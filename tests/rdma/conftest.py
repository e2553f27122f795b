"""Every test of streams runs on the fake driver, and on real verbs too where there is a device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.rdma.ends import World, devices, world
from tests.rdma.fake_driver import FakeDriver


@pytest.fixture(params=["fake", "real"])
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    if request.param == "real" and not devices():
        pytest.skip("no RDMA device here: `make test-rdma` brings one")
    with world(FakeDriver() if request.param == "fake" else None, monkeypatch) as world_:
        yield world_


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A world over the fake driver, for what real devices do not show."""
    with world(FakeDriver(), monkeypatch) as world_:
        yield world_
