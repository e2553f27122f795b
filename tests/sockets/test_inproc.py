"""Sockets of one process: plain messages, which the compiled core passes by itself, among all others."""

from __future__ import annotations

import gc
import os
import select
import sys
import threading
from collections import Counter
from contextlib import suppress

import numpy
import pytest

import transfer
from tests.sockets.conftest import KeepingContext
from tests.sockets.helpers import Thread, eventually, fewer, pair_of
from tests.sockets.test_interrupted import at_every_point
from tests.sockets.test_python_calls import entered
from transfer.transports.errors import Again, Closed

WHERE = "inproc://here"


def joined(context, **options):
    """(PULL, PUSH)"""
    return pair_of(context, transfer.PULL, transfer.PUSH, WHERE, rcvtimeo=10_000, sndtimeo=10_000, **options)


def states(pull, push):
    """(the sender's, the receiver's) PeerInfo."""
    return push.peers()[0], pull.peers()[0]


# -- order, and what arrives -----------------------------------------------------------------------


def test_the_order_of_messages_of_every_kind(context):
    pull, push = joined(context)
    trackers = []
    kinds = [
        lambda n: push.send(b"%d" % n),
        lambda n: push.send(bytearray(b"%d" % n)),
        lambda n: push.send_multipart([b"%d" % n, b"more"]),
        lambda n: trackers.append(push.send(b"%d" % n, track=True)),
        lambda n: push.send(b"%d" % n, copy=False),
        lambda n: push.send_tensor(numpy.array([n])),
        lambda n: push.send(b"%d" % n + b" " * 100_000),
    ]
    turns = [kinds[(number * number // 3) % len(kinds)] for number in range(200)]
    for number, send in enumerate(turns):
        send(number)
    for number, send in enumerate(turns):
        if send is kinds[5]:
            assert pull.recv_tensor()[0] == number
        elif send is kinds[2]:
            assert pull.recv_multipart() == [b"%d" % number, b"more"]
        else:
            assert int(pull.recv(copy=number % 3 > 0).__bytes__()) == number
    for tracker in trackers:
        tracker.wait_confirmed(10)
    ours, theirs = states(pull, push)
    assert (ours.sent, ours.queued, ours.unconfirmed, theirs.received) == (200, 0, 0, 200)
    assert push.messages_sent == pull.messages_received == 200
    assert push.bytes_sent == pull.bytes_received


def test_the_received_object_is_the_sent_one(context):
    pull, push = joined(context)
    for data in b"", b"a message", bytes(1_000_000):
        push.send(data)
        assert pull.recv() is data
        push.send(data)
        frame = pull.recv(copy=False)
        assert frame.bytes == data and frame.socket_type == transfer.PUSH


def test_frames_are_numbered_by_all_messages(context):
    pull, push = joined(context)
    for number in range(1, 7):
        push.send(b"plain") if number % 3 else push.send_multipart([b"two", b"parts"])
    numbers = [pull.recv_frames()[0].sequence for _ in range(3)]
    numbers += [pull.recv(copy=False).sequence, pull.recv(copy=False).sequence]
    assert numbers == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("core", ["native"], indirect=True)
def test_a_plain_message_enters_no_python_function(context):
    pull, push = joined(context)
    subscribed, publisher = pair_of(context, transfer.SUB, transfer.PUB, "inproc://topics", rcvtimeo=10_000)
    for sender, receiver in (push, pull), (publisher, subscribed):
        for _ in range(3):
            sender.send(b"x")
        assert receiver.recv() == b"x"
        assert entered(lambda socket: socket.send(b"x"), sender) == 0
        assert entered(lambda socket: socket.recv(), receiver) == 0
        assert entered(lambda socket: socket.recv(copy=False), receiver) == 0


def test_a_pair_in_both_directions(context):
    one, other = pair_of(context, transfer.PAIR, transfer.PAIR, WHERE, rcvtimeo=10_000, sndtimeo=10_000)

    def echo():
        for _ in range(5000):
            other.send(other.recv())

    def ask():
        for number in range(5000):
            one.send(b"%d" % number)

    echoing, asking = Thread(echo), Thread(ask)
    assert [int(one.recv()) for _ in range(5000)] == list(range(5000))
    asking.finish()
    echoing.finish()
    assert one.peers()[0].unconfirmed == other.peers()[0].unconfirmed == 0


def test_a_fan_out_shares_one_object(context):
    publisher = context.socket(transfer.PUB, sndhwm=3)
    publisher.bind(WHERE)
    subscribers = [context.socket(transfer.SUB, rcvtimeo=10_000) for _ in range(4)]
    for prefix, subscriber in zip((b"", b"a", b"a", b"b"), subscribers, strict=True):
        subscriber.subscribe(prefix)
        subscriber.connect(WHERE)
    publisher.wait_for_peers(4, 10)
    data = b"a" * 1000
    publisher.send(data)
    assert [subscriber.recv() is data for subscriber in subscribers[:3]] == [True] * 3
    assert not subscribers[3].poll(0)
    assert publisher.messages_sent == 3
    subscribers[0].subscribe(b"none")
    subscribers[0].unsubscribe(b"")
    assert eventually(lambda: publisher.send(b"c") or publisher.dropped_no_peer)
    for _ in range(5):
        publisher.send(data)
    dropped = [stream.dropped for stream in publisher._streams()]
    assert dropped[1:3] == [2, 2] and dropped[3] == 0
    assert [subscribers[1].recv() for _ in range(3)] == [data] * 3


def test_a_subscriber_filters_plain_messages(context):
    publisher, subscriber = (context.socket(kind, rcvtimeo=10_000) for kind in (transfer.PUB, transfer.SUB))
    publisher.bind(WHERE)
    for prefix in b"a", b"bb":
        subscriber.subscribe(prefix)
    subscriber.connect(WHERE)
    assert eventually(lambda: publisher.subscribers(b"a") and publisher.subscribers(b"bb"))
    for data in b"a1", b"b1", b"bb1", b"a2":
        publisher.send(data)
    subscriber.unsubscribe(b"a")
    assert subscriber.recv() == b"bb1"
    assert subscriber.filtered == 1


# -- limits ------------------------------------------------------------------------------------------


def test_the_limit_in_messages(context):
    pull, push = joined(context, sndhwm=10)
    for _ in range(10):
        push.send(b"x")
    with pytest.raises(Again):
        push.send(b"x", transfer.DONTWAIT)
    assert push.peers()[0].queued == 10 and not push.poll(0, transfer.POLLOUT)
    pull.recv()
    assert push.poll(10_000, transfer.POLLOUT)
    push.send(b"x", transfer.DONTWAIT)
    push.sndhwm = 11
    push.send(b"x", transfer.DONTWAIT)
    assert push.peers()[0].queued == 11


def test_the_limit_in_bytes(context):
    pull, push = joined(context, sndhwm_bytes=1000)
    push.send(bytes(600))
    with pytest.raises(Again):
        push.send(bytes(600), transfer.DONTWAIT)
    push.send(bytes(400), transfer.DONTWAIT)
    assert [len(pull.recv()) for _ in range(2)] == [600, 400]
    push.send(bytes(5000), transfer.DONTWAIT)  # a single one has room always
    assert len(pull.recv()) == 5000


@pytest.mark.parametrize("taken", [1, 6, 10])
def test_a_sender_that_sleeps_goes_on_when_there_is_room(context, taken):
    """Even where less is taken than it is woken for."""
    pull, push = joined(context, sndhwm=10)
    for number in range(10):
        push.send(b"%d" % number)
    sending = Thread(push.send, b"10")
    eventually(lambda: push.blocked_ns, 0.3)  # it sleeps by now
    got = [pull.recv() for _ in range(taken)]
    sending.finish()
    got += [pull.recv() for _ in range(11 - taken)]
    assert [int(data) for data in got] == list(range(11))


@pytest.mark.parametrize("sleeper", [False, True])
def test_a_descriptor_tells_of_room(context, sleeper):
    """A program that waits for the descriptor alone does not look again by itself, as a thread does."""
    pull, push = pair_of(context, transfer.PAIR, transfer.PAIR, WHERE, rcvtimeo=10_000, sndhwm=10)
    assert push.fileno() >= 0
    with suppress(Again):
        while True:
            push.send(b"x", transfer.DONTWAIT)
    push._readable()
    assert not select.select([push], [], [], 0)[0]
    sending = Thread(push.send, b"x") if sleeper else None
    if sending:
        eventually(lambda: push.blocked_ns, 0.3)  # it sleeps by now
    pull.recv()
    assert select.select([push], [], [], 10)[0]
    if sending:
        sending.finish()


def test_a_queue_without_a_limit(context):
    pull, push = joined(context, sndhwm=0, sndhwm_bytes=0)
    for count in 100_000, 10:
        for number in range(count):
            push.send(b"%d" % number)
        assert push.peers()[0].queued == count
        assert all(int(pull.recv()) == number for number in range(count))


# -- descriptors, mixed transports -------------------------------------------------------------------


def test_the_descriptor_is_readable_exactly_while_there_are_messages(context):
    pull, push = joined(context)
    assert not pull.poll(0)
    for _ in range(3):
        push.send(b"1")
        push.send(b"2")
        push.send_multipart([b"3", b"4"])
        for _ in range(3):
            assert select.select([pull], [], [], 10)[0]
            pull.recv_multipart()
        assert not pull.poll(0)
        assert not select.select([pull], [], [], 0)[0]


def mixed(context, bound_type, connected_type, **options):
    """One bound socket, and two: over TCP, and in this process."""
    bound = context.socket(bound_type, rcvtimeo=10_000, sndtimeo=10_000, **options)
    others = []
    for endpoint in "tcp://127.0.0.1:*", WHERE:
        bound.bind(endpoint)
        other = context.socket(connected_type, rcvtimeo=10_000, sndtimeo=10_000, **options)
        other.connect(bound.last_endpoint)
        other.wait_for_peers(1, 10)
        others.append(other)
    bound.wait_for_peers(2, 10)
    return bound, *others


def test_a_receiver_is_fair_to_both_transports(context):
    pull, far, near = mixed(context, transfer.PULL, transfer.PUSH, sndhwm=2000)
    for number in range(1000):
        far.send(b"far")
        near.send(b"near" if number % 7 else bytearray(b"near"))
    assert eventually(lambda: far.peers()[0].queued == 0)
    first = Counter(pull.recv() for _ in range(1000))
    assert min(first[b"far"], first[b"near"]) > 300
    assert first + Counter(pull.recv() for _ in range(1000)) == {b"far": 1000, b"near": 1000}


def test_a_sender_takes_turns_between_both_transports(context):
    push, far, near = mixed(context, transfer.PUSH, transfer.PULL)
    for number in range(100):
        push.send(b"%d" % number)
    got = [[int(pull.recv()) for _ in range(50)] for pull in (far, near)]
    assert sorted(map(tuple, got)) == [tuple(range(0, 100, 2)), tuple(range(1, 100, 2))]
    near.close(0)
    for number in range(20):
        push.send(b"%d" % number)
    assert [int(far.recv()) for _ in range(20)] == list(range(20))


def test_many_senders_take_turns(context):
    pull = context.socket(transfer.PULL, rcvtimeo=10_000)
    pull.bind(WHERE)
    senders = [context.socket(transfer.PUSH, sndtimeo=10_000) for _ in range(5)]
    for push in senders:
        push.connect(WHERE)
        push.wait_for_peers(1, 10)
    for number, push in enumerate(senders):
        for _ in range(20):
            push.send(b"%d" % number)
    for _ in range(20):
        assert {pull.recv() for _ in senders} == {b"%d" % number for number in range(5)}


# -- threads -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("hwm", [1, 100])
def test_two_readers_and_two_writers(context, hwm):
    pull, push = joined(context, sndhwm=hwm)
    count = fewer(20_000 if hwm > 1 else 500)

    def write(name):
        for number in range(count):
            push.send(b"%s %d" % (name, number))

    def read():
        return [pull.recv() for _ in range(count)]

    threads = [Thread(read), Thread(read), Thread(write, b"a"), Thread(write, b"b")]
    got = [thread.finish(50) for thread in threads][:2]
    assert sorted(got[0] + got[1]) == sorted(
        b"%s %d" % (name, n) for name in (b"a", b"b") for n in range(count)
    )
    for one in got:
        for name in b"a ", b"b ":
            numbers = [int(data[2:]) for data in one if data.startswith(name)]
            assert numbers == sorted(numbers)


def test_a_close_of_the_receiver_in_the_middle(context):
    """What it had not taken goes to the next receiver."""
    pull, push = joined(context, sndhwm=0)
    received, count = [], fewer(20_000)

    def write():
        for number in range(count):
            push.send(b"%d" % number)

    writing = Thread(write)
    received += [pull.recv() for _ in range(count // 10)]
    pull.close(0)
    other = context.socket(transfer.PULL, rcvtimeo=10_000)
    assert eventually(lambda: _binds(other))
    received += [other.recv() for _ in range(count - len(received))]
    writing.finish()
    assert sorted(map(int, received)) == list(range(count))


def _binds(socket):
    try:
        socket.bind(WHERE)
    except transfer.AddressInUse:
        return False
    return True


def test_a_close_of_the_sender_loses_nothing(context):
    pull, push = joined(context)
    for number in range(500):
        push.send(b"%d" % number)
    assert push.close() == 0
    assert [int(pull.recv()) for _ in range(500)] == list(range(500))


@pytest.mark.parametrize("sends", [True, False])
def test_a_close_wakes_the_call_of_another_thread(context, sends):
    pull, push = joined(context, sndhwm=1)
    if sends:
        push.send(b"the only place")
    waiting = Thread(push.send, b"more") if sends else Thread(pull.recv)
    assert eventually(lambda: (push if sends else pull)._streams())
    (push if sends else pull).close(0)
    with pytest.raises(Closed):
        waiting.finish()


# -- handlers of signals -----------------------------------------------------------------------------


@pytest.mark.parametrize("core", ["native"], indirect=True)  # the twin may count a queued message for ever
def test_a_handler_that_raises_while_a_receive_wakes_the_sender(context):
    pull, push = joined(context, sndhwm=2)

    def send(number):
        push.send(b"%d" % number)
        push.send(b"behind")
        with suppress(Again):
            push.send(b"", transfer.DONTWAIT)

    def check(number, got):
        assert [got, pull.recv()] == [b"%d" % number, b"behind"]
        assert push.poll(10_000, transfer.POLLOUT)

    at_every_point(send, pull.recv, check)
    assert pull.peers()[0].received == pull.messages_received == push.messages_sent


def test_a_handler_that_raises_while_a_send_wakes_the_receiver(context):
    pull, push = joined(context)

    def receive_none(_):
        with suppress(Again):
            pull.recv(transfer.DONTWAIT)

    def send():
        push.send(b"once")
        return True

    def check(number, _):
        got = [pull.recv()]
        while pull.poll(0):
            got.append(pull.recv())
        assert set(got) == {b"once"} and len(got) <= 2  # the interrupted one, and the repeated one

    at_every_point(receive_none, send, check)


# -- processes, and a thousand of them -----------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_leaves_the_messages_alone(context):
    pull, push = joined(context)
    push.send(b"before")
    pid = os.fork()
    if not pid:
        code = 0
        for call in (lambda: push.send(b"child")), pull.recv:
            try:
                call()
                code = 1
            except transfer.ForkedError:
                pass
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    push.send(b"after")
    assert [pull.recv(), pull.recv()] == [b"before", b"after"]


def test_a_thousand_pairs_leave_nothing(core):
    count = fewer(1000)

    def one_round(context):
        for number in range(count // 10):
            pull, push = pair_of(context, transfer.PULL, transfer.PUSH, f"inproc://{number}", rcvtimeo=10_000)
            push.send(b"received")
            push.send(b"left")
            push.send_multipart([b"left", b"too"])
            pull.recv()
            push.close(0)
            pull.close(0)

    with transfer.Context(core=core) as context:
        one_round(context)
        gc.collect()
        open_before = len(os.listdir("/proc/self/fd"))
        ends = sum(type(one).__name__ == "InprocStream" for one in gc.get_objects())
        for _ in range(9):
            one_round(context)
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) <= open_before + 5
        assert sum(type(one).__name__ == "InprocStream" for one in gc.get_objects()) <= ends + 5


def test_messages_are_freed_with_their_pair(context):
    data = bytes(1000)
    before = sys.getrefcount(data)
    with KeepingContext(core=context.core) as other:
        pull, push = joined(other)
        for _ in range(100):
            push.send(data)
        assert pull.recv() is data
        assert sys.getrefcount(data) >= before + 99
    other.destroy(0)
    del pull, push, other
    gc.collect()
    assert threading.active_count() > 0 and sys.getrefcount(data) == before
