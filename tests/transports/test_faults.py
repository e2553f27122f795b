"""The fault-injecting transport does what it says, and a handshake over it fails as it should."""

from __future__ import annotations

import socket
from contextlib import ExitStack, closing, contextmanager

import pytest

from transfer.transports import registry
from transfer.transports.address import parse
from transfer.transports.connect.connection import ConnectOptions
from transfer.transports.connect.establish import reach, serve
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import Broken, HandshakeError, NotSupported
from transfer.transports.handshake.identity import make_hello
from transfer.transports.reactor import Reactor
from transfer.transports.testing.ends import Side, close_all, until
from transfer.transports.testing.faults import Faults, FaultyTransport


@pytest.fixture(params=["tcp://127.0.0.1:*", "ipc://{folder}/s"])
def endpoint(request, tmp_path):
    return parse(request.param.format(folder=tmp_path))


class Line:
    """A bare connection through the relay: bytes in here, bytes out there."""

    def __init__(self, endpoint, **faults) -> None:
        self.transport = FaultyTransport(registry.open_transport(endpoint.scheme), **faults)
        self.listener = self.transport.listen(endpoint)
        self.here = self.transport.start_connect(self.listener.address)
        self.there, _ = until(self.listener.accept, "the connection")
        self.here.settimeout(10)
        self.there.settimeout(10)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for end in (self.here, self.there, self.listener, self.transport):
            end.close()
        self.transport.close()


@contextmanager
def closing_all(*sides):
    try:
        yield
    finally:
        close_all(*sides)


def read(end: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (piece := end.recv(count - len(data))):
        data += piece
    return data


def test_without_faults_everything_passes(endpoint):
    with Line(endpoint) as line:
        line.here.sendall(b"there")
        assert read(line.there, 5) == b"there"
        line.there.sendall(b"back")
        assert read(line.here, 4) == b"back"
        line.here.shutdown(socket.SHUT_WR)
        assert line.there.recv(1) == b""
        line.there.sendall(b"still")
        assert read(line.here, 5) == b"still"
        line.there.close()
        assert line.here.recv(1) == b""
        until(lambda: line.transport.connections == 0, "the end of the relay's connection")


def test_much_in_small_pieces(endpoint):
    data = bytes(range(256)) * 200
    with Line(endpoint, there=Faults(chunk=97), buffer=1) as line:
        line.here.setblocking(False)
        sent, arrived = 0, b""
        while len(arrived) < len(data):
            try:
                sent += line.here.send(data[sent:])
            except BlockingIOError:
                assert sent > len(arrived) or sent == len(data)
            arrived += line.there.recv(97)
        assert arrived == data


def test_cut(endpoint):
    with Line(endpoint, there=Faults(cut_after=1000)) as line:
        line.here.sendall(b"x" * 2000)
        arrived = b""
        with pytest.raises(ConnectionResetError) if endpoint.scheme == "tcp" else _nothing():
            while piece := line.there.recv(4096):
                arrived += piece
        assert len(arrived) <= 1000
        until(lambda: line.transport.connections == 0, "the cut")
        with pytest.raises(OSError):
            while True:
                line.here.sendall(b"x")


def test_cut_at_once(endpoint):
    with Line(endpoint) as line:
        line.here.sendall(b"x")
        assert read(line.there, 1) == b"x"
        line.transport.cut()
        until(lambda: line.transport.connections == 0, "the cut")


def test_corrupt(endpoint):
    with Line(endpoint, there=Faults(corrupt_at=3)) as line:
        for _ in range(3):
            line.here.sendall(b"\0\0")
        assert read(line.there, 6) == b"\0\0\0\xff\0\0"


def test_arm_counts_from_now(endpoint):
    with Line(endpoint) as line:
        line.here.sendall(b"\0" * 10)
        assert read(line.there, 10) == b"\0" * 10
        line.transport.arm(there=Faults(corrupt_at=1), back=Faults(stall_after=2))
        until(lambda: all(link._flows[1].faults.stall_after for link in line.transport._links), "the arming")
        line.here.sendall(b"\0\0")
        assert read(line.there, 2) == b"\0\xff"
        line.there.sendall(b"abcd")
        assert read(line.here, 2) == b"ab"
        line.here.settimeout(0.05)
        with pytest.raises(TimeoutError):
            line.here.recv(1)
        line.transport.arm(back=Faults())
        line.here.settimeout(10)
        assert read(line.here, 2) == b"cd"


def test_delay_keeps_the_order(endpoint):
    with Line(endpoint, there=Faults(delay=0.01)) as line:
        for number in range(20):
            line.here.sendall(bytes([number]))
        assert read(line.there, 20) == bytes(range(20))


def test_a_refusal_is_told_as_without_the_relay(endpoint):
    with FaultyTransport(registry.open_transport(endpoint.scheme)) as transport:
        listener = transport.listen(endpoint)
        listener.close()
        with pytest.raises(Broken, match="cannot connect"):
            transport.start_connect(listener.address)


def test_inproc_has_no_place_for_a_relay():
    with pytest.raises(NotSupported, match="inproc"):
        FaultyTransport(registry.open_transport("inproc"))


@pytest.mark.parametrize(
    ("there", "back", "reasons"),
    [
        (Faults(cut_after=50), Faults(), {"broken", "closed", "truncated"}),
        (Faults(), Faults(cut_after=50), {"broken", "closed", "truncated"}),
        (Faults(stall_after=20), Faults(), {"timeout"}),
        (Faults(), Faults(stall_after=40), {"timeout"}),
        (Faults(corrupt_at=0), Faults(), {"closed", "broken", "truncated"}),
        (Faults(), Faults(corrupt_at=0), {"magic"}),
        (Faults(), Faults(corrupt_at=35), {"hello"}),
    ],
)
def test_a_damaged_handshake_ends_and_the_next_one_is_good(endpoint, there, back, reasons):
    reactor, here, far = Reactor(), Side(), Side()
    # A machine under load must not take the wrong fault for a time-out, nor the accepting side's
    # time-out, which comes as an end of the connection, for the connecting side's.
    timeout = 0.3 if reasons == {"timeout"} else 10
    options = ConnectOptions(handshake_timeout=timeout, reconnect_first=0.001, reconnect_limit=0.01)
    with (
        closing_all(here, far),
        closing(reactor),
        FaultyTransport(registry.open_transport(endpoint.scheme), there=there, back=back) as transport,
        ExitStack() as ends,
    ):
        acceptor = serve(
            reactor, transport, endpoint, hello=lambda: make_hello(SocketType.PULL),
            on_connected=far.connected.append, on_failed=far.refused, handshake_timeout=10,
        )  # fmt: skip
        ends.callback(acceptor.close)
        connector = reach(
            reactor, transport, acceptor.address, hello=lambda: make_hello(SocketType.PUSH),
            on_connected=here.connected.append, on_failed=here.refused, options=options,
        )  # fmt: skip
        # Whatever fails here: an end that tries again for ever would spoil the tests behind this one.
        ends.callback(connector.close)
        until(lambda: here.failed, "the failure")
        assert isinstance(here.failed[0], HandshakeError)
        assert here.failed[0].reason in reasons
        assert not here.connected
        transport.arm(there=Faults(), back=Faults())
        until(lambda: here.connected, "a connection after the faults")


class _nothing:
    def __enter__(self): ...

    def __exit__(self, *_): ...
