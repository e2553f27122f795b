"""A connection of the broker with TLS, over real sockets and both cores, turn by turn in the test itself."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.broker.secure_peers import HERE
from tests.broker.test_connection import ENDS, PIECES, WHOLE, Peer, Turns, frame
from transfer.broker.clients.connection import ClientConnection
from transfer.broker.clients.tls import secured
from transfer.broker.clients.ttp import TtpClient
from transfer.broker.net.tls_socket import TlsSocket
from transfer.broker.protocols.ttp import TtpKind, encode_head
from transfer.certificates import Authority
from transfer.transports import core
from transfer.transports.core import pure
from transfer.transports.errors import Closed
from transfer.transports.security.credentials import Credentials
from transfer.transports.security.settings import Security


@pytest.fixture(scope="module", params=[core, pure], ids=["native", "pure"])
def contexts(request, tmp_path_factory):
    """(the core, contexts of the accepting and of the connecting side)"""
    authority = Authority(tmp_path_factory.mktemp("authority"))
    issued = authority.issue()
    shown = {"certificate": issued.certificate, "key": issued.key, "authorities": authority.path}
    return (
        request.param,
        request.param.TlsContext(server=True, clients="required", **shown),
        request.param.TlsContext(server=False, **shown),
    )


@pytest.fixture
def turns():
    turns = Turns()
    yield turns
    turns.close()


def shaken(contexts, **sizes):
    """(the broker's end as a front gets it, the other end's socket, and its channel)"""
    core, server, client = contexts
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
        for option, size in sizes.items():
            end.setsockopt(socket.SOL_SOCKET, getattr(socket, option), size)
    mine, other = core.TlsChannel(server, ours.fileno()), core.TlsChannel(client, theirs.fileno(), HERE)
    done = [False, False]
    while not all(done):
        done = [other.handshake(), mine.handshake()]
    mine.ahead()
    other.ahead()
    return TlsSocket(ours, mine), theirs, other


def made(turns, contexts, **sizes):
    """(the line, the other end's socket and its channel)"""
    connection, theirs, other = shaken(contexts, **sizes)
    line = Peer(turns.lines, connection)
    turns.left.append((line, theirs))
    return line, theirs, other


def say(turns, other, data):
    view = memoryview(data)
    while view or other.unsent:
        try:
            if other.unsent:
                other.flush()
            else:
                view = view[other.send(view) :]
        except BlockingIOError:
            pass
        turns.turn(0.0002)


def hear(turns, other, nbytes):
    found = b""
    while len(found) < nbytes:
        try:
            data = other.recv(1 << 16)
        except BlockingIOError:
            turns.turn(0.0002)
            continue
        if not data:
            break
        found += data
    return found


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from([WHOLE, PIECES]), st.integers(0, 200_000)), min_size=1, max_size=6))
def test_frames_come_whole_however_records_cut_them(contexts, frames):
    turns = Turns()
    try:
        line, _, other = made(turns, contexts)
        sent = [bytes([number % 256]) * size for number, (_, size) in enumerate(frames)]
        say(turns, other, b"".join(frame(kind, data) for (kind, _), data in zip(frames, sent, strict=True)))
        turns.until(lambda: len(line.got) == len(frames))
        assert line.frames == sent
    finally:
        turns.close()


def test_what_the_system_has_not_taken_counts_as_queued(turns, contexts):
    line, _, other = made(turns, contexts, SO_SNDBUF=4096, SO_RCVBUF=4096)
    data = bytes(range(256)) * 200  # less than what is encrypted at once
    line.write(data)
    turns.turn()
    assert not line._out and line.queued == line._channel.unsent > 0
    assert line in turns.lines.blocked and turns.lines.busy and not line.relieved_times
    line.write(b"behind")
    assert hear(turns, other, len(data) + 6) == data + b"behind"
    turns.until(lambda: line.relieved_times == 1)
    assert not line.queued and not turns.lines.busy


def test_pipes_are_left_alone(turns, contexts):
    line, _, other = made(turns, contexts)
    assert not line.has_pipes
    say(turns, other, frame(PIECES, bytes(1 << 20)))
    turns.until(lambda: len(line.got) == 1)
    assert line.frames == [bytes(1 << 20)] and not turns.lines.pipes._made


def test_last_words_and_the_end_are_told(turns, contexts):
    line, theirs, other = made(turns, contexts)
    line.write(b"last words")
    line.close("the test wants it")
    assert hear(turns, other, 100) == b"last words"
    assert line.ends == ["the test wants it"]
    again, theirs, other = made(turns, contexts)
    other.close()
    turns.until(lambda: again.closed)
    assert again.ends == ["the peer has closed it"]
    broken, theirs, other = made(turns, contexts)
    theirs.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
    turns.until(lambda: broken.closed)
    assert broken.ends and "closed" not in broken.ends[0]


def test_a_frame_that_ends_it_closes_both(turns, contexts):
    line, _, other = made(turns, contexts)
    say(turns, other, frame(ENDS, b""))
    assert line.closed and hear(turns, other, 1) == b""


def test_a_client_reads_all_that_tls_holds_back(contexts, monkeypatch, tmp_path):
    """The descriptor tells nothing of a message that came in the same records as the end of another."""
    core, *_ = contexts
    authority = Authority(tmp_path)
    issued = authority.issue()
    security = Security(certificate=issued.certificate, key=issued.key, authority=authority.path)

    def connected(address, *more):
        return theirs, secured(theirs, address[0], *more)

    monkeypatch.setattr("transfer.broker.clients.ttp_connection.connected", connected)
    monkeypatch.setattr("transfer.broker.clients.ttp_reader._BUFFER", 1 << 15)
    monkeypatch.setattr("transfer.broker.clients.tls.core", core)
    ours, theirs = socket.socketpair()
    with ours:
        channel = core.TlsChannel(Credentials(security, core).context(server=True), ours.fileno())
        shaking = threading.Thread(target=lambda: [None for _ in iter(channel.handshake, True)])
        shaking.start()
        with TtpClient(HERE, 1, timeout=20, security=security) as client:
            shaking.join()
            large = encode_head(TtpKind.PUBLISH, b"t", b"", 50_000) + bytes(50_000)
            channel.sendmsg((large, encode_head(TtpKind.PUBLISH, b"t", b"", 5) + b"small"))
            assert len(client.recv().data) == 50_000
            assert bytes(client.recv().data) == b"small"
            channel.close()


def test_a_client_sends_to_the_last_byte(contexts, tmp_path):
    """What TLS has taken and the system has not goes too, though nothing is sent behind it."""
    core, *_ = contexts
    authority = Authority(tmp_path)
    issued = authority.issue()
    security = Security(certificate=issued.certificate, key=issued.key, authority=authority.path)
    data = bytes(range(256)) * 800
    with socket.create_server((HERE, 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made = []
        port = listener.getsockname()[1]
        connecting = threading.Thread(
            target=lambda: made.append(ClientConnection(HERE, port, timeout=20, security=security))
        )
        connecting.start()
        accepted, _ = listener.accept()
        with accepted:
            accepted.setblocking(False)
            channel = core.TlsChannel(Credentials(security, core).context(server=True), accepted.fileno())
            while not channel.handshake():
                pass
            channel.ahead()
            connecting.join()
            (connection,) = made
            connection._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            sending = threading.Thread(target=connection.send, args=([data],))
            sending.start()
            found = b""
            deadline = time.monotonic() + 20
            while len(found) < len(data):
                assert time.monotonic() < deadline
                try:
                    found += channel.recv(1 << 16)
                except BlockingIOError:
                    time.sleep(0.001)
            sending.join()
            assert found == data
            connection.close()
            with pytest.raises(Closed):
                connection.send([b"more"])
