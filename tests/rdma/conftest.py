"""Tests of streams run on the fake driver and on the null provider, and on a device where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.rdma import null_provider
from tests.rdma.ends import World, devices, world
from tests.rdma.fake_driver import FakeDriver
from tests.rdma.null_provider import NullProvider


@pytest.fixture
def null() -> Iterator[NullProvider]:
    """libibverbs without a device, in this process and in its children."""
    if devices():
        pytest.skip("there is a device")
    with ExitStack() as stack:
        try:
            provider = stack.enter_context(null_provider.used())
        except null_provider.Missing as missing:
            pytest.skip(str(missing))
        yield provider


@pytest.fixture
def over_null(null: NullProvider) -> Iterator[World]:
    with world(None) as made:
        yield made


@pytest.fixture(params=["fake", "null", "real"])
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    if request.param == "real" and not devices():
        pytest.skip("no RDMA device here: `make test-rdma` brings one")
    if request.param == "null":
        request.getfixturevalue("null")
    with world(FakeDriver() if request.param == "fake" else None, monkeypatch) as world_:
        yield world_


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A world over the fake driver, for what real devices do not show."""
    with world(FakeDriver(), monkeypatch) as world_:
        yield world_
