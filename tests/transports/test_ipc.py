"""Unix sockets: what stays in the file system, and whose file is removed."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from transfer.transports import ipc
from transfer.transports.address import Address, parse
from transfer.transports.errors import AddressError, AddressInUse, Broken
from transfer.transports.ipc import IpcTransport
from transfer.transports.testing.ends import until


@pytest.fixture
def path(tmp_path):
    return tmp_path / "socket"


def test_the_file_goes_with_the_listener(path):
    listener = IpcTransport().listen(Address("ipc", path=str(path)))
    assert path.is_socket()
    listener.close()
    listener.close()
    assert not path.exists()


def test_a_dead_file_is_replaced(path):
    code = "import socket, sys, os; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); os._exit(0)"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=30)
    assert path.is_socket()
    listener = IpcTransport().listen(Address("ipc", path=str(path)))
    listener.close()
    assert not path.exists()


def test_a_served_file_is_not_replaced(path):
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen(1)
        with pytest.raises(AddressInUse, match="hint"):
            IpcTransport().listen(Address("ipc", path=str(path)))
        assert path.is_socket()


def test_no_other_file_is_touched(path):
    path.write_text("mine")
    with pytest.raises(AddressInUse, match="no socket"):
        IpcTransport().listen(Address("ipc", path=str(path)))
    assert path.read_text() == "mine"


def test_a_file_put_in_its_place_stays(path):
    listener = IpcTransport().listen(Address("ipc", path=str(path)))
    path.unlink()
    path.write_text("mine")
    listener.close()
    assert path.read_text() == "mine"


@pytest.fixture
def bound(monkeypatch):
    """Calls what a test puts into it, between the bind and all else."""
    found = []
    real = ipc._bind

    def bind(listener, address):
        real(listener, address)
        for call in found:
            call()

    monkeypatch.setattr(ipc, "_bind", bind)
    return found


def test_no_other_user_may_connect_from_the_first_moment(path, bound):
    modes = []
    bound.append(lambda: modes.append(stat.S_IMODE(path.stat().st_mode)))
    before = os.umask(0)
    try:
        IpcTransport().listen(Address("ipc", path=str(path))).close()
    finally:
        os.umask(before)
    assert modes == [0o600]


def test_a_link_that_the_folders_owner_puts_there_is_not_followed(path, bound):
    other = path.parent / "other"
    other.write_text("of this user, for all to read")
    other.chmod(0o644)

    def plant():
        path.unlink()
        path.symlink_to(other)

    bound.append(plant)
    IpcTransport().listen(Address("ipc", path=str(path))).close()
    assert stat.S_IMODE(other.stat().st_mode) == 0o644


def test_no_directory(tmp_path):
    with pytest.raises(AddressError, match="does not exist"):
        IpcTransport().listen(Address("ipc", path=str(tmp_path / "no" / "socket")))


def test_a_temporary_one():
    listener = IpcTransport().listen(parse("ipc://*"))
    path = Path(listener.address.path)
    assert path.is_socket()
    assert path.parent.stat().st_mode & 0o777 == 0o700
    listener.close()
    assert not path.parent.exists()
    with pytest.raises(AddressError):
        IpcTransport().start_connect(parse("ipc://*"))


def test_nobody_there(path):
    for address in (Address("ipc", path=str(path)), Address("ipc", path="@transfer-nobody")):
        with pytest.raises(Broken, match="is the other side started"):
            IpcTransport().start_connect(address)


def test_an_abstract_name_leaves_no_file():
    listener = IpcTransport().listen(parse("ipc://@transfer-test-name"))
    with IpcTransport().start_connect(listener.address):
        connection, peer = until(listener.accept, "the connection")
        assert peer == f"process {os.getpid()}"
        connection.close()
    listener.close()
    assert not Path("@transfer-test-name").exists()


def test_a_forked_child_leaves_the_parents_file(path):
    listener = IpcTransport().listen(Address("ipc", path=str(path)))
    child = os.fork()
    if not child:
        listener.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert path.is_socket()
    listener.close()
