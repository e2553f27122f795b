"""kill -9 of a peer in every phase of a rendezvous: no hang, nothing left behind, others go on."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable

import pytest

from tests.rdma.ends import World, devices, world
from tests.rdma.in_vm.peer_process import PeerProcess
from transfer.transports.errors import Broken, ProtocolError
from transfer.transports.testing.ends import plain, receive, until

pytestmark = pytest.mark.skipif(not devices(), reason="no RDMA device here: `make test-rdma` brings one")
#: kills in each phase; `test_vm.py` has a slow test with 100
TIMES = int(os.environ.get("TRANSFER_TEST_KILLS", "1"))
SIZE = 4 << 20
PHASES = ("idle", "announced to us", "read by us", "announced to it", "read by it")


def ended(stream) -> bool:
    try:
        stream.receive()
    except (Broken, ProtocolError):
        return True
    return False


def one_kill(
    made: World, hub, phase: str, chance: random.Random, prepare: Callable[[], None] | None = None
) -> None:
    do = {"idle": "idle", "announced to us": "send", "read by us": "send"}.get(phase, "receive")
    peer = PeerProcess(made, hub, "idle" if phase == "announced to it" else do, SIZE, prepare)
    stream = peer.stream
    peer.expect("ready")
    released: list[BaseException | None] = []
    data = bytearray(SIZE)
    if phase == "read by us":
        stream.receive()
    elif phase in ("announced to it", "read by it"):
        stream.send(plain(data), hold=True, released=released.append)
    if phase.startswith("read"):
        time.sleep(chance.random() * 0.2)
    peer.kill()
    begin = time.monotonic()
    until(lambda: ended(stream), "the end of a killed peer")
    assert time.monotonic() - begin < 20
    stream.close()
    made.streams.remove(stream)
    if do == "receive" or phase == "announced to it":
        assert len(released) == 1
        data.append(1)


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as found:
        return int(found.read().split()[1]) * 4096


def of_the_kernel() -> dict[str, int]:
    """Queue pairs, queues, domains, regions, contexts that the device has, as `rdma resource show` counts."""
    rdma = shutil.which("rdma", path=os.environ["PATH"] + ":/sbin:/usr/sbin")
    shown = subprocess.run([rdma, "resource", "show", "rxe0"], capture_output=True, text=True, check=True)
    words = shown.stdout.split()[2:]
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


@pytest.mark.timeout(30 + TIMES * len(PHASES) * 30)
def test_peers_killed_in_each_phase() -> None:
    chance = random.Random(3)
    before = of_the_kernel()
    with world() as made:
        hub = made.socket()
        near, there = made.connect(made.socket(), hub)
        domain = hub.shared["rdma.domains"].get()
        settled, memory = None, 0
        for number in range(TIMES):
            for phase in PHASES:
                one_kill(made, hub, phase, chance)
                near.send(plain(b"others go on"))
                assert receive(there)[0].bytes == b"others go on"
            until(lambda: of_the_kernel()["qp"] <= before["qp"] + 2, "the queue pairs of the dead")
            state = (
                domain.device._regions,
                len(os.listdir("/proc/self/fd")),
                domain.received.registered,
                of_the_kernel(),
            )
            if number:  # the first round opens what is kept for the next ones
                settled, memory = settled or state, memory or resident()
                assert state == settled, "something is left behind"
                assert resident() < memory + 8 * SIZE
    until(lambda: of_the_kernel() == before, "nothing to be left on the device")
    print(f"{TIMES * len(PHASES)} kills, {TIMES} in each of {len(PHASES)} phases; the device: {before}")
