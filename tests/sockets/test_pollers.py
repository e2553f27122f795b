"""Pollers of sockets that the core polls, and of those that Python does: the results are the same."""

from __future__ import annotations

import time

import pytest

import transfer
from tests.sockets.helpers import Thread, eventually, fewer, pair_of
from transfer.transports.errors import Closed


def poller_of(*sockets, flags=transfer.POLLIN):
    poller = transfer.Poller()
    for socket in sockets:
        poller.register(socket, flags)
    return poller


@pytest.fixture(params=[1, 70])
def many(request, context):
    """(push, pull) of so many pairs."""
    return [pair_of(context, transfer.PUSH, transfer.PULL) for _ in range(request.param)]


def test_the_ones_that_have_something(many):
    pulls = [pull for _, pull in many]
    poller = poller_of(*pulls)
    assert poller.poll(0) == poller.poll(5) == []
    many[-1][0].send(b"x")
    assert poller.poll(10_000) == [(pulls[-1], transfer.POLLIN)]
    many[0][0].send(b"y")
    assert eventually(lambda: {pull for pull, _ in poller.poll(0)} == {pulls[0], pulls[-1]})
    assert pulls[-1].recv(transfer.DONTWAIT) == b"x"
    assert poller.poll(10_000) == [(pulls[0], transfer.POLLIN)]


def test_a_message_wakes_a_poller(context):
    pairs = [pair_of(context, transfer.PUSH, transfer.PULL) for _ in range(3)]
    poller = poller_of(*(pull for _, pull in pairs))
    for turn in range(fewer(60)):
        push, pull = pairs[turn % 3]
        waiting = Thread(poller.poll, 20_000)
        time.sleep(0.0005 * (turn % 4))
        push.send(b"%d" % turn)
        assert waiting.finish() == [(pull, transfer.POLLIN)]
        assert pull.recv(transfer.DONTWAIT) == b"%d" % turn


def test_a_quiet_peer_beside_one_that_is_always_ahead(context):
    (hot, first), (quiet, second) = (pair_of(context, transfer.PUSH, transfer.PULL) for _ in range(2))
    hot.send_many([b"hot"] * 900)
    assert eventually(lambda: first.poll(0))
    poller = poller_of(first, second)
    poller.poll(0)
    quiet.send(b"quiet")
    assert eventually(lambda: len(poller.poll(0)) == 2)
    assert second.recv(transfer.DONTWAIT) == b"quiet" and first.recv(transfer.DONTWAIT) == b"hot"


def test_a_socket_that_another_thread_closes(context):
    _, pull = pair_of(context, transfer.PUSH, transfer.PULL)
    waiting = Thread(poller_of(pull).poll, 20_000)
    time.sleep(0.05)
    pull.close()
    with pytest.raises(Closed):
        waiting.finish()


def test_parts_that_are_left(context):
    push, pull = pair_of(context, transfer.PUSH, transfer.PULL)
    push.send_multipart([b"a", b"b"])
    assert pull.recv() == b"a"
    poller = poller_of(pull)
    assert poller.poll(0) == [(pull, transfer.POLLIN)]
    assert pull.recv(transfer.DONTWAIT) == b"b" and poller.poll(0) == []


def test_what_a_subscriber_does_not_want_is_no_message(context):
    pub, sub = pair_of(context, transfer.PUB, transfer.SUB)
    poller = poller_of(sub)
    sub.subscribe(b"a")
    assert eventually(lambda: pub.subscribers(b"a") and pub.subscribers(b"b"))
    pub.send_many([b"b1", b"b2"])
    sub.unsubscribe(b"")
    assert poller.poll(50) == [] and sub.filtered == 2
    pub.send(b"a1")
    assert poller.poll(10_000) == [(sub, transfer.POLLIN)] and sub.recv() == b"a1"


def test_different_kinds_together(context):
    (push, pull), (req, rep) = (
        pair_of(context, transfer.PUSH, transfer.PULL),
        pair_of(context, transfer.REQ, transfer.REP),
    )
    poller = poller_of(pull, rep, req)
    assert poller.poll(0) == []
    req.send(b"question")
    push.send(b"x")
    assert eventually(lambda: {socket for socket, _ in poller.poll(0)} == {pull, rep})
    rep.send(rep.recv())
    assert pull.recv() == b"x"
    assert poller.poll(10_000) == [(req, transfer.POLLIN)]


def test_the_list_of_a_poller_may_change_while_it_waits(context):
    (_, first), (push, second) = (pair_of(context, transfer.PUSH, transfer.PULL) for _ in range(2))
    poller = poller_of(first, second)
    waiting = Thread(poller.poll, 20_000)
    time.sleep(0.02)
    poller.unregister(first)
    push.send(b"x")
    assert waiting.finish() == [(second, transfer.POLLIN)]
