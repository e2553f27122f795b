"""Hostile peers that send transfer's own frames to sockets of every type, on both cores, by seed; to several
behind one endpoint as well.

A good peer goes round at each socket meanwhile. `make test` says a few; the slow test says fresh ones
for FUZZ_SECONDS (300). Nothing but the core is started, so that it runs on a core with sanitizers as well.
"""

from __future__ import annotations

import os
import random
import resource
import time

import pytest

import transfer
from tests.fuzz import frames
from tests.fuzz.dialers import plain
from tests.fuzz.hostile_clients import HostileClients
from tests.fuzz.mutations import disordered
from tests.sockets.conftest import KeepingContext, core_module
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import Again, TransferError

SECONDS = float(os.environ.get("FUZZ_SECONDS", "300"))
FEW = 15
#: bytes of a message at most, and that the process may grow by
LARGEST, MOST_MEMORY = 1 << 20, 256 << 20
#: (the socket's type, its good peer's)
PAIRS = (("PULL", "PUSH"), ("PUSH", "PULL"), ("REP", "REQ"), ("ROUTER", "DEALER"), ("DEALER", "DEALER"),
         ("SUB", "PUB"), ("PUB", "SUB"), ("PAIR", "PAIR"))  # fmt: skip
#: those of one endpoint
SETS = (*((pair,) for pair in PAIRS), (("PULL", "PUSH"), ("REP", "REQ"), ("PUB", "SUB")))


@pytest.fixture(params=["pure", "native"])
def core(request):
    return core_module(request.param)


def most_memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Served:
    """A socket that hostile peers connect to, and a good peer of it."""

    def __init__(self, context, kind, peer, endpoint):
        self.kind, self.peer_kind = kind, peer
        self.socket = context.socket(getattr(transfer, kind), rcvtimeo=20_000, sndtimeo=20_000)
        self.socket.maxmsgsize = LARGEST
        self.socket.linger = 0
        if kind == "SUB":
            self.socket.subscribe(b"")
        self.socket.bind(endpoint)
        host, _, port = self.socket.last_endpoint.removeprefix("tcp://").rpartition(":")
        self.place = host, int(port)
        self.number = 0
        self.good = None
        if kind != "PAIR":  # it has one peer, which a hostile one may be
            self.good = context.socket(getattr(transfer, peer), rcvtimeo=20_000, sndtimeo=20_000)
            self.good.linger = 0
            if kind == "ROUTER":
                self.good.identity = b"good"
            if peer == "SUB":
                self.good.subscribe(b"good")
            self.good.connect(self.socket.last_endpoint)
            self.good.wait_for_peers(1, timeout=20)
            if peer == "SUB" or kind == "SUB":
                self._until_it_comes()

    def _until_it_comes(self):
        to, at = (self.good, self.socket) if self.kind == "SUB" else (self.socket, self.good)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            to.send(b"good begins")
            at.rcvtimeo = 50
            try:
                at.recv()
                break
            except Again:
                continue
        at.rcvtimeo = 20_000

    def drain(self):
        """What hostile peers sent is received or refused, and harms no others. For PUSH, PUB: nothing."""
        for _ in range(1000):
            try:
                got = self.socket.recv_multipart(transfer.DONTWAIT)
                if self.kind == "REP":
                    self.socket.send(b"answer", transfer.DONTWAIT)
                assert got
            except Again:
                return
            except TransferError:
                if self.kind in ("PUSH", "PUB"):
                    return

    def round(self):
        """The good peer's message arrives."""
        if self.good is None:
            return
        self.number += 1
        said = b"good %d" % self.number
        if self.kind == "PUSH":
            self._sent_round(said)
        elif self.kind == "PUB":
            self.socket.send(said)
            self._until(self.good, said)
        else:
            self.good.send(said)
            self._until(self.socket, said)

    def _sent_round(self, said):
        """Hostile peers are peers of this PUSH as well, and may get it."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            self.socket.send(said)
            self.good.rcvtimeo = 100
            try:
                assert self.good.recv().startswith(b"good")
                return
            except Again:
                continue
        pytest.fail("the good peer gets nothing")

    def _until(self, at, said):
        deadline = time.monotonic() + 20
        while True:
            try:
                got = at.recv_multipart()
            except TransferError:
                assert time.monotonic() < deadline
                continue
            if self.kind == "REP":
                self.socket.send(got[-1])
            if said in got:
                break
            assert time.monotonic() < deadline, "hostile messages hide the good one's"
        if self.kind == "REP":
            assert self.good.recv() == said


def attack(core, pairs, seeds, seconds=float("inf")):
    """Hostile peers connect by these seeds while good ones make round trips. Returns how many came."""
    context = KeepingContext(core=core)
    until = time.monotonic() + seconds
    name = " ".join(kind for kind, _ in pairs)
    try:
        served, endpoint = [], "tcp://127.0.0.1:0"
        for kind, peer in pairs:
            served.append(Served(context, kind, peer, endpoint))
            endpoint = served[0].socket.last_endpoint
        clients = HostileClients(plain(served[0].place))
        before = most_memory()
        said = ()
        try:
            for seed in seeds:
                if time.monotonic() > until:
                    break
                rng = random.Random(f"{name} {seed}")
                said = seed
                peer = rng.choice(pairs)[1] if len(pairs) > 1 else pairs[0][1]
                clients.connect(disordered(rng, frames.talk(rng, SocketType[peer])), seed)
                for one in served:
                    one.drain()
                    if seed % 10 == 0:
                        one.round()
            for one in served:
                one.round()
        except BaseException:
            print(f"{name}: the last seed was {said}")
            raise
        finally:
            clients.close()
        assert most_memory() - before < MOST_MEMORY
        return clients.came
    finally:
        context.destroy(0)


def named(pairs):
    return "-".join(kind.lower() for kind, _ in pairs)


@pytest.mark.parametrize("pairs", SETS, ids=named)
def test_a_few_hostile_clients(core, pairs):
    assert attack(core, pairs, range(FEW)) == FEW


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 120)
@pytest.mark.parametrize("pairs", SETS, ids=named)
def test_hostile_clients_for_minutes(core, pairs):
    first = int(time.time() * 1000)
    assert attack(core, pairs, range(first, first + (1 << 40)), SECONDS) > 0
