"""Acceptor and connector over real sockets: strangers, silence, deadlines, descriptors, retries."""

from __future__ import annotations

import os
import resource
import socket
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from transfer.transports import core, tcp
from transfer.transports.address import Address, parse
from transfer.transports.config import DescriptorOptions
from transfer.transports.connect.connection import ConnectOptions
from transfer.transports.connect.establish import reach, serve
from transfer.transports.core.wire import HEADER, MAGIC, SocketType
from transfer.transports.errors import AddressError, Broken, Fatal, HandshakeError, OutOfDescriptors
from transfer.transports.handshake.exchange import Exchange
from transfer.transports.handshake.handshake import Handshake
from transfer.transports.handshake.hello import encode
from transfer.transports.handshake.identity import make_hello
from transfer.transports.inproc import InprocTransport
from transfer.transports.security.credentials import Credentials
from transfer.transports.security.settings import Security
from transfer.transports.tcp import TcpTransport
from transfer.transports.testing.ends import Side, close_all, until

QUICK = ConnectOptions(reconnect_first=0.001, reconnect_limit=0.002)
PLAIN = HEADER.pack(MAGIC, 1, SocketType.PUSH, 0, 1, 0, 5, 0) + b"plain"


@pytest.fixture
def server(reactor):
    """(side, address) of a PULL that accepts."""
    with serving(reactor) as served:
        yield served


@contextmanager
def serving(reactor, *, options=None, timeout=30.0, credentials=None, **hello):
    side = Side()
    acceptor = serve(
        reactor,
        TcpTransport(options),
        parse("tcp://127.0.0.1:*"),
        hello=lambda: make_hello(SocketType.PULL, **hello),
        on_connected=side.connected.append,
        on_failed=side.refused,
        handshake_timeout=timeout,
        credentials=credentials,
    )
    try:
        yield side, acceptor.address
    finally:
        acceptor.close()
        close_all(side)


@contextmanager
def reaching(reactor, address, *, transport=None, options=QUICK, retried=None, **hello):
    side = Side()
    connector = reach(
        reactor,
        transport or TcpTransport(),
        address,
        hello=lambda: make_hello(SocketType.PUSH, **hello),
        on_connected=side.connected.append,
        on_failed=side.refused,
        on_retried=retried,
        options=options,
    )
    try:
        yield side, connector
    finally:
        connector.close()
        close_all(side)


def raw(address: Address) -> socket.socket:
    return socket.create_connection((address.host, address.port), timeout=10)


# --- who is no friend -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "magic"),
        (b"\0" * 40, "magic"),
        (PLAIN[:20], "truncated"),
        (b"", "closed"),
        (encode(make_hello(SocketType.PUSH))[:100], "truncated"),
        (encode(make_hello(SocketType.PUB)), "socket_type"),
    ],
    ids=["HTTP", "zeros", "half a header", "nothing", "half a hello", "another socket"],
)
def test_foreign_protocols_are_named_and_others_notice_nothing(reactor, server, data, reason):
    side, address = server
    with raw(address) as stranger:
        stranger.sendall(data)
        with suppress(OSError):  # it may be reset already
            stranger.shutdown(socket.SHUT_WR)
        until(lambda: side.failed, "the failure")
    assert [error.reason for error in side.failed] == [reason]
    with reaching(reactor, address) as (client, _):
        until(lambda: client.connected and side.connected, "the friend")


def test_half_a_header_and_then_silence(reactor, monkeypatch):
    looks: list[int] = []
    ready = Exchange._ready
    monkeypatch.setattr(Exchange, "_ready", lambda self, events: (looks.append(events), ready(self, events)))
    with serving(reactor, timeout=0.2) as (side, address), raw(address) as peer:
        peer.sendall(PLAIN[:17])
        until(lambda: side.failed, "the deadline")
        assert side.failed[0].reason == "timeout"
        assert "handshake_ivl" in side.failed[0].hint
        with suppress(ConnectionResetError):
            assert peer.recv(1) == b"", "the connection is still open"
    assert len(looks) <= 3, "the loop spins over bytes that are only looked at"


def test_a_silent_server(reactor):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = parse(f"tcp://127.0.0.1:{mute.getsockname()[1]}")
        options = ConnectOptions(handshake_timeout=0.05, reconnect_first=0.001, reconnect_limit=0.002)
        with reaching(reactor, address, options=options) as (side, _):
            until(lambda: len(side.failed) >= 2, "two attempts")
        assert {error.reason for error in side.failed} == {"timeout"}


# --- whose bytes are whose ------------------------------------------------------------------------


def test_a_plain_peer_keeps_its_first_message(reactor, server):
    side, address = server
    with raw(address) as peer:
        peer.sendall(PLAIN)
        until(lambda: side.connected, "the plain peer")
        made = side.connected[0]
        assert made.agreement.plain and made.agreement.remote.socket_type is SocketType.PUSH
        assert made.peer == f"127.0.0.1:{peer.getsockname()[1]}"
        assert os.read(made.fd, 1000) == PLAIN


def test_a_plain_peer_is_refused_where_a_token_is_needed(reactor):
    known = Credentials(Security(token="b1f04507892daa251f873b7fb74e47e7"), core)
    with serving(reactor, credentials=known) as (side, address), raw(address) as peer:
        peer.sendall(PLAIN)
        until(lambda: side.failed, "the refusal")
        assert side.failed[0].reason == "token"


def test_messages_right_behind_the_hello_are_not_swallowed(reactor, server):
    side, address = server
    with raw(address) as peer:
        peer.sendall(encode(make_hello(SocketType.PUSH)) + b"what follows")
        until(lambda: side.connected, "the connection")
        assert os.read(side.connected[0].fd, 1000) == b"what follows"


def test_a_hello_byte_by_byte(reactor, server, monkeypatch):
    seen, fed = [0], [0]
    look, feed = Handshake.look, Handshake.feed

    def looked(self: Handshake, data: bytes) -> bool:
        seen.append(len(data))
        return look(self, data)

    def was_fed(self: Handshake, data: bytes) -> None:
        fed.append(fed[-1] + len(data))
        feed(self, data)

    monkeypatch.setattr(Handshake, "look", looked)
    monkeypatch.setattr(Handshake, "feed", was_fed)
    side, address = server
    with raw(address) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hello = encode(make_hello(SocketType.PUSH))
        apart = {0, 1, HEADER.size - 1, HEADER.size, HEADER.size + 1, len(hello) // 2, len(hello) - 2}
        for position, byte in enumerate(hello):
            peer.send(bytes([byte]))
            if position in apart:  # else the kernel would put the bytes together
                until(lambda sent=position + 1: sent in (seen[-1], fed[-1]), "a look at this byte")
        until(lambda: side.connected, "the connection")
        assert side.connected[0].agreement.remote.socket_type is SocketType.PUSH
        assert not side.connected[0].agreement.plain
    assert not side.failed


def test_large_hellos_through_tiny_buffers(reactor):
    extra = {"much": "x" * 15_000}
    tiny = DescriptorOptions(send_buffer=1, receive_buffer=1)
    with (
        serving(reactor, options=tiny, extra=extra) as (side, address),
        reaching(reactor, address, transport=TcpTransport(tiny), extra=extra) as (client, _),
    ):
        until(lambda: client.connected and side.connected, "the connection")
        assert client.connected[0].agreement.remote.extra == extra
        assert not client.failed


# --- connecting -----------------------------------------------------------------------------------


@pytest.fixture
def nobodys():
    """An address where nobody listens, as long as the test runs: its port is taken."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield parse(f"tcp://127.0.0.1:{taken.getsockname()[1]}")


def test_nothing_grows_while_the_peer_is_away(reactor, nobodys):
    pauses: list[float] = []
    with reaching(reactor, nobodys, retried=pauses.append) as (side, _):
        until(lambda: len(side.failed) > 20, "some attempts")
        before = len(os.listdir("/proc/self/fd"))
        threads = threading.active_count()  # other libraries may have some of their own
        until(lambda: len(side.failed) > 500, "many attempts")
        assert len(os.listdir("/proc/self/fd")) <= before + 1
        assert len(reactor._timers) < 200
        assert threading.active_count() <= threads
    assert all(isinstance(error, Broken) and error.errno == 111 for error in side.failed)
    assert isinstance(side.failed[0].__cause__, ConnectionRefusedError | OSError)
    assert "is the other side started" in side.failed[0].hint
    assert len(pauses) >= 500
    assert all(0 <= pause <= 0.002 for pause in pauses)


def test_a_connect_that_hangs_ends_at_its_deadline(reactor):
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        others = [socket.socket() for _ in range(4)]
        for other in others:  # more than the backlog takes: the kernel drops further attempts
            other.setblocking(False)
            other.connect_ex(full.getsockname())
        options = ConnectOptions(connect_timeout=0.05, handshake_timeout=0.05, reconnect_first=0.0)
        with reaching(reactor, parse(f"tcp://127.0.0.1:{full.getsockname()[1]}"), options=options) as (
            side,
            _,
        ):
            until(lambda: len(side.failed) >= 2, "the deadline")
        assert all(isinstance(error, Broken | HandshakeError) for error in side.failed)
        for other in others:
            other.close()


def test_a_name_that_nobody_has(reactor, monkeypatch):
    def getaddrinfo(*_args, **_kwargs):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(tcp.socket, "getaddrinfo", getaddrinfo)
    with reaching(reactor, parse("tcp://nobody.invalid:1")) as (side, _):
        until(lambda: len(side.failed) >= 2, "two attempts")
    assert isinstance(side.failed[0], AddressError)
    assert "lo" in side.failed[0].hint


def test_a_slow_look_up_holds_nobody_up(reactor, server, monkeypatch):
    asked, answer = threading.Event(), threading.Event()
    real = socket.getaddrinfo

    def getaddrinfo(host, *args, **kwargs):
        if host == "slow.example":
            asked.set()
            answer.wait(20)
            host = "127.0.0.1"
        return real(host, *args, **kwargs)

    monkeypatch.setattr(tcp.socket, "getaddrinfo", getaddrinfo)
    _, address = server
    slow = Address("tcp", "slow.example", address.port)
    with reaching(reactor, slow) as (patient, _), reaching(reactor, slow) as (impatient, connector):
        assert asked.wait(10)
        connector.close()
        with reaching(reactor, address) as (client, _):
            until(lambda: client.connected, "the quick one")
        answer.set()
        until(lambda: patient.connected, "the slow one")
    assert not impatient.connected and not impatient.failed


def test_a_socket_that_the_reactor_was_not_told_of_is_closed_with_its_connector(reactor, monkeypatch):
    """As when the context ends between a look-up and the call that it asked for."""
    soon = reactor.call_soon

    def lossy(call, *arguments):
        if call.__name__ != "_started":
            soon(call, *arguments)

    monkeypatch.setattr(reactor, "call_soon", lossy)
    transport = TcpTransport()
    start, started = transport.start_connect, []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        numeric = Address("tcp", "127.0.0.1", listener.getsockname()[1])
        transport.start_connect = lambda _: started.append(start(numeric)) or started[-1]
        address = Address("tcp", "somewhere.example", numeric.port)
        with reaching(reactor, address, transport=transport) as (_, connector):
            until(lambda: started, "the look-up")
            connector.close()
            until(lambda: started[0].fileno() < 0, "the end of the socket")


def test_each_attempt_takes_the_next_number_of_a_host(reactor, server, nobodys, monkeypatch):
    _, address = server
    monkeypatch.setattr(
        tcp.socket,
        "getaddrinfo",
        lambda *_args, **_kwargs: [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", nobodys.port)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", address.port)),
        ],
    )
    with reaching(reactor, Address("tcp", "two.example", 1)) as (client, _):
        until(lambda: client.connected, "the second number")
        assert len(client.failed) == 1


def test_close_ends_a_handshake_that_is_under_way(reactor):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        mute.settimeout(10)
        with reaching(reactor, parse(f"tcp://127.0.0.1:{mute.getsockname()[1]}")) as (side, connector):
            peer, _ = mute.accept()
            with peer:
                assert peer.recv(4)
                connector.close()
                while peer.recv(65536):
                    pass
        assert not side.connected


def test_closing_the_acceptor_ends_its_handshakes(reactor):
    with serving(reactor) as (side, address):
        peer = raw(address)
        until(lambda: reactor._callbacks.keys() - {0} and len(reactor._callbacks) == 2, "the accept")
    with peer:
        assert peer.recv(1) == b""
    assert not side.failed and not side.connected


def test_a_transport_that_is_required_and_missing(reactor, server):
    side, address = server
    wish = Address("rdma", address.host, address.port, policy="require")
    with reaching(reactor, wish) as (client, connector):
        until(lambda: client.failed, "the refusal")
        until(lambda: side.failed, "the refusal")
        assert connector.state == "ended", "it must not try again"
    assert isinstance(client.failed[0], Fatal)
    assert isinstance(client.failed[0].__cause__, HandshakeError)
    assert side.failed[0].reason == "policy"


def test_a_transport_that_is_preferred_and_missing(reactor, server):
    _, address = server
    with reaching(reactor, Address("rdma", address.host, address.port)) as (client, _):
        until(lambda: client.connected, "the connection")
        choice = client.connected[0].agreement.choice
    assert choice.transport == "tcp" and choice.fallback
    assert "the endpoint rdma://" in choice.reason


def test_wildcards_cannot_be_reached(reactor):
    with pytest.raises(AddressError, match="can be bound"):
        reach(
            reactor, TcpTransport(), parse("tcp://*:1"), hello=make_hello, on_connected=print, on_failed=print
        )


# --- what runs out --------------------------------------------------------------------------------


def test_the_listener_survives_without_descriptors(reactor):
    with serving(reactor) as (side, address):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        peer = socket.socket()
        held: list[int] = []
        used = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 8, hard))
        try:
            while True:
                try:
                    held.append(os.open("/dev/null", os.O_RDONLY))
                except OSError:
                    break
            peer.connect((address.host, address.port))
            peer.sendall(encode(make_hello(SocketType.PUSH)))
            until(lambda: side.failed, "the news")
            assert isinstance(side.failed[0], OutOfDescriptors)
            assert "ulimit -n" in side.failed[0].hint
        finally:
            for fd in held:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        until(lambda: side.connected, "the connection, once there are descriptors again")
        peer.close()


def test_a_connector_leaves_the_last_descriptors_to_files(reactor, server):
    _, address = server
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(used + 20)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (held[-1] + 3, hard))
        with reaching(reactor, address) as (client, _):
            until(lambda: len(client.failed) > 2, "the news")
            assert {type(error) for error in client.failed} == {OutOfDescriptors}
            assert "ulimit -n" in client.failed[0].hint
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            until(lambda: client.connected, "the connection, once there are descriptors again")
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_many_connections_at_once(reactor, server):
    side, address = server
    clients = [reaching(reactor, address) for _ in range(100)]
    entered = [client.__enter__() for client in clients]
    until(lambda: all(each.connected for each, _ in entered), "all of them")
    until(lambda: len(side.connected) == 100, "all of them")
    assert len({made.peer for made in side.connected}) == 100
    assert not side.failed and not any(each.failed for each, _ in entered)
    for client in clients:
        client.__exit__(None, None, None)


@pytest.mark.raises_in_reactor
@pytest.mark.parametrize("who", ["accepting", "connecting"])
@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:*", "inproc://refusing"])
def test_a_connection_that_its_owner_does_not_take_is_closed(reactor, endpoint, who):
    """The owner raises the first time: nothing is left of that connection, and the next one is made."""
    sides = {"accepting": Side(), "connecting": Side()}
    refused = []

    def taker(name):
        def take(connected):
            if name == who and not refused:
                refused.append(connected)
                raise RuntimeError("not today")
            sides[name].connected.append(connected)

        return take

    transport = TcpTransport() if endpoint.startswith("tcp") else InprocTransport()
    acceptor = serve(
        reactor, transport, parse(endpoint), hello=lambda: make_hello(SocketType.PULL),
        on_connected=taker("accepting"), on_failed=sides["accepting"].refused,
    )  # fmt: skip
    connector = reach(
        reactor, transport, acceptor.address, hello=lambda: make_hello(SocketType.PUSH),
        on_connected=taker("connecting"), on_failed=sides["connecting"].refused, options=QUICK,
    )  # fmt: skip
    try:
        until(lambda: refused, "the first")
        if who == "accepting" and endpoint.startswith("tcp"):
            until(lambda: sides["connecting"].connected, "the peer's first")
            assert ended(sides["connecting"].connected.pop())
            connector.lost()
        until(lambda: sides["connecting"].connected and sides["accepting"].connected, "the second")
        (gone,) = refused
        if gone.fd >= 0:
            open_still = {one.fd for side in sides.values() for one in side.connected}
            if gone.fd not in open_still:  # the number may be another's by now
                with pytest.raises(OSError, match="descriptor"):
                    os.fstat(gone.fd)
        else:
            assert gone.stream.broken is not None
    finally:
        connector.close()
        acceptor.close()
        for side in sides.values():
            close_all(side)


def ended(connected):
    """The other side has closed it."""
    stream = socket.socket(fileno=connected.fd)
    stream.setblocking(True)
    stream.settimeout(20)
    with stream:
        return stream.recv(1) == b""
