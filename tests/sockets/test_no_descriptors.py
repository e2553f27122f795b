"""A process without descriptors: what wants one says what to raise, and goes on when there are some again."""

from __future__ import annotations

import time

import pytest

import transfer
from tests.descriptors import no_descriptor_left
from tests.sockets.conftest import core_module
from tests.sockets.helpers import eventually
from transfer.certificates import Authority
from transfer.transports import probe
from transfer.transports.errors import Again, OutOfDescriptors

ENDPOINTS = {
    "tcp": "tcp://127.0.0.1:0",
    "local": "tcp://127.0.0.1:0",
    "tls": "tcp://127.0.0.1:0",
    "ipc": "ipc://{}/socket",
    "abstract": "ipc://@transfer-test-{}",
    "inproc": "inproc://place",
}
#: more than any of the calls wants
MOST = 14


@pytest.fixture(params=["pure", "native"])
def core(request):
    return core_module(request.param)


@pytest.fixture(params=list(ENDPOINTS))
def endpoint(request, tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFER_LOCAL", "on" if request.param == "local" else "off")
    if request.param == "tls":
        authority = Authority(tmp_path)
        issued = authority.issue()
        for name, path in (("CERT", issued.certificate), ("KEY", issued.key), ("CA", authority.path)):
            monkeypatch.setenv(f"TRANSFER_TLS_{name}", path)
    probe.forget()
    place = ENDPOINTS[request.param].format(tmp_path if request.param == "ipc" else tmp_path.name)
    with transfer.Context() as context:  # modules are files, too: what is imported late is imported now
        with context.socket(transfer.PULL) as pull, context.socket(transfer.PUSH) as push:
            pull.bind(place)
            push.connect(pull.last_endpoint)
            push.send(bytes(1 << 20))
            pull.recv()
    yield place
    probe.forget()


def test_every_call_says_what_to_raise(core, endpoint):
    """With each number of descriptors that may be left: a context, two sockets, bind, connect, a message."""
    refused = []
    for but in range(MOST):
        with no_descriptor_left(but):
            try:
                with (
                    transfer.Context(core=core) as context,
                    context.socket(transfer.PULL, rcvtimeo=0) as pull,
                    context.socket(transfer.PUSH, linger=0, sndtimeo=0) as push,
                ):
                    pull.bind(endpoint)
                    push.connect(pull.last_endpoint)
            except OutOfDescriptors as error:
                refused.append(error.hint)
    assert refused and all("ulimit -n, now " in hint and "hard limit" in hint for hint in refused)


def test_peers_meet_when_there_are_some_again(core, endpoint):
    """Accept, connect, and what a faster transport opens find none, or too few."""
    with (
        transfer.Context(core=core) as context,
        context.socket(transfer.PULL, rcvtimeo=20_000) as pull,
        context.socket(transfer.PUSH, linger=0, sndtimeo=20_000, reconnect_ivl=10) as push,
    ):
        pull.bind(endpoint)
        with no_descriptor_left(3):
            push.connect(pull.last_endpoint)
            time.sleep(0.05)  # it is tried, and fails
        push.send(b"there")
        assert pull.recv() == b"there"
        push.send(large := bytes(1 << 20))
        assert pull.recv() == large


def test_the_connecting_side_does_not_say_that_it_must_be_tls(core, monkeypatch):
    """The listener closes what it cannot keep, and the log of the listener alone says why."""
    monkeypatch.setattr("transfer.transports.connect.shared_listener.is_reserved", lambda fd: True)
    with (
        transfer.Context(core=core) as context,
        context.socket(transfer.PULL) as pull,
        context.socket(transfer.PUSH, linger=0, reconnect_ivl=1) as push,
    ):
        pull.bind("tcp://127.0.0.1:0")
        push.connect(pull.last_endpoint)
        assert eventually(lambda: push._links.state.endpoints[0].attempts > 3)
        with pytest.raises(
            Again, match=r"hint: the other side's log says why: .* or have no descriptors left"
        ):
            push.wait_for_peers(1, 0.05)
