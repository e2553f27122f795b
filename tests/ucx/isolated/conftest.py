"""UCX is begun before the first test: what it opens once for the process is no test's leak."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def ucx() -> None:
    from tests.ucx.ucxx_driver import use
    from transfer.transports.ucx import driver

    use()
    before = {name: value for name, value in os.environ.items() if name.startswith("UCX_")}
    fabric = driver.fabric()
    for worker in [fabric.worker() for _ in range(4)]:  # they are lent, and stay
        fabric.give_back(worker)
    assert {name: value for name, value in os.environ.items() if name.startswith("UCX_")} == before
