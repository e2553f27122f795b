"""A storm of connections at a port of the broker, and those who say nothing there."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from contextlib import ExitStack

import pytest

from transfer.broker.net.listener import LoopListener
from transfer.broker.net.tls_acceptor import TlsAcceptor
from transfer.transports.errors import SecurityError

MANY = 60


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def run(loop, done):
    """Turns of the loop until something has happened."""
    deadline = time.monotonic() + 20
    while not done():
        assert time.monotonic() < deadline, "it does not happen"
        loop.call_later(0.001, loop.stop)
        loop.run_forever()


def test_a_storm_is_accepted_without_a_pause(loop, monkeypatch):
    """And all else has its turn meanwhile."""
    taken, seen, rested = [], [], []

    def accepted(connection, peer):
        taken.append(connection)
        time.sleep(0.001)

    def all_else():
        seen.append(len(taken))
        loop.call_soon(all_else if len(taken) < MANY else loop.stop)

    listener = LoopListener(loop, "127.0.0.1", 0, accepted)
    remove = loop.remove_reader
    with ExitStack() as stack:
        for _ in range(MANY):
            stack.enter_context(socket.create_connection(("127.0.0.1", listener.port), 20))
        monkeypatch.setattr(loop, "remove_reader", lambda fd: (rested.append(fd), remove(fd)))
        loop.call_later(20, loop.stop)
        loop.call_soon(all_else)
        loop.run_forever()
        assert len(taken) == MANY
        assert rested == [], "it rested, and nothing else was to do"
        assert len(set(seen)) >= MANY // 25, "20 ms at most, and a millisecond each"
        for connection in taken:
            connection.close()
    listener.close()


@pytest.fixture
def entry(loop):
    """(entry, descriptors for which TLS was wanted): there is none to be had."""
    wanted = []

    def secure(fd):
        wanted.append(fd)
        raise SecurityError("there is no certificate")

    entry = TlsAcceptor(loop, secure, lambda *_: None, Counter(), patience=20, most=10)
    yield entry, wanted
    entry.close()


def test_tls_is_made_at_the_first_byte(loop, entry):
    entry, wanted = entry
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        entry.accepted(ours, "peer")
        run(loop, lambda: entry.unfinished == 1)
        assert wanted == []
        theirs.sendall(b"\x16")
        run(loop, lambda: not entry.unfinished)
        assert len(wanted) == 1 and ours.fileno() < 0 and not entry.refused


@pytest.mark.parametrize("said", [b"", b"\x16\3\1"], ids=["silent", "with a first byte"])
@pytest.mark.parametrize("before", [True, False], ids=["before it was accepted", "later"])
def test_no_tls_is_made_for_who_has_gone(loop, entry, before, said):
    entry, wanted = entry
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        if before:
            theirs.sendall(said)
            theirs.close()
            entry.accepted(ours, "peer")
            assert not entry.unfinished
        else:
            entry.accepted(ours, "peer")
            theirs.sendall(said)
            theirs.close()
            run(loop, lambda: not entry.unfinished)
        assert wanted == [] and ours.fileno() < 0 and entry.refused == {"closed": 1}
