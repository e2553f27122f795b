"""PAIR: one peer, both ways."""

from __future__ import annotations

from contextlib import suppress

import pytest

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


@pytest.mark.parametrize("protocol", ["tcp", "auto"])
def test_of_two_that_a_pair_connects_to_the_one_without_it_sends_nothing(core, protocol):
    """Else what that one sends before it is refused would be lost."""
    with transfer.Context(core=core, protocol=protocol) as context:
        bound = [context.socket(PAIR, linger=0, sndtimeo=5) for _ in range(2)]
        one = context.socket(PAIR, linger=0, reconnect_ivl=1, reconnect_ivl_max=5, rcvtimeo=10_000)
        for other in bound:
            other.bind("tcp://127.0.0.1:0")
            one.connect(other.last_endpoint)
        taken = {other: [] for other in bound}
        for number in range(2000):
            for other in bound:
                with suppress(transfer.Again):
                    other.send(b"%d" % number)
                    taken[other].append(b"%d" % number)
            if one._links.state.counts.get("refused:pair_busy", 0) >= 10 and any(taken.values()):
                break
        (sent,) = (numbers for numbers in taken.values() if numbers)
        assert [one.recv() for _ in sent] == sent
        for socket in (one, *bound):
            socket.close(0)
