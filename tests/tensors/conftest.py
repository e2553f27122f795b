"""The core under the tensors is a parameter: the Python twin and the compiled one, in one session."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.tensors.pairs import CORES, Loop, Pair, load_core

with contextlib.suppress(ImportError):  # the virtual machine of tests/rdma has none
    from hypothesis import settings

    # Time on a busy machine says nothing about the code.
    settings.register_profile("tensors", deadline=None)
    settings.load_profile("tensors")


@pytest.fixture(params=CORES)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with Pair(load_core(request.param)) as made:
        yield made


@pytest.fixture
def loop() -> Loop:
    return Loop()
