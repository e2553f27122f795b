"""Large payloads: 64-bit lengths, tiny kernel buffers, and nobody else waits for them."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time

import numpy
import psutil
import pytest

from tests.core.raw_frames import Raw
from tests.faults.raw_peer import pending_events, raw_peer, send_frames
from tests.sockets.helpers import TCP, Thread, eventually, pair_of
from tests.sockets.processes import Program
from transfer import DEALER, PULL, PUSH, REP, REQ
from transfer.sockets.monitor import EventKind
from transfer.transports.errors import Broken

GB = 1 << 30


@pytest.fixture
def roomy():
    """Skips where two payloads of 4.5 GB do not fit."""
    free = psutil.virtual_memory().available
    if free < 12 * GB:
        pytest.skip(f"needs 12 GB of free memory, there are {free / GB:.1f}")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
def test_a_tensor_of_more_than_4_gb(context, roomy, tmp_path, scheme):
    """Every byte arrives: counts that wrap at 2^31 or 2^32 would show."""
    pull, push = pair_of(context, PULL, PUSH, TCP if scheme == "tcp" else f"ipc://{tmp_path}/s")
    sent = numpy.arange(9 * GB // 16, dtype=numpy.uint64)  # 4.5 GB, all different
    sending = Thread(push.send_tensor, sent)
    received = pull.recv_tensor()
    sending.finish(300)
    assert received.shape == sent.shape
    for start in range(0, len(sent), 1 << 24):  # in slices, so that nothing as large is made
        assert (received[start : start + (1 << 24)] == sent[start : start + (1 << 24)]).all()
    assert push._links.state.counts.get("unconfirmed", 0) == 0
    received = None
    pull.rcvtimeo = 10_000
    push.send(b"and the next one")
    assert pull.recv() == b"and the next one"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_more_than_4_gb_into_memory_of_the_caller(context, roomy):
    pull, push = pair_of(context, PULL, PUSH)
    sent = numpy.zeros((3, 3 * GB // 2), numpy.uint8)
    sent[:, ::4096] = 7
    sent[2, -1] = 9
    out = numpy.ones_like(sent)
    sending = Thread(push.send_tensors, {"large": sent, "small": numpy.ones(3)})
    tensors, _ = pull.recv_tensors(out={"large": out, "small": numpy.zeros(3)})
    sending.finish(300)
    assert tensors["large"] is out
    assert out[2, -1] == 9
    assert (out[:, ::4096][:, :-1] == 7).all()
    assert int(out[:, 1::4096].sum()) == 0


# --- short writes -------------------------------------------------------------------------------

ECHO = """
    import sys, transfer
    dealer = transfer.Context().socket(transfer.DEALER, sndbuf=1, rcvbuf=1)
    dealer.connect(sys.argv[1])
    while True:
        parts = dealer.recv_multipart()
        dealer.send_multipart(parts)
        if parts == [b"end"]:
            dealer.close(20_000)
            break
"""


def kernel_buffer(fd):
    with socket.socket(fileno=os.dup(fd)) as same:
        return same.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


def test_short_writes_between_processes(context, tmp_path):
    """The smallest kernel buffers on both sides: every write is short, and nothing is mixed up.

    By ipc, since TCP with such buffers waits 40 ms for each acknowledgement.
    """
    dealer = context.socket(DEALER, sndbuf=1, rcvbuf=1, sndhwm=0, rcvtimeo=20_000)
    dealer.bind(f"ipc://{tmp_path}/s")
    messages = [[b"%d" % i * (i % 7 * 400 + 1), b"", bytes([i % 256]) * (i * 97 % 30_000)] for i in range(60)]
    messages += [[b"x" * 700_000], [b"y"] * 1500, [b"end"]]
    with Program(ECHO, dealer.last_endpoint, core=context.core.__name__.rpartition(".")[2]) as program:
        dealer.wait_for_peers(1, 20)
        sending = Thread(lambda: [dealer.send_multipart(parts) for parts in messages])
        (peer,) = dealer._links.state.peers.values()
        assert kernel_buffer(peer.fd) < 10_000
        for parts in messages:
            assert dealer.recv_multipart() == parts
        sending.finish()
        assert program.finish()[0] == 0


# --- who waits for whom -------------------------------------------------------------------------


def test_a_large_message_holds_up_neither_credits_nor_heartbeats(context):
    """It lies half written, and what goes the other way, and to others, passes."""
    pull = context.socket(PULL, rcvbuf=65536, heartbeat_ivl=20)
    pull.bind(TCP)
    push = context.socket(PUSH, sndbuf=65536, heartbeat_ivl=20)
    push.connect(pull.last_endpoint)
    push.wait_for_peers(1, 10)
    pull.wait_for_peers(1, 10)
    small = push.send(b"small", track=True)
    large = push.send(bytes(64 << 20), copy=False, track=True)
    assert pull.recv() == b"small"
    small.wait_confirmed(20)  # the credit came while the large one is stuck
    assert not large.done
    rep, req = pair_of(context, REP, REQ)
    for _ in range(10):  # and so do requests between others
        req.send(b"ask")
        assert rep.recv() == b"ask"
        rep.send(b"answer")
        assert req.recv() == b"answer"
    (sender,) = push._links.state.peers.values()
    for _ in range(5):
        heard = sender.stream.last_received_ns
        assert eventually(lambda: sender.stream.last_received_ns > heard, 20)  # noqa: B023 - used at once
    assert not large.done
    # Nor does the receiver think that the sender is dead, however long this lasts.
    (receiver,) = pull._links.state.peers.values()
    assert receiver.heartbeat == 20
    assert not pull._links.heartbeats._is_silent(pull, receiver, time.monotonic_ns() + 3600 * 10**9)
    assert len(pull.recv()) == 64 << 20
    large.wait_confirmed(20)


def test_a_slow_sender_of_a_large_message_is_alive(context):
    """Its bytes are its heartbeats, and others are served between them."""
    pull = context.socket(PULL, rcvtimeo=10_000, heartbeat_ivl=20, heartbeat_timeout=400)
    pull.bind(TCP)
    push = context.socket(PUSH)
    push.connect(pull.last_endpoint)
    push.wait_for_peers(1, 10)
    monitor = pull.get_monitor()
    frame = Raw(bytes(1_000_000)).encode()
    with raw_peer(pull.last_endpoint, extra={"heartbeat_ms": 20}) as bare:
        for start in range(0, 900_000, 50_000):
            send_frames(bare, frame[start : start + 50_000])
            push.send(b"%d" % start)
            assert pull.recv() == b"%d" % start
            time.sleep(0.03)
        send_frames(bare, frame[900_000:])
        assert len(pull.recv()) == 1_000_000
        assert "silent" not in {event.kind for event in pending_events(monitor)}


# --- memory in flight ---------------------------------------------------------------------------


def test_a_message_that_is_given_up_is_an_error(context):
    """What was cancelled by a close never looks as if it had been sent."""
    _pull, push = pair_of(context, PULL, PUSH, sndbuf=4096, rcvbuf=4096)
    memory = bytearray(16 << 20)
    tracker = push.send(memory, copy=False, track=True)
    waiting = Thread(tracker.wait, 20), Thread(tracker.wait_confirmed, 20)
    assert push.close(0) == 1
    for thread in waiting:
        with pytest.raises(Broken):
            thread.finish()
    assert tracker.done  # the memory is free all the same
    assert not tracker.confirmed
    assert tracker.error is not None
    memory.extend(b"free")


def test_received_memory_outlives_everything(context):
    """A tensor is writable, and its memory is its own when socket and pool are gone."""
    pull, push = pair_of(context, PULL, PUSH)
    push.send_tensor(numpy.arange(100_000))
    tensor = pull.recv_tensor()
    view = tensor[10:20]
    del tensor
    push.close()
    pull.close()
    gc.collect()
    assert view.flags.writeable
    assert view.tolist() == list(range(10, 20))
    view += 1
    assert view[0] == 11
    assert context.pool.in_use > 0
    del view
    assert eventually(lambda: gc.collect() >= 0 and context.pool.in_use == 0)


# --- a quiet hour -------------------------------------------------------------------------------


@pytest.mark.parametrize("interval", [0, 5], ids=["no heartbeats", "heartbeats"])
def test_a_burst_after_a_long_rest(context, interval):
    """The hour is played with heartbeats of 5 ms: a hundred of them pass, and nothing has changed."""
    options = {"heartbeat_ivl": interval, "heartbeat_timeout": 60_000 if interval else -1}
    pull, push = pair_of(context, PULL, PUSH, **options)
    push.send(b"before")
    assert pull.recv() == b"before"
    (before,) = push.peers()
    monitors = pull.get_monitor(), push.get_monitor()
    threads = threading.active_count()
    (sender,) = push._links.state.peers.values()
    for _ in range(100 if interval else 0):
        heard = sender.stream.last_received_ns
        assert eventually(lambda: sender.stream.last_received_ns > heard, 20)  # noqa: B023 - used at once
    time.sleep(0.1)
    burst = Thread(lambda: [push.send(b"%d" % i) for i in range(3000)])
    assert [pull.recv() for _ in range(3000)] == [b"%d" % i for i in range(3000)]
    burst.finish()
    (after,) = push.peers()
    assert (after.address, after.sent) == (before.address, 3001)
    # The PULL may report its connection only now; a lost one would be reported as that.
    assert {event.kind for monitor in monitors for event in pending_events(monitor)} <= {EventKind.CONNECTED}
    assert threading.active_count() <= threads
