"""kill -9 of a peer in every phase of a rendezvous: no hang, nothing left behind, others go on."""

from __future__ import annotations

import os
import random
import time

import pytest

from tests.rdma.inside.far import Far
from tests.verbs.ends import World, devices, world
from transports.errors import Broken, ProtocolError
from transports.testing.ends import plain, receive, until

pytestmark = pytest.mark.skipif(not devices(), reason="no RDMA device here: `make test-rdma` brings one")
#: kills in all
TIMES = int(os.environ.get("TRANSFER_KILLS", "100"))
SIZE = 4 << 20
PHASES = ("idle", "announced to us", "read by us", "announced to it", "read by it")


def ended(stream) -> bool:
    try:
        stream.receive()
    except (Broken, ProtocolError):
        return True
    return False


def one_kill(made: World, hub, phase: str, chance: random.Random) -> None:
    do = {"idle": "idle", "announced to us": "send", "read by us": "send"}.get(phase, "receive")
    far = Far(made, hub, "idle" if phase == "announced to it" else do, SIZE)
    stream = far.stream
    far.expect("ready")
    released: list[BaseException | None] = []
    data = bytearray(SIZE)
    if phase == "read by us":
        stream.receive()
    elif phase in ("announced to it", "read by it"):
        stream.send(plain(data), hold=True, released=released.append)
    if phase.startswith("read"):
        time.sleep(chance.random() * 0.2)
    far.kill()
    begin = time.monotonic()
    until(lambda: ended(stream), "the end of a killed peer")
    assert time.monotonic() - begin < 20
    if do == "receive" or phase == "announced to it":
        until(lambda: released, "the memory")
        data.append(1)
    stream.close()


@pytest.mark.timeout(600)
def test_peers_killed_in_each_phase() -> None:
    chance = random.Random(3)
    with world(None) as made:
        hub = made.socket()
        near, there = made.connect(made.socket(), hub)
        domain = there._port.domain
        settled = None
        for number in range(TIMES):
            one_kill(made, hub, PHASES[number % len(PHASES)], chance)
            near.send(plain(b"others go on"))
            assert receive(there)[0].bytes == b"others go on"
            if number % len(PHASES) == len(PHASES) - 1:
                state = domain.device._regions, len(os.listdir("/proc/self/fd")), domain.received.registered
                if number >= 2 * len(PHASES) - 1:
                    settled = settled or state
                    assert state == settled, "something is left behind"
        assert there._port.reserved == 1
