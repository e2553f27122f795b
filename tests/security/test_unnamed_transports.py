"""A peer that proves nothing starts no transport of the network in a program that did not name it."""

from __future__ import annotations

import pytest

import transfer
from tests.security.conftest import TOKEN
from transfer.transports import probe, registry
from transfer.transports.handshake.upgrade import Declined
from transfer.transports.security.settings import Security

NAMES = ("rdma", "ucx")


@pytest.fixture
def begun(monkeypatch):
    """Every transport is there; the ones that were begun, by name."""
    found: list[str] = []

    def upgrade(name):
        found.append(name)
        raise Declined("test", "it was begun")

    monkeypatch.setattr(probe, "probe", lambda name: probe.Probe(name != "local", better=name == "rdma"))
    monkeypatch.setattr(registry, "upgrade", upgrade)
    monkeypatch.setattr(registry, "_LOADERS", {})
    return found


@pytest.fixture
def pair(core, begun):
    """(context of the program, context of the peer), as asked for."""
    made = []

    def make(ours=None, theirs=None, security=None):
        security = security or Security()
        made.append(transfer.Context(core=core, security=security, protocol=ours))
        made.append(transfer.Context(core=core, security=security, protocol=theirs))
        return made[-2:]

    yield make
    for context in made:
        context.destroy(0)


def meet(program, peer, name, *, listens):
    """How the peer, which names a transport by its endpoint, is connected: the PeerInfo of the program."""
    one, other = (program, peer) if listens else (peer, program)
    with one.socket(transfer.PULL) as pull, other.socket(transfer.PUSH, linger=0) as push:
        pull.bind("tcp://127.0.0.1:0" if listens else f"{name}://127.0.0.1:0")
        port = pull.last_endpoint.rpartition(":")[2]
        push.connect(f"{name if listens else 'tcp'}://127.0.0.1:{port}")
        ours = pull if listens else push
        ours.wait_for_peers(1, 10)
        return ours.peers()[0]


@pytest.mark.parametrize("listens", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_what_the_program_did_not_name_is_not_begun(pair, begun, name, listens):
    peer = meet(*pair(), name, listens=listens)
    assert begun == []
    assert peer.transport == "tcp" and f"TRANSFER_PROTOCOL={name}" in peer.reason


@pytest.mark.parametrize("name", NAMES)
def test_who_requires_it_is_told_what_to_do(pair, begun, name):
    program, peer = pair()
    with program.socket(transfer.PULL) as pull, peer.socket(transfer.PUSH, linger=0) as push:
        pull.bind("tcp://127.0.0.1:0")
        with pytest.raises(transfer.Fatal, match=f"TRANSFER_PROTOCOL={name}"):
            push.connect(pull.last_endpoint.replace("tcp", name) + "?policy=require")
    assert begun == []


@pytest.mark.parametrize("name", NAMES)
def test_what_the_program_named_is_begun(pair, begun, name):
    meet(*pair(ours=name), name, listens=True)
    assert name in begun


@pytest.mark.parametrize("name", NAMES)
def test_who_has_proved_a_token_may_wish(pair, begun, name):
    meet(*pair(security=Security(token=TOKEN)), name, listens=True)
    assert name in begun


def test_auto_is_not_for_loopback(pair, begun):
    """Beyond it the user has said that strangers may come in: see tests/transports/test_choice.py."""
    peer = meet(*pair(), "tcp", listens=True)
    assert begun == [] and peer.transport == "tcp"


@pytest.mark.parametrize("security", [Security(), Security(token=TOKEN)], ids=["open", "token"])
@pytest.mark.parametrize("name", NAMES)
def test_tcp_is_final(pair, begun, name, security):
    program, peer = pair(ours="tcp", security=security)
    with program.socket(transfer.PULL) as pull, peer.socket(transfer.PUSH, linger=0) as push:
        pull.bind("tcp://127.0.0.1:0")
        with pytest.raises(transfer.Fatal, match="allows tcp alone"):
            push.connect(pull.last_endpoint.replace("tcp", name) + "?policy=require")
    assert begun == []
