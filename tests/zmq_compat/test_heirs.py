"""Sockets that were closed with something unsent: one thread sends for all, when their peers come."""

from __future__ import annotations

import os
import resource
import threading

import pytest

import transfer.zmq
from tests.ports import free_port

COUNT = 60


@pytest.fixture
def context():
    made = transfer.zmq.Context()
    yield made
    made.destroy(0)


def closed_with_something_unsent(context, endpoint, count=COUNT):
    for number in range(count):
        push = context.socket(transfer.zmq.PUSH)
        push.connect(endpoint)
        push.send(b"%d" % number)
        push.close()


def lingering():
    return [thread for thread in threading.enumerate() if thread.name == "zmq-linger"]


def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def test_all_is_delivered_when_the_peer_comes_and_nothing_stays(context):
    before = len(os.listdir("/proc/self/fd"))
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    closed_with_something_unsent(context, endpoint)
    assert len(lingering()) == 1
    pull = context.socket(transfer.zmq.PULL)
    pull.rcvtimeo = 20_000
    pull.bind(endpoint)
    assert {int(pull.recv()) for _ in range(COUNT)} == set(range(COUNT))
    pull.close()
    context.term()
    assert not lingering()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_the_thread_sleeps_while_nothing_happens(context):
    """It looked 20 times a second for each of them; now nothing wakes it but a peer or a deadline."""
    closed_with_something_unsent(context, f"tcp://127.0.0.1:{free_port()}")
    heirs, looks = context._heirs, []
    for debt in list(heirs._all):
        debt.look = lambda look=debt.look: looks.append(1) or look()
    assert not lingering()[0].join(1.0)
    assert len(looks) <= COUNT, "each is looked at once, when it was closed"


def test_each_linger_ends_by_itself(context):
    for linger in (100, 200, 300):
        push = context.socket(transfer.zmq.PUSH)
        push.connect(f"tcp://127.0.0.1:{free_port()}")
        push.send(b"lost")
        push.close(linger)
    (thread,) = lingering()
    thread.join(20)
    assert not thread.is_alive() and not context._heirs._all


def test_another_one_tries_when_the_one_that_tried_gave_up(context):
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    push = context.socket(transfer.zmq.PUSH)
    push.connect(endpoint)
    push.send(b"given up")
    push.close(300)
    closed_with_something_unsent(context, endpoint, 3)
    first = next(debt for debt in context._heirs._all if debt.tries)
    while first in context._heirs._all:
        lingering()[0].join(0.05)
    pull = context.socket(transfer.zmq.PULL)
    pull.rcvtimeo = 20_000
    pull.bind(endpoint)
    assert {pull.recv() for _ in range(3)} == {b"0", b"1", b"2"}


def test_term_waits_and_destroy_does_not(context):
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    closed_with_something_unsent(context, endpoint, 3)
    ending = threading.Thread(target=context.term, daemon=True)
    ending.start()
    ending.join(0.3)
    assert ending.is_alive()
    other = transfer.zmq.Context()
    pull = other.socket(transfer.zmq.PULL)
    pull.rcvtimeo = 20_000
    pull.bind(endpoint)
    assert {pull.recv() for _ in range(3)} == {b"0", b"1", b"2"}
    ending.join(20)
    assert not ending.is_alive()
    closed_with_something_unsent(other, f"tcp://127.0.0.1:{free_port()}", 3)
    other.destroy(0)
    assert not lingering()


@pytest.mark.slow
def test_a_thousand_of_them_cost_next_to_nothing(context):
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        closed_with_something_unsent(context, endpoint, 1000)
        assert len(lingering()) == 1
        pull = context.socket(transfer.zmq.PULL)
        pull.rcvtimeo = 60_000
        pull.bind(endpoint)
        assert {int(pull.recv()) for _ in range(1000)} == set(range(1000))
        pull.close()
        context.term()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
