"""Who gets the next task of a PUSH: by weight, or by what each has in hand."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from hypothesis import given, strategies as st

import transfer
from tests.sockets.helpers import eventually
from transfer.sockets.connections.connection_loss import ConnectionLoss
from transfer.sockets.peer_preference import Weights


class OfModel:
    """A peer that only has an endpoint."""

    def __init__(self, number):
        self.endpoint = f"tcp://host:{number}"


def takes(turns, peers, full=()):
    """Who takes the next message."""
    passed = []
    for peer in turns.order(peers):
        if peer not in full:
            turns.took(peer, passed)
            return peer
        passed.append(peer)
    return None


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 4))
def test_each_gets_its_weight_of_every_round(weights, rounds):
    peers = [OfModel(number) for number in range(len(weights))]
    turns = Weights({peer.endpoint: weight for peer, weight in zip(peers, weights, strict=True)})
    for _ in range(rounds):
        got = Counter(takes(turns, peers) for _ in range(sum(weights)))
        assert [got[peer] for peer in peers] == weights


@given(st.lists(st.sets(st.integers(0, 2)), max_size=40))
def test_who_had_no_room_gets_no_more_for_it_later(full):
    peers = [OfModel(number) for number in range(3)]
    turns = Weights({peers[0].endpoint: 2})
    for numbers in full:
        taker = takes(turns, peers, [peers[number] for number in numbers])
        assert (taker is None) == (len(numbers) == 3)
    for _ in range(10):  # what the rounds before left is little
        got = Counter(takes(turns, peers) for _ in range(40))
        assert all(abs(got[peer] - share) <= 4 for peer, share in zip(peers, (20, 10, 10), strict=True))


def test_they_go_one_between_the_others():
    peers = [OfModel(number) for number in range(2)]
    turns = Weights({peers[0].endpoint: 3})
    assert [peers.index(takes(turns, peers)) for _ in range(8)] == [0, 0, 1, 0] * 2
    assert takes(turns, peers[1:]) is peers[1], "the other one has gone"


@pytest.fixture
def crew(context):
    """(a PUSH, PULLs that it is connected to)"""
    push = context.socket(transfer.PUSH, sndtimeo=5000)
    pulls = []
    for _ in range(3):
        pulls.append(context.socket(transfer.PULL, rcvtimeo=5000))
        pulls[-1].bind("tcp://127.0.0.1:0")
        push.connect(pulls[-1].last_endpoint)
    push.wait_for_peers(3, 10)
    return push, pulls


def counts(pulls, total):
    """How many each has received when all have come."""
    got = [0] * len(pulls)
    while sum(got) < total:
        for number, pull in enumerate(pulls):
            got[number] += bool(pull.poll(5)) and pull.recv() is not None
    return got


def test_weights_of_endpoints(crew):
    push, pulls = crew
    push.balance = {pulls[0].last_endpoint: 3, pulls[1].last_endpoint: 2}
    for number in range(60):
        push.send(b"%d" % number)
    assert counts(pulls, 60) == [30, 20, 10]
    push.balance = None
    for number in range(60):
        push.send_multipart([b"%d" % number, b"more"])
    assert counts(pulls, 120) == [40, 40, 40]


def test_the_least_loaded_gets_the_next(crew):
    push, (slow, *quick) = crew
    push.balance = "load"
    got, ended = Counter(), threading.Event()

    def works(pull):
        while not ended.is_set():
            if pull.poll(20):
                pull.recv()
                got[pull] += 1

    threads = [threading.Thread(target=works, args=(pull,)) for pull in quick]
    for thread in threads:
        thread.start()
    total, most = 0, 60  # what is consumed is confirmed by the dozen: so many may wait for it
    try:
        while total < 300:  # the slow one receives nothing
            push.send(b"task")
            total += 1
            if total % 3 == 0:
                assert eventually(lambda total=total: sum(got.values()) >= total - most)
        left = sum(1 for _ in iter(lambda: slow.poll(50) and slow.recv(), 0))
        assert eventually(lambda: sum(got.values()) + left == total)
    finally:
        ended.set()
        for thread in threads:
            thread.join(10)
    assert left <= most, (left, got)
    # A quick one that the machine lets wait counts as slow meanwhile, and has at least as many in hand.
    assert min(got.values()) >= left - 1, (left, got)


def test_what_a_lost_peer_had_goes_first_to_the_others(context):
    push = context.socket(transfer.PUSH, balance="load", sndtimeo=5000)
    pulls = [context.socket(transfer.PULL, rcvtimeo=5000, rcvhwm=2) for _ in range(2)]
    for pull in pulls:
        pull.bind("tcp://127.0.0.1:0")
        push.connect(pull.last_endpoint)
    push.wait_for_peers(2, 10)
    for number in range(20):
        push.send(b"%d" % number)
    pulls[1].close(0)
    assert eventually(lambda: len(push.peers()) == 1)
    push.send(b"last")
    got = []
    while pulls[0].poll(500):
        got.append(pulls[0].recv())
    assert got[-1] == b"last" and b"0" in got


def test_nothing_overtakes_what_is_just_taken_from_a_lost_peer(context, monkeypatch):
    push = context.socket(transfer.PUSH, balance="load", sndtimeo=5000)
    pulls = [context.socket(transfer.PULL, rcvtimeo=5000, rcvhwm=2) for _ in range(2)]
    for pull in pulls:
        pull.bind("tcp://127.0.0.1:0")
        push.connect(pull.last_endpoint)
    push.wait_for_peers(2, 10)
    for number in range(20):
        push.send(b"%d" % number)
    taking, go_on, take = threading.Event(), threading.Event(), ConnectionLoss._take_unsent

    def take_later(links, peer):
        taking.set()
        assert go_on.wait(10)
        return take(links, peer)

    monkeypatch.setattr(ConnectionLoss, "_take_unsent", take_later)
    try:
        pulls[1].close(0)
        assert taking.wait(10) and len(push.peers()) == 1
        with pytest.raises(transfer.Again):
            push.send(b"last", transfer.DONTWAIT)
    finally:
        go_on.set()
    push.send(b"last")
    got = [pulls[0].recv()]
    while got[-1] != b"last":
        got.append(pulls[0].recv())
    assert not pulls[0].poll(200)


def test_a_socket_that_is_bound_balances_those_that_come(context):
    push = context.socket(transfer.PUSH, balance="load")
    push.bind("tcp://127.0.0.1:0")
    pulls = [context.socket(transfer.PULL, rcvtimeo=5000) for _ in range(2)]
    for pull in pulls:
        pull.connect(push.last_endpoint)
    push.wait_for_peers(2, 10)
    for number in range(10):
        push.send(b"%d" % number)
    assert counts(pulls, 10) == [5, 5]


def test_those_with_nothing_in_hand_take_turns(crew):
    """The first of them got everything: jobs waited for each other while workers did nothing."""
    push, pulls = crew
    push.balance = "load"
    for number in range(30):
        push.send(b"%d" % number)
        assert eventually(lambda: sum(bool(pull.poll(0)) and pull.recv() is not None for pull in pulls))
        assert eventually(lambda: all(peer.unconfirmed == 0 for peer in push.peers()))
        if number == 14:
            assert all(peer.sent == 5 for peer in push.peers())


def test_the_value_is_nobody_elses(crew):
    push, pulls = crew
    given = {pulls[0].last_endpoint: 2}
    push.balance = given
    given[pulls[0].last_endpoint] = 0
    assert dict(push.balance) == {pulls[0].last_endpoint: 2}
    with pytest.raises(TypeError):
        push.balance["x"] = 3
