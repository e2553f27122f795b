"""How long listeners accept, and what is made for those who say nothing."""

from __future__ import annotations

import gc
import socket
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest
from hypothesis import given, strategies as st

from transfer.transports.address import parse
from transfer.transports.connect.accept import MAX_SECONDS, MIN_SECONDS, FairShare, has_spoken, share_of
from transfer.transports.connect.connection import Owner
from transfer.transports.connect.establish import serve
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import HandshakeError
from transfer.transports.handshake.identity import make_hello
from transfer.transports.reactor import Reactor
from transfer.transports.tcp import TcpTransport
from transfer.transports.testing.ends import Side, close_all, until

MANY = 60


@given(st.lists(st.tuples(st.floats(0, 0.1), st.floats(0.00001, 0.003)), min_size=1, max_size=20))
def test_listeners_have_as_long_as_all_else_took(turns):
    now = 0.0
    share = FairShare(lambda: now)
    for others, each in turns:
        now += others
        begun = now
        share.begin()
        now += each
        while not share.is_over():
            now += each
        allowed = min(max(others, MIN_SECONDS), MAX_SECONDS)
        assert allowed - 1e-9 <= now - begun <= max(allowed, each) + each + 1e-9


def test_a_loop_has_one_share_for_all_its_listeners():
    """Two that count each other's time as that of others would both take ever more."""
    one, other = Reactor(), Reactor()
    assert share_of(one) is share_of(one) is not share_of(other)


def test_a_share_goes_with_its_loop():
    import weakref

    loop = Reactor()
    share = weakref.ref(share_of(loop))
    del loop
    gc.collect()
    assert share() is None


def test_what_a_first_look_finds():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        assert has_spoken(ours) is None
        theirs.sendall(b"ab")
        assert has_spoken(ours) is True and ours.recv(2) == b"ab"
        theirs.close()
        assert has_spoken(ours) is False
    assert has_spoken(ours) is False


@pytest.fixture
def made(monkeypatch):
    """Peers for whom a handshake was made."""
    peers = []
    exchange = Owner.exchange

    def making(self, reactor, connection, address, peer, *arguments, **options):
        peers.append(peer)
        return exchange(self, reactor, connection, address, peer, *arguments, **options)

    monkeypatch.setattr(Owner, "exchange", making)
    return peers


@contextmanager
def serving(reactor, timeout=30.0):
    """(side, acceptor, how to connect)"""
    side = Side()
    acceptor = serve(
        reactor, TcpTransport(), parse("tcp://127.0.0.1:*"),
        hello=lambda: make_hello(SocketType.PULL), on_connected=side.connected.append,
        on_failed=side.refused, handshake_timeout=timeout,
    )  # fmt: skip
    place = (acceptor.address.host, acceptor.address.port)
    try:
        yield side, acceptor, lambda: socket.create_connection(place, 20)
    finally:
        acceptor.close()
        close_all(side)


@contextmanager
def held(reactor):
    """Its thread does nothing meanwhile."""
    begun, over = threading.Event(), threading.Event()
    reactor.call_soon(lambda: (begun.set(), over.wait(20)))
    assert begun.wait(20)
    try:
        yield
    finally:
        over.set()


def test_a_handshake_is_made_at_the_first_byte(reactor, made):
    with serving(reactor) as (side, acceptor, connect), connect() as silent:
        until(lambda: len(acceptor._listener.unfinished) == 1, "the connection")
        assert made == [] and not side.failed
        silent.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        until(lambda: side.failed, "the end of a stranger")
    assert len(made) == 1 and side.failed[0].reason == "magic"


@pytest.mark.parametrize("before", [True, False], ids=["before it was accepted", "later"])
def test_nothing_is_made_for_who_has_gone(reactor, made, before):
    with serving(reactor) as (side, acceptor, connect):
        if before:
            with held(reactor):
                connect().close()
        else:
            with connect():
                until(lambda: acceptor._listener.unfinished, "the connection")
        until(lambda: side.failed, "the end")
        assert [error.reason for error in side.failed] == ["closed"] and not acceptor._listener.unfinished
    assert made == []


def test_the_time_of_a_silent_one_is_over(reactor, made):
    with serving(reactor, timeout=0.1) as (side, _, connect), connect() as silent:
        until(lambda: side.failed, "the end of its time")
        assert silent.recv(1) == b""
    assert made == [] and side.failed[0].reason == "timeout" and "handshake_ivl" in side.failed[0].hint


def test_a_silent_one_ends_with_its_listener(reactor):
    with serving(reactor) as (side, acceptor, connect), connect() as silent:
        until(lambda: acceptor._listener.unfinished, "the connection")
        acceptor.close()
        assert silent.recv(1) == b"" and not side.failed


def test_a_storm_is_accepted_without_a_pause(reactor, monkeypatch):
    """And all else has its turn meanwhile."""
    taken, seen, modified = [], [], []
    modify = reactor.modify

    def slow(self, reactor, connection, *arguments, **options):
        taken.append(None)
        time.sleep(0.001)
        raise HandshakeError("slow", "as the test wishes")

    def all_else():
        seen.append(len(taken))
        if len(taken) < MANY:
            reactor.call_soon(all_else)

    monkeypatch.setattr(Owner, "exchange", slow)
    monkeypatch.setattr(reactor, "modify", lambda fd, events: (modified.append(events), modify(fd, events)))
    with serving(reactor) as (side, _, connect), ExitStack() as stack:
        with held(reactor):
            for _ in range(MANY):
                stack.enter_context(connect()).sendall(b"x")
            reactor.call_soon(all_else)
        until(lambda: len(side.failed) == MANY, "all of them")
    assert modified == [], "the listener rested, and nothing else was to do"
    assert len(set(seen)) >= MANY // 25, "20 ms at most, and a millisecond each"
