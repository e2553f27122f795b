"""Several sockets of a context behind one endpoint: each gets the peers that talk to its type, no others."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress

import pytest

import transfer
from tests.sockets.helpers import binds, eventually
from tests.sockets.test_secure import authority, made, secure  # noqa: F401 - fixtures
from transfer.sockets.monitor import EventKind
from transfer.transports.core.wire import SocketType
from transfer.transports.handshake.hello import encode
from transfer.transports.handshake.identity import make_hello

TYPES = (transfer.PULL, transfer.REP, transfer.PUB, transfer.PAIR)
PEERS = {
    transfer.PULL: transfer.PUSH,
    transfer.REP: transfer.REQ,
    transfer.PUB: transfer.SUB,
    transfer.PAIR: transfer.PAIR,
}


def sharing(context, endpoint, types=TYPES):
    """Sockets of these types behind one endpoint."""
    found = {kind: context.socket(kind, rcvtimeo=10_000, sndtimeo=10_000) for kind in types}
    for bound in found.values():
        bound.bind(endpoint)
        endpoint = bound.last_endpoint
    return found, endpoint


def reached(context, endpoint, bound):
    """One peer of each, connected: they come at the same time."""
    peers = {}
    for kind in bound:
        peers[kind] = context.socket(PEERS[kind], rcvtimeo=10_000, sndtimeo=10_000)
        if kind is transfer.PUB:
            peers[kind].subscribe(b"")
        peers[kind].connect(endpoint)
    for one in (*bound.values(), *peers.values()):
        one.wait_for_peers(1, 10)
    return peers


def say(bound, peers, word):
    """Each pair exchanges a message of its own."""
    for kind, one in bound.items():
        sender, receiver = (one, peers[kind]) if kind is transfer.PUB else (peers[kind], one)
        sender.send(b"%s to %s" % (word, kind.name.encode()))
        assert receiver.recv() == b"%s to %s" % (word, kind.name.encode())
        if kind in (transfer.REP, transfer.PAIR):
            one.send(b"answer")
            assert peers[kind].recv() == b"answer"


def test_each_socket_has_its_own_peers(context, endpoint):
    bound, endpoint = sharing(context, endpoint)
    assert {one.last_endpoint for one in bound.values()} == {endpoint}
    peers = reached(context, endpoint, bound)
    say(bound, peers, b"first")
    assert [len(one.peers()) for one in bound.values()] == [1] * len(bound)


def test_over_tls_with_a_token_too(made, secure):  # noqa: F811
    ours, others = made(secure), made(secure)
    bound, endpoint = sharing(ours, "tcp://127.0.0.1:0")
    peers = reached(others, endpoint, bound)
    say(bound, peers, b"secret")
    assert all(one.peers()[0].authenticated for one in bound.values())


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        (transfer.PULL, transfer.PULL, "PUSH"),
        (transfer.REP, transfer.ROUTER, "DEALER and REQ"),
        (transfer.DEALER, transfer.ROUTER, "DEALER and ROUTER"),
    ],
)
def test_who_may_be_meant_for_another_cannot_share(context, endpoint, first, second, both):
    one, other = context.socket(first), context.socket(second)
    one.bind(endpoint)
    with pytest.raises(transfer.AddressInUse, match=f"a {first.name}, which talks to {both} too"):
        other.bind(one.last_endpoint)
    pair = context.socket(transfer.PAIR)
    pair.bind(one.last_endpoint)  # and the refused one has changed nothing
    assert pair.last_endpoint == one.last_endpoint


def test_another_context_cannot_share(context, core):
    one = context.socket(transfer.PULL)
    one.bind("tcp://127.0.0.1:0")
    with transfer.Context(core=core) as other, other.socket(transfer.REP) as rep:
        with pytest.raises(transfer.AddressInUse, match="port 0"):
            rep.bind(one.last_endpoint)


def test_pyzmqs_sockets_do_not_share():
    zmq = pytest.importorskip("transfer.zmq")
    with zmq.Context() as context, context.socket(zmq.PULL) as one, context.socket(zmq.REP) as other:
        port = one.bind_to_random_port("tcp://127.0.0.1")
        with pytest.raises(zmq.ZMQError) as raised:
            other.bind(f"tcp://127.0.0.1:{port}")
        assert raised.value.errno == zmq.EADDRINUSE
        one.bind("inproc://one")
        with pytest.raises(zmq.ZMQError):
            other.bind("inproc://one")


def test_one_goes_and_comes_back_while_the_others_serve(context, endpoint):
    bound, endpoint = sharing(context, endpoint)
    peers = reached(context, endpoint, bound)
    bound.pop(transfer.REP).close(0)
    requester = peers.pop(transfer.REP)
    say(bound, peers, b"without")
    assert eventually(lambda: (requester._readable(), requester.peers())[1] == [])
    again, _ = sharing(context, endpoint, [transfer.REP])
    requester.wait_for_peers(1, 10)
    requester.send(b"q")
    assert again[transfer.REP].recv() == b"q"
    say(bound, peers, b"beside")


def test_the_first_to_bind_may_go_first_and_the_last_frees_the_endpoint(context, core):
    bound, endpoint = sharing(context, "tcp://127.0.0.1:0")
    for kind in TYPES[:-1]:
        bound.pop(kind).close(0)
        peers = reached(context, endpoint, bound)
        say(bound, peers, b"left")
        for peer in peers.values():
            peer.close(0)
        assert eventually(lambda: not any(one.peers() for one in bound.values()))
    bound.pop(transfer.PAIR).close(0)
    with transfer.Context(core=core) as other, other.socket(transfer.REP) as rep:
        assert eventually(lambda: binds(rep, endpoint))


def test_unbind_gives_up_one_alone(context, endpoint):
    bound, endpoint = sharing(context, endpoint)
    bound[transfer.PULL].unbind(endpoint)
    others = {kind: one for kind, one in bound.items() if kind is not transfer.PULL}
    say(others, reached(context, endpoint, others), b"still")
    assert not bound[transfer.PULL].peers() and all(len(one.peers()) == 1 for one in others.values())
    bound[transfer.PULL].bind(endpoint)
    again = {transfer.PULL: bound[transfer.PULL]}
    say(again, reached(context, endpoint, again), b"again")


def test_a_peer_of_nobody_is_told_who_is_there(context):
    _, endpoint = sharing(context, "tcp://127.0.0.1:0", [transfer.PULL, transfer.REP])
    stranger = context.socket(transfer.SUB)
    monitor = stranger.get_monitor()
    stranger.connect(endpoint)
    while (event := monitor.recv(10)).kind is not EventKind.HANDSHAKE_FAILED:
        pass
    assert event.reason == "socket_type" and "PULL and REP cannot talk to SUB" in str(event.error)


def test_threads_that_bind_one_endpoint_at_once_share_it(context):
    spare = context.socket(transfer.DEALER)
    spare.bind("tcp://127.0.0.1:0")
    endpoint = spare.last_endpoint
    spare.close(0)
    for _ in range(10):
        found = {kind: context.socket(kind, rcvtimeo=10_000, sndtimeo=10_000) for kind in TYPES}
        together, failed = threading.Barrier(len(found)), []

        def bind(one, together=together, failed=failed):
            together.wait()
            try:
                one.bind(endpoint)
            except transfer.TransferError as error:
                failed.append(error)

        threads = [threading.Thread(target=bind, args=(one,)) for one in found.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        for one in found.values():
            one.close(0)
    say(*_all(context, endpoint), b"after")


def _all(context, endpoint):
    bound, endpoint = sharing(context, endpoint)
    return bound, reached(context, endpoint, bound)


@pytest.mark.parametrize("scheme", ["tcp", "ipc", "inproc"])
def test_one_binds_while_the_last_one_closes(context, scheme, tmp_path):
    endpoint = {"tcp": "tcp://127.0.0.1:0", "ipc": f"ipc://{tmp_path}/s", "inproc": "inproc://x"}[scheme]
    first = context.socket(transfer.PULL)
    first.bind(endpoint)
    endpoint, failed = first.last_endpoint, []
    for number in range(60):
        other = context.socket((transfer.REP, transfer.PULL)[number % 2])
        closing = threading.Thread(target=first.close, args=(0,))
        closing.start()
        try:
            other.bind(endpoint)
        except transfer.AddressInUse:
            closing.join()
            other.bind(endpoint)
            failed.append(number)
        closing.join()
        first = other
    assert len(failed) <= 3  # between the kernel's close and our note of it


def test_a_file_that_was_removed_is_shared_with_nobody(context, tmp_path):
    gone, here = context.socket(transfer.PULL), context.socket(transfer.REP, rcvtimeo=10_000)
    gone.bind(f"ipc://{tmp_path}/s")
    os.unlink(tmp_path / "s")
    here.bind(f"ipc://{tmp_path}/s")
    requester = context.socket(transfer.REQ, sndtimeo=10_000)
    requester.connect(f"ipc://{tmp_path}/s")
    requester.send(b"q")
    assert here.recv() == b"q"


# -- bytes that tell nothing, too little, or too late ------------------------------------------------


def place(endpoint):
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return host, int(port)


def ended(connection):
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def failed(monitor):
    while (event := monitor.recv(10)).kind not in (EventKind.HANDSHAKE_FAILED, EventKind.ACCEPT_FAILED):
        pass
    return event.reason


@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
def test_a_hello_that_comes_byte_by_byte_is_waited_for(context, scheme, tmp_path):
    tcp = scheme == "tcp"
    bound, endpoint = sharing(context, "tcp://127.0.0.1:0" if tcp else f"ipc://{tmp_path}/s")
    with socket.socket(socket.AF_INET if tcp else socket.AF_UNIX) as slow:
        slow.settimeout(10)
        slow.connect(place(endpoint) if tcp else f"{tmp_path}/s")
        if tcp:
            slow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in encode(make_hello(SocketType.SUB)):
            slow.sendall(bytes([byte]))
        assert slow.recv(34)[8] == SocketType.PUB
        assert eventually(lambda: len(bound[transfer.PUB].peers()) == 1)
        peers = reached(context, endpoint, {transfer.PULL: bound[transfer.PULL]})
        say({transfer.PULL: bound[transfer.PULL]}, peers, b"beside")


def test_a_client_hello_that_comes_in_pieces_is_waited_for(made, secure):  # noqa: F811
    bound, endpoint = sharing(made(secure), "tcp://127.0.0.1:0", [transfer.PULL, transfer.REP])
    with Slow(place(endpoint)) as slow:
        peers = reached(made(secure), slow.endpoint, {transfer.REP: bound[transfer.REP]})
        say({transfer.REP: bound[transfer.REP]}, peers, b"slowly")
    assert slow.pieces > 50


def test_one_that_needs_more_bytes_than_the_kernel_takes_costs_no_processor(made, secure):  # noqa: F811
    """A ClientHello of 16 KiB, where the buffer has 4."""
    context = made(secure)
    pull, rep = context.socket(transfer.PULL, rcvbuf=4096), context.socket(transfer.REP)
    pull.bind("tcp://127.0.0.1:0")
    rep.bind(pull.last_endpoint)
    with socket.create_connection(place(pull.last_endpoint), 10) as stranger:
        stranger.settimeout(0.5)
        with suppress(OSError):
            stranger.sendall(b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03" + bytes(16_000))
        before = time.process_time()
        time.sleep(1)
        assert time.process_time() - before < 0.5
    peers = reached(made(secure), pull.last_endpoint, {transfer.REP: rep})
    rep.rcvtimeo = 10_000
    say({transfer.REP: rep}, peers, b"after")


class Slow:
    """Forwards one connection, what the client says at first in pieces of 7 bytes."""

    def __init__(self, where):
        self._where = where
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.pieces = 0

    def __enter__(self):
        self._there = socket.create_connection(self._where, 10)
        self._there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()
        return self

    def __exit__(self, *_exc):
        self._there.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for one in (self._here, self._there, self._listener):
            one.close()

    def _accept(self):
        self._here = self._listener.accept()[0]
        self._threads.append(threading.Thread(target=self._back))
        self._threads[1].start()
        while data := self._here.recv(1 << 16):
            size = 7 if self.pieces < 50 else len(data)
            for at in range(0, len(data), size):
                self._there.sendall(data[at : at + size])
                self.pieces += 1

    def _back(self):
        while data := self._there.recv(1 << 16):
            self._here.sendall(data)
        self._here.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "magic"),
        (b"\x16\x03\x01", "magic"),
        (b"!QMZ\x01\0\0\0\x63" + bytes(25), "socket_type"),
    ],
)
def test_a_peer_of_no_type_is_refused_by_the_first(context, said, reason):
    bound, endpoint = sharing(context, "tcp://127.0.0.1:0")
    monitor = bound[transfer.PULL].get_monitor()
    with socket.create_connection(place(endpoint), 10) as stranger:
        stranger.sendall(said)
        assert failed(monitor) == reason
    say(bound, reached(context, endpoint, bound), b"after")


def test_one_that_stops_in_its_first_header_ends_with_its_time_and_one_that_goes_at_once(context):
    types = {kind: context.socket(kind, handshake_ivl=300) for kind in (transfer.PULL, transfer.REP)}
    types[transfer.PULL].bind("tcp://127.0.0.1:0")
    endpoint = types[transfer.PULL].last_endpoint
    types[transfer.REP].bind(endpoint)
    monitor = types[transfer.PULL].get_monitor()
    with socket.create_connection(place(endpoint), 10) as stalled:
        stalled.sendall(b"!QMZ\x01")
        assert failed(monitor) == "timeout"
        assert ended(stalled)
    with socket.create_connection(place(endpoint), 10) as gone:
        gone.sendall(b"!QMZ\x01")
        gone.shutdown(socket.SHUT_WR)
        assert failed(monitor) == "truncated"


def test_a_silent_one_ends_with_the_last_socket(context):
    bound, endpoint = sharing(context, "tcp://127.0.0.1:0", [transfer.PULL, transfer.REP])
    with socket.create_connection(place(endpoint), 10) as silent:
        silent.sendall(b"!QMZ")
        say(bound, reached(context, endpoint, bound), b"meanwhile")
        bound[transfer.PULL].close(0)
        silent.settimeout(0.2)
        with pytest.raises(TimeoutError):
            silent.recv(1)
        bound[transfer.REP].close(0)
        silent.settimeout(10)
        assert ended(silent)


def test_a_connection_has_the_buffers_that_its_own_socket_asks_for(context):
    pull = context.socket(transfer.PULL)
    pull.bind("tcp://127.0.0.1:0")
    rep = context.socket(transfer.REP, rcvbuf=100_000)
    rep.bind(pull.last_endpoint)
    requester = context.socket(transfer.REQ)
    requester.connect(pull.last_endpoint)
    rep.wait_for_peers(1, 10)
    [peer] = rep._links.state.peers.values()
    with socket.socket(fileno=os.dup(peer.fd)) as copy:
        assert copy.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 200_000  # the kernel doubles it
