"""Real processes that are really killed: nothing is lost in silence."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress

import pytest

import transfer
from transfer import PULL, PUSH, REP, REQ
from transfer.transports import tcp
from transfer.transports.errors import Again, Broken, OutOfDescriptors

from .helpers import TCP, binds, eventually, pair_of
from .processes import Program

PULLER = """
    import sys, transfer
    context = transfer.Context()
    pull = context.socket(transfer.PULL, rcvbuf=65536)
    pull.connect(sys.argv[1])
    count = 0
    limit = int(sys.argv[2])
    while True:
        pull.recv()
        count += 1
        if count == limit:
            print(count, flush=True)
            sys.stdin.readline()
"""


def name_of(context):
    return context.core.__name__.rpartition(".")[2]


def drain(monitor, kind):
    """The events of this kind, once one has come."""
    found = []
    while True:
        try:
            event = monitor.recv(5 if not found else 0.05)
        except Again:
            return found
        if event.kind == kind:
            found.append(event)


def test_a_killed_pull_costs_no_more_than_is_told(context):
    push = context.socket(PUSH, sndbuf=65536)
    push.bind(TCP)
    monitor = push.get_monitor()
    with Program(PULLER, push.last_endpoint, 50, core=name_of(context)) as program:
        push.wait_for_peers(1, 20)
        sent = 0
        push.send_timeout = 200
        while sent < 400:
            try:
                push.send(b"x" * 10_000)
            except Again:
                break
            sent += 1
        assert program.line() == "50"
        program.kill()
    (event,) = drain(monitor, "unconfirmed")
    assert event.count == push._links.state.counts["unconfirmed"]
    assert event.error is not None
    waiting = len(push._links.orphans.messages)
    assert sent <= 50 + event.count + waiting
    assert sent >= event.count + waiting  # and not more than what there was


def test_what_was_not_written_goes_to_another_peer(context):
    push = context.socket(PUSH, sndbuf=65536, sndhwm=0, sndhwm_bytes=0)
    push.bind(TCP)
    with Program(PULLER, push.last_endpoint, 1, core=name_of(context)) as program:
        push.wait_for_peers(1, 20)
        for i in range(300):
            push.send(b"%d" % i * 5000)
        assert program.line() == "1"
        program.kill()
    other = context.socket(PULL)
    other.connect(push.last_endpoint)
    assert eventually(lambda: "redistributed" in push._links.state.counts)
    moved = push._links.state.counts["redistributed"]
    assert 0 < moved < 300
    received = [other.recv() for _ in range(moved)]
    assert received == [b"%d" % i * 5000 for i in range(300 - moved, 300)]
    # The first message was read there, so at most it is not in the books.
    assert 1 + push._links.state.counts["unconfirmed"] + moved >= 300


def test_with_resend_a_peer_that_goes_between_a_send_and_its_note_loses_nothing(context, monkeypatch):
    push, first, second = context.socket(PUSH, resend=True), context.socket(PULL), context.socket(PULL)
    for pull in (first, second):
        pull.bind(TCP)
        push.connect(pull.last_endpoint)
    push.wait_for_peers(2, 10)
    links, late = push._links, []
    with monkeypatch.context() as patch:
        patch.setattr(links.orphans, "note", lambda *found, **options: late.append((found, options)))
        push.send(b"x", track=True)
    ((noted, options),) = late
    frames, tracker, stream, number = noted
    assert links.loss.lost(stream, Broken("cut"))
    links.orphans.note(frames, tracker, stream, number, **options)
    assert links.state.counts["resent"] == 1
    received = []
    until = time.monotonic() + 10
    while len(received) < 2 and time.monotonic() < until:  # the lost one may have had it, too
        for pull in (first, second):
            with suppress(Again):
                received.append(pull.recv(transfer.DONTWAIT))
        time.sleep(0.005)
    assert received == [b"x", b"x"]


def test_with_resend_everything_arrives_at_least_once(context):
    push = context.socket(PUSH, sndbuf=65536, resend=True)
    push.bind(TCP)
    with Program(PULLER, push.last_endpoint, 20, core=name_of(context)) as program:
        push.wait_for_peers(1, 20)
        for i in range(100):
            push.send(b"%d" % i * 100)
        assert program.line() == "20"
        program.kill()
    other = context.socket(PULL, rcvtimeo=3000)
    other.connect(push.last_endpoint)
    missing = {b"%d" % i * 100 for i in range(20, 100)}
    while missing:
        missing.discard(other.recv())


REPLIER = """
    import sys, transfer
    context = transfer.Context()
    rep = context.socket(transfer.REP)
    rep.bind(sys.argv[1])
    print(rep.last_endpoint, flush=True)
    rep.recv()
    print("got it", flush=True)
    sys.stdin.readline()
"""


def test_a_killed_server_fails_the_request_and_its_successor_answers(context):
    req = context.socket(REQ, reconnect_ivl=10)
    with Program(REPLIER, TCP, core=name_of(context)) as program:
        endpoint = program.line()
        req.connect(endpoint)
        req.send(b"x")
        assert program.line() == "got it"
        program.kill()
        with pytest.raises(Broken):
            req.recv()
    rep = context.socket(REP)
    rep.bind(endpoint)
    req.wait_for_peers(1, 20)
    req.send(b"y")
    assert rep.recv() == b"y"
    rep.send(b"z")
    assert req.recv() == b"z"


def test_while_the_peer_is_down_nothing_grows(context):
    push = context.socket(PUSH, reconnect_ivl=1, reconnect_ivl_max=2)
    push.connect("tcp://127.0.0.1:1")
    record = push._links.state.endpoints[0]
    assert eventually(lambda: record.attempts > 20)
    before = len(os.listdir("/proc/self/fd"))
    attempts = record.attempts
    assert eventually(lambda: record.attempts > attempts + 100)
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    assert len(push._links.state.timers) <= 1


def test_a_restarted_peer_is_found_again(context):
    push = context.socket(PUSH, reconnect_ivl=10)
    pull = context.socket(PULL)
    pull.bind(TCP)
    endpoint = pull.last_endpoint
    push.connect(endpoint)
    for i in range(3):
        push.send(b"%d" % i)
        assert pull.recv() == b"%d" % i
        pull.close()
        pull = context.socket(PULL)
        assert eventually(lambda: binds(pull, endpoint))  # noqa: B023 - used at once
        # Not the old connection, whose end it may not have seen yet.
        assert eventually(lambda: push._links.state.counts.get("disconnected") == i + 1)  # noqa: B023
        push.wait_for_peers(1, 20)


SILENT = """
    import sys, transfer
    context = transfer.Context()
    push = context.socket(transfer.PUSH, heartbeat_ivl=20)
    push.connect(sys.argv[1])
    push.send(b"hello")
    print("sent", flush=True)
    sys.stdin.readline()
"""


def test_a_peer_that_is_stopped_is_noticed_by_its_silence(context):
    pull = context.socket(PULL, heartbeat_ivl=20, heartbeat_timeout=1000, rcvtimeo=20_000)
    pull.bind(TCP)
    monitor = pull.get_monitor()
    with Program(SILENT, pull.last_endpoint, core=name_of(context)) as program:
        assert program.line() == "sent"
        assert pull.recv() == b"hello"
        pull.poll(1500)  # heartbeats are read, the peer is alive
        assert len(pull.peers()) == 1
        program.process.send_signal(signal.SIGSTOP)
        try:
            assert eventually(lambda: (pull._readable(), pull.peers())[1] == [])
        finally:
            program.process.send_signal(signal.SIGCONT)
        assert drain(monitor, "silent")


def test_a_busy_receiver_is_not_silent(context):
    pull, push = pair_of(context, PULL, PUSH, heartbeat_ivl=20, heartbeat_timeout=500)
    push.send(b"x")
    time.sleep(1.2)  # a long step: nothing is read
    assert len(pull.peers()) == 1
    assert len(push.peers()) == 1
    assert pull.recv() == b"x"


def test_garbage_ends_that_connection_and_no_other(context):
    import socket as sockets

    pull, push = pair_of(context, PULL, PUSH)
    host, port = pull.last_endpoint.removeprefix("tcp://").split(":")
    monitor = pull.get_monitor()
    with sockets.create_connection((host, int(port))) as bad:
        bad.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        event = monitor.recv(10)
        assert event.kind == "handshake_failed"
    push.send(b"still here")
    assert pull.recv() == b"still here"


def test_a_pull_that_consumed_everything_leaves_nothing_unconfirmed(context):
    pull, push = pair_of(context, PULL, PUSH)
    monitor = push.get_monitor()
    for i in range(100):
        push.send(b"%d" % i)
    assert [pull.recv() for _ in range(100)][-1] == b"99"
    pull.close()
    kinds = []
    while not kinds or kinds[-1] != "disconnected":
        kinds.append(monitor.recv(10).kind)
    assert "unconfirmed" not in kinds
    assert "unconfirmed" not in push._links.state.counts


def test_policy_require_fails_at_connect(context):
    pull = context.socket(PULL)
    pull.bind(TCP)
    push = context.socket(PUSH)
    monitor = pull.get_monitor()
    endpoint = f"rdma://{pull.last_endpoint.removeprefix('tcp://')}?policy=require"
    with pytest.raises(transfer.Fatal) as caught:
        push.connect(endpoint)
    # The caller's words: what this side asked for, and who refused.
    asked = f"rdma was requested by {{}} (the endpoint {endpoint}), and neither side has it"
    assert str(caught.value).startswith(f"{endpoint}: the peer refused: {asked.format('this side')}")
    assert "prefer" in caught.value.hint
    told = monitor.recv(10)
    assert (told.kind, told.reason) == ("handshake_failed", "policy")
    assert asked.format("the peer") in str(told.error)
    with pytest.raises(transfer.Fatal):
        push.send(b"x")


def test_policy_prefer_falls_back_and_says_so_once(context, caplog):
    pull = context.socket(PULL)
    pull.bind(TCP)
    host = pull.last_endpoint.removeprefix("tcp://")
    for _ in range(2):
        push = context.socket(PUSH)
        push.connect(f"rdma://{host}")
        push.wait_for_peers(1, 10)
        push.send(b"x")
        assert pull.recv() == b"x"
        (peer,) = push.peers()
        assert peer.transport == "tcp"
        assert "rdma" in peer.reason
    assert caplog.text.count("fell back to tcp") == 2  # each end says it once
    assert push._links.state.counts["fallback:rdma:tcp:no_device"] == 1


def test_a_listener_without_descriptors_says_so_once_and_comes_back(context, monkeypatch, caplog):
    real, failures = tcp.SocketListener.accept, iter(range(3))

    def accept(listener):
        if next(failures, None) is not None:
            raise OutOfDescriptors("cannot accept: Too many open files")
        return real(listener)

    monkeypatch.setattr(tcp.SocketListener, "accept", accept)
    pull = context.socket(PULL)
    pull.bind(TCP)
    push = context.socket(PUSH)
    push.connect(pull.last_endpoint)
    push.wait_for_peers(1, 10)
    assert caplog.text.count("a connection is not accepted: cannot accept: Too many open files") == 1


@pytest.mark.parametrize("kind", [transfer.PAIR, transfer.DEALER])
def test_what_a_peer_sent_before_it_left_is_received_also_after_a_failed_send(context, kind):
    one, other = pair_of(context, kind, kind, sndtimeo=100)
    for i in range(1000):
        other.send(b"%d" % i)
    assert other.close(20_000) == 0

    def sending_fails():
        try:
            one.send(b"x" * 1000)
        except Again:
            return True
        return not one.peers()

    assert eventually(sending_fails)
    one.receive_timeout = 5000
    assert [one.recv() for _ in range(1000)] == [b"%d" % i for i in range(1000)]
    with pytest.raises(Again):
        one.recv(transfer.DONTWAIT)


def test_a_router_still_knows_who_sent_what_is_left(context):
    router, dealer = pair_of(context, transfer.ROUTER, transfer.DEALER)
    dealer.send(b"first")
    identity, _ = router.recv_multipart()
    for i in range(500):
        dealer.send(b"%d" % i)
    assert dealer.close(20_000) == 0

    def gone():
        router.send_multipart([identity, b"x" * 1000])
        return not router.peers()

    assert eventually(gone)
    assert [router.recv_multipart() for _ in range(500)] == [[identity, b"%d" % i] for i in range(500)]


@pytest.mark.parametrize(("count", "size"), [(60, 100_000), (20, 1 << 20)])
@pytest.mark.parametrize("into", [False, True], ids=["recv", "recv_into"])
def test_what_a_peer_left_stays_in_its_order_while_a_thread_receives(context, count, size, into):
    """The end is found by a thread that sends, in the middle of what another one receives."""

    def message(number):
        return number.to_bytes(4, "big") * (size // 4)

    def receive(one, got):
        buffer = bytearray(size)
        for _ in range(count):
            got.append(bytes(buffer[: one.recv_into(buffer)]) if into else one.recv())
            buffer[:] = bytes(size)  # ours again: nothing of what follows may lie there

    for _ in range(6):
        one, other = pair_of(context, transfer.PAIR, transfer.PAIR)
        one.send_timeout, one.receive_timeout = 20, 20_000
        got = []
        receiver = threading.Thread(target=receive, args=(one, got))
        sender = threading.Thread(
            target=lambda other=other: ([other.send(message(n)) for n in range(count)], other.close(20_000))
        )
        receiver.start()
        sender.start()
        while one.peers():
            with suppress(Again):
                one.send(b"x" * 1000)
        for thread in (receiver, sender):
            thread.join()
        assert got == [message(number) for number in range(count)]
        one.close(0)


def test_a_reply_that_came_before_the_end_is_received(context):
    rep, req = pair_of(context, REP, REQ)
    req.send(b"x")
    rep.recv()
    rep.send(b"answer")
    assert rep.close(20_000) == 0
    assert eventually(lambda: not req.peers() or req.poll(0))
    req._links.loss.lost(next(iter(req._links.state.peers), None), Broken("found by somebody else"))
    assert req.recv() == b"answer"
