"""A transport of another distribution that peers change to after they have met by TCP."""

from __future__ import annotations

import os
import socket
import sys
from importlib import metadata

import numpy as np
import pytest

import transfer
from tests.sockets.conftest import core, core_module  # noqa: F401 - a fixture
from transfer.doctor import transports
from transfer.transports import plugins, probe, registry
from transfer.transports.address import UPGRADE_POINTS
from transfer.transports.config import load
from transfer.transports.errors import AddressError, Fatal, OptionError, ProtocolError
from transfer.transports.handshake.upgrade import Declined, Made, Upgrade
from transfer.transports.probe import Probe


class UnixSocketUpgrade(Upgrade):
    """Data by a second connection, over a Unix socket."""

    declines = ""

    def __init__(self, around, agreement, *, connecting):
        super().__init__(around, agreement, connecting=connecting)
        self._data = socket.socket(socket.AF_UNIX)
        self._data.settimeout(5)

    def offer(self):
        if self.declines:
            raise Declined("tired", self.declines)
        self._data.bind(b"")  # any free abstract name
        self._data.listen(1)
        return {"name": self._data.getsockname().hex()}

    def accept(self, offer):
        try:
            self._data.connect(bytes.fromhex(offer["name"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError("name", "no name") from error
        return {}

    def finish(self, answer):
        listener, (self._data, _) = self._data, self._data.accept()
        listener.close()

    def made(self, fd, channel=None):
        os.close(fd)
        self._data.setblocking(False)
        return Made(self._data.detach())

    def close(self):
        self._data.close()


class Absent(UnixSocketUpgrade):
    @classmethod
    def probe(cls):
        return Probe(False, "this machine has none", "no_device", "buy one")


class Broken(UnixSocketUpgrade):
    @classmethod
    def probe(cls):
        raise OSError("the driver is upset")


@pytest.fixture
def installed(monkeypatch):
    """Pretends that a distribution brings this class as the transport `unixdata`."""
    monkeypatch.setitem(sys.modules, "own_package", sys.modules[__name__])
    here = metadata.entry_points

    def install(name):
        point = metadata.EntryPoint("unixdata", f"own_package:{name}", UPGRADE_POINTS)
        own = metadata.EntryPoints([point])
        monkeypatch.setattr(metadata, "entry_points", lambda **which: own.select(**which) or here(**which))
        forget()

    def forget():
        plugins.names.cache_clear()
        probe.forget()
        registry._loaded.pop("unixdata", None)

    yield install
    monkeypatch.undo()
    forget()


@pytest.fixture
def unixdata(installed):
    installed("UnixSocketUpgrade")


def pair(core, scheme="tcp", **wish):  # noqa: F811
    context = transfer.Context(core=core, **wish)
    pull, push = (
        context.socket(kind, rcvtimeo=10_000, sndtimeo=10_000) for kind in (transfer.PULL, transfer.PUSH)
    )
    pull.bind(f"{scheme}://127.0.0.1:0")
    push.connect(pull.last_endpoint)
    pull.wait_for_peers(1, 10)
    push.wait_for_peers(1, 10)
    return context, push, pull


def transports_of(*sockets):
    return {peer.transport for one in sockets for peer in one.peers()}


@pytest.mark.parametrize(
    ("scheme", "wish"),
    [("tcp", {"protocol": "unixdata"}), ("unixdata", {}), ("unixdata", {"policy": "require"})],
)
def test_data_go_by_it_where_it_is_asked_for(core, unixdata, scheme, wish):  # noqa: F811
    context, push, pull = pair(core, scheme, **wish)
    with context, push, pull:
        assert transports_of(push, pull) == {"unixdata"}
        rows = np.arange(300_000, dtype=np.float32).reshape(3, -1)
        for number in range(20):
            push.send(b"%d" % number)
            push.send_tensor(rows + number)
        for number in range(20):
            assert pull.recv() == b"%d" % number
            np.testing.assert_array_equal(pull.recv_tensor(), rows + number)
        assert "unixdata" in context.offer.transports and "unixdata" in registry.schemes()


def test_between_processes_that_know_each_other_it_goes_before_tcp(core, unixdata, monkeypatch):  # noqa: F811
    monkeypatch.setenv("TRANSFER_LOCAL", "off")
    monkeypatch.setenv("TRANSFER_TOKEN", "17c11c070fe9d38e70c224ae891089be")
    context, push, pull = pair(core)
    with context, push, pull:
        assert transports_of(push, pull) == {"unixdata"}
        push.send(b"x")
        assert pull.recv() == b"x"


def test_a_peer_that_makes_no_sense_or_declines_costs_the_speed_only(core, unixdata, monkeypatch):  # noqa: F811
    monkeypatch.setattr(UnixSocketUpgrade, "declines", "not today")
    context, push, pull = pair(core, protocol="unixdata")
    with context, push, pull:
        assert transports_of(push, pull) == {"tcp"}
        assert "not today" in pull.peers()[0].reason
        push.send(b"x")
        assert pull.recv() == b"x"
    monkeypatch.setattr(UnixSocketUpgrade, "declines", "")
    monkeypatch.setattr(UnixSocketUpgrade, "offer", lambda self: {"name": 7})
    context, push, pull = pair(core, protocol="unixdata")
    with context, push, pull:
        assert transports_of(push, pull) == {"tcp"}


@pytest.mark.parametrize(
    ("name", "why"), [("Absent", "this machine has none"), ("Broken", "upset"), ("pair", "is no Upgrade")]
)
def test_one_that_does_not_work_here_is_not_offered_and_says_why(core, installed, name, why):  # noqa: F811
    installed(name)
    context, push, pull = pair(core, protocol="unixdata")
    with context, push, pull:
        assert "unixdata" not in context.offer.transports
        assert why in push.peers()[0].reason and transports_of(push, pull) == {"tcp"}
    with transfer.Context(core=core, protocol="unixdata", policy="require") as strict:
        bound, one = strict.socket(transfer.PULL), strict.socket(transfer.PUSH)
        bound.bind("tcp://127.0.0.1:0")
        with pytest.raises(Fatal, match="unixdata"):
            one.connect(bound.last_endpoint)


def raises(*_):
    raise KeyError("a mistake")


@pytest.mark.parametrize(
    ("step", "does"),
    [
        ("__init__", raises),
        ("offer", raises),
        ("accept", raises),
        ("finish", raises),
        ("offer", lambda self: None),
        ("offer", lambda self: {"name": {1, 2}}),
    ],
)
def test_a_mistake_in_it_costs_the_speed_only(core, unixdata, monkeypatch, caplog, step, does):  # noqa: F811
    monkeypatch.setattr(
        UnixSocketUpgrade, step, does if step != "__init__" else lambda *_, connecting: raises()
    )
    context, push, pull = pair(core, protocol="unixdata")
    with context, push, pull:
        assert transports_of(push, pull) == {"tcp"}
        push.send(b"x")
        assert pull.recv() == b"x"
    assert "callback" not in caplog.text


@pytest.mark.parametrize("does", [raises, lambda self, fd, channel=None: None])
def test_one_that_cannot_give_what_was_agreed_on_ends_the_connection(core, unixdata, monkeypatch, does):  # noqa: F811
    monkeypatch.setattr(UnixSocketUpgrade, "made", does)
    with transfer.Context(core=core, protocol="unixdata") as context:
        pull, push = context.socket(transfer.PULL), context.socket(transfer.PUSH, sndtimeo=500)
        pull.bind("tcp://127.0.0.1:0")
        push.connect(pull.last_endpoint)
        with pytest.raises(transfer.Again, match="a fault of the transport"):
            push.send(b"x")
        pull.close(0)
        push.close(0)


def test_the_doctor_tries_it(unixdata):
    assert transports.names()[:2] == ("local", "unixdata")
    found = transports._self_test("unixdata", "tcp://127.0.0.1:0", "unixdata")
    assert found.status == "ok", found


def test_without_it_the_name_is_unknown():
    with pytest.raises(OptionError, match="unixdata"):
        load({"TRANSFER_PROTOCOL": "unixdata"})
    with pytest.raises(AddressError):
        registry.find("unixdata")
