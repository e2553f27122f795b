"""Sockets by rules that a program brings itself."""

from __future__ import annotations

import pytest

import transfer
from patterns import PATTERNS, Pattern, PipelinedReplier, Puller, Pusher
from tests.sockets.helpers import pair_of
from transports.errors import ArgumentError


class ToTheFirst(Pusher):
    """Work goes to whoever came first, as long as there is room."""

    ordered = True  # no message is sent without asking these rules

    def preferred(self):
        return list(self.peers)


def test_a_push_by_its_own_rules(context):
    push = context.socket(transfer.PUSH, pattern=ToTheFirst)
    pulls = []
    for _ in range(3):
        pull = context.socket(transfer.PULL, rcvtimeo=5000)
        pull.bind("tcp://127.0.0.1:0")
        push.connect(pull.last_endpoint)
        push.wait_for_peers(len(pulls) + 1, 10)
        pulls.append(pull)
    for number in range(20):
        push.send(b"%d" % number)
    first, *others = pulls
    assert [first.recv() for _ in range(20)] == [b"%d" % number for number in range(20)]
    assert not any(pull.poll(50) for pull in others)
    first.close()
    while len(push.peers()) > 2:
        push.wait_for_peers(2, 10)
    push.send(b"next")
    assert others[0].recv() == b"next"


def test_rules_that_are_of_another_type_are_refused(context):
    for wrong in (PipelinedReplier, ToTheFirst(), Pattern, object, "PUSH"):
        with pytest.raises(ArgumentError, match="pattern"):
            context.socket(transfer.PULL, pattern=wrong)
    assert context.socket(transfer.PULL, pattern=Puller).type == transfer.PULL
    assert context.socket("PUSH", pattern=ToTheFirst).type == transfer.PUSH


def test_every_type_has_its_rules_by_default(context):
    for kind, rules in PATTERNS.items():
        with context.socket(kind) as socket:
            assert type(socket._pattern) is rules


def test_many_requests_are_answered_in_any_order(context):
    """A REP that may have many of them open, for a REQ each, as `ZmqInterface` has."""
    rep, one = pair_of(context, transfer.REP, transfer.REQ)
    one.send(b"asked")
    assert rep.recv() == b"asked"
    with context.socket(transfer.REP, pattern=PipelinedReplier, rcvtimeo=5000) as many:
        many.bind("tcp://127.0.0.1:0")
        asking = [context.socket(transfer.REQ, rcvtimeo=5000) for _ in range(3)]
        for number, req in enumerate(asking):
            req.connect(many.last_endpoint)
            req.send(b"%d" % number)
        open_ones = []
        for _ in asking:
            open_ones.append((many.recv(), many._pattern.current.number))
        for data, number in reversed(open_ones):
            many._pattern.current.number = number
            many.send(b"to " + data)
        assert [req.recv() for req in asking] == [b"to 0", b"to 1", b"to 2"]
