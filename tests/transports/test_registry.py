"""Finding a transport by its scheme."""

from __future__ import annotations

import errno
import subprocess
import sys
from importlib import metadata

import pytest

from transfer.transports import plugins, registry
from transfer.transports.config import DescriptorOptions, TransportConfig
from transfer.transports.errors import AddressError
from transfer.transports.tcp import TcpTransport


def test_builtin():
    assert {"tcp", "ipc", "inproc", "rdma", "ucx"} <= set(registry.schemes())
    assert registry.find("tcp") is registry.find("rdma") is TcpTransport
    options = DescriptorOptions(send_buffer=1)
    assert registry.open_transport("tcp", options).options is options
    assert "tcp" in registry.offer(TransportConfig()).transports


def test_unknown():
    with pytest.raises(AddressError, match="pgm://") as caught:
        registry.find("pgm")
    assert caught.value.errno == errno.EPROTONOSUPPORT
    assert "tcp" in caught.value.hint


class Own(TcpTransport):
    scheme = "own"


def points(monkeypatch, value: str) -> None:
    point = metadata.EntryPoint("own", value, registry.ENTRY_POINTS)
    found = metadata.EntryPoints([point])
    monkeypatch.setattr(metadata, "entry_points", lambda **which: found.select(**which))
    monkeypatch.setattr(registry, "_loaded", {})
    monkeypatch.setattr(plugins, "names", plugins.names.__wrapped__)


def test_an_entry_point(monkeypatch):
    monkeypatch.setitem(sys.modules, "own_transport", sys.modules[__name__])
    points(monkeypatch, "own_transport:Own")
    assert "own" in registry.schemes()
    assert isinstance(registry.open_transport("own"), Own)


def test_an_entry_point_that_is_no_transport(monkeypatch):
    points(monkeypatch, "os:getcwd")
    with pytest.raises(AddressError, match="is no Transport"):
        registry.find("own")


def test_a_transport_is_loaded_when_it_is_used():
    code = (
        "import sys, transfer.transports.registry as r; "
        "schemes = ('tcp', 'ipc', 'inproc'); "
        "loaded = lambda: {s for s in schemes if f'transfer.transports.{s}' in sys.modules}; "
        "assert not loaded(); r.find('tcp'); assert loaded() == {'tcp'}"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=30)
