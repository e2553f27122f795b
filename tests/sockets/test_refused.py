"""A message that a receiver cannot take: both sides say why, and with `resend` it does not come for ever."""

from __future__ import annotations

import logging

import pytest

import transfer
from tests.sockets.helpers import eventually
from transfer.transports import probe
from transfer.transports.core.wire import Flag


@pytest.fixture(params=["on", "off"], ids=["one host", "tcp"], autouse=True)
def local(request, monkeypatch):
    monkeypatch.setenv("TRANSFER_LOCAL", request.param)
    probe.forget()
    yield
    probe.forget()


@pytest.fixture
def pull(context):
    pull = context.socket(transfer.PULL, maxmsgsize=1000, rcvtimeo=5000)
    pull.bind("tcp://127.0.0.1:*")
    return pull


def drained(pull):
    """What else comes within half a second."""
    pull.receive_timeout, found = 500, []
    try:
        while True:
            found.append(pull.recv())
    except transfer.Again:
        return found


def connected(context, kind, peer, **options):
    socket = context.socket(kind, **options)
    socket.connect(peer.last_endpoint)
    socket.wait_for_peers(1, 10)
    return socket


def test_with_resend_the_others_arrive_and_it_does_not(context, pull, caplog):
    push = connected(context, transfer.PUSH, pull, resend=True)
    with caplog.at_level(logging.WARNING, "transfer"):
        trackers = [push.send(b"x" * size, track=True) for size in (1, 5000, 3)]
        came = [len(pull.recv())]
        while came[-1] != 3:
            came.append(len(pull.recv()))
        assert came == [1, 3], "the reason says that what came before is consumed"
        trackers[2].wait_confirmed(10)
        with pytest.raises(transfer.MessageRefused, match="too_large") as caught:
            trackers[1].wait_confirmed(10)
        assert caught.value.reason == "too_large" and "maxmsgsize" in caught.value.hint
        assert drained(pull) == []
    assert push.close(5000) == 0
    texts = [record.getMessage() for record in caplog.records]
    assert any("the peer refused the message" in text and "maxmsgsize" in text for text in texts)
    assert any("was ended: too_large" in text and "maxmsgsize" in text for text in texts)
    assert len(texts) == 2


def test_without_resend_the_tracker_has_the_reason(context, pull, caplog):
    push = connected(context, transfer.PUSH, pull)
    trackers = [push.send(b"x" * size, track=True) for size in (1, 5000, 3)]
    eventually(lambda: not any(peer.queued for peer in push.peers()))  # else the last one finds another peer
    assert [len(one) for one in drained(pull)] == [1]
    eventually(lambda: "1 messages behind the refused one may be lost" in caplog.text)
    with pytest.raises(transfer.MessageRefused, match="too_large"):
        trackers[1].wait_confirmed(10)
    trackers[0].wait_confirmed(10)
    with pytest.raises(transfer.Broken) as caught:
        trackers[2].wait_confirmed(10)
    assert type(caught.value) is transfer.Broken
    assert "for an earlier message: too_large" in str(caught.value.__cause__)


@pytest.mark.parametrize("resend", [False, True])
def test_a_request_fails_with_the_reason(context, resend):
    rep = context.socket(transfer.REP, maxmsgsize=1000, rcvtimeo=200)
    rep.bind("tcp://127.0.0.1:*")
    req = connected(context, transfer.REQ, rep, resend=resend, rcvtimeo=10_000)
    req.send(b"x" * 5000)
    with pytest.raises(transfer.Again):
        rep.recv()
    with pytest.raises(transfer.MessageRefused, match="too_large"):
        req.recv()
    req.send(b"small")
    rep.receive_timeout = 10_000
    assert rep.recv() == b"small"


def test_what_only_its_content_shows(context, monkeypatch):
    """It was counted as received before its parts were looked at."""
    pull = context.socket(transfer.PULL, rcvtimeo=5000)
    pull.bind("tcp://127.0.0.1:*")
    push = connected(context, transfer.PUSH, pull, resend=True)
    push.send(b"one")
    push.send_frames([(None, None, int(Flag.LZ4), b"no LZ4")])
    push.send(b"three")
    came = [pull.recv()]
    while came[-1] != b"three":
        came.append(pull.recv())
    assert came in ([b"one", b"three"], [b"one", b"one", b"three"])
    assert drained(pull) == []
    eventually(lambda: push.peers() and push.peers()[0].unconfirmed == 0)


def test_a_handler_that_raises_while_the_reason_is_sent_leaves_the_rest_done(context, pull, monkeypatch):
    push = connected(context, transfer.PUSH, pull, resend=True)
    links = pull._links

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(links.loss), "send_refusal", interrupted)
    push.send(b"x" * 5000)
    with pytest.raises(KeyboardInterrupt):
        pull.recv()
    assert links.state.counts["protocol:too_large"] == 1
    monkeypatch.undo()
    push.send(b"next")
    assert pull.recv() == b"next"
    assert drained(pull) == []
