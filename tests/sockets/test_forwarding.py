"""Messages that are passed on as they came, and connections that were accepted elsewhere."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import numpy as np
import pytest

import transfer
from transfer import zmq
from transfer.transports.errors import Closed, NotSupported


def bound(context, kind, endpoint="tcp://127.0.0.1:0"):
    made = context.socket(kind)
    made.rcvtimeo = made.sndtimeo = 10_000
    made.bind(endpoint)
    return made


def connected(context, kind, endpoint):
    made = context.socket(kind)
    made.rcvtimeo = made.sndtimeo = 10_000
    made.connect(endpoint)
    return made


def passed_on(source, target):
    """One message from a socket to another, as it came."""
    frames = source.recv_frames()
    target.send_frames([(frame.topic, frame.meta, frame.flags, frame.data) for frame in frames])


@pytest.fixture
def line(context):
    """push, in, out, pull: what is pushed comes in, and what goes out is pulled."""
    inner, outer = bound(context, transfer.PULL), bound(context, transfer.PUSH)
    return (
        connected(context, transfer.PUSH, inner.last_endpoint),
        inner,
        outer,
        connected(context, transfer.PULL, outer.last_endpoint),
    )


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 4), (300, 300), (1, 2, 3, 4, 5)])
def test_a_tensor_is_the_same_behind_a_broker(line, shape):
    push, inner, outer, pull = line
    tensor = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    push.send_tensor(tensor)
    passed_on(inner, outer)
    got = pull.recv_tensor()
    assert got.dtype == tensor.dtype
    np.testing.assert_array_equal(got, tensor)


def test_a_dict_of_tensors_with_its_words_is_the_same(line):
    push, inner, outer, pull = line
    push.send_tensors({"a": np.ones((2, 2)), "b": np.zeros(70_000, np.int8)}, meta={"step": 7})
    passed_on(inner, outer)
    tensors, meta = pull.recv_tensors()
    assert meta == {"step": 7}
    assert {name: (one.shape, one.dtype) for name, one in tensors.items()} == {
        "a": ((2, 2), np.dtype(np.float64)),
        "b": ((70_000,), np.dtype(np.int8)),
    }


def test_parts_and_topics_are_the_same(line):
    push, inner, outer, pull = line
    push.send_multipart([b"one", b"", bytes(100_000)])
    passed_on(inner, outer)
    assert pull.recv_multipart() == [b"one", b"", bytes(100_000)]
    push.send_tensor(np.ones(3), topic="weights")
    passed_on(inner, outer)
    assert pull.recv_multipart()[0] == b"weights"


def test_what_was_compressed_stays_so(line):
    pytest.importorskip("lz4")
    push, inner, outer, pull = line
    push.compression = "lz4"
    push.send(bytes(200_000))
    frames = inner.recv_frames()
    assert len(frames[0].data) < 10_000
    outer.send_frames([(frame.topic, frame.meta, frame.flags, frame.data) for frame in frames])
    assert pull.recv() == bytes(200_000)


def test_a_router_tells_whom_it_reaches_and_lets_one_go():
    with transfer.Context() as context:
        router, dealers = context.socket(transfer.ROUTER), [context.socket(transfer.DEALER) for _ in range(2)]
        router.rcvtimeo = 10_000
        router.bind("tcp://127.0.0.1:0")
        dealers[1].identity = b"named"
        for dealer in dealers:
            dealer.reconnect_ivl = 60_000
            dealer.connect(router.last_endpoint)
            dealer.send(b"here")
        (nameless,) = {bytes(router.recv_frames()[0]) for _ in dealers} - {b"named"}
        assert router.routes() == {nameless: 0, b"named": 0}
        assert router.expel(nameless, "it does not read") and not router.expel(b"nobody", "")
        assert list(router.routes()) == [b"named"]
        deadline = time.monotonic() + 10
        while dealers[0].peers():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert not router.expel(nameless, "again")
        with pytest.raises(NotSupported, match="DEALER"):
            dealers[1].routes()


def test_a_proxy_passes_tensors_on():
    context = zmq.Context()
    frontend, backend = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    frontend.bind("tcp://127.0.0.1:0")
    backend.bind("tcp://127.0.0.1:0")
    push, pull = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    push.connect(frontend.last_endpoint)
    pull.connect(backend.last_endpoint)
    pull.rcvtimeo = 10_000
    carrying = threading.Thread(target=lambda: until_terminated(frontend, backend))
    carrying.start()
    try:
        push.send_tensor(np.arange(6.0).reshape(2, 3))
        np.testing.assert_array_equal(pull.recv_tensor(), np.arange(6.0).reshape(2, 3))
    finally:
        context.destroy(0)
        carrying.join(10)
    assert not carrying.is_alive()


def until_terminated(frontend, backend):
    with suppress(zmq.ContextTerminated, Closed):
        zmq.proxy(frontend, backend)
