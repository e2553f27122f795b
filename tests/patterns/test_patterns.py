"""Patterns without any I/O: peers are names, frames are small objects."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

import pytest

from transfer import patterns
from transfer.patterns import (
    PATTERNS,
    Dealer,
    Pair,
    Publisher,
    Pusher,
    Replier,
    Requester,
    Router,
    Subscriber,
)
from transfer.patterns.base import ANYONE
from transfer.patterns.pub_sub import decode_order
from transfer.patterns.req_rep import CORRELATED
from transfer.transports.core.wire import Control, SocketType
from transfer.transports.errors import (
    Broken,
    HandshakeError,
    NotSupported,
    ProtocolError,
    StateError,
    Unroutable,
    UsageError,
)
from transfer.transports.handshake.compatibility import compatible

S = SocketType


@dataclass
class In:
    data: bytes
    sequence: int = 0
    topic: bytes | None = None


def out(*parts):
    return [(0, 0, None, None, part) for part in parts]


def texts(frames):
    return [frame[4] for frame in frames]


def shown(admitted):
    return [part if isinstance(part, bytes) else part.data for part in admitted]


def test_there_is_one_pattern_for_each_type_and_they_agree_who_talks_to_whom():
    assert set(PATTERNS) == set(SocketType)
    for one in SocketType:
        for other in SocketType:
            allowed = other in PATTERNS[one].peer_types
            assert allowed == (one in PATTERNS[other].peer_types) == compatible(one, other)


@pytest.mark.parametrize("kind", list(SocketType))
def test_attach_and_detach(kind):
    pattern = PATTERNS[kind]()
    good = min(PATTERNS[kind].peer_types)
    bad = min(set(SocketType) - PATTERNS[kind].peer_types)
    with pytest.raises(HandshakeError) as caught:
        pattern.attach("p", bad)
    assert caught.value.reason == "socket_type"
    assert not pattern.peers
    pattern.attach("p", good)
    assert list(pattern.peers) == ["p"]
    assert pattern.detach("p")
    assert not pattern.detach("p")


def test_one_way_patterns_say_which_way():
    with pytest.raises(NotSupported):
        Subscriber().route(out(b"x"))
    with pytest.raises(NotSupported):
        Pusher().expect()
    assert Pusher().route(out(b"x")) == (ANYONE, out(b"x"))
    assert not Pusher().may_receive()
    assert Dealer().may_send()


def test_a_pair_has_one_peer():
    pair = Pair()
    pair.attach("a", S.PAIR)
    with pytest.raises(HandshakeError) as caught:
        pair.attach("b", S.PAIR)
    assert caught.value.reason == "pair_busy"
    pair.detach("a")
    pair.attach("b", S.PAIR)


# --- REQ ----------------------------------------------------------------------------------------


def request(req, peer="p"):
    target, frames = req.route(out(b"q"))
    assert target is ANYONE
    req.sent(peer)
    return frames[0][1]


def new_req(*peers):
    req = Requester()
    for peer in peers or ("p",):
        req.attach(peer, S.REP)
    return req


def test_lock_step():
    req = new_req()
    with pytest.raises(StateError):
        req.expect()
    assert req.may_send()
    number = request(req)
    assert not req.may_send()
    assert req.may_receive()
    with pytest.raises(StateError):
        req.route(out(b"q"))
    req.expect()
    assert req.admit("p", [In(b"a", number)])
    assert not req.may_receive()
    assert request(req) != number


def test_only_its_own_reply_of_its_own_peer():
    req = new_req("p", "q")
    number = request(req)
    assert req.admit("p", [In(b"a", number + 1)]) is None
    assert req.admit("q", [In(b"a", number)]) is None
    assert req.drops == {"late_reply": 2}
    assert req.admit("p", [In(b"a", number)])
    assert req.admit("p", [In(b"a", number)]) is None  # twice is once too often


def test_a_send_that_failed_changes_nothing():
    req = new_req()
    req.route(out(b"q"))  # and nobody took it
    assert req.may_send()
    with pytest.raises(StateError):
        req.expect()


def test_relaxed_and_the_old_reply():
    req = new_req()
    req.relaxed = True
    first = request(req)
    second = request(req)
    assert req.admit("p", [In(b"a", first)]) is None
    assert req.admit("p", [In(b"b", second)])


def test_a_lost_peer_fails_its_request_once():
    req = new_req("p", "q")
    request(req, "p")
    assert not req.fail("q", Broken("q"))
    assert req.fail("p", Broken("p"))
    req.detach("p")
    with pytest.raises(Broken, match="before it replied") as caught:
        req.expect()
    assert str(caught.value.__cause__) == "p"
    with pytest.raises(StateError):
        req.expect()
    request(req, "q")


def test_a_peer_that_went_while_the_request_was_written():
    req = new_req("p")
    req.route(out(b"q"))
    req.detach("p")
    req.sent("p")
    with pytest.raises(Broken):
        req.expect()


# --- REP ----------------------------------------------------------------------------------------


def test_a_reply_goes_to_the_requester_with_its_number():
    rep = Replier()
    rep.attach("p", S.REQ)
    rep.attach("q", S.REQ)
    with pytest.raises(StateError):
        rep.route(out(b"a"))
    rep.expect()
    assert shown(rep.admit("q", [In(b"x", 77)])) == [b"x"]
    with pytest.raises(StateError):
        rep.expect()
    target, frames = rep.route(out(b"a", b"b"))
    assert target == "q"
    assert [(f[1], f[4]) for f in frames] == [(77, b"a"), (77, b"b")]
    rep.sent("q")
    assert rep.may_receive()


def test_the_envelope_of_a_dealer_comes_back():
    rep = Replier()
    rep.attach("d", S.DEALER)
    assert shown(rep.admit("d", [In(b"one"), In(b"two"), In(b""), In(b"q"), In(b"")])) == [b"q", b""]
    target, frames = rep.route(out(b"a"))
    assert (target, texts(frames)) == ("d", [b"one", b"two", b"", b"a"])
    rep.sent("d")
    for bad in ([In(b"x")], [In(b"")], [In(b"x"), In(b"y")], [In(b"x"), In(b"")]):
        assert rep.admit("d", bad) is None
    assert rep.drops == {"no_envelope": 4}
    rep.expect()


def test_a_requester_that_is_gone():
    rep = Replier()
    rep.attach("p", S.REQ)
    rep.admit("p", [In(b"x", 1)])
    rep.detach("p")
    assert rep.route(out(b"a"))[0] is None
    assert rep.drops == {"requester_gone": 1}
    rep.expect()


# --- ROUTER ---------------------------------------------------------------------------------------


def test_identities():
    router = Router()
    router.attach("d", S.DEALER, b"name")
    router.attach("e", S.DEALER)
    assert shown(router.admit("d", [In(b"x")])) == [b"name", b"x"]
    given = router.admit("e", [In(b"x")])[0]
    assert given[:1] == b"\0"
    assert len(given) == 5
    target, frames = router.route(out(given, b"a"))
    assert (target, texts(frames)) == ("e", [b"a"])
    router.detach("e")
    assert router.route(out(given, b"a"))[0] is None
    assert router.drops == {"unroutable": 1}
    router.mandatory = True
    with pytest.raises(Unroutable):
        router.route(out(given, b"a"))
    with pytest.raises(UsageError):
        router.route(out(given))


def test_the_newest_of_an_identity_wins():
    router = Router()
    assert router.attach("old", S.DEALER, b"x") is None
    assert router.attach("new", S.DEALER, b"x") == "old"
    router.detach("old")
    assert router.route(out(b"x", b"a"))[0] == "new"
    assert shown(router.admit("old", [In(b"late")])) == [b"x", b"late"]
    assert router.admit("never seen", [In(b"late")]) is None


def test_the_virtual_envelope_of_a_req():
    router = Router()
    router.attach("r", S.REQ, b"id")
    assert shown(router.admit("r", [In(b"q", 5)])) == [b"id", b"", b"q"]
    target, frames = router.route(out(b"id", b"", b"a", b"b"))
    assert (target, [(f[1], f[4]) for f in frames]) == ("r", [(5, b"a"), (5, b"b")])
    with pytest.raises(UsageError):
        router.route(out(b"id", b"a"))


def test_the_number_in_the_envelope():
    router = Router()
    router.attach("r", S.REQ, b"id")
    first = shown(router.admit("r", [In(b"one", CORRELATED | 1)]))
    router.admit("r", [In(b"two", CORRELATED | 2)])
    _, frames = router.route(out(*first[:-1], b"answer"))
    assert [(f[1], f[4]) for f in frames] == [(CORRELATED | 1, b"answer")]


# --- PUB and SUB ------------------------------------------------------------------------------------


def test_subscriptions_travel_and_are_acknowledged():
    sub, pub = Subscriber(), Publisher()
    sub.attach("pub", S.PUB)
    pub.attach("sub", S.SUB)
    assert (sub.ready, pub.ready) == (0, 0)
    orders = sub.subscribe(b"a") + sub.subscribe(b"b")
    assert sub.ready == 0
    for peer, order in orders:
        kind, number, prefix = decode_order(order)
        assert (peer, kind) == ("pub", Control.SUBSCRIBE)
        pub.subscribe("sub", prefix)
        sub.acknowledged("pub", number)
    assert (sub.ready, pub.ready) == (1, 1)
    ((_, order),) = sub.unsubscribe(b"a")
    assert decode_order(order)[0] == Control.UNSUBSCRIBE
    assert pub.unsubscribe("sub", b"a")
    assert not pub.unsubscribe("sub", b"a")
    with pytest.raises(UsageError):
        sub.unsubscribe(b"a")
    assert list(sub.subscriptions) == [b"b"]


def test_a_new_publisher_hears_all_subscriptions():
    sub = Subscriber()
    sub.subscribe(b"x")
    sub.subscribe(b"x")
    sub.attach("p", S.PUB)
    orders = [decode_order(order) for order in sub.introduce("p")]
    assert [prefix for _, _, prefix in orders] == [b"x", b"x"]
    sub.acknowledged("p", orders[0][1])
    assert sub.ready == 0
    sub.acknowledged("p", orders[1][1])
    assert sub.ready == 1
    sub.acknowledged("p", 12345)  # of nobody: no harm
    sub.acknowledged("q", orders[0][1])


def test_bad_orders():
    with pytest.raises(ProtocolError):
        decode_order(b"\2\0")
    with pytest.raises(ProtocolError):
        decode_order(b"\2\0\0\0\0" + b"x" * 70_000)
    with pytest.raises(UsageError):
        Subscriber().subscribe(b"x" * 70_000)


def test_patterns_are_pure():
    forbidden = {"socket", "threading", "time", "asyncio", "select", "selectors", "os"}
    for path in Path(patterns.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not {name.split(".")[0] for name in names} & forbidden, path


class Going(dict):
    """A table of a ROUTER in which another thread's end of a peer comes right behind a look."""

    def __init__(self, table, pattern, peer):
        super().__init__(table)
        self._end = lambda: pattern.detach(peer)

    def get(self, key, default=None):
        found, end = super().get(key, default), self._end
        self._end = lambda: None
        end()
        return found


@pytest.mark.parametrize("mandatory", [False, True])
def test_a_peer_goes_while_a_router_looks_for_it(mandatory):
    router = Router()
    router.mandatory = mandatory
    router.attach("a", S.DEALER, b"id")
    router._by_identity = Going(router._by_identity, router, "a")
    if mandatory:
        with pytest.raises(Unroutable):
            router.route(out(b"id", b"x"))
    else:
        assert router.route(out(b"id", b"x"))[0] is None
        assert router.drops == {"unroutable": 1}


def test_a_requester_goes_while_a_router_reads_its_request():
    router = Router()
    router.attach("a", S.REQ, b"id")
    router._identities = Going(router._identities, router, "a")
    assert shown(router.admit("a", [In(b"x")])) == [b"id", b"", b"x"]
