"""What the tests of the metrics share: a registry of their own, and a way to read one sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from prometheus_client import CollectorRegistry

import transfer

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


class KeepingContext(transfer.Context):
    """Keeps its sockets, so that they end with it and not with the test function."""

    def socket(self, socket_type, **options):
        made = super().socket(socket_type, **options)
        self.__dict__.setdefault("kept", []).append(made)
        return made


@pytest.fixture
def context(registry: CollectorRegistry) -> Iterator[transfer.Context]:
    with KeepingContext(registry=registry) as made:
        yield made
