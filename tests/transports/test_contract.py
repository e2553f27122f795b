"""Each transport fulfils the contract of `transfer.transports.testing.checks`."""

from __future__ import annotations

import importlib

import pytest

from transfer.certificates import Authority
from transfer.transports import registry
from transfer.transports.inproc_stream import InprocStream
from transfer.transports.security.settings import Security
from transfer.transports.testing import carrying, checks, ends, meeting

ENDPOINTS = {
    "tcp": "tcp://127.0.0.1:*",
    "tcp6": "tcp://[::1]:*",
    "tls": "tcp://127.0.0.1:*",
    "ipc": "ipc://{folder}/s",
    "ipc-abstract": "ipc://@transfer-contract-test",
    "inproc": "inproc://contract",
}


MEETING = [check for check in checks.CHECKS if check.__module__.endswith("meeting")]
CARRYING = [check for check in checks.CHECKS if check.__module__.endswith("carrying")]


def subject(name: str, folder, core=None) -> checks.Subject:
    endpoint = ENDPOINTS[name].format(folder=folder)
    scheme = endpoint.partition(":")[0]
    security = Security()
    if name == "tls":
        authority = Authority(folder)
        issued = authority.issue()
        security = Security(
            issued.certificate, issued.key, authority.path, token="a304e50671b94706bf5161f81083bdfa"
        )
    return checks.Subject(lambda: registry.open_transport(scheme), endpoint, core, security=security)


@pytest.fixture(params=["pure", "native"])
def core(request):
    try:
        module = importlib.import_module(f"transfer.transports.core.{request.param}")
    except ImportError as error:
        pytest.skip(f"the {request.param} core is not built: {error}")
    return module


@pytest.mark.parametrize("check", MEETING, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", ENDPOINTS)
def test_meeting(name, check, tmp_path):
    check(subject(name, tmp_path))


@pytest.mark.parametrize("check", CARRYING, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", [name for name in ENDPOINTS if name != "inproc"])
def test_carrying(name, check, tmp_path, core):
    check(subject(name, tmp_path, core))


@pytest.mark.parametrize("check", CARRYING, ids=lambda check: check.__name__)
def test_carrying_without_descriptors(check, tmp_path):
    check(subject("inproc", tmp_path))


def test_one_call_runs_all(tmp_path, monkeypatch):
    ran = []

    def noted(check):
        def run(subject):
            check(subject)
            ran.append(check)

        return run

    every = checks.CHECKS
    monkeypatch.setattr(checks, "CHECKS", tuple(map(noted, every)))
    checks.check_transport(subject("inproc", tmp_path))
    assert ran == list(every)
    modules = (carrying, meeting)
    written = {
        check for module in modules for name, check in vars(module).items() if name.startswith("check_")
    }
    assert set(ran) == written


def test_a_check_that_fails_is_heard(tmp_path, monkeypatch):
    """The checks assert in a package that pytest does not rewrite; what fails there fails here."""
    monkeypatch.setattr(InprocStream, "receive", lambda self: None)
    monkeypatch.setattr(ends, "PATIENCE", 0.05)
    with pytest.raises(AssertionError, match="waited in vain"):
        checks.check_carries(subject("inproc", tmp_path))
