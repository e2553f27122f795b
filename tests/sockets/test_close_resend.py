"""Closing a socket with `resend`: what was sent is confirmed, goes to another peer, or is counted."""

from __future__ import annotations

import time

import transfer
from transfer import DEALER, PULL, PUSH

from .helpers import TCP, Thread, pair_of


def unconfirmed(context):
    """What ended sockets of this context count as unconfirmed."""
    counts = context.tally._ended
    return sum(count for name, count in counts.items() if name[0] == "transfer_unconfirmed_total")


def test_close_waits_for_the_confirmation(context, endpoint):
    pull, push = pair_of(context, PULL, PUSH, endpoint, resend=True, linger=60_000)
    for number in range(10):
        push.send(b"%d" % number)
    closing = Thread(push.close)
    time.sleep(0.2)
    assert closing.is_alive()
    assert [pull.recv() for _ in range(10)] == [b"%d" % number for number in range(10)]
    assert closing.finish() == 0 and unconfirmed(context) == 0


def test_close_tells_how_many_were_not_confirmed(context, endpoint):
    pull, push = pair_of(context, PULL, PUSH, endpoint, resend=True)
    for _ in range(10):
        push.send(b"message")
    assert push.close(100) == 10 and unconfirmed(context) == 10
    assert [pull.recv() for _ in range(10)] == [b"message"] * 10  # it may have them all the same


def test_what_a_receiver_had_that_dies_meanwhile_goes_to_another(context):
    push = context.socket(PUSH, resend=True, linger=60_000)
    push.bind(TCP)
    with transfer.Context() as dying:
        lost = dying.socket(PULL)
        lost.connect(push.last_endpoint)
        alive = context.socket(PULL)
        alive.connect(push.last_endpoint)
        push.wait_for_peers(2, 10)
        for number in range(10):
            push.send(b"%d" % number)
        closing = Thread(push.close)
        got = [alive.recv() for _ in range(5)]
        dying.destroy(0)
        got += [alive.recv() for _ in range(5)]
    assert sorted(got) == [b"%d" % number for number in range(10)]
    assert closing.finish() == 0


def test_a_credit_behind_an_unread_message_is_not_waited_for(context):
    """Nobody will receive that message any more, so the wait would have no end."""
    one, other = pair_of(context, DEALER, DEALER, resend=True, linger=-1)
    other.send(b"unread")
    assert one.poll(10_000)
    one.send(b"message")
    closing = Thread(one.close)
    assert closing.finish() == 1
    assert other.recv() == b"message"
    other.close(0)
