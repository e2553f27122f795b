"""Tensors over real sockets on loopback, by every pattern."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import transfer
from tests.sockets.conftest import KeepingContext
from transfer.sockets.monitor import EventKind

X = np.arange(60_000, dtype="f4").reshape(200, 300)
STATE = {"weight": X, "bias": np.arange(5.0), "turned": np.asfortranarray(X)}


@pytest.fixture
def ctx() -> Iterator[Any]:
    with KeepingContext() as context:  # else a collection in the middle finds sockets unclosed
        yield context


def joined(ctx: Any, one: int, other: int, **options: Any) -> tuple[Any, Any]:
    receiver, sender = ctx.socket(other), ctx.socket(one)
    for socket in (receiver, sender):
        socket.rcvtimeo = socket.sndtimeo = 10_000
        for name, value in options.items():
            setattr(socket, name, value)
    receiver.bind("tcp://127.0.0.1:0")
    sender.connect(receiver.last_endpoint)
    return sender, receiver


def same(state: dict[str, Any]) -> None:
    assert list(state) == list(STATE)
    assert all(np.array_equal(state[name], tensor) for name, tensor in STATE.items())


@pytest.mark.parametrize("options", [{}, {"compression": "lz4"}, {"checksum": True}], ids=str)
@pytest.mark.parametrize(
    "types",
    [(transfer.PUSH, transfer.PULL), (transfer.PAIR, transfer.PAIR), (transfer.DEALER, transfer.DEALER)],
    ids=lambda types: types[0].name,
)
def test_one_way(ctx: Any, types: Any, options: Any) -> None:
    sender, receiver = joined(ctx, *types, **options)
    for tensor in (X, X.T, X[::2], np.zeros((300, 300), "c16"), np.zeros((0, 2)), np.float32(1)):
        sender.send_tensor(tensor)
        assert np.array_equal(receiver.recv_tensor(), np.asarray(tensor))
        out = np.empty_like(np.asarray(tensor))
        sender.send_tensor(tensor)
        assert receiver.recv_tensor(out=out) is out
        assert np.array_equal(out, np.asarray(tensor))
    sender.send_tensors(STATE, meta={"step": 1})
    state, meta = receiver.recv_tensors()
    same(state)
    assert meta == {"step": 1}
    sender.send(b"plain")
    with pytest.raises(transfer.TensorMismatch):
        receiver.recv_tensor()
    assert receiver.recv() == b"plain"


def test_request_and_reply(ctx: Any) -> None:
    client, server = joined(ctx, transfer.REQ, transfer.REP)
    for _ in range(3):
        client.send_tensor(X)
        server.send_tensor(server.recv_tensor() * 2)
        assert np.array_equal(client.recv_tensor(), X * 2)
        client.send_tensors(STATE)
        server.send_tensors(*server.recv_tensors()[:1], meta="done")
        out = {name: np.empty_like(tensor) for name, tensor in STATE.items()}
        assert client.recv_tensors(out=out)[1] == "done"
        same(out)


@pytest.mark.parametrize("same_header", [False, True])
def test_a_wait_that_ends_inside_a_reply_goes_on(ctx: Any, same_header: bool, monkeypatch: Any) -> None:
    """A REQ waits in short steps, with the same memory for each."""
    monkeypatch.setattr("transfer.sockets.socket._LOOK", 1)
    client, server = joined(ctx, transfer.REQ, transfer.REP)
    wanted = {f"t{n}": np.full((4000, 1000 if same_header else 1000 + n), n, "f4") for n in range(6)}
    for _ in range(3):
        client.send(b"weights")
        assert server.recv() == b"weights"
        out = {name: np.empty_like(tensor) for name, tensor in wanted.items()}
        sender = threading.Thread(target=server.send_tensors, args=(wanted,))
        sender.start()
        client.recv_tensors(out=out)
        sender.join()
        assert all(np.array_equal(out[name], tensor) for name, tensor in wanted.items())


def test_a_dealer_sends_its_empty_part_to_a_rep(ctx: Any) -> None:
    dealer, server = joined(ctx, transfer.DEALER, transfer.REP)
    dealer.send(b"", transfer.SNDMORE)
    dealer.send_tensor(X)
    assert np.array_equal(server.recv_tensor(), X)


def test_topics(ctx: Any) -> None:
    subscriber, publisher = joined(ctx, transfer.SUB, transfer.PUB)
    subscriber.subscribe("weights")
    publisher.wait_for_peers(1, timeout=10)
    publisher.send_tensor(X, topic="other")
    publisher.send_tensor(X, topic="weights.1")
    assert np.array_equal(subscriber.recv_tensor(), X)
    publisher.send_tensors(STATE, topic="weights.2")
    same(subscriber.recv_tensors()[0])
    with pytest.raises(transfer.Again):
        subscriber.recv_tensor(transfer.DONTWAIT)


def test_a_tracker_tells_when_the_memory_is_free(ctx: Any) -> None:
    sender, receiver = joined(ctx, transfer.PUSH, transfer.PULL)
    memory = bytearray(8 << 20)
    tracker = sender.send_tensor(memory, copy=False, track=True)
    assert receiver.recv_tensor().nbytes == len(memory)
    tracker.wait(10)
    memory.extend(b"free")
    tracker.wait_confirmed(10)
    for options in ({"track": True}, {"copy": False}):
        tracker = sender.send_tensors({"a": X}, **options)
        receiver.recv_tensors()
        tracker.wait_confirmed(10)


@pytest.mark.parametrize("nbytes", [3, 100_000], ids=["small", "large"])
@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (struct.pack("<II4qB7x", 99, 1, 3, 0, 0, 0, 0), "dtype"),
        (struct.pack("<II4qB7x", 2, 9, 3, 0, 0, 0, 0), "shape"),
        (struct.pack("<II4qB7x", 2, 1, -3, 0, 0, 0, 0), "shape"),
        (struct.pack("<II4qB7x", 2, 1, 7, 0, 0, 0, 0), "shape"),
        (struct.pack("<II4qB7x", 2, 1, 1, 0, 0, 0, 7), "tensor"),
    ],
    ids=["dtype", "dimensions", "negative", "length", "layout"],
)
def test_a_bad_header_ends_its_connection_and_no_other(
    ctx: Any, header: bytes, reason: str, nbytes: int
) -> None:
    bad, receiver = joined(ctx, transfer.PUSH, transfer.PULL)
    good = ctx.socket(transfer.PUSH)
    monitor = receiver.get_monitor()
    with monitor:
        good.connect(receiver.last_endpoint)
        receiver.wait_for_peers(2, timeout=10)
        bad._send_outframes([(1, 0, None, header, bytes(nbytes))])
        while (event := monitor.recv(10)).kind is not EventKind.PROTOCOL_FAILED:
            if event.kind is EventKind.CONNECTED:
                with pytest.raises(transfer.Again):
                    while True:
                        receiver.recv_tensor(transfer.DONTWAIT)
            else:
                receiver.poll(10)
        assert event.reason == reason
    good.send_tensor(X)
    assert np.array_equal(receiver.recv_tensor(), X)
