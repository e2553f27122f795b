"""Each transport fulfils the contract of `transports.testing.checks`."""

from __future__ import annotations

import pytest

from transports import registry
from transports.testing import checks

ENDPOINTS = {
    "tcp": "tcp://127.0.0.1:*",
    "tcp6": "tcp://[::1]:*",
    "ipc": "ipc://{folder}/s",
    "ipc-abstract": "ipc://@transfer-contract-test",
    "inproc": "inproc://contract",
}


@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", ENDPOINTS)
def test_contract(name, check, tmp_path):
    endpoint = ENDPOINTS[name].format(folder=tmp_path)
    scheme = endpoint.partition(":")[0]
    check(checks.Subject(lambda: registry.open_transport(scheme), endpoint))


def test_one_call_runs_all(tmp_path):
    checks.check_transport(checks.Subject(registry.find("inproc"), "inproc://all"))
