"""The reactor: callbacks, timers, descriptors, failures, fork and close."""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import threading
import time

import pytest

import transfer.transports.reactor as reactor_module
from transfer.transports.errors import Closed, ForkedError, InternalError
from transfer.transports.reactor import EDGE, PEER_CLOSED, READABLE, WRITABLE, Reactor
from transfer.transports.testing.ends import until

SOON = 10.0  # no wait of a test is longer


@pytest.fixture
def ends():
    one, other = socket.socketpair()
    one.setblocking(False)
    other.setblocking(False)
    yield one, other
    one.close()
    other.close()


def settle(reactor: Reactor) -> None:
    """Returns when everything that was asked for before is done."""
    done = threading.Event()
    reactor.call_soon(done.set)
    assert done.wait(SOON)


def test_nothing_starts_before_it_is_needed():
    reactor = Reactor()
    before = threading.active_count()
    assert not reactor.running
    assert threading.active_count() == before
    reactor.close()
    reactor.close()


def test_calls_keep_their_order(reactor):
    seen: list[int] = []
    for number in range(100):
        reactor.call_soon(seen.append, number)
    settle(reactor)
    assert seen == list(range(100))


def test_calls_during_a_callback_cost_one_wake_up(reactor, monkeypatch):
    wakes: list[int] = []
    real = reactor_module._signal
    monkeypatch.setattr(reactor_module, "_signal", lambda fd: (wakes.append(fd), real(fd)))
    busy, go_on, seen = threading.Event(), threading.Event(), []
    reactor.call_soon(lambda: (busy.set(), go_on.wait(SOON)))
    assert busy.wait(SOON)
    wakes.clear()
    for number in range(100):
        reactor.call_soon(seen.append, number)
    reactor.call_later(0.001, seen.append, "later")
    assert len(wakes) == 1
    go_on.set()
    until(lambda: len(seen) == 101, "the calls")
    settle(reactor)  # and it can be woken again
    assert len(wakes) <= 3


def test_calls_from_many_threads(reactor):
    seen: list[int] = []
    threads = [
        threading.Thread(target=lambda: [reactor.call_soon(seen.append, 1) for _ in range(500)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    settle(reactor)
    assert len(seen) == 2000


def test_a_callback_that_goes_on_for_ever_does_not_starve_others(reactor):
    rounds = 0

    def again() -> None:
        nonlocal rounds
        rounds += 1
        if not done.is_set():
            reactor.call_soon(again)

    done = threading.Event()
    reactor.call_soon(again)
    reactor.call_later(0.01, done.set)
    assert done.wait(SOON)
    assert rounds > 1


def test_timers_come_in_their_order(reactor):
    seen: list[str] = []
    done = threading.Event()
    # Far enough apart that a busy machine asks for all of them before the second is due.
    reactor.call_later(0.6, done.set)
    reactor.call_later(0.5, seen.append, "second")
    reactor.call_later(0.0, seen.append, "first")
    reactor.call_later(0.1, seen.append, "never").cancel()
    assert done.wait(SOON)
    assert seen == ["first", "second"]


def test_cancelled_timers_do_not_pile_up(reactor):
    for _ in range(10_000):
        reactor.call_later(3600, settle).cancel()
    assert len(reactor._timers) < 1000
    done = threading.Event()
    reactor.call_later(0.0, done.set)
    assert done.wait(SOON)


def test_a_cancelled_timer_lets_go(reactor):
    class Heavy:
        def call(self) -> None: ...

    heavy = Heavy()
    timer = reactor.call_later(3600, heavy.call)
    timer.cancel()
    timer.cancel()
    assert timer.cancelled and timer._callback is None


def test_descriptors(reactor, ends):
    one, other = ends
    seen: list[bytes] = []
    got = threading.Event()

    def readable(events: int) -> None:
        assert events & READABLE and reactor.in_loop()
        seen.append(one.recv(100))
        got.set()

    reactor.register(one.fileno(), READABLE, readable)
    other.send(b"hello")
    assert got.wait(SOON) and seen == [b"hello"]
    assert reactor.unregister(one.fileno())
    assert not reactor.unregister(one.fileno())
    other.send(b"unseen")
    settle(reactor)
    assert seen == [b"hello"]


def test_modify_and_edges(reactor, ends):
    one, other = ends
    events: list[int] = []
    reactor.register(one.fileno(), READABLE | PEER_CLOSED | EDGE, events.append)
    other.send(b"1")
    while not events:
        settle(reactor)
    settle(reactor)
    assert len(events) == 1, "an edge is told once, although the byte was not read"
    reactor.modify(one.fileno(), WRITABLE | EDGE)
    while len(events) < 2:
        settle(reactor)
    assert events[1] & WRITABLE


def test_a_callback_of_the_same_round_may_remove_another(reactor, ends):
    one, other = ends
    calls: list[int] = []

    def first_of_both(_events: int) -> None:
        calls.append(1)
        reactor.unregister(one.fileno())
        reactor.unregister(other.fileno())

    def both() -> None:  # in the loop, so that one wait finds the two of them
        reactor.register(one.fileno(), WRITABLE, first_of_both)
        reactor.register(other.fileno(), WRITABLE, first_of_both)

    reactor.call_soon(both)
    while not calls:
        settle(reactor)
    settle(reactor)
    assert calls == [1]


@pytest.mark.raises_in_reactor
def test_a_failure_is_logged_and_the_loop_goes_on(reactor, caplog):
    def fail() -> None:
        raise ValueError("on purpose")

    with caplog.at_level(logging.ERROR, logger="transfer"):
        reactor.call_soon(fail)
        reactor.call_later(0.0, fail)
        settle(reactor)
        done = threading.Event()
        reactor.call_later(0.01, done.set)
        assert done.wait(SOON)
    assert [record.exc_info[0] for record in caplog.records] == [ValueError, ValueError]
    assert reactor.failures == 2
    assert reactor.running


def test_after_close(ends):
    reactor = Reactor()
    called: list[int] = []
    reactor.call_later(3600, called.append, 1)
    reactor.register(ends[0].fileno(), READABLE, called.append)
    assert reactor.running
    reactor.close()
    reactor.close()
    assert reactor.closed and not reactor.running
    with pytest.raises(Closed):
        reactor.call_soon(print)
    with pytest.raises(Closed):
        reactor.call_later(0, print)
    with pytest.raises(Closed):
        reactor.register(ends[0].fileno(), READABLE, print)
    assert not reactor.unregister(ends[0].fileno())
    assert not called


def test_close_in_a_callback():
    reactor = Reactor()
    reactor.call_soon(reactor.close)
    thread = reactor._thread
    thread.join(SOON)
    assert not thread.is_alive()
    reactor.close()


@pytest.mark.parametrize("ask", ["call_later", "register", "modify"])
def test_a_callback_that_asks_something_of_a_loop_that_ends_has_not_failed(caplog, ends, ask):
    """Another thread closes the reactor while it runs, so no callback can know that before."""
    reactor = Reactor()
    begun, closed = threading.Event(), threading.Event()
    of = {"call_later": (0, print)}.get(ask, (ends[0].fileno(), READABLE))

    def late():
        begun.set()
        assert closed.wait(SOON)
        getattr(reactor, ask)(*of, *((print,) if ask == "register" else ()))

    reactor.call_later(0, late)
    assert begun.wait(SOON)
    closing = threading.Thread(target=reactor.close)
    closing.start()
    try:
        until(lambda: reactor.closed, "the end to begin")
    finally:
        closed.set()
        closing.join(SOON)
    assert not closing.is_alive()
    assert not reactor.failures and not caplog.records


@pytest.mark.raises_in_reactor
def test_another_error_of_a_callback_is_logged_at_the_end_too(caplog):
    reactor = Reactor()

    def fail():
        reactor.close()
        raise ValueError("on purpose")

    reactor.call_soon(fail)
    reactor._thread.join(SOON)
    assert reactor.failures == 1 and len(caplog.records) == 1


def test_close_tells_about_a_callback_that_blocks():
    reactor = Reactor()
    begun, go_on = threading.Event(), threading.Event()
    reactor.call_soon(lambda: (begun.set(), go_on.wait(SOON)))
    assert begun.wait(SOON)
    with pytest.raises(InternalError, match="blocks"):
        reactor.close(timeout=0.01)
    go_on.set()
    reactor.close()


def test_in_a_forked_child(ends):
    reactor = Reactor()
    one, other = ends
    got = threading.Event()
    reactor.register(one.fileno(), READABLE, lambda _events: (one.recv(10), got.set()))
    timer = reactor.call_later(3600, print)
    reactor._lock.acquire()  # as it may be held by the reactor's thread at this moment
    child = os.fork()
    if child:
        reactor._lock.release()
    else:  # nothing of pytest may run here
        signal.alarm(20)
        code = 1
        try:
            timer.cancel()
            for call in (reactor.call_soon, lambda f: reactor.register(1, READABLE, f)):
                with pytest.raises(ForkedError, match="spawn"):
                    call(print)
            reactor.unregister(one.fileno())
            reactor.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    other.send(b"x")
    assert got.wait(SOON), "the child took something from the parent's set"
    reactor.close()


def test_what_is_dropped_at_the_end_is_told():
    reactor = Reactor()
    told = []

    def end():
        reactor.call_soon(told.append, "run", otherwise=lambda: told.append("dropped"))
        reactor.call_soon(told.append, "run")
        reactor.close()

    reactor.call_soon(told.append, "before", otherwise=lambda: told.append("never"))
    reactor.call_soon(end)
    until(lambda: not reactor.running, "the end")
    assert told == ["before", "dropped"]


def test_a_registration_during_the_sleep_where_epoll_was_taken_away(monkeypatch):
    """As gevent does, after this package was imported: poll(2) has to begin again."""
    monkeypatch.delattr(select, "epoll")
    reactor = Reactor()
    read, write = os.pipe()
    called = threading.Event()
    try:
        reactor.call_soon(lambda: None)  # it sleeps then
        time.sleep(0.05)
        reactor.register(read, READABLE, lambda _events: (os.read(read, 1), called.set()))
        time.sleep(0.05)
        os.write(write, b"x")
        assert called.wait(10)
    finally:
        reactor.close()
        os.close(read)
        os.close(write)
