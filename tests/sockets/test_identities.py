"""An identity is its connection's: a stranger takes none over, its owner comes back to it."""

from __future__ import annotations

import socket
import threading
from contextlib import closing, suppress

import pytest

import transfer
from transfer import DEALER, ROUTER
from transfer.monitor import EventKind

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


def test_a_stranger_takes_no_identity_over(context):
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
    assert eventually(lambda: router._links.counts.get("refused:identity"))
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
        assert eventually(lambda: router._links.counts["connected"] == 2)
        assert eventually(lambda: len(router.peers()) == 1)
        router.send_multipart([b"worker", b"two"])
        assert dealer.recv() == b"two"
        assert not router._links.counts.get("refused:identity")
        for one in (dealer, router):
            one.close(0)


def test_what_a_peer_is_known_by_is_in_no_output(context):
    router = context.socket(ROUTER)
    router.bind(TCP)
    dealer = context.socket(DEALER, routing_id=b"worker")
    dealer.connect(router.last_endpoint)
    dealer.wait_for_peers(1, 10)
    assert eventually(lambda: router.peers())
    (secret,) = [peer.agreement.remote.instance for peer in router._links.peers.values()]
    assert len(secret) == 32
    assert secret not in f"{router.peers()} {list(router._links.peers.values())}"
