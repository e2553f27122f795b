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
def door():
    made = UnixListener(NoReactor())
    yield made
    made.close()
    made.close()


def close(*pairs):
    for pair in pairs:
        for end in pair:
            end.close()


def knock(door, say=b"", descriptors=()):
    """A connection that greets in a way of its own."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect("\0" + door.name)
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


def test_who_has_the_token_comes_in(door):
    theirs = connect(door.name, TOKEN)
    ours = door.take(TOKEN)
    for here, there in zip(ours, theirs, strict=True):
        assert not here.get_inheritable() and not here.getblocking()
        here.send(b"a")
        assert there.recv(10) == b"a"
        there.send(b"b")
        assert here.recv(10) == b"b"
    assert ours[1].type == socket.SOCK_SEQPACKET
    close(ours, theirs)


def test_each_token_is_another_peer_and_good_once(door):
    tokens = [bytes([n]) * TOKEN_SIZE for n in range(5)]
    theirs = [connect(door.name, token) for token in tokens]
    for token, pair in reversed(list(zip(tokens, theirs, strict=True))):
        ours = door.take(token)
        ours[0].send(token)
        assert pair[0].recv(100) == token
        close(ours)
        with pytest.raises(Declined) as caught:
            door.take(token)
        assert caught.value.reason == "unreachable"
    close(*theirs)


def test_an_unknown_token_gets_nothing(door):
    theirs = connect(door.name, TOKEN)
    with pytest.raises(Declined):
        door.take(b"x" * TOKEN_SIZE)
    close(door.take(TOKEN), theirs)


def test_the_first_of_two_with_one_token_is_kept(door):
    first, second = connect(door.name, TOKEN), connect(door.name, TOKEN)
    ours = door.take(TOKEN)
    ours[0].send(b"a")
    assert first[0].recv(1) == b"a" and is_closed(second[0])
    close(ours, first, second)


def test_a_door_that_is_not_there():
    with pytest.raises(Declined) as caught:
        connect("transfer-nothing", TOKEN)
    assert caught.value.reason == "unreachable"


def test_bad_greetings_are_shut_out_and_leave_nothing(door):
    pair, stream = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET), socket.socketpair()
    reading, writing = (os.fdopen(fd, mode) for fd, mode in zip(os.pipe(), "rw", strict=True))
    bad = [
        knock(door, TOKEN),
        knock(door, TOKEN[:-1], pair[:1]),
        knock(door, TOKEN, pair),
        knock(door, TOKEN, stream[:1]),
        knock(door, TOKEN, [reading]),
        knock(door, b"GET / HTTP/1.1\r\n\r\n"),
    ]
    gone = knock(door)
    gone.close()
    theirs = connect(door.name, TOKEN)
    close(door.take(TOKEN), theirs)
    assert all(is_closed(each) for each in bad)
    close(pair, stream, bad, (reading, writing))


def test_who_is_still_about_to_greet_is_not_shut_out(door):
    """The door is looked at for one peer, while another is between its connect and its greeting."""
    late = knock(door)
    theirs = connect(door.name, TOKEN)
    close(door.take(TOKEN), theirs)
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    rights = array.array("i", [pair[0].fileno()])
    late.sendmsg([b"l" * TOKEN_SIZE], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    close(door.take(b"l" * TOKEN_SIZE), pair, [late])


def test_who_never_greets_is_shut_out_in_the_end(door, monkeypatch):
    monkeypatch.setattr(module, "_MOST_WAITING", 3)
    silent = [knock(door) for _ in range(5)]
    with pytest.raises(Declined):
        door.take(TOKEN)
    assert all(is_closed(each) for each in silent[:2])
    monkeypatch.setattr(module, "_PATIENCE", -1)
    with pytest.raises(Declined):
        door.take(TOKEN)
    assert all(is_closed(each) for each in silent[2:])
    close(silent)


def test_who_is_never_asked_for_is_dropped(door, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE", -1)
    theirs = connect(door.name, TOKEN)
    with pytest.raises(Declined):
        door.take(b"x" * TOKEN_SIZE)
    assert is_closed(theirs[0])
    close(theirs)


def test_another_user_is_refused_on_either_side(door, monkeypatch):
    theirs = connect(door.name, TOKEN)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(Declined):
        door.take(TOKEN)
    assert is_closed(theirs[0])
    close(theirs)
    with pytest.raises(Declined) as caught:
        connect(door.name, TOKEN)
    assert caught.value.reason == "other_user"


def test_a_full_door_means_another_way(door, monkeypatch):
    door._listener.listen(0)
    knocking = []
    with pytest.raises(Declined) as caught:
        for number in range(5):
            knocking.append(connect(door.name, bytes([number]) * TOKEN_SIZE))
    assert caught.value.reason == "unreachable" and knocking
    close(*knocking)


def test_a_closed_door_is_gone():
    door = UnixListener(NoReactor())
    theirs = connect(door.name, TOKEN)
    door.close()
    assert eventually(lambda: is_closed(theirs[0]))
    with pytest.raises(Declined):
        connect(door.name, TOKEN)
    close(theirs)


def test_who_is_not_waited_for_any_more_is_sent_away(door):
    """A peer that came in and was killed before the dialogue was over."""
    before = len(os.listdir("/proc/self/fd"))
    pair = connect(door.name, TOKEN)
    close(pair)
    door.forget(TOKEN)
    door.forget(TOKEN)
    assert not door._waiting and not door._silent
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(Declined):
        door.take(TOKEN)


def test_connections_that_nobody_asks_for_do_not_fill_the_backlog(monkeypatch):
    """The name stands in /proc/net/unix: whoever reads it can connect."""
    monkeypatch.setattr(module, "_BACKLOG", 4)
    reactor = Reactor()
    door = UnixListener(reactor)
    foreign = []
    try:
        for _ in range(30):
            foreign.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            foreign[-1].setblocking(False)
            assert eventually(lambda: not foreign[-1].connect_ex("\0" + door.name))
        theirs = connect(door.name, TOKEN)
        assert eventually(lambda: TOKEN in door._waiting)
        close(door._waiting.pop(TOKEN)[1], theirs)
    finally:
        reactor.close()
        door.close()
        close(foreign)


def test_another_user_is_sent_away_at_once(monkeypatch):
    monkeypatch.setattr(module, "same_user", lambda _: False)
    reactor = Reactor()
    door = UnixListener(reactor)
    try:
        foreign = knock(door)
        assert is_closed(foreign)
        close([foreign])
    finally:
        reactor.close()
        door.close()
