"""PAIR: one peer, both ways."""

from __future__ import annotations

import transfer
from transfer import PAIR

from .helpers import eventually, pair_of


def test_both_ways(context, endpoint):
    one, other = pair_of(context, PAIR, PAIR, endpoint)
    for i in range(100):
        one.send(b"to %d" % i)
        other.send(b"fro %d" % i)
    assert [other.recv() for _ in range(100)] == [b"to %d" % i for i in range(100)]
    assert [one.recv() for _ in range(100)] == [b"fro %d" % i for i in range(100)]


def test_a_second_peer_is_refused_and_told(context):
    one, _other = pair_of(context, PAIR, PAIR)
    monitor = one.get_monitor()
    third = context.socket(PAIR)
    third_monitor = third.get_monitor()
    third.connect(one.last_endpoint)
    event = monitor.recv(10)
    assert (event.kind, event.reason) == ("accept_failed", "pair_busy")
    kinds = {third_monitor.recv(10).kind for _ in range(2)}
    assert kinds & {"refused", "handshake_failed", "disconnected"}
    assert len(one.peers()) == 1


def test_when_the_first_goes_another_may_come(context):
    one, other = pair_of(context, PAIR, PAIR)
    other.close()
    assert eventually(lambda: not one.peers() or one._readable() or not one.peers())
    third = context.socket(PAIR, reconnect_ivl=10)
    third.connect(one.last_endpoint)
    third.wait_for_peers(1, 10)
    third.send(b"hello")
    assert one.recv() == b"hello"


def test_a_pair_is_only_for_pairs(context):
    one = context.socket(PAIR)
    one.bind("tcp://127.0.0.1:0")
    monitor = one.get_monitor()
    push = context.socket(transfer.PUSH)
    push.connect(one.last_endpoint)
    assert monitor.recv(10).reason == "socket_type"
