"""XPUB as pure state: which subscriptions its program receives."""

from __future__ import annotations

import pytest

from transfer.patterns import XPublisher
from transfer.patterns.xpub_xsub import decode_subscription
from transfer.transports.core.wire import LAST_TYPE, SocketType, arrived_type
from transfer.transports.handshake.peer_type import socket_type_of
from transfer.transports.security.credentials import ALPN_PROTOCOL


@pytest.fixture
def pub():
    made = XPublisher()
    for peer in "pq":
        made.attach(peer, SocketType.SUB)
    return made


def shown(pub):
    found = list(pub.notices)
    pub.notices.clear()
    return found


def test_counts_are_by_peer_and_prefix(pub):
    for peer in "ppq":
        assert pub.subscribe(peer, b"a")
    assert shown(pub) == [("p", b"\1a")]
    pub.unsubscribe("p", b"a")
    pub.detach("q")
    assert shown(pub) == []
    pub.unsubscribe("p", b"a")
    assert shown(pub) == [("p", b"\0a")]
    assert not pub.unsubscribe("p", b"a")
    assert not pub.subscribe("q", b"a")  # it is gone
    assert shown(pub) == []


def test_a_lost_peer_leaves_its_prefixes_once_each(pub):
    for prefix in (b"b", b"a", b"b"):
        pub.subscribe("p", prefix)
    pub.subscribe("q", b"b")
    shown(pub)
    pub.detach("p")
    assert shown(pub) == [("p", b"\0a")]


@pytest.mark.parametrize(
    ("modes", "subscribed", "left"),
    [((False, False, False), 1, 1), ((True, False, False), 3, 1), ((False, True, False), 3, 2),
     ((False, False, True), 3, 2)],
)  # fmt: skip
def test_modes(pub, modes, subscribed, left):
    pub.show(*modes)
    assert pub.applies_subscriptions is not modes[2]
    for peer in "ppq":
        pub.subscribe(peer, b"a")
    assert len(shown(pub)) == subscribed
    pub.detach("p"), pub.detach("q")
    assert len(shown(pub)) == left


def test_messages_of_subscriptions():
    assert decode_subscription(b"\1") == (True, b"")
    assert decode_subscription(b"\0topic") == (False, b"topic")
    assert decode_subscription(b"") is None
    assert decode_subscription(b"\2topic") is None


def test_the_two_types_do_not_travel():
    for kind, other in ((SocketType.XPUB, SocketType.PUB), (SocketType.XSUB, SocketType.SUB)):
        assert kind.on_wire is other
        with pytest.raises(ValueError, match="no socket type"):
            arrived_type(int(kind))
        assert socket_type_of(f"{ALPN_PROTOCOL}/{kind.name}") is other
    assert arrived_type(LAST_TYPE) is SocketType.ROUTER
