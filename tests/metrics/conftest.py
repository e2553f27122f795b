"""What the tests of the metrics share: a registry of their own, and a way to read one sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from prometheus_client import CollectorRegistry

import transfer
from tests.sockets.conftest import KeepingContext

Sample = Callable[..., float | None]


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def sample(registry: CollectorRegistry) -> Sample:
    """sample(name, label=value): the number as a scrape would see it now, None if it is not there."""

    def read(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    return read


@pytest.fixture
def context(registry: CollectorRegistry) -> Iterator[transfer.Context]:
    with KeepingContext(registry=registry) as made:
        yield made
