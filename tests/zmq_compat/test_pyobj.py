"""`send_pyobj` and `recv_pyobj` of `transfer.zmq`, without pickle; tests/objects has the codec's tests."""

from __future__ import annotations

import asyncio
import pickle
from collections import OrderedDict

import numpy as np
import pytest

import transfer.zmq as zmq
import transfer.zmq.asyncio as aio
from transfer.transports.errors import PickleRefused, ProtocolError

from .conftest import PATIENCE

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def objects(monkeypatch):
    """Two PAIRs, of which nothing is pickled."""
    monkeypatch.delenv("MOONCAKE_ALLOW_PICKLE", raising=False)
    monkeypatch.delenv("TRANSFER_PICKLE_ALLOW", raising=False)
    with zmq.Context() as ctx, ctx.socket(zmq.PAIR) as left, ctx.socket(zmq.PAIR) as right:
        left.rcvtimeo = right.rcvtimeo = PATIENCE
        right.connect(f"tcp://127.0.0.1:{left.bind_to_random_port('tcp://127.0.0.1')}")
        yield left, right


def test_objects_travel_without_pickle(objects):
    left, right = objects
    array = np.arange(1 << 17, dtype=np.float64)
    for value in ({1, 2}, (1, "two", b"3"), {"a": [None, 2.5], 1: (1 << 70,)}, None):
        left.send_pyobj(value, protocol=2)
        assert right.recv_pyobj() == value
    left.send_pyobj({"x": array}, copy=False)
    got = right.recv_pyobj()["x"]
    assert np.array_equal(got, array)
    got += 1  # writable, and its memory is no other message's
    left.send_pyobj({"x": array})
    assert np.array_equal(right.recv_pyobj()["x"], array) and got[0] == 1


def test_other_classes_need_the_allow_list(objects, monkeypatch):
    left, right = objects
    value = OrderedDict(a=1)
    with pytest.raises(PickleRefused, match=r"TRANSFER_PICKLE_ALLOW=collections\.OrderedDict"):
        left.send_pyobj(value)
    monkeypatch.setenv("TRANSFER_PICKLE_ALLOW", "collections.OrderedDict")
    left.send_pyobj(value)
    assert type(right.recv_pyobj()) is OrderedDict
    left.send_pyobj(value)
    monkeypatch.delenv("TRANSFER_PICKLE_ALLOW")
    with pytest.raises(PickleRefused, match="TRANSFER_PICKLE_ALLOW"):
        right.recv_pyobj()


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (pickle.dumps({"a": 1}), PickleRefused),
        (b"", ProtocolError),
        (b"text", ProtocolError),
        (b"\xc1TO\x01\xdd\xff\xff\xff\xff", ProtocolError),
    ],
)
def test_other_bytes_end_nothing(objects, data, error):
    left, right = objects
    left.send(data)
    left.send_pyobj("next")
    with pytest.raises(error):
        right.recv_pyobj()
    assert right.recv_pyobj() == "next"


class OfFlags(zmq.Socket):
    """Its `recv` has pyzmq's oldest arguments; pyzmq's `recv_pyobj` calls it with the flags alone."""

    received = ()

    def recv(self, flags=0):
        part = super().recv(flags)
        self.received += (part,)
        return part


class OfFlagsInAsyncio(aio.Socket):
    def recv(self, flags=0):
        return super().recv(flags)


def test_recv_of_a_derived_class(objects):
    left, right = objects
    derived = OfFlags(shadow=right)
    left.send_pyobj({1: 2})
    assert derived.recv_pyobj() == {1: 2} and len(derived.received) == 1

    async def main():
        with aio.Context() as ctx, ctx.socket(zmq.PUSH) as push, OfFlagsInAsyncio(ctx, zmq.PULL) as pull:
            pull.connect(f"tcp://127.0.0.1:{push.bind_to_random_port('tcp://127.0.0.1')}")
            await push.send_pyobj({1: 2})
            assert await asyncio.wait_for(pull.recv_pyobj(), 5) == {1: 2}

    asyncio.run(main())


def test_large_arrays_of_a_derived_class_lie_in_the_message(objects):
    class Derived(zmq.Socket):
        pass

    left, right = objects
    array = np.arange(1 << 17, dtype=np.float64)
    copies = []

    class Copying(zmq.Socket):
        def recv(self, flags=0, copy=True, track=False):
            copies.append(copy)
            return super().recv(flags, copy, track)

    for kind in (Derived, Copying):
        left.send_pyobj(array)
        assert np.array_equal(kind(shadow=right).recv_pyobj(), array)
    assert copies == [True]  # as pyzmq calls it


def test_objects_of_asyncio(monkeypatch):
    monkeypatch.delenv("MOONCAKE_ALLOW_PICKLE", raising=False)

    async def main():
        with aio.Context() as ctx, ctx.socket(zmq.PAIR) as left, ctx.socket(zmq.PAIR) as right:
            right.connect(f"tcp://127.0.0.1:{left.bind_to_random_port('tcp://127.0.0.1')}")
            waiting = right.recv_pyobj()
            await left.send_pyobj(({1}, np.float32(2)))
            assert await asyncio.wait_for(waiting, 5) == ({1}, np.float32(2))
            await left.send(b"text")
            await left.send_pyobj(3)
            with pytest.raises(ProtocolError):
                await asyncio.wait_for(right.recv_pyobj(), 5)
            assert await asyncio.wait_for(right.recv_pyobj(), 5) == 3

    asyncio.run(main())
