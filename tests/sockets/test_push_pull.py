"""PUSH and PULL: round robin, fair receive, blocking when full, several endpoints."""

from __future__ import annotations

import pytest

import transfer
from transfer import PULL, PUSH
from transfer.transports.errors import Again, NotSupported

from .helpers import TCP, Thread, pair_of


def test_messages_arrive_in_order_by_each_transport(context, endpoint):
    pull, push = pair_of(context, PULL, PUSH, endpoint)
    for i in range(2000):
        push.send(b"%d" % i)
        if i % 500 == 499:
            assert [pull.recv() for _ in range(500)] == [b"%d" % j for j in range(i - 499, i + 1)]


def test_either_side_binds(context):
    push, pull = pair_of(context, PUSH, PULL)
    push.send(b"from the bound side")
    assert pull.recv() == b"from the bound side"


@pytest.mark.parametrize("size", [0, 1, 4096, 65536, 300_000, 5_000_000])
def test_sizes(context, endpoint, size):
    pull, push = pair_of(context, PULL, PUSH, endpoint)
    payload = bytes(range(256)) * (size // 256) + b"z" * (size % 256)
    sender = Thread(push.send, payload)
    assert pull.recv() == payload
    sender.finish()


def test_parts_of_a_message_stay_together(context, endpoint):
    pull, push = pair_of(context, PULL, PUSH, endpoint)
    push.send_multipart([b"one", b"", b"three"])
    push.send(b"a", transfer.SNDMORE)
    push.send(b"b")
    assert pull.recv_multipart() == [b"one", b"", b"three"]
    assert pull.recv() == b"a"
    assert pull.rcvmore
    assert pull.recv() == b"b"
    assert not pull.rcvmore


def test_work_goes_round_and_nobody_gets_all(context):
    push = context.socket(PUSH)
    push.bind(TCP)
    pulls = [context.socket(PULL) for _ in range(3)]
    for pull in pulls:
        pull.connect(push.last_endpoint)
    push.wait_for_peers(3, 10)
    for i in range(30):
        push.send(b"%d" % i)
    for pull in pulls:
        assert len([pull.recv() for _ in range(10)]) == 10


def test_a_pull_hears_all_of_its_pushers(context):
    pull = context.socket(PULL)
    pull.bind(TCP)
    pushes = [context.socket(PUSH) for _ in range(5)]
    for number, push in enumerate(pushes):
        push.connect(pull.last_endpoint)
        push.send(b"%d" % number)
    assert sorted(pull.recv() for _ in pushes) == [b"%d" % n for n in range(5)]


def test_one_push_to_two_endpoints(context):
    pulls = [context.socket(PULL) for _ in range(2)]
    push = context.socket(PUSH)
    for pull in pulls:
        pull.bind(TCP)
        push.connect(pull.last_endpoint)
    push.wait_for_peers(2, 10)
    push.send(b"x")
    push.send(b"y")
    assert {pull.recv() for pull in pulls} == {b"x", b"y"}


def test_a_full_peer_is_skipped_and_loses_nothing(context):
    push = context.socket(PUSH, sndhwm=10, sndbuf=4096, sndtimeo=20_000)
    push.bind(TCP)
    idle, busy = (context.socket(PULL, rcvbuf=4096) for _ in range(2))
    idle.connect(push.last_endpoint)
    busy.connect(push.last_endpoint)
    push.wait_for_peers(2, 10)
    received = []

    def read():
        while (message := busy.recv()) != b"stop":
            received.append(message)

    reader = Thread(read)
    for i in range(300):
        push.send(b"%03d" % i * 5000)
    assert push.peers()[0].queued + push.peers()[1].queued >= 10  # the idle one is full
    kept = []
    while len(kept) + len(received) < 300:
        if idle.poll(20):
            kept.append(idle.recv())
    push.send(b"stop")
    push.send(b"stop")
    assert idle.recv() == b"stop"
    reader.finish()
    assert sorted(kept + received) == [b"%03d" % i * 5000 for i in range(300)]
    assert len(received) > len(kept)


def test_a_push_without_peers_says_whom_it_tried(context):
    push = context.socket(PUSH, sndtimeo=300)
    push.connect("tcp://127.0.0.1:1")
    with pytest.raises(Again, match=r"no peer listens at tcp://127\.0\.0\.1:1 yet: tried for") as caught:
        push.send(b"x")
    assert "hint" in str(caught.value)


def test_a_push_that_is_nowhere_says_so(context):
    push = context.socket(PUSH)
    with pytest.raises(Again, match="neither bound nor connected"):
        push.send(b"x", transfer.DONTWAIT)


def test_full_means_again_and_room_means_on(context):
    pull, push = pair_of(context, PULL, PUSH, sndhwm=5, sndbuf=4096, rcvbuf=4096)
    payload = b"x" * 100_000
    sent = 0
    with pytest.raises(Again):
        while True:
            push.send(payload, transfer.DONTWAIT)
            sent += 1
    assert sent >= 5
    waiting = Thread(push.send, payload)
    for _ in range(sent + 1):
        assert pull.recv() == payload
    waiting.finish()


def test_the_wrong_direction_is_refused(context):
    pull, push = pair_of(context, PULL, PUSH)
    with pytest.raises(NotSupported):
        push.recv()
    with pytest.raises(NotSupported):
        pull.send(b"x")


def test_the_wrong_kind_of_peer_is_refused(context):
    pull = context.socket(PULL)
    sub = context.socket(transfer.SUB)
    pull.bind(TCP)
    monitor = pull.get_monitor()
    sub.connect(pull.last_endpoint)
    event = monitor.recv(10)
    assert (event.kind, event.reason) == ("handshake_failed", "socket_type")
    assert not pull.peers()


def test_a_message_sent_before_the_peer_is_there_waits_with_lazy_connect(context):
    first = context.socket(PULL)
    first.bind(TCP)
    endpoint = first.last_endpoint
    first.close()
    push = context.socket(PUSH, immediate=False)
    push.connect(endpoint)
    for i in range(10):
        push.send(b"%d" % i)
    second = context.socket(PULL)
    second.bind(endpoint)
    assert [second.recv() for _ in range(10)] == [b"%d" % i for i in range(10)]
