"""A tensor on a device goes by its pointer where every peer takes that: on stand-ins for both."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import numpy as np
import pytest

import transfer
from tests.core.test_foreign_streams import Foreign
from tests.tensors.test_device import cupy, on_gpu  # noqa: F401 - the fixture
from transfer.sockets.peer import Peer
from transfer.tensors import export, gpu_sending
from transfer.transports import core, gpu
from transfer.transports.base import Capabilities


class Pointer:
    """Device memory, as its flat form goes to the transport: nobody can read it here."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.__cuda_array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (4096, False)}

    def __len__(self) -> int:
        return self.nbytes


class Taking(Foreign):
    """Takes device memory; `frames` are those that came."""

    takes_device_memory = True

    def __init__(self) -> None:
        super().__init__()
        self.frames: list = []
        self.tells: list = []

    def send(self, frames, *, force=False, hold=False, released=None) -> bool:
        self.frames.extend(frames)
        self.tells.append(released)
        return True


@pytest.fixture
def pushing(cupy, monkeypatch):  # noqa: F811
    """(socket, its stream, a tensor on a device, its flat memory)."""
    tensor = on_gpu(np.arange(50_000.0))
    flat = Pointer(tensor.nbytes)
    flat.data = SimpleNamespace(ptr=tensor.data.ptr)
    settled: list = []
    made = export._flat_cupy

    def flattened(array):
        """The first time without memory that the host can read."""
        bits, header, memory = made(array)
        return bits, header, memory if settled else flat

    monkeypatch.setattr(export, "_flat_cupy", flattened)
    monkeypatch.setattr(export.device, "settle", lambda _: settled.append(1))
    with transfer.Context() as context, context.socket(transfer.PUSH) as socket:
        stream = Taking()
        stream.peer = Peer(stream, SimpleNamespace(address=""), transfer.PULL)
        socket._attach(stream, True, False)
        yield SimpleNamespace(socket=socket, stream=stream, tensor=tensor, flat=flat, settled=settled)
        socket._detach(stream)


def test_by_its_pointer_where_the_peers_take_it(pushing):
    if core.IMPLEMENTATION != "native":
        pytest.skip("the twin stages")
    tracker = pushing.socket.send_tensor(pushing.tensor, copy=False)
    [frame] = pushing.stream.frames
    assert frame[4] is pushing.flat and pushing.settled == [1]
    assert not tracker.done
    pushing.stream.tells[0](None)
    assert pushing.socket.bytes_sent == pushing.flat.nbytes


@pytest.mark.parametrize("case", ["copy", "another peer", "small", "compression"])
def test_staged_where_it_cannot_go(pushing, case, monkeypatch):
    tensor, copy = pushing.tensor, False
    if case == "copy":
        copy = None
    elif case == "another peer":
        pushing.stream.takes_device_memory = False
    elif case == "small":
        tensor = tensor[:10]
    else:
        pushing.socket.compression = "lz4"
    pushing.settled.append(0)
    pushing.socket.send_tensor(tensor, copy=copy)
    [frame] = pushing.stream.frames
    assert frame[4] is not pushing.flat
    if case != "compression":
        assert bytes(frame[4]) == np.asarray(tensor).tobytes()


def test_a_core_that_refuses_pointers_gets_bytes(pushing, monkeypatch):
    sent = pushing.socket._send_outframes
    calls: list = []

    def refuse(frames, *rest):
        calls.append(frames[0][4])
        if calls[-1] is pushing.flat:
            raise TypeError("no buffer")
        return sent(frames, *rest)

    monkeypatch.setattr(pushing.socket, "_send_outframes", refuse, raising=False)
    pushing.socket.send_tensor(pushing.tensor, copy=False)
    assert calls[0] is pushing.flat and len(calls) == 2
    assert bytes(pushing.stream.frames[0][4]) == np.asarray(pushing.tensor).tobytes()


def test_the_warning_of_virtual_memory_comes_once(monkeypatch, caplog):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setattr(gpu_sending, "_warned", set())
    with caplog.at_level(logging.WARNING, "transfer"):
        for _ in range(2):
            found = gpu_sending.way_of(Pointer(1 << 20), Capabilities(device_memory=True))
            assert found.route is gpu.GpuRoute.STAGING
    assert len(caplog.records) == 1
