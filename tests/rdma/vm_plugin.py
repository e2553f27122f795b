"""Boots the virtual machine when the tests begin and asks it last: it takes the time that the others leave.

A plugin, not a conftest: with several workers the machine belongs to the process that gives them their work,
which reads no conftest of a folder. A note in a file tells whoever runs the test where the machine is.
Says at the end of a run how many tests ran on real verbs: for it the machine is one test.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

ON_REAL_VERBS = "test_on_real_verbs"
#: the property of that test's report which the end of the run repeats
RAN = "on real verbs"
_FOLDER = pytest.StashKey[Path]()


def _folder(config: pytest.Config) -> Path:
    """Where the note is; another process made it if this one is a worker."""
    if _FOLDER not in config.stash:
        given = getattr(config, "workerinput", {}).get("machine")
        if given is None:
            made = tempfile.TemporaryDirectory(prefix="transfer-beside-")
            config.add_cleanup(made.cleanup)
            given = made.name
        config.stash[_FOLDER] = Path(given)
    return config.stash[_FOLDER]


def note(config: pytest.Config) -> dict[str, Any]:
    """Of the machine that was begun (`vm.Begun`), or `missing`: why there is none."""
    return json.loads((_folder(config) / "note").read_text())


def _begin(config: pytest.Config, names: Iterable[str]) -> None:
    """Once, by the process that began the run, if its tests ask for the machine."""
    told = _folder(config) / "note"
    if told.exists() or not any(name.endswith(f"::{ON_REAL_VERBS}") for name in names):
        return
    # Here, since most runs need none of it.
    from tests.rdma import vm
    from transfer.transports.rdma import device_selection

    if device_selection.look():
        told.write_text(json.dumps({"missing": "this machine has an RDMA device: the tests run here"}))
        return
    try:
        machine = vm.Machine(vm.pytest_command())
    except vm.Missing as missing:
        told.write_text(json.dumps({"missing": str(missing)}))
        return
    config.add_cleanup(machine.close)
    told.write_text(json.dumps(machine.begun.told()))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.name == ON_REAL_VERBS)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """One process for all: its own tests. The one that gives work to others has none."""
    if not hasattr(session.config, "workerinput") and not session.config.getoption("collectonly"):
        _begin(session.config, [item.nodeid for item in session.items])


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["machine"] = str(_folder(node.config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    _begin(node.config, ids)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == RAN:
                terminalreporter.write_line(f"{name}: {value}")
