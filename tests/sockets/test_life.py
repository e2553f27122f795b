"""The life of a socket: what it costs to make, connect and close one, with the compiled core."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager

import pytest

import transfer
from tests.sockets.conftest import KeepingContext, core_module
from tests.sockets.helpers import Thread, eventually

MANY = 20


@pytest.fixture
def context():
    with KeepingContext(core=core_module("native"), protocol="tcp") as made:
        yield made


@contextmanager
def reactor_busy(context):
    """Meanwhile the reactor runs nothing: no connection begins."""
    busy, go_on = threading.Event(), threading.Event()
    context.start()
    context.reactor.call_soon(lambda: (busy.set(), go_on.wait(20)))
    assert busy.wait(10)
    try:
        yield
    finally:
        go_on.set()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("kind", list(transfer.SocketType))
def test_a_socket_that_only_exists_holds_no_descriptor(context, kind):
    before = descriptors()
    made = [context.socket(kind) for _ in range(MANY)]
    assert descriptors() == before
    for socket in made:
        socket.close()
    assert descriptors() == before


def test_a_sender_holds_its_connections_alone(context):
    with context.socket(transfer.PULL, rcvtimeo=10_000) as pull:
        pull.bind("tcp://127.0.0.1:0")
        senders = [context.socket(transfer.PUSH, linger=0) for _ in range(MANY + 1)]
        senders[0].connect(pull.last_endpoint)
        senders[0].send(b"the threads and descriptors of the context are there")
        assert pull.recv()
        pull.fileno()
        before = descriptors()
        for socket in senders[1:]:
            socket.connect(pull.last_endpoint)
        for socket in senders[1:]:
            socket.wait_for_peers(1, 10)
            socket.send(b"x")
        for _ in range(MANY):
            pull.recv()
        # Both ends of the connections. A thread that waited in `send` for the first peer took an event.
        assert descriptors() == before + 2 * MANY


def test_a_receiver_that_sleeps_holds_two(context):
    """The epoll set, and the event that wakes its thread."""
    pull = context.socket(transfer.PULL)
    before = descriptors()
    thread = Thread(pull.recv)
    assert eventually(lambda: descriptors() == before + 2)
    pull.close()
    with pytest.raises(transfer.Closed):
        thread.finish()
    assert descriptors() == before


@pytest.mark.parametrize("immediate", [True, False])
def test_a_socket_that_is_closed_before_it_connects_leaves_nothing(context, immediate):
    pull = context.socket(transfer.PULL, rcvtimeo=0)
    pull.bind("tcp://127.0.0.1:0")
    context.start()
    timers, before = len(context.reactor._timers), descriptors()
    with reactor_busy(context):
        for _ in range(MANY):
            with context.socket(transfer.PUSH, linger=0, immediate=immediate) as push:
                push.connect(pull.last_endpoint)
        assert descriptors() == before
        assert len(context.reactor._timers) == timers
    assert eventually(lambda: not context.reactor._ready)
    with context.socket(transfer.PUSH, linger=0) as push:  # and the next one does connect
        push.connect(pull.last_endpoint)
        push.wait_for_peers(1, 10)
        assert pull._links.state.counts["connected"] == 1


def test_a_message_is_queued_before_the_reactor_begins(context):
    first, second = (context.socket(transfer.PULL, rcvtimeo=10_000) for _ in range(2))
    push = context.socket(transfer.PUSH, immediate=False, sndtimeo=0)
    with reactor_busy(context):
        for pull in (first, second):
            pull.bind("tcp://127.0.0.1:0")
            push.connect(pull.last_endpoint)
        for number in range(4):
            push.send(b"%d" % number)
    assert [first.recv(), first.recv()] == [b"0", b"2"]
    assert [second.recv(), second.recv()] == [b"1", b"3"]


def test_an_endpoint_that_comes_later_has_its_turn_at_once(context):
    first, second = (context.socket(transfer.PULL, rcvtimeo=10_000) for _ in range(2))
    for pull in (first, second):
        pull.bind("tcp://127.0.0.1:0")
    push = context.socket(transfer.PUSH, immediate=False, sndtimeo=0)
    push.connect(first.last_endpoint)
    push.wait_for_peers(1, 10)
    with reactor_busy(context):
        push.connect(second.last_endpoint)
        push.send(b"0")
        push.send(b"1")
    assert sorted((first.recv(), second.recv())) == [b"0", b"1"]


def test_there_is_room_before_the_reactor_begins(context):
    push = context.socket(transfer.PUSH, immediate=False)
    assert not push.poll(0, transfer.POLLOUT)
    assert not push.has_peers
    with reactor_busy(context):
        push.connect("tcp://127.0.0.1:9")
        assert push.poll(0, transfer.POLLOUT) == transfer.POLLOUT
        assert push.has_peers
    push.close(0)


def test_a_monitor_that_comes_after_connect_hears_of_the_connection(context):
    pull, push = context.socket(transfer.PULL), context.socket(transfer.PUSH)
    with reactor_busy(context):
        pull.bind("tcp://127.0.0.1:0")
        push.connect(pull.last_endpoint)
        monitor = push.get_monitor()
    push.wait_for_peers(1, 10)
    assert monitor.recv(10).kind.value in ("connect_delayed", "connected")


def test_an_option_that_changes_after_connect_is_for_the_next_one(context):
    push = context.socket(transfer.PUSH, reconnect_ivl=20, linger=0)
    with reactor_busy(context):
        push.connect("tcp://127.0.0.1:9")
        push.reconnect_ivl = 5000
    connector = push._links.state.endpoints[0].connector
    assert eventually(lambda: connector.state != "waiting" or connector._attempt)
    assert connector._options.reconnect_first == 0.02


def test_the_checks_of_peers_begin_with_the_first_one(context):
    pull, push = context.socket(transfer.PULL), context.socket(transfer.PUSH)
    pull.bind("tcp://127.0.0.1:0")
    assert "heartbeat" not in pull._links.state.timers
    push.connect(pull.last_endpoint)
    pull.wait_for_peers(1, 10)
    assert eventually(
        lambda: {"heartbeat"} <= pull._links.state.timers.keys() & push._links.state.timers.keys()
    )
