"""Processes that are killed with SIGKILL, or stopped, while others wait for them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.faults.raw_peer import next_event, pending_events
from tests.sockets.helpers import TCP, Thread, eventually
from tests.sockets.processes import Program
from transfer import DEALER, PUB, PULL, PUSH, REP, REQ, ROUTER, SUB
from transfer.transports.errors import Again, Broken, ProtocolError


def name_of(context):
    return context.core.__name__.rpartition(".")[2]


def kill(program):
    os.kill(program.process.pid, signal.SIGKILL)
    assert program.process.wait(10) == -signal.SIGKILL


COUNTER = """
    import os, sys, transfer
    # Every received message is one byte of a file, which outlives us.
    book = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    pull = transfer.Context().socket(transfer.PULL, rcvbuf=65536)
    pull.connect(sys.argv[1])
    print("up", flush=True)
    while True:
        pull.recv()
        os.write(book, b".")
"""


@pytest.mark.parametrize("size", [64, 100_000])
def test_a_pull_killed_under_load_costs_what_is_told(context, tmp_path, size):
    """sent <= received + unconfirmed, where what still waits for a peer has not been sent to one."""
    push = context.socket(PUSH, sndbuf=65536, sndtimeo=200)
    push.bind(TCP)
    monitor = push.get_monitor()
    books = [tmp_path / "one", tmp_path / "other"]
    programs = [Program(COUNTER, push.last_endpoint, book, core=name_of(context)) for book in books]
    with programs[0] as victim, programs[1] as survivor:
        assert victim.line() == survivor.line() == "up"
        push.wait_for_peers(2, 20)
        taken = 0
        while not (books[0].exists() and books[0].stat().st_size >= 20):
            push.send(bytes(size))
            taken += 1
        kill(victim)
        for _ in range(200):
            push.send(bytes(size))
            taken += 1
        assert next_event(monitor, "disconnected").error is not None
        # The other one gets all that was not yet given to the kernel for the first.
        assert eventually(
            lambda: not push._links.orphans.messages and all(p.queued == 0 for p in push.peers())
        )
        lost = push._links.state.counts.get("unconfirmed", 0)
        assert eventually(lambda: sum(b.stat().st_size for b in books) >= taken - lost)
        received = sum(book.stat().st_size for book in books)
        assert taken <= received + lost
        assert received <= taken
        events = [event for event in pending_events(monitor) if event.kind == "unconfirmed"]
        assert sum(event.count for event in events) <= lost
        kill(survivor)


SENDER = """
    import sys, transfer
    push = transfer.Context().socket(transfer.PUSH)
    push.connect(sys.argv[1])
    push.send(b"small")
    push.send(bytes(64 << 20))
    sys.stdin.readline()
"""


def all_stopped(pid):
    """A stop is asked for at once and comes when each thread has been scheduled."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)


def test_a_sender_killed_inside_a_frame(context):
    """The half of a message is never seen, and the next sender is served."""
    pull = context.socket(PULL, rcvbuf=65536, rcvtimeo=10_000)
    pull.bind(TCP)
    monitor = pull.get_monitor()
    in_use = context.pool.in_use
    with Program(SENDER, pull.last_endpoint, core=name_of(context)) as program:
        assert pull.recv() == b"small"

        def half_is_here():
            # Stopped, or all of it could come while we look: a look reads what there is.
            os.kill(program.process.pid, signal.SIGSTOP)
            assert eventually(lambda: all_stopped(program.process.pid))
            assert pull.poll(50) == 0
            if context.pool.in_use > in_use:
                return True
            os.kill(program.process.pid, signal.SIGCONT)
            return False

        assert eventually(half_is_here)
        kill(program)
    waiting = Thread(pull.recv)
    push = context.socket(PUSH)
    push.connect(pull.last_endpoint)
    push.send(b"good")
    assert waiting.finish() == b"good"
    error = next_event(monitor, "disconnected").error
    assert isinstance(error, Broken | ProtocolError)
    del error
    assert eventually(lambda: context.pool.in_use == in_use)
    assert eventually(lambda: len(pull.peers()) == 1)


SUBSCRIBER = """
    import sys, transfer
    sub = transfer.Context().socket(transfer.SUB, rcvbuf=65536)
    sub.subscribe(b"")
    sub.connect(sys.argv[1])
    sub.recv()
    print("got one", flush=True)
    sys.stdin.readline()
"""


def test_a_subscriber_killed_while_others_listen(context):
    """PUB never waits; the others miss nothing, the dead one is forgotten."""
    pub = context.socket(PUB, sndbuf=65536)
    pub.bind(TCP)
    sub = context.socket(SUB, rcvtimeo=10_000)
    sub.subscribe(b"")
    sub.connect(pub.last_endpoint)
    with Program(SUBSCRIBER, pub.last_endpoint, core=name_of(context)) as program:
        pub.wait_for_peers(2, 20)
        reading = Thread(lambda: [sub.recv() for _ in range(600)])
        for i in range(300):
            pub.send(b"%d" % i * 100)
        assert program.line() == "got one"
        kill(program)
        for i in range(300, 600):
            pub.send(b"%d" % i * 100)
        assert reading.finish() == [b"%d" % i * 100 for i in range(600)]
    assert eventually(lambda: len(pub.peers()) == 1)


SERVER = """
    import sys, transfer
    rep = transfer.Context().socket(transfer.REP)
    rep.bind(sys.argv[1])
    print(rep.last_endpoint, flush=True)
    while True:
        request = rep.recv()
        if request == b"stall":
            print("stalling", flush=True)
            sys.stdin.readline()
        rep.send(b"from " + sys.argv[2].encode() + b": " + request)
"""


def test_a_server_killed_and_started_again_is_a_new_peer(context):
    """New epoch: the old connection is torn down, its request fails, the survivor goes on."""
    req = context.socket(REQ, reconnect_ivl=10, rcvtimeo=20_000)
    with Program(SERVER, TCP, "first", core=name_of(context)) as first:
        endpoint = first.line()
        req.connect(endpoint)
        req.send(b"1")
        assert req.recv() == b"from first: 1"
        (old,) = req._links.state.peers.values()
        req.send(b"stall")
        assert first.line() == "stalling"
        kill(first)
        with pytest.raises(Broken) as caught:
            req.recv()
        assert "hint" in str(caught.value)
    with Program(SERVER, endpoint, "second", core=name_of(context)) as second:
        assert second.line() == endpoint
        req.wait_for_peers(1, 20)
        (new,) = req._links.state.peers.values()
        assert new.agreement.remote.epoch != old.agreement.remote.epoch
        req.send(b"2")
        assert req.recv() == b"from second: 2"
        kill(second)
    assert eventually(lambda: req.poll(0) or not req.peers())


NAMED = """
    import sys, transfer
    dealer = transfer.Context().socket(transfer.DEALER, routing_id=b"worker")
    dealer.connect(sys.argv[1])
    dealer.send(sys.argv[2].encode())
    print(dealer.recv().decode(), flush=True)
    sys.stdin.readline()
"""


def test_a_worker_killed_and_started_again_under_its_name(context):
    router = context.socket(ROUTER, rcvtimeo=20_000)
    router.bind(TCP)
    for life in (b"first", b"second", b"third"):
        with Program(NAMED, router.last_endpoint, life.decode(), core=name_of(context)) as program:
            assert router.recv_multipart() == [b"worker", life]
            router.send_multipart([b"worker", b"hello " + life])
            assert program.line() == "hello " + life.decode()
            kill(program)
    assert eventually(lambda: router.poll(0) == 0 and router.peers() == [])


def test_a_stopped_receiver_does_not_hold_a_sender_for_ever(context, tmp_path):
    """Its silence ends it, although a send waits for room; what it had not got goes to the next."""
    push = context.socket(PUSH, sndbuf=65536, sndhwm=10, heartbeat_ivl=20, heartbeat_timeout=150)
    push.bind(TCP)
    monitor = push.get_monitor()
    source = COUNTER.replace("rcvbuf=65536", "rcvbuf=65536, heartbeat_ivl=20")
    with Program(source, push.last_endpoint, tmp_path / "book", core=name_of(context)) as program:
        assert program.line() == "up"
        push.wait_for_peers(1, 20)
        program.process.send_signal(signal.SIGSTOP)
        push.send_timeout = 20_000
        blocked = Thread(lambda: [push.send(b"%d" % i + b"x" * 100_000) for i in range(40)])
        assert next_event(monitor, "silent").peer
        next_event(monitor, "disconnected")
        lost = push._links.state.counts.get("unconfirmed", 0)
        other = context.socket(PULL, rcvtimeo=10_000)
        other.connect(push.last_endpoint)
        received = {int(other.recv().rstrip(b"x")) for _ in range(40 - lost)}
        assert received == set(range(lost, 40))  # nothing is missing that is not in the books
        blocked.finish()
        kill(program)


def test_waits_on_the_dead_have_an_end_by_default(context):
    """Only waiting for somebody to send may be endless."""
    for kind in (REQ, REP, PUSH, PULL, DEALER, ROUTER, PUB, SUB):
        socket = context.socket(kind)
        assert 0 < socket.heartbeat_ivl < socket.heartbeat_timeout <= 60_000
        assert 0 <= socket.linger <= 30_000
        assert 0 < socket.handshake_ivl <= 30_000
        assert 0 < socket._links._dialer.connect_options(socket).connect_timeout <= 30
    assert 0 < context.socket(REQ).rcvtimeo <= 30_000
    req = context.socket(REQ, sndtimeo=50)
    req.connect("tcp://127.0.0.1:1")
    with pytest.raises(Again, match=r"no peer listens at tcp://127\.0\.0\.1:1"):
        req.send(b"x")
