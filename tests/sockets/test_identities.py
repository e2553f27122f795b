"""An identity is its connection's: a stranger takes none over, its owner comes back to it."""

from __future__ import annotations

import socket
import threading
from contextlib import closing, suppress

import pytest

import transfer
from transfer import DEALER, PAIR, ROUTER
from transfer.sockets.monitor import EventKind
from transfer.transports.security.settings import Security

from .helpers import TCP, eventually


@pytest.fixture
def plain(core):
    """A context that stays on TCP, which a relay stands in."""
    with transfer.Context(core=core, protocol="tcp") as made:
        yield made


class HalfDead:
    """A relay that cuts the connecting side off, and leaves the connections of the other side as they are."""

    def __init__(self, endpoint: str) -> None:
        self._target = ("127.0.0.1", int(endpoint.rpartition(":")[2]))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._near: list[socket.socket] = []
        self._far: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._near.append(near)
                self._far.append(far)
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)

    def cut(self) -> None:
        for near in self._near:
            near.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for end in (self._listener, *self._near, *self._far):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def test_another_peer_takes_no_identity_over(context):
    router = context.socket(ROUTER, router_mandatory=True)
    router.bind(TCP)
    owner = context.socket(DEALER, routing_id=b"worker")
    owner.connect(router.last_endpoint)
    owner.send(b"here")
    assert router.recv_multipart() == [b"worker", b"here"]
    stranger = context.socket(DEALER, routing_id=b"worker", reconnect_ivl=1)
    monitor = stranger.get_monitor()
    stranger.connect(router.last_endpoint)
    while (event := monitor.recv(10)).kind != EventKind.REFUSED:
        assert event.kind != EventKind.CLOSED
    assert event.reason == "identity"
    router.send_multipart([b"worker", b"a secret"])
    assert owner.recv() == b"a secret"
    assert len(owner.peers()) == 1


def test_who_waits_for_an_identity_gets_it_when_its_owner_is_gone(context):
    router = context.socket(ROUTER, router_mandatory=True)
    router.bind(TCP)
    first = context.socket(DEALER, routing_id=b"worker")
    first.connect(router.last_endpoint)
    first.wait_for_peers(1, 10)
    second = context.socket(DEALER, routing_id=b"worker", reconnect_ivl=1, reconnect_ivl_max=20)
    second.connect(router.last_endpoint)
    assert eventually(lambda: router._links.state.counts.get("refused:identity"))
    first.close(0)
    assert eventually(lambda: second.peers() and router.peers())
    second.rcvtimeo = 100

    def is_reached():
        with suppress(transfer.Unroutable, transfer.Again):
            router.send_multipart([b"worker", b"yours now"])
            return second.recv() == b"yours now"
        return False

    assert eventually(is_reached)


def test_a_program_that_comes_again_at_once_has_its_identity(context):
    """The end of the old connection is seen at the new one, also if nobody received in between."""
    router = context.socket(ROUTER)
    router.bind(TCP)
    for number in range(20):
        dealer = context.socket(DEALER, routing_id=b"worker", reconnect_ivl=1, reconnect_ivl_max=5)
        dealer.connect(router.last_endpoint)
        dealer.send(b"%d" % number)
        router.rcvtimeo = 20_000
        assert router.recv_multipart() == [b"worker", b"%d" % number]
        dealer.close(0)


def test_who_reconnects_is_the_same(plain):
    """Its old connection looks alive: nobody said that it ended."""
    router = plain.socket(ROUTER)
    router.bind(TCP)
    with closing(HalfDead(router.last_endpoint)) as relay:
        dealer = plain.socket(DEALER, routing_id=b"worker", reconnect_ivl=1)
        dealer.connect(relay.endpoint)
        dealer.send(b"one")
        router.rcvtimeo = dealer.rcvtimeo = 20_000
        assert router.recv_multipart() == [b"worker", b"one"]
        assert len(router.peers()) == 1
        relay.cut()
        assert eventually(lambda: router._links.state.counts["connected"] == 2)
        assert eventually(lambda: len(router.peers()) == 1)
        router.send_multipart([b"worker", b"two"])
        assert dealer.recv() == b"two"
        assert not router._links.state.counts.get("refused:identity")
        for one in (dealer, router):
            one.close(0)


def test_what_a_peer_is_known_by_is_in_no_output(context):
    router = context.socket(ROUTER)
    router.bind(TCP)
    dealer = context.socket(DEALER, routing_id=b"worker")
    dealer.connect(router.last_endpoint)
    dealer.wait_for_peers(1, 10)
    assert eventually(lambda: router.peers())
    (secret,) = [peer.agreement.remote.instance for peer in router._links.state.peers.values()]
    assert len(secret) == 32
    assert secret not in f"{router.peers()} {list(router._links.state.peers.values())}"


@pytest.mark.parametrize(("kind", "other", "why"), [(DEALER, ROUTER, "identity"), (PAIR, PAIR, "pair_busy")])
@pytest.mark.parametrize("way", ["tcp", "local", "inproc", "token"])
def test_a_socket_that_is_refused_has_sent_nothing(core, kind, other, why, way, caplog):
    """The refusal comes before the handshake's end, so no message is written that nobody would receive."""
    bound = "inproc://taken" if way == "inproc" else TCP
    security = Security(token="17c11c070fe9d38e70c224ae891089be") if way == "token" else Security()
    protocol = "auto" if way in ("local", "inproc") else "tcp"
    with transfer.Context(core=core, protocol=protocol, security=security) as context:
        accepting = context.socket(other, linger=0)
        accepting.bind(bound)
        identity = {"routing_id": b"w"} if kind == DEALER else {}
        first = context.socket(kind, linger=0, **identity)
        first.connect(accepting.last_endpoint)
        first.wait_for_peers(1, 10)
        accepting.wait_for_peers(1, 10)
        second = context.socket(kind, linger=0, reconnect_ivl=1, reconnect_ivl_max=5, sndtimeo=5, **identity)
        second.connect(accepting.last_endpoint)
        taken, refusal = 0, None
        for _ in range(2000):
            try:
                second.send(b"lost?")
                taken += 1
            except transfer.Again as error:
                refusal = error
            if second._links.state.counts.get(f"refused:{why}", 0) >= 10:
                break
        assert not taken and not accepting._links.state.counts.get("unconfirmed")
        assert f"{accepting.last_endpoint} refuses this socket: tried for " in str(refusal)
        assert f"({why}: " in str(refusal)
        said = [record for record in caplog.records if f": {why}: " in record.getMessage()]
        assert len(said) == 1, "a warning at once, and one only"
        first.close(0)
        accepting.rcvtimeo = second.sndtimeo = 10_000
        with suppress(transfer.Again):  # it finds the end of the first one as it receives
            accepting.recv_multipart(transfer.DONTWAIT)
        second.send(b"arrives")
        assert accepting.recv_multipart()[-1] == b"arrives"
        for socket in (accepting, second):
            socket.close(0)
