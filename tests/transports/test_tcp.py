"""TCP: options of the descriptors, names of interfaces, errors of bind."""

from __future__ import annotations

import errno
import socket

import pytest

from transfer.transports.address import parse
from transfer.transports.config import DescriptorOptions
from transfer.transports.descriptors import descriptor_error
from transfer.transports.errors import AddressError, AddressInUse, AddressNotAvailable, OutOfDescriptors
from transfer.transports.tcp import TcpTransport, bind_error
from transfer.transports.testing.ends import until


def test_options_reach_both_ends():
    options = DescriptorOptions(
        send_buffer=50_000, receive_buffer=60_000, keepalive=1, keepalive_idle=11, keepalive_interval=7,
        keepalive_count=3,
    )  # fmt: skip
    transport = TcpTransport(options)
    listener = transport.listen(parse("tcp://127.0.0.1:*"))
    here = transport.start_connect(listener.address)
    there, _ = until(listener.accept, "the connection")
    for end in (here, there):
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 100_000  # the kernel doubles it
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 120_000
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 11
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 7
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 3
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert not end.getblocking()
        assert not end.get_inheritable()
        end.close()
    listener.close()


@pytest.mark.parametrize(
    ("endpoint", "bound"),
    [("tcp://*:*", "0.0.0.0"), ("tcp://lo:*", "127.0.0.1"), ("tcp://localhost:0", "127.0.0.1")],
)
def test_what_is_bound(endpoint, bound):
    listener = TcpTransport().listen(parse(endpoint))
    assert listener.address.host == bound
    assert listener.address.port
    listener.close()


def test_a_port_in_use():
    listener = TcpTransport().listen(parse("tcp://127.0.0.1:*"))
    with pytest.raises(AddressInUse, match="port 0"):
        TcpTransport().listen(listener.address)
    listener.close()


def test_bound_again_while_old_connections_linger():
    transport = TcpTransport()
    listener = transport.listen(parse("tcp://127.0.0.1:*"))
    with transport.start_connect(listener.address):
        connection, _ = until(listener.accept, "the connection")
        connection.close()  # this side closes first, so its end is in TIME_WAIT for a minute
        listener.close()
    again = transport.listen(listener.address)
    assert again.address == listener.address
    assert again.accept() is None
    again.close()


def test_an_address_of_another_host():
    with pytest.raises(AddressNotAvailable, match=r"192\.0\.2\.1"):
        TcpTransport().listen(parse("tcp://192.0.2.1:0"))


def test_errors_of_the_system():
    address = parse("tcp://h:80")
    assert isinstance(bind_error(OSError(errno.EACCES, "no"), address), AddressError)
    assert isinstance(bind_error(OSError(errno.EINVAL, "no"), address), AddressError)
    assert isinstance(descriptor_error(OSError(errno.ENFILE, "full"), "x"), OutOfDescriptors)
    assert not isinstance(descriptor_error(OSError(errno.EIO, "bad"), "x"), OutOfDescriptors)
