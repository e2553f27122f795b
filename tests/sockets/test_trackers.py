"""Trackers: whose memory it is, and whether the peer consumed the message."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

import transfer
from transfer import DEALER, PAIR, PUB, PULL, PUSH, REP, REQ, ROUTER, SUB
from transfer.sockets.peer import Peer
from transfer.sockets.tracker import Tracker
from transfer.transports.core.wire import CREDIT, Control, SocketType
from transfer.transports.errors import Again, Broken, NotSupported

from .helpers import Thread, eventually, pair_of


def test_done_and_confirmed(context, endpoint):
    pull, push = pair_of(context, PULL, PUSH, endpoint)
    tracker = push.send(b"x" * 10, track=True)
    tracker.wait(10)
    assert tracker.done
    with pytest.raises(Again):
        tracker.wait_confirmed(0.05)
    pull.recv()
    tracker.wait_confirmed(10)
    assert tracker.confirmed


def test_memory_in_flight_is_held(by_tcp):
    pull, push = pair_of(by_tcp, PULL, PUSH, sndbuf=4096, rcvbuf=4096)
    memory = bytearray(b"a" * 5_000_000)
    tracker = push.send(memory, copy=False, track=True)
    assert not tracker.done
    with pytest.raises(BufferError):
        memory.extend(b"more")
    assert pull.recv() == memory
    tracker.wait(10)
    assert eventually(lambda: _extends(memory))


def _extends(memory):
    try:
        memory.extend(b"more")
    except BufferError:
        return False
    return True


def test_the_death_of_the_peer_fails_the_tracker(context):
    pull, push = pair_of(context, PULL, PUSH)
    tracker = push.send(b"x", track=True)
    tracker.wait(10)
    waiting = Thread(tracker.wait_confirmed, 20)
    pull.close(0)
    with pytest.raises(Broken, match="unconfirmed"):
        waiting.finish()


@pytest.mark.parametrize("size", [1, 5_000_000])
def test_a_tracker_names_the_program_itself_as_the_end_of_its_socket(by_tcp, size):
    """It said that the peer was gone. Of 5 MB the memory is in flight, and the core ends the wait for it."""
    _, push = pair_of(by_tcp, PULL, PUSH, sndbuf=4096, rcvbuf=4096)
    tracker = push.send(bytes(size), copy=False, track=True)
    waiting = Thread(tracker.wait_confirmed, 20)
    push.close(linger=0)
    for wait in (waiting.finish, tracker.wait_confirmed):
        with pytest.raises(Broken, match="this program closed the socket before") as raised:
            wait()
        assert "wait_confirmed() before close()" in raised.value.hint and "linger" in raised.value.hint


def test_a_tracker_of_a_message_that_found_no_peer_before_the_socket_closed(by_tcp):
    with by_tcp.socket(PUSH, immediate=False) as push:
        push.connect("tcp://127.0.0.1:9")
        tracker = push.send(b"x", track=True)
        push.close(linger=0)
    with pytest.raises(Broken, match="this program closed the socket before"):
        tracker.wait_confirmed()


def test_a_peer_that_closed_before_the_socket_did_is_named_as_gone(by_tcp):
    pull, push = pair_of(by_tcp, PULL, PUSH)
    tracker = push.send(b"x", track=True)
    pull.close(0)
    push.close(linger=0)
    with pytest.raises(Broken, match="its peer is gone"):
        tracker.wait_confirmed()


def test_a_peer_that_dies_while_a_message_is_noted_fails_the_tracker(context, monkeypatch):
    """It died behind the look at whether it is there, and the tracker was noted when all had failed."""
    pull, push = pair_of(context, PULL, PUSH)
    links = push._links
    await_credits = links.credits.await_credits

    def killed_first():
        pull.close(0)
        assert eventually(lambda: not links.state.peers)
        await_credits()

    monkeypatch.setattr(links.credits, "await_credits", killed_first)
    tracker = push.send(b"x", track=True)
    with pytest.raises(Broken, match="unconfirmed"):
        tracker.wait_confirmed(10)


@pytest.mark.parametrize("size", [8, 1_000_000])
def test_a_tracker_that_is_noted_late_follows_its_message_to_another_peer(by_tcp, monkeypatch, size):
    """It was told that the message had arrived nowhere, and the message came."""
    pull, push = pair_of(by_tcp, PULL, PUSH, sndhwm_bytes=0)
    for _ in range(40):
        push.send(bytes(1_000_000))  # more than the kernel takes
    memory = b"the last".rjust(size)
    links = push._links
    note = links.orphans.note

    def late(frames, tracker, stream, *arguments, **others):
        monkeypatch.setattr(links.orphans, "note", note)
        pull.close(0)
        assert eventually(lambda: stream.peer.settled is not None)
        note(frames, tracker, stream, *arguments, **others)

    monkeypatch.setattr(links.orphans, "note", late)
    tracker = push.send(memory, copy=False, track=True)
    with by_tcp.socket(PULL, rcvtimeo=10000) as other:
        other.bind(pull.last_endpoint)
        while other.recv() != memory:
            assert not tracker.confirmed
        tracker.wait_confirmed(10)


def test_a_credit_that_another_thread_has_just_read_counts(by_tcp):
    """The peer was lost meanwhile, and its messages were said to have arrived nowhere."""
    _, push = pair_of(by_tcp, PULL, PUSH)
    tracker = push.send(b"x", track=True)
    tracker.wait(10)
    [peer] = push._links.state.peers.values()
    read = threading.Event()

    def reads():
        with peer.reading:
            read.set()
            eventually(lambda: not push._links.state.peers)
            push._links.control.on_control(peer.stream, by_tcp.core.Frame(CREDIT.pack(Control.CREDIT, 1)))

    reader = Thread(reads)
    assert read.wait(10)
    push._links.loss.lost(peer.stream, Broken("the peer closed the connection"))
    reader.finish()
    tracker.wait_confirmed(0)


def test_what_threads_note_out_of_order_is_confirmed_in_order():
    stream = SimpleNamespace(sent=3, confirmed=0, peer=None)
    peer = Peer(stream, SimpleNamespace(address=""), SocketType.PULL)
    trackers = [Tracker() for _ in range(3)]
    for number in (3, 1, 2):
        assert peer.note(number, trackers[number - 1], [number])
    peer.confirm(2)
    assert [tracker.confirmed for tracker in trackers] == [True, True, False]
    assert [number for number, _ in peer.retained] == [3]


def test_many_are_confirmed_in_order(context):
    pull, push = pair_of(context, PULL, PUSH)
    trackers = [push.send(b"%d" % i, track=True) for i in range(200)]
    for _ in range(100):
        pull.recv()
    trackers[99].wait_confirmed(10)
    assert all(t.confirmed for t in trackers[:100])
    assert not any(t.confirmed for t in trackers[100:])


def test_publishers_are_not_confirmed(context):
    pub, sub = pair_of(context, PUB, SUB)
    tracker = pub.send(b"x", track=True)
    tracker.wait(10)
    assert sub.recv() == b"x"
    with pytest.raises(NotSupported):
        tracker.wait_confirmed(1)


def test_a_reply_confirms_the_request(context):
    rep, req = pair_of(context, REP, REQ)
    tracker = req.send(b"x", track=True)
    rep.send(rep.recv())
    assert req.recv() == b"x"
    tracker.wait_confirmed(10)


def test_tracked_parts_and_inproc(context):
    pull, push = pair_of(context, PULL, PUSH, "inproc://tracked")
    tracker = push.send_multipart([bytearray(100_000), b"x"], copy=False, track=True)
    assert len(pull.recv_multipart()) == 2
    tracker.wait(10)


def test_a_message_that_was_dropped_fails_its_tracker(context):
    router, _dealer = pair_of(context, transfer.ROUTER, transfer.DEALER)
    tracker = router.send_multipart([b"nobody", b"x"], track=True)
    with pytest.raises(Broken):
        tracker.wait(1)


def test_a_conflating_sender_keeps_a_copy(context):
    push = context.socket(PUSH, conflate=True)
    push.bind("tcp://127.0.0.1:0")
    memory = bytearray(b"newest")
    tracker = push.send(memory, track=True)
    assert tracker.done
    memory[:] = b"change"
    pull = context.socket(PULL)
    pull.connect(push.last_endpoint)
    assert pull.recv() == b"newest"


def test_memory_may_change_before_its_message_finds_another_peer(by_tcp, tmp_path):
    """The first peer dies before it is sent. The tracker says that the memory is free, and it is."""
    for endpoint in ("tcp://127.0.0.1:0", f"inproc://{tmp_path.name}"):
        first, push = pair_of(by_tcp, PULL, PUSH, endpoint, sndbuf=4096, rcvbuf=4096)
        push.send(bytes(4 << 20), copy=False)  # the kernel is full of it
        memory = bytearray(b"a" * 1_000_000)
        small = bytearray(b"b" * 1000)
        trackers = [push.send(data, copy=False, track=True) for data in (memory, small)]
        first.close(0)
        for tracker in trackers:
            tracker.wait(10)  # the message is not lost, so there is no error
        memory[:] = bytes(len(memory))
        small[:] = bytes(len(small))
        memory.extend(b"more")
        assert not any(tracker.confirmed for tracker in trackers)
        second = by_tcp.socket(PULL)
        second.bind(first.last_endpoint)
        received = [second.recv(), second.recv()]
        while b"a" not in received[0]:  # by reference what was not received is not lost
            received = [received[1], second.recv()]
        assert received == [b"a" * 1_000_000, b"b" * 1000]
        for tracker in trackers:
            tracker.wait_confirmed(10)
            assert tracker.error is None


def test_a_tracker_of_what_finds_nobody_ends_with_an_error(by_tcp):
    first, push = pair_of(by_tcp, PULL, PUSH, sndbuf=4096, rcvbuf=4096)
    push.send(bytes(4 << 20), copy=False)
    memory = bytearray(1_000_000)
    tracker = push.send(memory, copy=False, track=True)
    waiting = Thread(tracker.wait_confirmed, 20)
    first.close(0)
    tracker.wait(10)
    push.close(0)
    with pytest.raises(Broken):
        waiting.finish()
    assert tracker.done
    memory.extend(b"more")


@pytest.mark.parametrize("copy", [True, False], ids=["copied", "held"])
def test_what_is_sent_again_is_what_was_sent(context, copy):
    """With `resend` a message outlives the call, and its memory is the caller's all the same."""
    first, push = pair_of(context, PULL, PUSH, resend=True)
    memories = [bytearray(b"a" * 300_000), bytearray(b"b" * 100)]
    for memory in memories:
        tracker = push.send(memory, copy=copy, track=True)
        tracker.wait(10)
        memory[:] = bytes(len(memory))
        memory.extend(b"more")
    first.close(0)
    second = context.socket(PULL)
    second.bind(first.last_endpoint)
    assert [second.recv(), second.recv()] == [b"a" * 300_000, b"b" * 100]


def test_a_message_that_was_only_polled_for_is_not_consumed(context, endpoint):
    """The application of who found it may die before it receives it."""
    pull, push = pair_of(context, PULL, PUSH, endpoint)
    polled = push.send(b"polled for", track=True)
    assert pull.poll(20_000)
    with pytest.raises(Again):
        polled.wait_confirmed(0.2)
    assert pull.peers()[0].received == 0
    assert pull.recv() == b"polled for"
    polled.wait_confirmed(20)
    assert pull.peers()[0].received == 1


@pytest.mark.parametrize("resend", [False, True])
def test_the_trackers_of_many_threads_tell_of_their_own_messages(context, resend):
    """A lost peer had part of them, another one gets what it had not: each tracker tells who has its own."""
    first, push = pair_of(context, PULL, PUSH, rcvbuf=4096, sndbuf=4096, resend=resend)
    trackers, lock = {}, threading.Lock()

    def send(name):
        for number in range(100):
            data = b"%d %d " % (name, number)
            tracker = push.send(data + bytes(5000), track=True)
            with lock:
                trackers[data] = tracker

    threads = [threading.Thread(target=send, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        first.recv()
    for thread in threads:
        thread.join(20)
    first.close(0)
    second = context.socket(PULL, rcvtimeo=20_000)
    second.bind(first.last_endpoint)
    there = set()
    while second.poll(1000):
        data = second.recv()
        there.add(data[:-5000])
    confirmed = set()
    for data, tracker in trackers.items():
        try:
            tracker.wait_confirmed(20)
            confirmed.add(data)
        except Broken:
            assert data not in there, "it failed, and arrived"
    assert there <= confirmed and len(confirmed - there) <= 5
    assert not resend or len(confirmed) == 300


CREDITED = [(DEALER, DEALER), (DEALER, ROUTER), (PAIR, PAIR)]


@pytest.mark.parametrize(("kind", "other"), CREDITED)
def test_what_a_socket_that_never_receives_sent_is_confirmed(context, endpoint, kind, other):
    """Its credits come among the messages that it does not ask for."""
    receiver, sender = pair_of(context, other, kind, endpoint, resend=True)
    for number in range(20):
        tracker = sender.send(b"%d" % number, track=True)
        assert receiver.recv_multipart()[-1] == b"%d" % number
    tracker.wait_confirmed(20)
    assert sender.peers()[0].unconfirmed == 0
    peer = next(iter(sender._links.state.peers.values()))
    assert eventually(lambda: not peer.retained), "what is confirmed is not kept"


@pytest.mark.parametrize(("kind", "other"), CREDITED)
def test_peers_tells_what_is_confirmed_without_a_receive(context, endpoint, kind, other):
    receiver, sender = pair_of(context, other, kind, endpoint)
    for _ in range(20):
        sender.send(b"plain")
        receiver.recv_multipart()
    assert eventually(lambda: sender.peers()[0].confirmed == 20)
    assert sender.peers()[0].unconfirmed == 0


@pytest.mark.parametrize(("kind", "other"), [(DEALER, DEALER), (PAIR, PAIR)])
def test_credits_are_looked_for_and_no_message_is_lost(context, endpoint, kind, other):
    """The look for credits finds messages before them, which the next receives get in their order."""
    one, two = pair_of(context, other, kind, endpoint, resend=True)
    two.rcvtimeo = one.rcvtimeo = 10_000
    sizes = [0, 10, 70_000, 3, 200_000]
    for number in range(20):
        two.send(b"%d" % number, track=True)
        one.recv()
        one.send_multipart([b"reply %d" % number, bytes(sizes[number % 5])])
        if number % 5 == 0:
            assert eventually(lambda: two._readable())
            two.peers()
    for number in range(20):
        assert two.recv_multipart() == [b"reply %d" % number, bytes(sizes[number % 5])]
