"""Boots the virtual machine when the tests begin and asks it last: it takes the time that the others leave.

Says at the end of a run how many tests ran on real verbs: for it the machine is one test.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from tests.rdma import vm
from tests.rdma.stash import MACHINE, RAN
from transports.verbs import choosing

ON_REAL_VERBS = "test_on_real_verbs"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.name == ON_REAL_VERBS)


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    wanted = any(item.name == ON_REAL_VERBS for item in session.items)
    if not wanted or session.config.getoption("collectonly"):
        return (yield)
    if choosing.look():
        session.config.stash[MACHINE] = "this machine has an RDMA device: the tests run here"
        return (yield)
    try:
        with vm.Machine(vm.pytest_command()) as machine:
            session.config.stash[MACHINE] = machine
            return (yield)
    except vm.Missing as missing:
        session.config.stash[MACHINE] = str(missing)
        return (yield)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    ran = config.stash.get(RAN, None)
    if ran is not None:
        terminalreporter.write_line(
            f"on real verbs: {ran[0]} tests passed, {ran[1]} skipped, in {ran[2]:.0f} s of a virtual machine"
        )
