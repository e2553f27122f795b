"""What a close owes: what it could not deliver is counted, Ctrl-C ends its wait and nothing else, and a close
in another thread ends what waits."""

from __future__ import annotations

import asyncio
import signal
import threading
import time

import pytest

import transfer
from tests.sockets.helpers import pair_of
from transfer import PULL, PUSH
from transfer.asyncio import Context as AsyncContext
from transfer.sockets.monitor import EventKind
from transfer.transports.errors import Again, Closed


class Rung(Exception):
    """What the signal handler of these tests raises."""


@pytest.fixture
def rings():
    """rings(seconds): from then on the handler raises, once."""

    def ring(*_):
        raise Rung

    before = signal.signal(signal.SIGALRM, ring)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def slow(pull, got, pause):
    def run():
        try:
            while True:
                got.append(pull.recv())
                time.sleep(pause)
        except (Again, Closed):
            pass

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("linger", [0, 20])
def test_what_the_kernel_still_had_for_a_slow_peer_counts_as_unconfirmed(by_tcp, core, linger):
    """Its next credit meets a closed connection, and the kernel drops the rest."""
    with transfer.Context(core=core, protocol="tcp") as other:
        push = other.socket(PUSH)
        push.bind("tcp://127.0.0.1:0")
        pull = by_tcp.socket(PULL, rcvtimeo=1000)
        pull.connect(push.last_endpoint)
        push.wait_for_peers(1, 10)
        monitor = push.get_monitor()
        got: list[bytes] = []
        thread = slow(pull, got, 0.001)
        for number in range(1500):
            push.send(b"%08d" % number + bytes(1000))
        unsent = push.close(linger=linger)
        reported = sum(event.count for event in monitor if event.kind is EventKind.UNCONFIRMED)
        thread.join(30)
    assert got == [b"%08d" % number + bytes(1000) for number in range(len(got))]
    assert len(got) + unsent + reported >= 1500


def test_a_peer_that_read_everything_has_lost_nothing(by_tcp, core):
    """It ends in answer to this side's end, without a last credit."""
    with transfer.Context(core=core, protocol="tcp") as other:
        pull = other.socket(PULL, rcvtimeo=10_000)
        pull.bind("tcp://127.0.0.1:0")
        for _ in range(20):
            push = by_tcp.socket(PUSH)
            push.connect(pull.last_endpoint)
            push.send_multipart([b"1"])
            monitor = push.get_monitor()
            assert pull.recv() == b"1"
            assert push.close(linger=10_000) == 0
            assert not [event for event in monitor if event.kind is EventKind.UNCONFIRMED]


def test_a_signal_ends_the_linger_and_the_socket(context, by_tcp, rings):
    push = by_tcp.socket(PUSH, sndbuf=4096)
    push.bind("tcp://127.0.0.1:0")
    pull = context.socket(PULL, rcvbuf=4096)
    pull.connect(push.last_endpoint)
    push.wait_for_peers(1, 10)
    for _ in range(100):
        push.send(bytes(100_000), copy=False)
    rings(0.1)
    begin = time.monotonic()
    with pytest.raises(Rung):
        push.close(linger=30_000)
    assert push.closed and time.monotonic() - begin < 20
    assert push.close() == 0


def test_a_signal_ends_the_linger_of_all_sockets_and_their_context(context, core, rings):
    ended = transfer.Context(core=core, protocol="tcp")
    pull = context.socket(PULL, rcvbuf=4096)
    pull.bind("tcp://127.0.0.1:0")
    pushes = [ended.socket(PUSH, sndbuf=4096) for _ in range(3)]
    for push in pushes:
        push.connect(pull.last_endpoint)
        push.send(bytes(10_000_000))
    rings(0.1)
    with pytest.raises(Rung):
        ended.destroy(linger=30_000)
    assert all(push.closed for push in pushes)
    assert ended.destroy() == 0


def test_a_close_in_another_thread_ends_a_waiting_task(core):
    async def main():
        with AsyncContext(core=core) as context:
            for _ in range(30):
                pull = context.socket(PULL)
                pull.bind("tcp://127.0.0.1:0")
                waiting = asyncio.ensure_future(pull.recv())
                await asyncio.sleep(0)
                closing = threading.Thread(target=pull.close)
                closing.start()
                with pytest.raises(Closed):
                    await asyncio.wait_for(waiting, 20)
                closing.join(20)

    asyncio.run(main())


def test_what_a_wait_for_room_has_left_is_written_although_a_handler_raised(by_tcp):
    """The flusher leaves a queue to a sender that waits; an interrupted one gives it back."""
    pull, push = pair_of(by_tcp, PULL, PUSH, sndhwm=100, sndbuf=100_000, rcvbuf=100_000)
    go = threading.Event()
    got: list[bytes] = []

    def receive():
        go.wait(30)
        for _ in range(40):
            got.append(pull.recv())
        time.sleep(1.0)
        while pull.poll(1500):
            got.append(pull.recv())

    def ring(*_):
        go.set()  # the peer reads, and the flusher meets a full kernel again, while the handler runs
        time.sleep(0.5)
        raise Rung

    thread = threading.Thread(target=receive)
    thread.start()
    main = threading.Timer(0.5, lambda: signal.raise_signal(signal.SIGALRM))
    before = signal.signal(signal.SIGALRM, ring)
    main.start()
    sent = 0
    try:
        with pytest.raises(Rung):
            while True:
                push.send(bytes(60_000))
                sent += 1
    finally:
        signal.signal(signal.SIGALRM, before)
        main.join()
    thread.join(30)
    assert len(got) == sent
