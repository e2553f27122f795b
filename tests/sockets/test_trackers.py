"""Trackers: whose memory it is, and whether the peer consumed the message."""

from __future__ import annotations

import pytest

import transfer
from transfer import PUB, PULL, PUSH, REP, REQ, SUB
from transports.errors import Again, Broken, NotSupported

from .conftest import KeepingContext
from .helpers import Thread, eventually, pair_of


def test_done_and_confirmed(context):
    pull, push = pair_of(context, PULL, PUSH)
    tracker = push.send(b"x" * 10, track=True)
    tracker.wait(10)
    assert tracker.done
    with pytest.raises(Again):
        tracker.wait_confirmed(0.05)
    pull.recv()
    tracker.wait_confirmed(10)
    assert tracker.confirmed


def test_memory_in_flight_is_held(core):
    # Over TCP, since shared memory takes a copy at once.
    with KeepingContext(core=core, protocol="tcp") as context:
        pull, push = pair_of(context, PULL, PUSH, sndbuf=4096, rcvbuf=4096)
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
