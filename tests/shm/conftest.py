"""The local transport switched on, both cores, and two carriers of one connection."""

from __future__ import annotations

import gc
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.sockets.conftest import KeepingContext, core_module
from transfer.transports import probe
from transfer.transports.core.wire import SocketType
from transfer.transports.handshake.upgrade import Surroundings
from transfer.transports.reactor import Reactor
from transfer.transports.shm.shm_stream import ShmStream


@pytest.fixture(autouse=True)
def local_on(monkeypatch):
    monkeypatch.setenv("TRANSFER_LOCAL", "on")
    probe.forget()
    yield
    probe.forget()


@pytest.fixture(autouse=True)
def no_mapping_is_left():
    yield
    assert eventually(lambda: not mappings() or gc.collect() < 0 or not mappings())


def mappings() -> int:
    """How much of our shared memory this process has mapped, in mappings."""
    return Path("/proc/self/maps").read_text().count("memfd:transfer")


@pytest.fixture(params=["pure", "native"])
def core(request):
    return core_module(request.param)


@pytest.fixture
def context(core):
    made = KeepingContext(core=core)
    yield made
    made.destroy(0)


@dataclass
class End:
    """One side of a connection without a stream."""

    carrier: ShmStream
    shared: dict[str, Any]
    reactor: Reactor

    @property
    def control(self) -> socket.socket:
        return self.carrier._control._socket


def _end(core, connection):
    reactor, shared = Reactor(), {}
    around = Surroundings(
        core=core, reactor=reactor, flusher=None, pool=None, socket_type=SocketType.PAIR,
        max_message=1 << 40, send_high_water=0, send_high_water_bytes=0, shared=shared,
    )  # fmt: skip
    return End(ShmStream(connection, around), shared, reactor)


@pytest.fixture
def ends(core):
    """(sender, receiver): carriers that are connected and have a reactor each."""
    made = [_end(core, one) for one in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)]
    yield made
    for end in made:
        end.carrier.close()
        for kept in end.shared.values():
            kept.close()
        end.reactor.close()


def message(data, flags=0):
    """One frame, as a core hands it to a carrier."""
    return [(flags, 0, None, None, data)]


def sent(end, data, *, hold=False, released=None, several=False):
    """The reference that stands for `data` now."""
    placed, told, saved = end.carrier.place(message(data), hold, released, several)
    assert saved == memoryview(data).nbytes - 24
    return placed[0][4], told


def eventually(condition, seconds=10.0):
    """Waits until the condition holds; its last value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return value
