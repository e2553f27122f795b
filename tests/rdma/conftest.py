"""Tests of streams run on the null provider, and on a device where there is one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rdma import null_provider
from tests.rdma.ends import World, devices, world
from tests.rdma.null_provider import NullProvider


@pytest.fixture
def null() -> Iterator[NullProvider]:
    """libibverbs without a device, in this process and in its children."""
    if devices():
        pytest.skip("there is a device")
    try:
        provider = null_provider.used()
        with provider as found:
            yield found
    except null_provider.Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def over_null(null: NullProvider) -> Iterator[World]:
    with world() as made:
        yield made


@pytest.fixture(params=["null", "real"])
def made(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "real" and not devices():
        pytest.skip("no RDMA device here: `make test-rdma` brings one")
    if request.param == "null":
        request.getfixturevalue("null")
    with world() as world_:
        yield world_
