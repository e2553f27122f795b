"""poll, Poller, threads, callbacks, monitors."""

from __future__ import annotations

import os
import select
import signal
import socket as sockets
import threading
import time

import pytest

import transfer
from transfer import DEALER, PAIR, POLLERR, POLLIN, POLLOUT, PUB, PULL, PUSH, REP, REQ, SUB, Poller
from transfer.transports.errors import Again, Closed, NotSupported

from .helpers import TCP, Thread, eventually, pair_of
from .processes import Program


def test_poll_tells_what_holds(context, endpoint):
    one, other = pair_of(context, PAIR, PAIR, endpoint)
    assert one.poll(0) == 0
    assert one.poll(0, POLLIN | POLLOUT) == POLLOUT
    other.send(b"x")
    assert one.poll(10_000) == POLLIN
    assert one.events == POLLIN | POLLOUT
    assert one.recv() == b"x"
    assert one.poll(20) == 0


def test_poll_of_lock_step_sockets(context):
    rep, req = pair_of(context, REP, REQ)
    assert req.poll(0, POLLIN | POLLOUT) == POLLOUT
    assert rep.poll(0, POLLIN | POLLOUT) == 0
    req.send(b"x")
    assert req.poll(0, POLLIN | POLLOUT) == 0
    assert rep.poll(10_000, POLLIN | POLLOUT) == POLLIN
    rep.recv()
    assert rep.poll(0, POLLIN | POLLOUT) == POLLOUT
    rep.send(b"y")
    assert req.poll(10_000) == POLLIN


def test_poll_waits_for_room(context):
    pull, push = pair_of(context, PULL, PUSH, sndhwm=4, sndbuf=4096, rcvbuf=4096)
    payload = b"x" * 100_000
    with pytest.raises(Again):
        while True:
            push.send(payload, transfer.DONTWAIT)
    assert push.poll(20, POLLOUT) == 0
    reader = Thread(lambda: [pull.recv() for _ in range(4)])
    assert push.poll(10_000, POLLOUT) == POLLOUT
    reader.finish()


def test_a_refused_message_is_polled_for_by_its_size(by_tcp):
    """There is room for small ones: a program that polls and sends would spin."""
    pull, push = pair_of(
        by_tcp, PULL, PUSH, sndhwm=0, sndhwm_bytes=1 << 20, sndbuf=4096, rcvbuf=4096, bound_options={}
    )
    large = bytes(700_000)
    with pytest.raises(Again):
        while True:
            push.send(large, transfer.DONTWAIT)
    assert push.poll(20, POLLOUT) == 0
    reader = Thread(lambda: pull.recv())
    assert push.poll(10_000, POLLOUT) == POLLOUT
    push.send(large, transfer.DONTWAIT)
    reader.finish()


def test_a_poller_watches_sockets_and_descriptors(context):
    one, other = pair_of(context, PULL, PUSH)
    left, right = sockets.socketpair()
    with left, right:
        poller = Poller()
        poller.register(one, POLLIN)
        poller.register(left, POLLIN)
        poller.register(right.fileno(), POLLOUT)
        assert poller.poll(10_000) == [(right.fileno(), POLLOUT)]
        poller.unregister(right.fileno())
        assert poller.poll(20) == []
        right.sendall(b"x")
        assert poller.poll(10_000) == [(left, POLLIN)]
        other.send(b"x")
        assert eventually(lambda: sorted(map(str, poller.poll(0))) == sorted(map(str, [(one, 1), (left, 1)])))
        poller.modify(left, 0)
        assert left not in poller
        assert dict(poller.poll(10_000)) == {one: POLLIN}


def test_a_poller_sees_that_another_thread_closes_its_only_descriptor():
    """The system does not wake those who poll it."""
    fd = os.eventfd(0)
    poller = Poller()
    poller.register(fd, POLLIN)
    found = []
    reader = Thread(lambda: found.append(poller.poll()))
    time.sleep(0.1)  # it sleeps by now, most likely
    os.close(fd)
    reader.finish()
    assert found == [[(fd, POLLERR)]]


def test_a_poller_wakes_for_a_message_that_comes_later(context):
    pulls = [context.socket(PULL) for _ in range(3)]
    pushes = [context.socket(PUSH) for _ in range(3)]
    poller = Poller()
    for pull, push in zip(pulls, pushes, strict=True):
        pull.bind(TCP)
        push.connect(pull.last_endpoint)
        push.wait_for_peers(1, 10)
        poller.register(pull, POLLIN)
    polling = Thread(poller.poll, 10_000)
    time.sleep(0.05)
    pushes[1].send(b"x")
    assert polling.finish() == [(pulls[1], POLLIN)]


def test_the_descriptor_wakes_another_loop(context):
    pull, push = pair_of(context, PULL, PUSH)
    fd = pull.fd
    for _ in range(50):
        push.send(b"x")
        push.send(b"y")
        assert select.select([fd], [], [], 10)[0]
        got = 0
        while got < 2:
            while pull.events & POLLIN:
                pull.recv(transfer.DONTWAIT)
                got += 1
            if got < 2:
                assert select.select([fd], [], [], 10)[0]


def test_many_threads_send_and_frames_do_not_mix(context):
    pull, push = pair_of(context, PULL, PUSH)

    def produce(name):
        for i in range(200):
            push.send_multipart([name, b"%d" % i, name * 50])

    threads = [Thread(produce, b"%d" % n) for n in range(6)]
    seen = {b"%d" % n: 0 for n in range(6)}
    for _ in range(1200):
        name, number, text = pull.recv_multipart()
        assert number == b"%d" % seen[name]
        assert text == name * 50
        seen[name] += 1
    for thread in threads:
        thread.finish()


def test_parts_of_several_threads_do_not_mix(context):
    pull, push = pair_of(context, PULL, PUSH)

    def produce(name):
        for _ in range(100):
            push.send(name, transfer.SNDMORE)
            push.send(name, transfer.SNDMORE)
            push.send(name)

    threads = [Thread(produce, b"%d" % n) for n in range(4)]
    for _ in range(400):
        parts = pull.recv_multipart()
        assert len(parts) == 3
        assert len(set(parts)) == 1
    for thread in threads:
        thread.finish()


def test_several_threads_receive_each_message_once(context):
    pull, push = pair_of(context, PULL, PUSH)
    got = []

    def consume():
        try:
            while True:
                got.append(pull.recv())
        except Closed:
            return

    threads = [Thread(consume) for _ in range(4)]
    for i in range(500):
        push.send(b"%d" % i)
    assert eventually(lambda: len(got) == 500)
    pull.close()
    for thread in threads:
        thread.finish()
    assert sorted(got) == sorted(b"%d" % i for i in range(500))
    assert sorted(got) == sorted(b"%d" % i for i in range(500))


def test_a_callback_gets_every_message_in_order(context):
    pull, push = pair_of(context, PULL, PUSH)
    got, threads = [], set()

    def take(parts):
        got.append(parts)
        threads.add(threading.current_thread())

    pull.set_callback(take)
    for i in range(100):
        push.send_multipart([b"%d" % i, b"x"])
    assert eventually(lambda: len(got) == 100)
    assert got == [[b"%d" % i, b"x"] for i in range(100)]
    assert threads.isdisjoint({threading.current_thread()})
    pull.set_callback(None)
    push.send(b"mine")
    assert pull.recv() == b"mine"


def test_a_callback_may_answer_and_may_fail(context, caplog):
    rep, req = pair_of(context, REP, REQ)
    monitor = rep.get_monitor()

    def answer(parts):
        rep.send(parts[0] * 2)
        if parts[0] == b"bad":
            raise ValueError("on purpose")

    rep.set_callback(answer)
    for question in (b"a", b"bad", b"c"):
        req.send(question)
        assert req.recv() == question * 2
    assert "on purpose" in caplog.text
    assert monitor.recv(10).kind == "callback_failed"
    rep.close()


def test_only_receivers_have_callbacks(context):
    with pytest.raises(NotSupported):
        context.socket(PUB).set_callback(print)


def test_the_monitor_tells_the_story_of_a_connection(context):
    pull = context.socket(PULL)
    monitor = pull.get_monitor()
    pull.bind(TCP)
    push = context.socket(PUSH)
    push.connect(pull.last_endpoint)
    push.wait_for_peers(1, 10)
    push.send(b"x")
    pull.recv()
    push.close()
    assert pull.poll(300) == 0
    pull.close()
    events = list(monitor)
    assert [event.kind for event in events] == ["listening", "connected", "disconnected", "closed"]
    assert events[1].endpoint == events[0].endpoint
    assert events[1].peer == events[2].peer
    with pytest.raises(Closed):
        monitor.recv()


def test_a_monitor_may_be_closed_before_its_socket(context):
    dealer = context.socket(DEALER)
    with dealer.get_monitor() as monitor:
        with pytest.raises(Again):
            monitor.recv(0.01)
    dealer.bind(TCP)
    with pytest.raises(Closed):
        monitor.recv(1)
    assert dealer._links.state.monitors == []


def test_wait_for_peers_says_what_it_waits_for(context):
    sub = context.socket(SUB)
    sub.bind(TCP)
    with pytest.raises(Again, match=r"0 of 2 peers after 0\.1 s: no peer has connected"):
        sub.wait_for_peers(2, 0.1)


def test_strings_and_json_and_into(context):
    pull, push = pair_of(context, PULL, PUSH)
    push.send_string("grüße")
    assert pull.recv_string() == "grüße"
    push.send_json({"a": [1, 2]})
    assert pull.recv_json() == {"a": [1, 2]}
    target = bytearray(3)
    push.send(b"abcdef")
    assert pull.recv_into(target) == 6
    assert target == b"abc"


def test_importing_starts_nothing():
    source = """
        import sys, threading, transfer
        core = "transfer.transports.core.native"
        print(threading.active_count(), "numpy" in sys.modules, core in sys.modules)
    """
    with Program(source) as program:
        assert program.line() == "1 False False"
        assert program.finish()[0] == 0


def test_a_full_inproc_peer_takes_nothing(context):
    pull, push = pair_of(context, PULL, PUSH, "inproc://full", sndhwm=2)
    assert push.poll(0, POLLOUT) == POLLOUT
    push.send(b"1")
    push.send(b"2")
    assert push.poll(0, POLLOUT) == 0
    assert push.events & POLLOUT == 0
    waiting = Thread(push.poll, 20_000, POLLOUT)
    assert pull.recv() == b"1"
    assert waiting.finish() == POLLOUT
    push.send(b"3", transfer.DONTWAIT)


def test_spinning_ends_with_the_time_out(context):
    pull = context.socket(PULL, spin_us=600_000_000, rcvtimeo=100)
    pull.bind(TCP)
    with pytest.raises(Again):
        pull.recv()


def test_a_signal_is_handled_while_it_spins(context):
    pull = context.socket(PULL, spin_us=600_000_000)
    pull.bind(TCP)

    class Rung(Exception):
        pass

    def ring(*_):
        raise Rung

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Rung):
            pull.recv()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
