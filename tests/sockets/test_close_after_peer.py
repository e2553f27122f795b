"""A sender that closes right behind its receiver: what the receiver had and did not consume is counted,
although no thread of the sender has seen the receiver's end before."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest

from transfer import DEALER, PAIR, PULL, PUSH, ROUTER, Broken
from transfer.sockets.monitor import EventKind

from .conftest import KeepingContext
from .helpers import Thread, eventually

SENT, TAKEN = 50, 5


@contextmanager
def busy(context):
    """The context's reactor sees nothing that happens meanwhile."""
    begun, done = threading.Event(), threading.Event()

    def wait():
        begun.set()
        done.wait(30)

    context.reactor.call_soon(wait)
    assert begun.wait(10)
    try:
        yield
    finally:
        done.set()


@pytest.fixture
def elsewhere(core):
    made = KeepingContext(core=core)
    yield made
    made.destroy(0)


def connected(context, elsewhere, sending, receiving, endpoint, **options):
    receiver, sender = elsewhere.socket(receiving), context.socket(sending, **options)
    receiver.rcvtimeo = sender.sndtimeo = 10_000
    receiver.bind(endpoint)
    sender.connect(receiver.last_endpoint)
    sender.wait_for_peers(1)
    return receiver, sender


@pytest.mark.parametrize("linger", [0, 1000])
@pytest.mark.parametrize(("sending", "receiving"), [(PUSH, PULL), (DEALER, ROUTER), (PAIR, PAIR)])
@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
def test_what_a_receiver_had_when_it_closed_is_unconfirmed(
    context, elsewhere, scheme, sending, receiving, linger, tmp_path
):
    endpoint = "tcp://127.0.0.1:0" if scheme == "tcp" else f"ipc://{tmp_path}/s"
    receiver, sender = connected(context, elsewhere, sending, receiving, endpoint)
    monitor = sender.get_monitor()
    trackers = [sender.send(b"x" * 1000, track=True) for _ in range(SENT)]
    for _ in range(TAKEN):
        receiver.recv_multipart()
    sender._links.flush(float("inf"))
    with busy(context):
        receiver.close(0)
        assert sender.close(linger) == 0
    assert sender._links.state.counts["unconfirmed"] == SENT - TAKEN
    assert [tracker.confirmed for tracker in trackers] == [True] * TAKEN + [False] * (SENT - TAKEN)
    assert all(isinstance(tracker.error, Broken) for tracker in trackers[TAKEN:])
    while (event := monitor.recv(10)).kind != EventKind.UNCONFIRMED:
        pass
    assert event.count == SENT - TAKEN


def test_messages_that_were_not_read_do_not_hide_the_last_credit(context, elsewhere):
    """A PAIR had sent something back, which this side never received."""
    receiver, sender = connected(context, elsewhere, PAIR, PAIR, "tcp://127.0.0.1:0")
    for _ in range(SENT):
        sender.send(b"x")
    sender._links.flush(float("inf"))
    for _ in range(TAKEN):
        receiver.send(receiver.recv())
    with busy(context):
        receiver.close(0)
        sender.close(0)
    assert sender._links.state.counts["unconfirmed"] == SENT - TAKEN


def test_a_receiver_that_is_there_costs_nothing(context, elsewhere):
    receiver, sender = connected(context, elsewhere, PUSH, PULL, "tcp://127.0.0.1:0")
    for _ in range(SENT):
        sender.send(b"x")
    assert sender.close(10_000) == 0
    assert not sender._links.state.counts.get("unconfirmed")
    assert [receiver.recv() for _ in range(SENT)] == [b"x"] * SENT


def test_each_message_is_in_one_count(context, elsewhere, endpoint):
    """Large ones: what the receiver never had is unsent, and not unconfirmed too."""
    home = context if endpoint.startswith("inproc") else elsewhere
    receiver, sender = connected(context, home, PUSH, PULL, endpoint)
    for _ in range(20):
        sender.send(bytes(1_000_000))
    receiver.recv()
    with busy(context):
        receiver.close(0)
        left = sender.close(0)
    assert left + sender._links.state.counts.get("unconfirmed", 0) == 19


def test_what_is_sent_again_is_sent_before_the_end(context, elsewhere):
    receiver, sender = connected(context, elsewhere, PUSH, PULL, "tcp://127.0.0.1:0", resend=True)
    other = elsewhere.socket(PULL)
    other.rcvtimeo = 10_000
    other.bind("tcp://127.0.0.1:0")
    sender.connect(other.last_endpoint)
    sender.wait_for_peers(2)
    for number in range(SENT):
        sender.send(b"%d" % number)
    receiving = Thread(lambda: sorted(int(other.recv()) for _ in range(SENT)))
    with busy(context):
        receiver.close(0)
        assert sender.close(20_000) == 0
    assert receiving.finish() == list(range(SENT))


@pytest.mark.parametrize("core", ["pure"], indirect=True)
def test_a_socket_that_ends_while_its_reactor_reads_it(context, elsewhere):
    """A collector that runs in that read drops it: nothing of it is read then, and its peer's last credit is
    not counted."""
    receiver, sender = connected(context, elsewhere, PUSH, PULL, "tcp://127.0.0.1:0")
    for _ in range(SENT):
        sender.send(b"x")
    monitor = sender.get_monitor()
    [peer] = sender._links.state.peers.values()
    assert eventually(lambda: not peer.stream.queued)
    done = threading.Event()

    def read():
        with peer.stream._reading:
            receiver.close(0)
            sender.close(0)
        done.set()

    context.reactor.call_soon(read)
    assert done.wait(10)
    while (event := monitor.recv(10)).kind is not EventKind.UNCONFIRMED:
        assert event.kind is not EventKind.CLOSED
    assert event.count == SENT
