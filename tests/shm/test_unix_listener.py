"""The abstract Unix socket by which peers on this host come in, and whoever else knocks there."""

from __future__ import annotations

import array
import os
import socket

import pytest

from tests.shm.conftest import eventually
from transfer.transports.handshake.upgrade import Declined
from transfer.transports.reactor import Reactor
from transfer.transports.shm import unix_listener as module
from transfer.transports.shm.unix_listener import TOKEN_SIZE, UnixListener, connect

TOKEN = b"t" * TOKEN_SIZE


class NoReactor:
    """The tests look by themselves."""

    def register(self, *_):
        pass

    def unregister(self, *_):
        pass


@pytest.fixture
def listener():
    made = UnixListener(NoReactor())
    yield made
    made.close()
    made.close()


def close(*pairs):
    for pair in pairs:
        for end in pair:
            end.close()


def knock(listener, say=b"", descriptors=()):
    """A connection that greets in a way of its own."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect("\0" + listener.name)
    if say:
        rights = array.array("i", [each.fileno() for each in descriptors])
        connection.sendmsg([say], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if rights else [])
    return connection


def is_closed(connection):
    connection.settimeout(5)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:  # what it had said was not read
        return True


def test_who_has_the_token_comes_in(listener):
    theirs = connect(listener.name, TOKEN)
    ours = listener.take(TOKEN)
    for here, there in zip(ours, theirs, strict=True):
        assert not here.get_inheritable() and not here.getblocking()
        here.send(b"a")
        assert there.recv(10) == b"a"
        there.send(b"b")
        assert here.recv(10) == b"b"
    assert ours[1].type == socket.SOCK_SEQPACKET
    close(ours, theirs)


def test_each_token_is_another_peer_and_good_once(listener):
    tokens = [bytes([n]) * TOKEN_SIZE for n in range(5)]
    theirs = [connect(listener.name, token) for token in tokens]
    for token, pair in reversed(list(zip(tokens, theirs, strict=True))):
        ours = listener.take(token)
        ours[0].send(token)
        assert pair[0].recv(100) == token
        close(ours)
        with pytest.raises(Declined) as caught:
            listener.take(token)
        assert caught.value.reason == "unreachable"
    close(*theirs)


def test_an_unknown_token_gets_nothing(listener):
    theirs = connect(listener.name, TOKEN)
    with pytest.raises(Declined):
        listener.take(b"x" * TOKEN_SIZE)
    close(listener.take(TOKEN), theirs)


def test_the_first_of_two_with_one_token_is_kept(listener):
    first, second = connect(listener.name, TOKEN), connect(listener.name, TOKEN)
    ours = listener.take(TOKEN)
    ours[0].send(b"a")
    assert first[0].recv(1) == b"a" and is_closed(second[0])
    close(ours, first, second)


def test_a_listener_that_is_not_there():
    with pytest.raises(Declined) as caught:
        connect("transfer-nothing", TOKEN)
    assert caught.value.reason == "unreachable"


def test_bad_greetings_are_shut_out_and_leave_nothing(listener):
    pair, stream = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET), socket.socketpair()
    reading, writing = (os.fdopen(fd, mode) for fd, mode in zip(os.pipe(), "rw", strict=True))
    bad = [
        knock(listener, TOKEN),
        knock(listener, TOKEN[:-1], pair[:1]),
        knock(listener, TOKEN, pair),
        knock(listener, TOKEN, stream[:1]),
        knock(listener, TOKEN, [reading]),
        knock(listener, b"GET / HTTP/1.1\r\n\r\n"),
    ]
    gone = knock(listener)
    gone.close()
    theirs = connect(listener.name, TOKEN)
    close(listener.take(TOKEN), theirs)
    assert all(is_closed(each) for each in bad)
    close(pair, stream, bad, (reading, writing))


def test_who_is_still_about_to_greet_is_not_shut_out(listener):
    """The listener is read for one peer, while another is between its connect and its greeting."""
    late = knock(listener)
    theirs = connect(listener.name, TOKEN)
    close(listener.take(TOKEN), theirs)
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    rights = array.array("i", [pair[0].fileno()])
    late.sendmsg([b"l" * TOKEN_SIZE], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    close(listener.take(b"l" * TOKEN_SIZE), pair, [late])


def test_who_never_greets_is_shut_out_in_the_end(listener, monkeypatch):
    monkeypatch.setattr(module, "_MOST_WAITING", 3)
    silent = [knock(listener) for _ in range(5)]
    with pytest.raises(Declined):
        listener.take(TOKEN)
    assert all(is_closed(each) for each in silent[:2])
    monkeypatch.setattr(module, "_PATIENCE", -1)
    with pytest.raises(Declined):
        listener.take(TOKEN)
    assert all(is_closed(each) for each in silent[2:])
    close(silent)


def test_who_is_never_asked_for_is_dropped(listener, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE", -1)
    theirs = connect(listener.name, TOKEN)
    with pytest.raises(Declined):
        listener.take(b"x" * TOKEN_SIZE)
    assert is_closed(theirs[0])
    close(theirs)


def test_another_user_is_refused_on_either_side(listener, monkeypatch):
    theirs = connect(listener.name, TOKEN)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(Declined):
        listener.take(TOKEN)
    assert is_closed(theirs[0])
    close(theirs)
    with pytest.raises(Declined) as caught:
        connect(listener.name, TOKEN)
    assert caught.value.reason == "other_user"


def test_a_full_listener_means_another_transport(listener, monkeypatch):
    listener._listener.listen(0)
    knocking = []
    with pytest.raises(Declined) as caught:
        for number in range(5):
            knocking.append(connect(listener.name, bytes([number]) * TOKEN_SIZE))
    assert caught.value.reason == "unreachable" and knocking
    close(*knocking)


def test_a_closed_listener_is_gone():
    listener = UnixListener(NoReactor())
    theirs = connect(listener.name, TOKEN)
    listener.close()
    assert eventually(lambda: is_closed(theirs[0]))
    with pytest.raises(Declined):
        connect(listener.name, TOKEN)
    close(theirs)


def test_who_is_not_waited_for_any_more_is_sent_away(listener):
    """A peer that came in and was killed before the dialogue was over."""
    before = len(os.listdir("/proc/self/fd"))
    pair = connect(listener.name, TOKEN)
    close(pair)
    listener.forget(TOKEN)
    listener.forget(TOKEN)
    assert not listener._waiting and not listener._silent
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(Declined):
        listener.take(TOKEN)


def test_connections_that_nobody_asks_for_do_not_fill_the_backlog(monkeypatch):
    """The name stands in /proc/net/unix: whoever reads it can connect."""
    monkeypatch.setattr(module, "_BACKLOG", 4)
    reactor = Reactor()
    listener = UnixListener(reactor)
    foreign = []
    try:
        for _ in range(30):
            foreign.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            foreign[-1].setblocking(False)
            assert eventually(lambda: not foreign[-1].connect_ex("\0" + listener.name))
        theirs = connect(listener.name, TOKEN)
        assert eventually(lambda: TOKEN in listener._waiting)
        close(listener._waiting.pop(TOKEN)[1], theirs)
    finally:
        reactor.close()
        listener.close()
        close(foreign)


def test_another_user_is_sent_away_at_once(monkeypatch):
    monkeypatch.setattr(module, "same_user", lambda _: False)
    reactor = Reactor()
    listener = UnixListener(reactor)
    try:
        foreign = knock(listener)
        assert is_closed(foreign)
        close([foreign])
    finally:
        reactor.close()
        listener.close()
