"""Sockets by rules that a program brings itself."""

from __future__ import annotations

import os
import time

import pytest

import transfer
from tests.sockets.helpers import pair_of
from transfer.patterns import PATTERNS, Pattern, PipelinedReplier, Puller, Pusher
from transfer.transports.errors import ArgumentError, HandshakeError


class ToTheFirst(Pusher):
    """Work goes to the peer that came first, as long as there is room."""

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


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:0", "ipc://{}/socket", "inproc://own"])
@pytest.mark.parametrize("raises", [HandshakeError("busy", "not now"), ZeroDivisionError("oops")])
@pytest.mark.raises_in_reactor
def test_a_pattern_that_takes_no_peer(context, tmp_path, endpoint, raises):
    """The descriptor was closed twice, by then maybe a file of the program's."""

    class TakesTheThird(Pusher):
        tries = 0

        def attach(self, *arguments):
            TakesTheThird.tries += 1
            if TakesTheThird.tries < 4:
                raise raises
            return super().attach(*arguments)

    pull = context.socket(transfer.PULL, rcvtimeo=10_000)
    pull.bind(endpoint.format(tmp_path))
    push = context.socket(
        transfer.PUSH, pattern=TakesTheThird, reconnect_ivl=5, immediate=True, sndtimeo=10_000
    )
    push.connect(pull.last_endpoint)
    files, deadline = [], time.monotonic() + 10
    while not push.peers():
        assert time.monotonic() < deadline, TakesTheThird.tries
        files += [os.open(os.devnull, os.O_RDONLY) for _ in range(4)]
        for file in files:
            os.fstat(file)
        while len(files) > 40:
            os.close(files.pop(0))
    push.send(b"at last")
    assert pull.recv() == b"at last"
    for file in files:
        os.close(file)


def test_a_class_without_peers_is_none(context):
    class Lonely(Pattern):
        socket_type = transfer.PULL

    with pytest.raises(ArgumentError, match="pattern"):
        context.socket(transfer.PULL, pattern=Lonely)
