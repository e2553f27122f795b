"""Sockets that were closed with something unsent: one thread sends for all, when their peers come."""

from __future__ import annotations

import os
import resource
import threading
from textwrap import dedent

import pytest

import transfer.zmq
from tests.ports import free_port
from tests.sockets.processes import Program
from transfer.transports.connect.connector import SocketConnector

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
    linger, looks = context._transfer_lingering, []
    for pending in list(linger._all):
        pending.check = lambda check=pending.check: looks.append(1) or check()
    assert not lingering()[0].join(1.0)
    assert len(looks) <= COUNT, "each is looked at once, when it was closed"


def test_few_try_to_connect_and_one_warns(context, monkeypatch, caplog):
    """Of a thousand that are alike each tried once in two minutes, and each warned."""
    begun = []
    begin = SocketConnector._begin
    monkeypatch.setattr(SocketConnector, "_begin", lambda self: begun.append(self) or begin(self))
    monkeypatch.setattr(transfer.zmq.Socket, "_long_wait", 1000.0)
    closed_with_something_unsent(context, f"tcp://127.0.0.1:{free_port()}", 300)
    lingering()[0].join(2.0)
    begun.clear()
    lingering()[0].join(3.0)
    assert len(begun) < 30, "20 a second by the one, and five a second by the others"
    assert len([line for line in caplog.messages if "PUSH waits" in line]) == 1


def test_one_of_another_type_tries_by_itself(context):
    """The one that tries may be refused where this one is not."""
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    closed_with_something_unsent(context, endpoint, 2)
    request = context.socket(transfer.zmq.REQ)
    request.connect(endpoint)
    request.send(b"a question")
    request.close()
    reply = context.socket(transfer.zmq.REP)
    reply.rcvtimeo = 20_000
    reply.bind(endpoint)
    assert reply.recv() == b"a question"
    reply.close()


def test_each_linger_ends_by_itself(context):
    for linger in (100, 200, 300):
        push = context.socket(transfer.zmq.PUSH)
        push.connect(f"tcp://127.0.0.1:{free_port()}")
        push.send(b"lost")
        push.close(linger)
    (thread,) = lingering()
    thread.join(20)
    assert not thread.is_alive() and not context._transfer_lingering._all


def test_another_one_tries_when_the_one_that_tried_gave_up(context):
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    push = context.socket(transfer.zmq.PUSH)
    push.connect(endpoint)
    push.send(b"given up")
    push.close(300)
    closed_with_something_unsent(context, endpoint, 3)
    first = next(pending for pending in context._transfer_lingering._all if pending.tries)
    while first in context._transfer_lingering._all:
        lingering()[0].join(0.05)
    pull = context.socket(transfer.zmq.PULL)
    pull.rcvtimeo = 20_000
    pull.bind(endpoint)
    assert {pull.recv() for _ in range(3)} == {b"0", b"1", b"2"}
    pull.close()


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


def test_what_the_linger_does_not_suffice_for_is_counted(context):
    push = context.socket(transfer.zmq.PUSH)
    push.connect(f"tcp://127.0.0.1:{free_port()}")
    for _ in range(7):
        push.send(b"lost")
    push.close(100)
    lingering()[0].join(20)
    assert context.tally.ended()[("transfer_drops_total", ("PUSH", "unsent"))] == 7


_PARENT = """
    import os, sys, threading, warnings
    import transfer.zmq as zmq

    warnings.simplefilter("ignore")  # of Python: fork and threads
    context = zmq.Context()
    for number in range(5):
        push = context.socket(zmq.PUSH)
        push.connect(sys.argv[1])
        push.send(b"%d" % number)
        push.close()
"""

_FORKS = """
    for _ in range(5):
        child = os.fork()
        if not child:
            context.term()  # of the parent's there is nothing to wait for
            own = zmq.Context()
            pull, push = own.socket(zmq.PULL), own.socket(zmq.PUSH)
            push.connect(f"tcp://127.0.0.1:{pull.bind_to_random_port('tcp://127.0.0.1')}")
            push.send(b"own")
            push.close()
            assert pull.recv() == b"own"
            pull.close()
            own.term()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
    print("forked", flush=True)
    context.term()
"""


@pytest.mark.parametrize("core", ["pure", "native"])
def test_children_of_fork_neither_wait_for_what_is_left_nor_send_it(context, core):
    port = free_port()
    with Program(dedent(_PARENT) + dedent(_FORKS), f"tcp://127.0.0.1:{port}", core=core) as program:
        assert program.line() == "forked"
        pull = context.socket(transfer.zmq.PULL)
        pull.rcvtimeo = 20_000
        pull.bind(f"tcp://127.0.0.1:{port}")
        assert sorted(int(pull.recv()) for _ in range(5)) == list(range(5))
        assert program.finish() == (0, "", "")
        assert not pull.poll(100), "something came twice"
        pull.close()


def test_the_interpreter_ends_while_sockets_linger():
    with Program(_PARENT, f"tcp://127.0.0.1:{free_port()}", TRANSFER_EXIT_LINGER="0.1") as program:
        assert program.finish() == (0, "", "")


_INTERRUPTED = """
    import signal
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        context.term()
    except KeyboardInterrupt:
        assert not context.closed
        context.destroy(0)
        print(context.closed, "zmq-linger" in {thread.name for thread in threading.enumerate()}, flush=True)
"""


def test_term_that_was_interrupted_can_be_called_again():
    source = dedent(_PARENT) + dedent(_INTERRUPTED)
    with Program(source, f"tcp://127.0.0.1:{free_port()}") as program:
        assert program.finish() == (0, "True False\n", "")


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
